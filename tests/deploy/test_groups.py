"""Rows of one group count together: permutations, guarantees, sets, intervals; and what is said without groups."""

import json
import warnings
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

import surefoot
from surefoot import Predictions, read_predictions
from surefoot.decisions.betting import GroupShares
from surefoot.decisions.groups import group_numbers, group_values, proportion_of, split_rows
from surefoot.decisions.learn_then_test import ErrorTest, valid_cuts
from surefoot.decisions.sets import choose_sets, sets_document
from surefoot.decisions.thresholds import choose_thresholds
from surefoot.decisions.thresholds_file import load_thresholds, save_thresholds
from surefoot.metrics.intervals import Proportion
from surefoot.monitoring.detectors import Detector, Ranked, class_cosine, combine, higher
from surefoot.monitoring.history import AlphaBudget
from surefoot.monitoring.monitor import check_shift
from surefoot.monitoring.monitor_text import monitor_document, monitor_verdict
from surefoot.monitoring.scores import scores_of
from surefoot.predictions.files import write_predictions
from surefoot.report.sets import sets_verdict
from surefoot.report.thresholds import thresholds_verdict
from tests.cli.command import surefoot as command

ONLY = AlphaBudget.only(0.05)


def persons(sizes, rng, *, blur=0.0, own=0.6):
    """Logits of three classes for persons with `sizes` rows; `own` of the variance is the person's."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    drawn = np.sqrt(own) * rng.standard_normal((len(sizes), 3))[groups]
    logits = 3 * (drawn + np.sqrt(1 - own) * rng.standard_normal((len(groups), 3)))
    sharpness = np.exp(0.5 * rng.standard_normal(len(sizes)))[groups, None]
    labels = (logits * sharpness + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits((1 - blur) * logits, labels, groups=np.char.add("p", groups.astype(str)))


def ungrouped(predictions):
    return replace(predictions, groups=None)


def test_one_row_per_group_is_the_same_as_no_groups(tmp_path):
    rng = np.random.default_rng(0)
    reference, current = persons(np.ones(400, int), rng), persons(np.ones(100, int), rng, blur=0.2)
    looks = [surefoot.monitor(f(reference), f(current)) for f in (lambda each: each, ungrouped)]
    assert monitor_document(looks[0], []) == monitor_document(looks[1], [])
    for of in (lambda each: choose_thresholds(each, target_error=0.4), choose_sets):
        assert repr(of(reference)) == repr(of(ungrouped(reference)))


def test_groups_of_all_sizes_raise_no_more_false_alarms_than_stated():
    """Alarms at 5%: at most 6 of 40 with a probability of 0.997; without groups there are dozens."""
    rng, alarms = np.random.default_rng(1), {"grouped": 0, "ungrouped": 0, "drop": 0}
    for turn in range(40):
        few = rng.geometric(1 / 8, 60), rng.geometric(1 / 8, 25)
        sizes = few if turn % 2 else (np.full(60, 12), np.full(25, 4))
        reference, current = (persons(each, rng) for each in sizes)
        look = surefoot.monitor(reference, current)
        alarms["grouped"] += look.alarm
        alarms["drop"] += look.drop.low > 0
        alarms["ungrouped"] += surefoot.monitor(ungrouped(reference), ungrouped(current)).alarm
    assert alarms["grouped"] <= 6
    assert alarms["drop"] <= 4
    assert alarms["ungrouped"] > 10


def test_a_shift_of_all_groups_is_still_detected():
    rng = np.random.default_rng(2)
    look = surefoot.monitor(persons(np.full(80, 8), rng), persons(np.full(40, 8), rng, blur=0.4))
    assert look.alarm
    assert look.groups == (80, 40)
    assert "Whole groups were compared, 80 of the reference and 40 current ones." in monitor_verdict(look)


def test_all_permutations_of_groups_by_hand(monkeypatch):
    """Six groups, two of them current: 15 choices, with means weighted by what a group's rows are worth."""
    monkeypatch.setattr("surefoot.monitoring.detectors.PERMUTATIONS", 9999)
    group_of = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 5, 5])
    values = np.array([1.0, 1.2, 0.9, 2.0, 0.3, 0.2, 1.5, 2.5, 2.2, 2.6, 1.9, 1.7])
    size = np.bincount(group_of)
    mean = np.bincount(group_of, values) / size
    between = size @ (mean - values.mean()) ** 2 / 5
    within = ((values - mean[group_of]) ** 2).sum() / 6
    usual = (12 - (size @ size) / 12) / 5
    r = (between - within) / (between + (usual - 1) * within)
    mass = size / (1 + (size - 1) * r)

    def statistic(rows):
        now, before = mass[rows], np.delete(mass, rows)
        change = mean[rows] @ now / now.sum() - np.delete(mean, rows) @ before / before.sum()
        return change * np.sqrt(now.sum() * before.sum())

    all_of_them = [statistic(list(rows)) for rows in combinations(range(6), 2)]
    exact = np.mean(np.array(all_of_them) >= statistic([4, 5]) - 1e-9)
    detector = Detector("x", values[:, None]).of_groups(group_of)
    assert combine([detector], 2, level=0.05)[0].p == pytest.approx(exact, abs=0.01)
    assert detector.asymptotic_p(2) == pytest.approx(
        norm.sf(statistic([4, 5]) / np.sqrt(mass.sum() * (mass @ (mean - mass @ mean / mass.sum()) ** 2) / 5))
    )
    ranks = higher("x", Ranked.of(values[:7], values[7:]))[0]
    alone = ranks.of_groups(np.arange(12))
    assert combine([alone], 5, level=0.05)[0].p == pytest.approx(combine([ranks], 5, level=0.05)[0].p)


