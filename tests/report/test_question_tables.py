"""The six questions are answered by their intervals, and by nothing else."""

import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from surefoot.evaluation.comparison import Difference
from surefoot.experiments.methods import METHODS
from surefoot.experiments.paper import NOT_IN_PAPER, PAIRS, QUESTIONS
from surefoot.intervals import StandardError
from surefoot.report.study_part import table_context
from surefoot.report.study_questions import answer, pairs_csv, question_tables
from tests.report.studies import Row, by_hand


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (-0.3, -0.1, 0.1, "yes"),
        (-0.3, -0.1, 0.18, "inconclusive"),  # 0.1 and 0.18 add to 0.206
        (-0.3, -0.1, math.nan, "yes"),  # of one run each, so nothing is known of others
        (-0.3, 0.1, 0.0, "inconclusive"),
        (0.1, 0.3, 0.1, "no: worse"),
        (0.001, 0.002, 0.001, "no: negligible difference"),
        (0.001, 0.002, 0.01, "inconclusive"),
        (-0.004, 0.004, 0.0, "no: negligible difference"),
        (math.nan, math.nan, 0.0, "inconclusive"),
    ],
)
def test_an_answer_is_what_both_intervals_allow(low, high, margin, expected):
    # So many groups and networks that Student's t is the normal one.
    gap = Difference((low + high) / 2, low, high, over_runs=StandardError.of_margin(margin, math.inf))
    assert answer(QUESTIONS[0], gap, 1.0) == expected


def test_questions_ask_of_honest_methods_and_each_pair_once():
    assert len(QUESTIONS) == 6
    assert len(set(PAIRS)) == len(PAIRS)
    for pair in PAIRS:
        assert not any(METHODS.named(name).oracle for name in pair)
    assert {name for name, _ in NOT_IN_PAPER} >= {"budget-t", "held-out-t", "averaged-t"}


def test_a_study_answers_those_whose_methods_it_has(made):
    (part,) = made.study().parts
    questions, _, not_in_paper = question_tables(part.comparison, table_context(part))
    texts = [row[0].text for row in questions.rows]
    assert [text.split("?")[0] for text in texts] == [
        "Does T from familiar data help",
        "Does novelty scaling beat T",
        "Do ensembles help",
    ]
    with_it, without = (
        part.comparison.method(name).cells["unfamiliar", "nll"] for name in ("single-t", "single")
    )
    row = questions.rows[0]
    assert (row[3].text, row[4].text) == (f"{with_it.mean:.4f}", f"{without.mean:.4f}")
    assert row[5].text == f"{with_it.from_baseline.value:+.4f}"
    gaps = [one.value - other.value for one, other in zip(with_it.runs, without.runs, strict=True)]
    t = ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert row[6].text == f"±{(t.high - t.low) / 2:.4f}"
    assert [row[0].text for row in not_in_paper.rows] == [METHODS.named("held-out-t").title]
    gap = part.comparison.pairs["held-out-t", "ensemble-of-t"]["unfamiliar", "nll"]
    runs = [
        part.comparison.method(name).cells["unfamiliar", "nll"].mean
        for name in ("held-out-t", "ensemble-of-t")
    ]
    assert gap.value == pytest.approx(runs[0] - runs[1])
    assert gap.low <= gap.value <= gap.high


def test_ensembles_are_compared_with_each_other_and_students_with_both(made):
    (part,) = made.study().parts
    _, ensembles, _ = question_tables(part.comparison, table_context(part))
    title = {
        name: METHODS.named(name).title
        for name in ("ensemble-of-t", "t-of-ensemble", "single-t", "g-distill")
    }
    assert [row[0].text for row in ensembles.rows] == [
        f"{title['t-of-ensemble']} minus {title['ensemble-of-t']}",
        f"{title['ensemble-of-t']} minus {title['single-t']}",
        f"{title['t-of-ensemble']} minus {title['single-t']}",
        f"{title['g-distill']} minus {title['ensemble-of-t']}",
        f"{title['g-distill']} minus {title['t-of-ensemble']}",
    ]
    assert "oracle" in ensembles.columns[2].name
    gap = part.comparison.pairs["g-distill", "t-of-ensemble"]["unfamiliar", "nll_best_t"]
    assert ensembles.rows[-1][2].text == f"{gap.value:+.4f}"


