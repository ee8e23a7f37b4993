"""The six questions are answered by their intervals, and by nothing else."""

import math

import pytest
from scipy.stats import ttest_1samp

from surefoot.comparison import Difference
from surefoot.methods import method_named
from surefoot.questions import BEYOND, PAIRS, QUESTIONS
from surefoot.report.question_tables import answer, question_grids
from surefoot.report.study_tables import setting_of


@pytest.mark.parametrize(
    ("low", "high", "margin", "said"),
    [
        (-0.3, -0.1, 0.1, "yes"),
        (-0.3, -0.1, 0.3, "cannot be told"),  # other trainings might have given something else
        (-0.3, -0.1, math.nan, "yes"),  # of one run each, so nothing is known of others
        (-0.3, 0.1, 0.0, "cannot be told"),
        (0.1, 0.3, 0.1, "no: worse"),
        (0.001, 0.002, 0.001, "no: the same"),
        (0.001, 0.002, 0.01, "cannot be told"),
        (-0.004, 0.004, 0.0, "no: the same"),
        (math.nan, math.nan, 0.0, "cannot be told"),
    ],
)
def test_an_answer_is_what_both_intervals_allow(low, high, margin, said):
    gap = Difference((low + high) / 2, low, high)
    assert answer(QUESTIONS[0], gap, margin, 1.0) == said


def test_questions_ask_of_honest_methods_and_each_pair_once():
    assert len(QUESTIONS) == 6
    assert len(set(PAIRS)) == len(PAIRS)
    for pair in PAIRS:
        assert not any(method_named(name).cheating for name in pair)
    assert {name for name, _ in BEYOND} >= {"budget-t", "held-out-t", "averaged-t"}


def test_a_study_answers_those_whose_methods_it_has(made):
    (part,) = made.study().parts
    asked, beyond = question_grids(part.comparison, setting_of(part))
    texts = [row.name for row in asked.sections[0].rows]
    assert [text.split("?")[0] for text in texts] == [
        "Does T from familiar data help",
        "Does novelty scaling beat T",
        "Do ensembles help",
    ]
    with_it, without = (
        part.comparison.method(name).cells["unfamiliar", "nll"] for name in ("single-t", "single")
    )
    row = asked.sections[0].rows[0]
    assert (row.cells[1].text, row.cells[2].text) == (f"{with_it.mean:.4f}", f"{without.mean:.4f}")
    assert row.cells[3].text == f"{with_it.from_baseline.value:+.4f}"
    gaps = [one.value - other.value for one, other in zip(with_it.runs, without.runs, strict=True)]
    t = ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert row.cells[4].text == f"±{(t.high - t.low) / 2:.4f}"
    assert [row.name for row in beyond.sections[0].rows] == [method_named("held-out-t").title]
    gap = part.comparison.pairs["held-out-t", "ensemble-of-t"]["unfamiliar", "nll"]
    runs = [
        part.comparison.method(name).cells["unfamiliar", "nll"].mean
        for name in ("held-out-t", "ensemble-of-t")
    ]
    assert gap.value == pytest.approx(runs[0] - runs[1])
    assert gap.low <= gap.value <= gap.high


def test_without_a_bootstrap_nothing_is_answered(made):
    (part,) = made.study(resamples=0).parts
    assert question_grids(part.comparison, setting_of(part)) == []