def test_rows_are_compared_with_their_class_in_other_groups():
    """Fifty rows of a person resemble each other, and not the rows of the others."""
    rng = np.random.default_rng(3)
    features = np.concatenate([rng.standard_normal((40, 8)), 3 + 0.01 * rng.standard_normal((10, 8))])
    group_of, classes = np.array([*range(40), *[40] * 10]), np.zeros(50, dtype=np.int64)
    sides, of = (features[:40], features[40:]), (classes[:40], classes[40:])
    mean = [class_cosine("x", sides, of, each)[0].columns[40:].mean() for each in (None, group_of)]
    assert mean[0] < 25 < mean[1]


def test_too_few_groups_for_any_p_value_are_named(tmp_path):
    rng = np.random.default_rng(4)
    check = surefoot.monitor(persons([40, 40, 40], rng), persons([40, 40], rng, blur=0.9))
    assert check.smallest_p == pytest.approx(1 / 10)
    assert monitor_verdict(check)[0] == (
        "No shift detected, and none could be: with so few groups no p-value is below 0.1, and the level is 0.05."
    )
    history = tmp_path / "h.jsonl"
    one = surefoot.monitor(
        persons([9] * 40, rng), persons([40], rng), history=history
    )  # intervals are unknown
    assert (one.accuracy.low, one.accuracy.high) == (0, 1)
    assert json.loads(history.read_text())["groups"] == 1
    surefoot.monitor(persons([9] * 40, np.random.default_rng(4)), persons([40], rng))


def test_rows_without_groups_against_a_reference_with_them():
    rng = np.random.default_rng(5)
    window = ungrouped(persons(np.ones(90, int), rng))
    check = check_shift(scores_of(persons([8] * 60, rng)), scores_of(window), budget=ONLY)
    assert check.groups == (60, 90)
    assert (
        "each current row is a group of its own, as if they were independent." in monitor_verdict(check)[-1]
    )


