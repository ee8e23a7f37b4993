"""What the README tells people to type works as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from surefoot import write_predictions
from tests.cli.command import in_a_process
from tests.conftest import draw_one_label

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("surefoot ")]


def test_it_opens_with_the_two_commands():
    first = blocks("sh")[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make quickstart", "make test"]
    assert len(README.splitlines()) < 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    for seed, name in enumerate(("val", "familiar", "unfamiliar", "new")):
        write_predictions(draw_one_label(100, seed=seed, sharpness=3), folder / f"{name}.parquet")
    return folder


def smaller(line):
    """The same command on networks that a test has time for."""
    if not line.startswith("surefoot run"):
        return ()
    values = ("epochs=1", "width=8", "runs=2", "members=2", "folds=2", "resamples=20")
    methods = ("single", "single-t", "ensemble-of-t", "novelty")
    return [
        *(word for value in values for word in ("--set", value)),
        *(word for method in methods for word in ("--method", method)),
    ]


def test_every_command_runs(folder):
    assert len(commands()) == 6
    for line in commands():
        in_a_process(*shlex.split(line)[1:], *smaller(line), cwd=folder)
    assert (folder / "report" / "report.html").exists()
    assert (folder / "calibrated.parquet").exists()
    assert len(list((folder / "runs" / "experiments").glob("letters/report.html"))) == 1


def test_the_python_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    val, test = draw_one_label(200, sharpness=3), draw_one_label(200, sharpness=3, seed=1)
    names = {
        "model": torch.nn.Linear(4, 4),
        "val_loader": [(torch.ones(8, 4), torch.arange(8) % 4)],
        "x": torch.ones(1, 4),
        "val_logits": val.logits,
        "val_labels": val.labels,
        "test_logits": test.logits,
        "test_labels": test.labels,
    }
    (code,) = blocks("python")
    exec(code, names)
    assert "Proportion(k=" in capsys.readouterr().out
    assert names["probabilities"].shape == (1, 4)
