"""The pages of docs lead where they say, none is missing, and their scores are the published ones."""

import re
import tomllib
from pathlib import Path

import pytest
import typer

from surefoot.cli.app import app
from surefoot.lab.comparison.comparison import mean_scores
from surefoot.lab.experiments.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
METHOD_PAGES = [page for page in PAGES if page.parent == DOCS / "methods" and page.name != "README.md"]
METHOD_TABLE = (DOCS / "methods" / "README.md").read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt)/")


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page):
    for link in LINK.findall(without_code(page)):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(page):
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](page.md#a-title) [b](gone.md) [c](#gone) [d](https://example.org)\n")
    assert list(broken(page)) == ["gone.md", "#gone"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_is_named_in_a_page(method):
    assert any(f"`{method.name}`" in page.read_text() for page in METHOD_PAGES)


def test_the_table_of_methods_has_every_page():
    pages = re.findall(r"^\| \[.+?\]\(([\w-]+)\.md\)", METHOD_TABLE, flags=re.MULTILINE)
    assert sorted(pages) == sorted(page.stem for page in METHOD_PAGES)


@pytest.mark.parametrize("name", sorted(typer.main.get_command(app).commands))
def test_every_command_has_a_page(name):
    page = DOCS / "commands" / f"{name}.md"
    assert page.read_text().startswith(f"# surefoot {name}\n")
    assert f"({name}.md)" in (DOCS / "commands" / "README.md").read_text()


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)
def test_a_method_s_page_fits_a_screen_and_names_no_machine(page):
    assert len(page.read_text().splitlines()) <= 40
    assert MACHINE.search(page.read_text()) is None


def published_means(task):
    return mean_scores(DOCS / "results" / f"{task}-scores.csv")


def test_the_table_of_all_methods_shows_the_published_changes():
    tasks = [published_means(task) for task in ("gender-utkface", "cat-dog", "animals64", "objects96")]
    page = (DOCS / "results" / "README.md").read_text()
    rows = re.findall(r"^\| `(.+?)`" + r" \| ([+-]?\d+)%" * 4 + r" \|$", page, re.M)
    assert len(rows) == 13
    for method, *shown in rows:
        changes = [
            means[method, "unfamiliar", "nll"] / means["single-t", "unfamiliar", "nll"] - 1 for means in tasks
        ]
        assert [float(each) for each in shown] == [round(100 * change) for change in changes], method


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_an_experiment_has_the_best_recipe_that_was_found(path):
    trials = re.findall(
        r"^# learning rate (\S+): (\d+) epochs, error (\S+), NLL (\S+)$", path.read_text(), re.M
    )
    rate, epochs, *_ = min(trials, key=lambda trial: (float(trial[2]), float(trial[3])))
    recipe = tomllib.loads(path.read_text())["recipe"]
    assert (recipe["learning_rate"], recipe["epochs"]) == (float(rate), int(epochs))
    tried = sorted(float(trial[0]) for trial in trials)
    assert tried[0] < float(rate) < tried[-1]


REPORTS = (*PAGES, *sorted((ROOT / "benchmarks").rglob("*.md")))
SCRIPT = re.compile(r"(?<!lab/)\b(?:benchmarks|experiments)/(?:[\w-]+/)*(?!test_)[\w-]+\.(?:py|toml)\b")
PLACEHOLDERS = {"experiments/NAME.toml", "experiments/candidates/NAME.toml"}


def gone(page):
    """Scripts that a page names and nobody can run: they are not here, and it names no commit that has them."""
    named = set(SCRIPT.findall(page.read_text()))
    missing = {name for name in named - PLACEHOLDERS if not (ROOT / name).exists()}
    return set() if re.search(r"\bcommit [0-9a-f]{8}\b", page.read_text()) else missing


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_script_that_a_page_names_is_here_or_in_a_commit(page):
    assert gone(page) == set()


def test_a_script_that_is_gone_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`python experiments/nothing.py` and `python benchmarks/commands.py`")
    assert gone(page) == {"experiments/nothing.py"}
    page.write_text("`python experiments/nothing.py` of commit 01234567")
    assert gone(page) == set()