def test_the_reference_of_a_bundle_keeps_groups_without_their_names(tmp_path):
    write_reference = pytest.importorskip("surefoot.deploy.reference").write_reference
    predictions = persons([3, 1, 4], np.random.default_rng(6))
    write_reference(predictions, tmp_path / "reference.npz")
    kept = read_predictions(tmp_path / "reference.npz").groups
    assert sorted(set(kept)) == ["group 0", "group 1", "group 2"]
    assert (group_numbers(kept) == group_numbers(predictions.groups)).all()


def in_groups(sizes, rng, error):
    """Confidence, whether wrong, and group; both depend on the group, and the error is a known function."""
    group_of = np.repeat(np.arange(len(sizes)), sizes)

    def uniform():
        shared = rng.standard_normal(len(sizes))[group_of]
        return norm.cdf(np.sqrt(0.5) * (shared + rng.standard_normal(len(group_of))))

    confidence = (1 - uniform() ** 3 / 2).round(12)
    return confidence, uniform() < error(confidence), group_of


@pytest.mark.parametrize(("size", "groups"), [(2, 900), (8, 400), (50, 250)])
def test_thresholds_keep_their_guarantee_for_new_groups(size, groups):
    """The error is just above the target everywhere: at most 5% of the draws may accept anything."""
    rng, accepted, by_rows = np.random.default_rng(size), 0, 0
    for turn in range(60):
        confidence, wrong, group_of = in_groups([size] * groups, rng, lambda c: np.full_like(c, 0.0501))
        tested = ErrorTest(confidence, wrong, 0.05, 0.95, group_of).in_random_order(turn)
        accepted += bool(valid_cuts(tested, seed=turn))
        by_rows += bool(valid_cuts(replace(tested, group_of=None), seed=turn))
    assert accepted <= 7  # with a probability of 0.99
    assert size < 50 or by_rows > 9


def test_groups_accept_nearly_as_much_as_independent_rows():
    rng, shares = np.random.default_rng(7), []
    for turn in range(5):
        confidence, wrong, group_of = in_groups([8] * 500, rng, lambda c: 1 - c)
        rows = ErrorTest(confidence, wrong, 0.05, 0.95)
        cuts = [
            min(valid_cuts(each.in_random_order(turn), seed=turn))
            for each in (rows, replace(rows, group_of=group_of))
        ]
        shares.append([(confidence > cut).mean() for cut in cuts])
    of_rows, of_groups = np.mean(shares, axis=0)
    assert 0.6 < of_groups < of_rows < 0.75


def test_bounds_of_the_error_hold_and_shrink():
    rng, missed = np.random.default_rng(8), 0
    for _ in range(200):
        wrong = rng.beta(0.5, 4.5, 80)  # a mean of 0.1
        missed += GroupShares(np.ones(80), wrong).bound(0.1, 0.1) < 0.1
    assert missed <= 30  # 10% with a probability of 0.98
    bounds = [GroupShares(np.ones(n), np.zeros(n)).bound(0.05, 0.05) for n in (1, 30, 100, 1000)]
    assert bounds[0] == 1
    assert bounds[1] > bounds[2] > bounds[3]
    bet = 0.9 / 0.95
    assert bounds[2] == pytest.approx(
        (0.05 ** (-1 / 100) - 1) / bet, rel=0.01
    )  # (1 + bet * error)^100 = 1 / p
    assert GroupShares(np.ones(9), np.ones(9)).bound(0.5, 0.05) == 1


def test_thresholds_of_groups_say_so_and_load_again(tmp_path):
    val = persons([8] * 500, np.random.default_rng(9))
    found = choose_thresholds(val, target_error=0.25)
    assert found.groups == 500
    assert (
        "over the draw of these 4,000 rows in 500 groups: on familiar data at most 0.2"
        in thresholds_verdict(found, {})[1]
    )
    save_thresholds(found, tmp_path / "t.json")
    assert load_thresholds(tmp_path / "t.json").groups == 500
    first, rest = split_rows(val, 0.3, 0)
    assert not set(first.groups) & set(rest.groups)
    assert first.n == 1200
    of_classes = choose_thresholds(val, target_error=0.3, per="class")
    assert of_classes.groups == 500
    alone = choose_thresholds(replace(val, groups=np.full(val.n, "p")), target_error=0.25)
    assert alone.accept == choose_thresholds(ungrouped(val), target_error=0.25).accept
    assert "of the accepted predictions of this group are wrong." in thresholds_verdict(alone, {})[1]


