"""Tables of a study: safe names, every format, the numbers of the predictions."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cli.terminal import print_tables
from surefoot.evaluation.comparison import read_scores
from surefoot.experiments.run import Study
from surefoot.report.study import write_part_tables
from surefoot.report.study_part import part_names, part_reports
from surefoot.report.study_tables import safe_name
from tests.report.studies import UNFAMILIAR, empty_part, nll_by_hand


def headline_tables(study):
    return [table for part in part_reports(study) for table in part.headline]


def write_tables(study, folder):
    return [path for part in part_reports(study) for path in write_part_tables(part, folder / "tables")]


@given(st.text())
def test_a_safe_name_is_one_plain_piece_of_a_path(text):
    name = safe_name(text)
    assert 1 <= len(name) <= 60
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
    assert not name.startswith("-")


def test_parts_of_one_task_get_names_of_their_own(made):
    part = made.study(resamples=0, methods=("single",)).parts[0]
    assert part_names(Study(made.experiment, (part,))) == ["toy-small"]
    assert part_names(Study(made.experiment, (part,) * 3)) == [
        "toy-small-mlp",
        "toy-small-mlp--2",
        "toy-small-mlp--3",
    ]


def test_every_format_is_written_and_the_scores_can_be_read_again(made, tmp_path):
    study = made.study()
    paths = write_tables(study, tmp_path)
    endings = ("tables.md", "tables.tex", "tables.html", "scores.csv", "summary.csv", "pairs.csv")
    assert [path.name for path in paths] == [f"toy-small-{ending}" for ending in endings]
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)
    scores = read_scores(paths[3])
    for method in study.parts[0].comparison.methods:
        values = [score.value for score in scores[method.name]["unfamiliar", "nll"]]
        by_hand = [nll_by_hand(run.after[UNFAMILIAR]) for run in method.runs]
        assert values == pytest.approx(by_hand, abs=1e-8)  # of float32 logits
    lines = list(csv.DictReader(io.StringIO(paths[4].read_text())))
    assert {line["method"] for line in lines} == {method.name for method in study.parts[0].comparison.methods}
    assert {line["parameters"] for line in lines if line["method"] == "ensemble"} == {
        repr(2 * float(line["parameters"])) for line in lines if line["method"] == "single"
    }


def test_the_headline_has_the_means_on_both_sides(made):
    study = made.study(resamples=0)
    grid = headline_tables(study)[0]
    columns = [f"{m} {side}" for m in ("NLL", "Error", "ECE", "E99") for side in "FU"]
    assert grid.header[2:] == (*columns[:2], "Oracle NLL U", *columns[2:])
    assert any("oracle" in note for note in grid.notes)
    runs = study.parts[0].comparison.methods[0].runs
    mean = sum(nll_by_hand(run.after[UNFAMILIAR]) for run in runs) / len(runs)
    assert grid.rows[0][3].text == f"{mean:.4f}"
    assert headline_tables(Study(made.experiment, (empty_part(),))) == []


def test_a_method_without_the_one_that_lends_its_variance_can_be_reported(made):
    plan = made.plan
    alone = tuple(planned for planned in plan.methods if planned.method.name == "ensemble")
    study = type(made)(made.store, made.experiment, type(plan)(**{**vars(plan), "methods": alone})).study(
        resamples=0
    )
    assert [method.variance_from for method in study.parts[0].comparison.methods] == [None]


def test_in_a_narrow_terminal_no_number_is_cut(made, monkeypatch):
    output = io.StringIO()
    output.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setenv("COLUMNS", "80")
    grids = headline_tables(made.study(resamples=0))
    print_tables(grids)
    text = output.getvalue()
    for cell in grids[0].rows[0]:
        assert cell.text in text
    assert "…" not in text
