import csv
import io
import json
import math

import pytest

from surefoot import fit_temperature
from surefoot.evaluation.evaluate import evaluate
from surefoot.evaluation.scores import Score, evaluation_document
from surefoot.report.evaluation_tables import (
    difference_text,
    evaluation_csv,
    evaluation_tables,
    evaluation_verdict,
    score_text,
)
from surefoot.report.tables import Table, to_latex, to_markdown
from tests.conftest import draw_many_labels, draw_one_label


@pytest.fixture(scope="module")
def evaluation():
    groups = ["a|b_<c>", "d"] * 100
    sides = [draw_one_label(200, sharpness=4, seed=seed, groups=groups) for seed in (0, 1)]
    return evaluate(*sides, calibration=fit_temperature(draw_one_label(sharpness=4, seed=2)), resamples=20)


def test_text_of_scores():
    assert score_text(Score(0.12345, 0.1, 0.2)) == "0.1235 [0.1000, 0.2000]"
    assert score_text(Score(math.nan, k=0, n=0)) == "undefined (n = 0)"
    assert score_text(Score(math.nan)) == "undefined"
    assert difference_text(Score(-0.00001, -0.1, 0.00001)) == "+0.0000 [-0.1000, +0.0000]"


def test_document_holds_every_number_and_no_nan(evaluation):
    document = json.loads(json.dumps(evaluation_document(evaluation), allow_nan=False))
    assert document["familiar"]["n"] == 200
    for metric in evaluation.metrics:
        for side in ("familiar", "unfamiliar"):
            score = evaluation.sides[side].metrics[metric.name]
            assert document[side]["metrics"][metric.name]["value"] == score.value
        assert set(document["gap"][metric.name]) == {"value", "low", "high"}
    assert document["familiar"]["metrics"]["ece_floor"]["low"] is None
    assert document["familiar"]["worst_group"]["nll"]["group"] in ("a|b_<c>", "d")
    assert set(document["change"]) == set(document["uncalibrated"]) == {"familiar", "unfamiliar"}


def test_csv_is_numeric(evaluation):
    rows = list(csv.DictReader(io.StringIO(evaluation_csv(evaluation))))
    assert len(rows) == 7 * len(evaluation.metrics)
    parts = {**{s: e.metrics for s, e in evaluation.sides.items()}, "gap": evaluation.gap}
    parts |= {f"{s} change": change for s, change in evaluation.change.items()}
    parts |= {f"{s} uncalibrated": e.metrics for s, e in evaluation.uncalibrated.items()}
    for row in rows:
        score = parts[row["part"]][row["metric"]]
        assert row["value"] == ("" if math.isnan(score.value) else repr(score.value))


def test_one_side_alone_has_no_gap():
    table = evaluation_tables(evaluate(draw_one_label(), resamples=0))[0]
    assert len(table.header) == 2


def test_verdict_says_when_groups_are_few(evaluation):
    assert evaluation_verdict(evaluation)[-1].startswith(
        "The intervals are rough, because there are only 2 familiar groups and 2 unfamiliar groups;"
    )


def test_verdict_says_which_way(evaluation):
    sentences = evaluation_verdict(
        evaluate(draw_one_label(2000, sharpness=5), draw_one_label(2000, sharpness=8), resamples=50)
    )
    assert "points too high on average" in sentences[0]
    assert sentences[2].startswith("Of ")
    assert sentences[2].endswith(": above the limit of 1% for a calibrated model.")
    assert "too low" in evaluation_verdict(evaluate(draw_one_label(2000, sharpness=0.3), resamples=50))[0]
    assert (
        "does not differ significantly from its accuracy"
        in evaluation_verdict(evaluate(draw_one_label(500, seed=3), resamples=50))[0]
    )
    assert evaluation_verdict(evaluation)[-2].startswith("Calibration changed familiar NLL from ")
    assert "mean average precision" in evaluation_verdict(evaluate(draw_many_labels(), resamples=10))[0]


def test_columns_of_numbers_are_aligned_to_the_right():
    rows = (
        ("a", "+0.1", "x", "none"),
        ("b", "undefined (n = 0)", "2", "< 1e-300"),
        ("c", "", "-", "[-1, 2]"),
    )
    table = Table.of_text("", ("name", "numbers", "mixed", "numbers too"), rows)
    assert [column.align for column in table.columns] == ["left", "right", "left", "right"]
    assert "|:--|--:|:--|--:|" in to_markdown([table])
    assert r"\begin{tabular}{lrlr}" in to_latex([table])