def test_sets_give_each_group_the_same_weight():
    rng = np.random.default_rng(10)
    val = persons(rng.geometric(1 / 8, 40), rng)
    sets = choose_sets(val, coverage=0.8)
    of_true = val.probs()[np.arange(val.n), val.labels].round(12)
    _, of, size = np.unique(val.groups, return_inverse=True, return_counts=True)

    def weight(limit):
        return sum(np.mean(of_true[of == group] >= limit) for group in range(len(size))) / 41

    assert weight(sets.least_probability) >= 0.8 > weight(np.nextafter(sets.least_probability, 2))
    assert sets_document(sets)["groups"] == 40
    assert "in 40 groups and of one of a new group" in sets_verdict(sets)[0]
    assert choose_sets(persons([50] * 8, rng)).least_probability == 0  # 8 of 9 are less than 0.9


def test_intervals_count_groups():
    """As many independent rows as groups, where all rows of a group are the same."""
    of_group = np.random.default_rng(11).random(200) < 0.3
    hits, group_of = np.repeat(of_group, 8), np.repeat(np.arange(200), 8)
    found, right = proportion_of(hits, group_of), Proportion.of(int(of_group.sum()), 200)
    assert (found.low, found.high) == pytest.approx((right.low, right.high), abs=0.002)
    assert (found.k, found.n) == (8 * right.k, 1600)
    assert proportion_of(hits[:0], group_of[:0]).n == 0
    values = np.random.default_rng(12).standard_normal(30)
    assert group_values(values, np.repeat(np.arange(5), 6)) == pytest.approx(
        values.reshape(5, 6).mean(axis=1)
    )
    for rows in ([0], [0, 0, 0]):
        assert np.isfinite(proportion_of(np.array(rows, dtype=bool), np.zeros(len(rows), dtype=int)).high)


def test_a_repeated_identity_is_named_by_every_route(tmp_path, capsys):
    rng = np.random.default_rng(13)
    val = persons([8] * 60, rng)
    columns = {"site": ["x"] * val.n, "Patient ID": val.groups.tolist()}
    named = replace(
        ungrouped(val),
        attributes=Predictions.from_probs([[0.5, 0.5]] * val.n, [0] * val.n, attributes=columns).attributes,
    )
    by_id = replace(ungrouped(val), ids=val.groups)
    for predictions, column in ((named, "Patient ID"), (by_id, "ids")):
        for function in (
            lambda: surefoot.monitor(predictions, predictions),  # noqa: B023
            lambda: surefoot.choose_thresholds(predictions, target_error=0.3),  # noqa: B023
            lambda: surefoot.choose_thresholds(predictions, target_error=0.001),  # noqa: B023
            lambda: choose_sets(predictions),  # noqa: B023
        ):
            with pytest.warns(UserWarning, match=f"'{column}' repeats, and there are no groups"):
                result = function()
            assert result.repeated == column
            assert f"Warning: '{column}' repeats" in " ".join(str(result).split())
        path = tmp_path / "val.parquet"
        write_predictions(predictions, path)
        for words in (
            ("monitor", path, path),
            ("thresholds", path, "--target-error", 0.3, "-o", tmp_path / "t.json"),
            ("sets", path),
        ):
            for options, there in (((), True), (("--group-by", column), False)):
                done = command(*words, *options)
                assert ("repeats, and there are no groups" in " ".join(done.stdout.split())) == there
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            surefoot.monitor(predictions.grouped_by(column), predictions.grouped_by(column))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_sets(replace(by_id, ids=np.arange(by_id.n)))
        surefoot.choose_thresholds(named, target_error=0.3, per="Patient ID")
