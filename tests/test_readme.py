"""What the README tells people to type works as it stands there, and its numbers are the published ones."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from surefoot import write_predictions
from surefoot.lab.comparison.comparison import mean_scores
from surefoot.lab.experiments import paper
from surefoot.lab.experiments.methods import METHODS
from tests.cli.command import surefoot
from tests.conftest import draw_one_label

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = {"gender": "gender-utkface", "cat-dog": "cat-dog", "animals": "animals64", "objects": "objects96"}


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def lines(text):
    return [line.split("#")[0].strip() for block in blocks("sh", text) for line in block.splitlines()]


def test_it_opens_with_the_two_commands_and_is_short():
    assert lines(README)[:2] == ["make quickstart", "make test"]
    assert len(README.splitlines()) < 120


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for seed, name in enumerate(("val", "familiar", "unfamiliar")):
        write_predictions(draw_one_label(100, seed=seed, sharpness=3), tmp_path / f"{name}.parquet")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_runs(folder):
    inline = re.findall(r"`(surefoot [^`]* [^`]*)`", README)
    commands = [line for line in (*lines(README), *inline) if line.startswith("surefoot ")]
    assert len(commands) == 6
    tutorials = [lines(page.read_text()) for page in (ROOT / "docs/tutorials").glob("*.md")]
    for line in commands:
        if not any(line in of_one for of_one in tutorials):  # those are run by test_tutorials.py
            surefoot(*shlex.split(line)[1:])
    assert (folder / "report" / "report.html").exists()
    published = mean_scores(ROOT / "docs/results/cat-dog-scores.csv")["ensemble-of-t", "unfamiliar", "nll"]
    assert f"{published:.4f}" in (folder / "tables" / "cat-dog-tables.md").read_text()


def test_the_python_runs():
    torch = pytest.importorskip("torch")
    val_loader = [(torch.ones(8, 4), torch.arange(8) % 4)]
    names = {"model": torch.nn.Linear(4, 4), "val_loader": val_loader, "x": torch.ones(1, 4)}
    (code,) = blocks("python")
    exec(code, names)
    assert names["probabilities"].shape == (1, 4)


def test_the_table_shows_the_published_numbers_and_the_paper_s():
    rows = re.findall(r"^\| `([\w-]+)`.*?\| \d+ \| (.+) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 8
    with (Path(paper.__file__).parent / "paper_tables/results.csv").open(newline="") as file:
        theirs = {
            (row["task"], row["method"]): float(row["value"])
            for row in csv.DictReader(file)
            if (row["backbone"], row["metric"], row["split"]) == ("resnet18", "nll", "unfamiliar")
        }
    ours = {task: mean_scores(ROOT / f"docs/results/{name}-scores.csv") for task, name in RESULTS.items()}
    for method, cells in rows:
        row = METHODS.named(method).paper
        expected = [
            f"{ours[task][method, 'unfamiliar', 'nll']:.3f} (*{theirs[task, row]:.3f}*)" for task in RESULTS
        ]
        assert cells.split(" | ") == expected