def test_every_interval_of_a_pair_is_in_the_csv(made):
    (part,) = made.study().parts
    lines = list(csv.DictReader(io.StringIO(pairs_csv(part.comparison))))
    requested = {pair for pair in part.comparison.pairs if pair in PAIRS}
    assert {(line["method"], line["other"]) for line in lines} == requested
    (line,) = [
        line
        for line in lines
        if (line["method"], line["other"], line["side"], line["metric"])
        == ("t-of-ensemble", "single-t", "unfamiliar", "nll")
    ]
    gap = part.comparison.pairs["t-of-ensemble", "single-t"]["unfamiliar", "nll"]
    numbers = (gap.low, gap.high, gap.independent, gap.these.low, gap.these.high, gap.over_runs.margin)
    names = ("new_groups_low", "new_groups_high", "groups", "these_groups_low", "these_groups_high")
    names += ("over_runs_margin", "combined_low", "combined_high", "sign_flip_p")
    assert [float(line[name]) for name in names] == [*numbers, *gap.ends, gap.p]
    assert gap.over_runs.freedom >= 1  # one ensemble of two members, left out in turn
    assert 0 < gap.p <= 1


def test_the_number_of_comparisons_is_noted(made):
    (part,) = made.study().parts
    questions, _, _ = question_tables(part.comparison, table_context(part))
    compared = sum(pair in part.comparison.pairs for pair in PAIRS)
    assert questions.notes[-1].startswith(f"{compared} comparisons of methods")


GAPS = {("ensemble-of-t", "single-t"): (-0.3, -0.4, -0.2), ("distill-t", "ensemble-of-t"): (0.1, 0.0, 0.2)}


def notes_on_students(*ensembles, margin=0.1):
    runs = {"single-t": (1.0, 1.2, 1.1, 1.3), "distill-t": (0.9, 1.1, 1.0), "ensemble-of-t": ensembles}
    part = by_hand({name: Row(unfamiliar=values) for name, values in runs.items()}, pairs=GAPS)
    pairs = {
        pair: {
            place: replace(gap, over_runs=StandardError.of_margin(margin, math.inf))
            for place, gap in of_pair.items()
        }
        for pair, of_pair in part.comparison.pairs.items()
    }
    comparison = replace(part.comparison, pairs=pairs, resamples=10)
    questions = question_tables(comparison, table_context(part))[0]
    return questions.notes[1:-1]


def test_what_students_keep_is_said_with_its_error_over_runs():
    sentence = "Students keep 43% of the reduction in unfamiliar NLL from one network to an ensemble"
    rng = np.random.default_rng(0)
    one = rng.normal(1.15, np.std([1.0, 1.2, 1.1, 1.3], ddof=1) / 2, 200_000)
    student = rng.normal(1.0, 0.1 / 3**0.5, 200_000)
    keeps = (
        np.median(np.abs((one - student) / (one - 0.8) - 0.15 / 0.35)) / 0.6745
    )  # robust: a ratio has tails
    (note,) = notes_on_students(0.8)
    points = int(re.fullmatch(rf"{sentence} \(standard error over runs (\d+) points\)\.", note)[1])
    assert points == pytest.approx(100 * keeps, abs=2)


def test_two_ensembles_are_named_and_make_it_less_certain():
    taught, note = notes_on_students(0.7, 0.9)
    assert (
        taught
        == "The first ensemble was the teacher of all students; they are compared with the mean of the 2 ensembles."
    )
    assert int(note.split()[-2]) > int(notes_on_students(0.8)[0].split()[-2])


def test_nothing_is_kept_of_a_gain_that_is_not_certain():
    assert notes_on_students(0.8, margin=0.4) == ()


def test_without_a_bootstrap_nothing_is_answered(made):
    (part,) = made.study(resamples=0).parts
    assert question_tables(part.comparison, table_context(part)) == []
