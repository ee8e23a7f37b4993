"""The verdict recommends what the numbers support, says what it costs, and claims no more than it may."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot import Predictions
from surefoot.evaluation.comparison import Mark, MethodRun
from surefoot.experiments.experiment import EXPERIMENTS
from surefoot.experiments.methods import METHODS
from surefoot.report import study_verdict as choices
from surefoot.report.study_part import PartReport
from surefoot.report.study_verdict import brief_tables, brief_verdict, choice_of
from tests.report.studies import SIDES, Row, by_hand, empty_part

NAN = math.nan
SINGLE = Row((1.0, 1.0), familiar=(0.2, 0.2), e99=0.10, from_best=(0.4, 0.3, 0.5))
ENSEMBLE = Row(
    (0.6,), familiar=(0.15,), e99=0.02, from_baseline=(-0.4, -0.5, -0.3), training=40.0, running=0.005
)


def verdict_of(part):
    return choices.verdict_of(part, choice_of(part))


def test_the_best_is_recommended_with_gain_cost_and_price():
    advice, price, caveat = verdict_of(by_hand({"single": SINGLE, "ensemble": ENSEMBLE}))
    assert advice == (
        "On letters, use Ensemble: it has the lowest NLL on unfamiliar data, with too few runs for a test; "
        "unfamiliar NLL goes from 1.000 to 0.600, 40% less (95% interval for new samples 30% to 50%), and the error rate above 99% confidence from 10.0% to 2.0%."
    )
    assert price == (
        "It takes 4.0 times as long to train and 5.0 times as long to run as a single network; "
        "on familiar data the NLL goes from 0.200 to 0.150 (25% less)."
    )
    assert caveat.startswith("From 2 runs (one of this method, which combines several networks)")


def test_the_interval_is_for_new_groups_where_groups_were_resampled():
    part = by_hand({"single": SINGLE, "ensemble": ENSEMBLE})
    grouped = Predictions.from_logits([[1.0, 0.0]] * 4, [0, 0, 1, 1], groups=["a", "a", "b", "b"])
    runs = (MethodRun.of_sides(0, grouped, grouped),)
    methods = tuple(replace(method, runs=runs) for method in part.comparison.methods)
    part = replace(part, comparison=replace(part.comparison, methods=methods))
    assert "(95% interval for new groups 30% to 50%)" in verdict_of(part)[0]


def test_of_methods_level_with_the_best_the_cheapest_to_run_is_taken():
    level = Row(
        (0.62, 0.62), from_best=(0.02, -0.01, 0.05), from_baseline=(-0.38, -0.45, -0.3), training=50.0
    )
    part = by_hand({"single": SINGLE, "ensemble": ENSEMBLE, "g-distill": level})
    assert choice_of(part).chosen.name == "g-distill"
    assert verdict_of(part)[0].startswith(
        "On letters, use G-distill: on unfamiliar data it is not significantly worse than Ensemble, which has the lowest NLL, "
        "and it is the cheapest to run; unfamiliar NLL goes from 1.000 to 0.620, 38% less"
    )
    assert "5.0 times as long to train as a single network, and the same time to run" in verdict_of(part)[1]
    worse = Row((0.62, 0.62), from_best=(0.02, 0.01, 0.05), training=50.0)
    part = by_hand({"single": SINGLE, "ensemble": ENSEMBLE, "g-distill": worse})
    assert choice_of(part).chosen.name == "ensemble"


def test_an_uncertain_method_does_not_win_by_that():
    surely_worse = Row((0.65, 0.65), from_best=(0.05, 0.02, 0.08))
    uncertain = Row((0.75, 0.75), from_best=(0.15, -0.05, 0.35))
    rows = {"single": SINGLE, "ensemble": ENSEMBLE, "single-t": surely_worse, "held-out-t": uncertain}
    part = by_hand(rows)
    assert choice_of(part).chosen.name == "ensemble"
    assert "no cheaper" not in verdict_of(part)[0]
    better = Row((0.64, 0.64), from_best=(0.04, -0.05, 0.13))
    assert choice_of(by_hand(rows | {"held-out-t": better})).chosen.name == "held-out-t"


def test_what_spoils_familiar_data_is_not_chosen_and_named():
    spoilt = Row((0.5, 0.5), familiar=(0.4, 0.4), familiar_from_baseline=(0.2, 0.1, 0.3))
    part = by_hand({"single": SINGLE, "held-out-t": spoilt})
    assert choice_of(part).chosen.name == "single"
    assert verdict_of(part)[-1].endswith(
        "Single + held-out-group T was not considered: it raises the familiar NLL by more than a tenth."
    )
    by_chance = replace(spoilt, familiar_from_baseline=(0.2, -0.1, 0.5))
    assert choice_of(by_hand({"single": SINGLE, "held-out-t": by_chance})).chosen.name == "held-out-t"
    a_little = Row((0.5, 0.5), familiar=(0.21, 0.21))
    assert choice_of(by_hand({"single": SINGLE, "held-out-t": a_little})).chosen.name == "held-out-t"
    assert choice_of(by_hand({"held-out-t": spoilt})).chosen.name == "held-out-t"


@pytest.mark.parametrize(("low", "name"), [(-0.01, "single-t"), (0.01, "ensemble")])
def test_where_the_best_spoils_familiar_data_the_others_are_held_against_each_other(low, name):
    spoilt = Row((0.5, 0.5), familiar=(0.4, 0.4), familiar_from_baseline=(0.2, 0.1, 0.3))
    ensemble = replace(ENSEMBLE, from_best=(0.1, -0.2, 0.4))
    scaled = Row((0.62, 0.62), from_best=(0.12, -0.2, 0.4))
    rows = {"single": SINGLE, "held-out-t": spoilt, "ensemble": ensemble, "single-t": scaled}
    part = by_hand(rows, pairs={("single-t", "ensemble"): (0.02, low, 0.05)})
    assert choice_of(part).chosen.name == name


def test_noise_in_the_times_of_equal_work_decides_nothing():
    best = Row((0.6, 0.6), running=0.0013, training=10.0)
    level = Row((0.61, 0.61), from_best=(0.01, -0.01, 0.03), running=0.0010, training=30.0)
    part = by_hand({"single": SINGLE, "single-t": best, "g-distill": level})
    assert choice_of(part).chosen.name == "single-t"


def test_a_gradient_counts_as_passes_although_it_was_not_timed():
    odin = Row((0.6, 0.6), running=0.001, training=10.0)
    members = Row((0.61,), from_best=(0.01, -0.01, 0.03), running=0.002, training=20.0)
    part = by_hand({"single": SINGLE, "novelty": odin, "ensemble": members})
    assert choice_of(part).chosen.name == "ensemble"
    alone = verdict_of(by_hand({"single": SINGLE, "novelty": odin}))
    assert "as long to train as a single network, and two passes and a gradient to run" in alone[1]


@pytest.mark.parametrize("cheat", [method.name for method in METHODS if method.oracle])
def test_cheating_rows_are_never_recommended(cheat):
    part = by_hand({"single": SINGLE, cheat: Row((0.1, 0.1), running=1e-9)})
    assert choice_of(part).chosen.name == "single"
    assert (
        verdict_of(part)[0]
        == "On letters, keep Single: it is the best on unfamiliar data (NLL 1.000 on unfamiliar data)."
    )
    assert choice_of(by_hand({cheat: Row((0.1, 0.1))})) is None


def test_one_run_claims_no_significance():
    single = Row((1.0,), from_best=(0.4, 0.3, 0.5))
    sentences = verdict_of(by_hand({"single": single, "ensemble": ENSEMBLE}))
    assert sentences[-1] == "There is one run, so no significance is claimed."
    level = Row((0.61,), from_best=(0.01, -0.01, 0.03), training=50.0)
    assert (
        "significant"
        not in verdict_of(by_hand({"single": single, "ensemble": ENSEMBLE, "g-distill": level}))[0]
    )


def test_nothing_is_recommended_that_the_table_does_not_call_better():
    """The interval over samples excludes 0, but over runs the baseline is level with the best: keep it."""
    wide = Row((0.2, 1.8), from_best=(0.4, 0.3, 0.5))
    best = Row((0.5, 0.7), from_baseline=(-0.4, -0.5, -0.3))
    part = by_hand({"single": wide, "single-t": best, "g-distill": replace(best, unfamiliar=(0.55, 0.66))})
    assert part.comparison.method("single").cells["unfamiliar", "nll"].bold
    assert choice_of(part).chosen.name == "single"
    assert verdict_of(part)[0] == (
        "On letters, keep Single: no method is significantly better on unfamiliar data, not even Single + T with 0.600 "
        "(NLL 1.000 on unfamiliar data)."
    )
    # Level with the best, but not better than the baseline: the best is recommended, not the cheaper one.
    rows = {
        "single": Row((1.0, 1.1)),
        "single-t": Row((0.2, 1.5)),
        "ensemble": Row((0.6, 0.7), running=0.005),
    }
    assert choice_of(by_hand(rows)).chosen.name == "ensemble"


def test_missing_networks_are_counted_and_some_named():
    gone = tuple(f"plain network of letters, seed {seed}" for seed in range(5))
    last = verdict_of(by_hand({"single": SINGLE, "ensemble": Row((0.6,), missing=gone)}))[-1]
    assert "5 networks or scores are missing and not averaged in: plain network of letters, seed 0, " in last
    assert last.endswith("seed 2 and 2 more.")
    assert (
        verdict_of(empty_part())[0] == "On letters no method has a finished run, so none can be recommended."
    )
    assert "5 networks or scores are missing" in verdict_of(empty_part())[1]


def test_without_an_unfamiliar_set_it_says_so():
    rows = {"single": SINGLE, "ensemble": ENSEMBLE}
    sentences = verdict_of(by_hand(rows, sides=("familiar",)))
    assert sentences[0].startswith(
        "On letters, which has no unfamiliar test set, so that nothing is known about unfamiliar data, use Ensemble"
    )
    assert "on familiar data" not in sentences[1]


def test_without_a_bootstrap_the_t_test_decides():
    close = Row((0.60, 0.63), training=90.0, e99=NAN)
    ensemble = Row((0.59, 0.62), training=50.0, running=0.5)
    part = by_hand({"single": Row((1.0, 1.02)), "single-t": close, "ensemble": ensemble})
    assert choice_of(part).chosen.name == "single-t"  # level with the best, and run in less time
    assert "interval" not in verdict_of(part)[0]
    assert "from 5.0% to no such predictions" in verdict_of(part)[0]


def test_costs_that_were_not_measured_are_said_in_words():
    rows = {"single": SINGLE, "ensemble": Row((0.6,), training=None, running=None)}
    assert (
        "Its cost was not measured (networks to train: M; passes to run: M)" in verdict_of(by_hand(rows))[1]
    )


numbers = st.one_of(st.just(NAN), st.floats(0, 7))
intervals = st.one_of(
    st.none(),
    st.floats(-7, 7).map(lambda value: (value, NAN, NAN)),
    st.lists(st.floats(-7, 7), min_size=3, max_size=3)
    .map(sorted)
    .map(lambda ends: (ends[1], ends[0], ends[2])),
)
rows = st.builds(
    Row,
    st.lists(numbers, min_size=0, max_size=3).map(tuple),
    st.lists(numbers, min_size=0, max_size=3).map(tuple),
    numbers,
    intervals,
    intervals,
    st.one_of(st.none(), st.floats(0, 100)),
    st.one_of(st.none(), st.floats(0, 1)),
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["single", "ensemble", "novelty", "oracle-t", "bayesian"]), rows, min_size=1
    )
)
def test_any_numbers_make_one_to_three_sentences(given_rows):
    part = by_hand(given_rows)
    sentences = verdict_of(part)
    assert 1 <= len(sentences) <= 3
    assert not any("nan" in sentence or "inf" in sentence.replace("inference", "") for sentence in sentences)
    assert all(sentence.endswith(".") for sentence in sentences)
    choice = choice_of(part)
    assert choice is None or choice.chosen.name != "oracle-t"
    single = next((m for m in part.comparison.methods if m.name == "single"), None)
    if choice is not None and single is not None and single is not choice.chosen:
        assert single.cells["unfamiliar", "nll"].mark is not Mark.LEVEL or choice.left_out


def reported(part):
    return PartReport("letters", part)


def test_the_quickstart_ends_with_the_problem_the_best_method_and_the_cheap_one():
    scaled = Row((0.7, 0.7), e99=0.04, from_best=(0.1, 0.05, 0.15))
    part = by_hand({"single": SINGLE, "single-t": scaled, "ensemble": ENSEMBLE})
    problem, best, cost, cheap = brief_verdict(reported(part))
    assert "confidence 10% are wrong there, and 10% on familiar data" in problem
    assert best == (
        "Best is Ensemble: unfamiliar NLL 0.60 instead of 1.00 (40% less), and of such predictions 2% are wrong."
    )
    assert cost == "It takes 4.0 times as long to train and 5.0 times as long to run as a single network."
    assert verdict_of(part)[1].startswith(cost.removesuffix(".")), "the report says the same"
    assert "(Single + T) has 75% of that gain (NLL 0.70) at no cost" in cheap
    for rows, sides in (
        ({"single": SINGLE, "ensemble": ENSEMBLE}, SIDES),
        ({"single": SINGLE}, ("familiar",)),
    ):
        part = by_hand(rows, sides=sides)  # nothing to compare it with: the verdict of the page
        assert brief_verdict(reported(part)) == verdict_of(part)


def test_the_quickstart_s_table_has_eight_rows_and_always_the_baseline():
    names = [method.name for method in METHODS if not method.oracle][:12]
    rows = {name: Row((1.0 - 0.01 * rank,) * 2) for rank, name in enumerate(names)}
    rows["single"] = Row((9.0, 9.0))  # the worst
    rows["oracle-t"] = Row((0.1, 0.1))  # never shown
    table = brief_tables(reported(by_hand(rows)))[0]
    shown = [row[0].text for row in table.rows]
    assert shown == [METHODS.named(name).title for name in ("single", "single-t", "ensemble", *names[-5:])]
    assert [cell.text for cell in table.rows[0]] == ["Single", "0.200", "9.000", "5.0%", "5.0%"]
    assert "5 more methods are in the report." in table.notes


def test_the_quickstart_s_table_fits_80_columns():
    (quickstart,) = (each for each in EXPERIMENTS if each.name == "quickstart")
    titles = [METHODS.named(name).title for name in quickstart.methods]
    numbers = "  0.123*" * 2 + "  12.3%*" * 4  # NLL, error and E99 on both sides, each the best of its column
    assert max(map(len, titles)) + len(numbers) <= 80
