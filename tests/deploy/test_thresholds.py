"""Thresholds: the guarantee holds as often as stated, brute force agrees, and bad files are refused."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from mapie.risk_control import control_fwer
from scipy.stats import binomtest

import surefoot
from surefoot import IGNORE, InputError, Predictions, fit_temperature
from surefoot.decisions.chunks import confidences
from surefoot.decisions.groups import split_rows
from surefoot.decisions.learn_then_test import ErrorTest, _ranked_cuts, _start
from surefoot.decisions.thresholds import (
    Guarantee,
    Thresholds,
    Unreachable,
    choose_thresholds,
)
from surefoot.decisions.thresholds_file import load_thresholds, save_thresholds
from surefoot.report.thresholds import thresholds_verdict
from tests.conftest import draw_many_labels, draw_one_label


def binary(confidence, right):
    """Two classes: the first is always the answer, with this confidence, and the truth where `right`."""
    confidence = np.asarray(confidence)
    return Predictions.from_probs(np.stack([confidence, 1 - confidence], axis=1), 1 - np.asarray(right, int))


def drawn(n, rng, error):
    """Confidences from 0.5 to 1, wrong with probability error(confidence)."""
    confidence = 0.5 + rng.random(n) / 2
    return binary(confidence, rng.random(n) >= error(confidence))


# What the error is as a function of confidence.
def falling(confidence):
    return 0.8 * (1 - confidence)


def worst_on_top(confidence):
    """Not monotone: the surest are the worst, and accepting more makes it better."""
    return np.where(confidence > 0.9, 0.3, 0.01)


def hopeless(confidence):
    """Just above the target everywhere: whatever is chosen breaks the promise, so nothing should be."""
    return np.full_like(confidence, 0.1001)


def error_above(threshold, error):
    grid = threshold + (1 - threshold) * (np.arange(20_000) + 0.5) / 20_000
    return error(grid).mean()


@pytest.mark.parametrize(("error", "least"), [(falling, 100), (worst_on_top, 100), (hopeless, 0)])
def test_the_guarantee_is_violated_no_more_often_than_stated(error, least):
    rng, broken, chosen, turns = np.random.default_rng(0), 0, 0, 200
    for turn in range(turns):
        val = drawn(600, rng, error)
        found = choose_thresholds(val, target_error=0.1, level=0.8, seed=turn)
        if isinstance(found, Thresholds):
            chosen += 1
            broken += error_above(max(found.accept, 0.5), error) > 0.1
    assert chosen >= least
    assert binomtest(broken, turns, 0.2, alternative="greater").pvalue > 1e-4


def test_the_guarantee_of_reject_is_violated_no_more_often_than_stated():
    """Below 0.6 half of the rows and a little more are right: whatever is rejected there violates it."""
    rng, broken, rejected, turns = np.random.default_rng(1), 0, 0, 80
    for turn in range(turns):
        val = drawn(600, rng, lambda c: np.where(c < 0.7, 0.4999, 0.01))
        found = choose_thresholds(val, target_error=0.1, level=0.8, seed=turn)
        broken += found.reject > 0
        val = drawn(600, rng, lambda c: np.where(c < 0.7, 0.8, 0.01))
        rejected += choose_thresholds(val, target_error=0.1, level=0.8, seed=turn).reject > 0.6
    assert binomtest(broken, turns, 0.2, alternative="greater").pvalue > 1e-4
    assert rejected > 0.95 * turns


def test_a_threshold_that_ignores_chance_breaks_the_same_promise():
    """So the test above is able to fail: the plain rule 'error of at most 0.1 in the sample' does not keep it."""
    rng, broken = np.random.default_rng(0), 0
    for _ in range(300):
        val = drawn(400, rng, falling).outcomes
        order = np.argsort(-val.confidence)
        kept = np.cumsum(~val.correct[order]) <= 0.1 * np.arange(1, 401)
        broken += error_above(val.confidence[order][np.flatnonzero(kept)[-1]], falling) > 0.1
    assert binomtest(broken, 300, 0.2, alternative="greater").pvalue < 1e-4


@pytest.mark.parametrize("n", [25, 400, 1000])
def test_brute_force_and_mapie_s_own_functions_choose_the_same(n):
    """Every test by scipy's binomtest: the candidates by their levels, the sequence until its first failure."""
    val = drawn(n, np.random.default_rng(n), falling)
    sure, wrong = val.outcomes.confidence, ~val.outcomes.correct
    found = choose_thresholds(val, target_error=0.2, level=0.9, seed=3)

    def p(rows, cut):
        above = rows & (sure > cut)
        return (
            binomtest(int((above & wrong).sum()), int(above.sum()), 0.2, "less").pvalue if above.any() else 1
        )

    everything = np.ones(n, bool)
    ranked = np.sort(sure)[::-1]
    cuts = [ranked[min(int(np.ceil(n * part / 20)), n - 1)] for part in range(1, 20)] + [-1.0]
    shares = [0.1 / 19] * 19 + [0.1]
    passed = [cut for cut, share in zip(cuts, shares, strict=True) if p(everything, cut) <= 0.1 * share]
    order = np.random.default_rng(3).permutation(n)
    first, rest = order[: round(0.1 * n)], np.isin(np.arange(n), order[round(0.1 * n) :])
    sequence = _ranked_cuts(sure[first])
    start = _start(ErrorTest(sure[first], wrong[first], 0.2, 0.9), n - len(first))
    in_sequence = [p(rest, cut) for cut in sequence[start:]]
    theirs = control_fwer(np.array(in_sequence), 0.08, "fixed_sequence")
    for cut, each in zip(sequence[start:], in_sequence, strict=True):
        if each > 0.08:
            break
        passed.append(cut)
    assert len(theirs) == sum(1 for cut in passed if cut in sequence[start:])
    if not passed:
        assert isinstance(found, Unreachable)
        return
    assert np.array_equal(found.accepted(val), sure > min(passed))
    k, m = ((rows & (sure > min(passed))).sum() for rows in (wrong, everything))
    assert (found.zones["accept"].error.k, found.zones["accept"].error.n) == (k, m)
    for each, cut, share in zip(found.candidates, cuts, shares, strict=True):
        k, m = ((rows & (sure > cut)).sum() for rows in (wrong, everything))
        end = binomtest(k, m, alternative="less").proportion_ci(1 - 0.1 * share).high
        assert each.bound == pytest.approx(end, abs=1e-9)


def test_the_start_is_where_the_power_is_highest():
    """A tenth with 25 wrong of 200 rows: above the share u the error is 0.125 u^2, so z is highest at u = 0.4."""
    wrong = np.zeros(200, bool)
    wrong[(200 * ((np.arange(25) + 0.5) / 25) ** (1 / 3)).astype(int)] = True
    part = ErrorTest(1 - np.arange(200) / 400, wrong, 0.1, 0.95)
    share = np.arange(1, 201) / 200
    error = np.array([26 / 210 * u**2 for u in share])
    best = np.argmax(np.sqrt(1800 * share) * (0.1 - error))
    assert abs(_start(part, 1800) - best) <= 5


def test_reject_is_below_accept_and_its_rows_are_mostly_wrong():
    rng = np.random.default_rng(1)
    val = drawn(4000, rng, lambda c: np.where(c < 0.7, 0.7, 0.001))
    found = choose_thresholds(val, target_error=0.02)
    assert 0.6 < found.reject < found.accept < 0.72
    zones = found.zones
    assert zones["reject"].error.low > 0.5
    assert sum(zone.share.k for zone in zones.values()) == 4000
    assert zones["review"].share.k == 4000 - zones["accept"].share.k - zones["reject"].share.k
    first, _, third, *_ = thresholds_verdict(replace(found, reject=0.6), {})
    assert first.endswith(" or more; reject them below 0.6; a person reviews the others.")
    assert third == "With the same probability, 0.5 or more of the rejected ones are wrong."
    together = thresholds_verdict(replace(found, reject=np.nextafter(found.accept, 0)), {})[0]
    assert together == f"Accept predictions at a confidence of {found.accept:.6g} or more; reject the others."
    everything = choose_thresholds(binary(np.linspace(0.5, 1, 2000), np.ones(2000)))
    assert (everything.accept, everything.reject) == (0, 0)
    assert thresholds_verdict(everything, {})[0] == "Accept all predictions."
    assert everything.zones["accept"].share.value == 1


def test_ties_and_saturated_confidences_do_not_confuse():
    confidence = np.repeat([1.0, 0.9, 0.6], [600, 300, 100])
    wrong = np.zeros(1000, bool)
    wrong[900:] = True
    found = choose_thresholds(binary(confidence, ~wrong), target_error=0.02)
    assert 0.6 < found.accept <= 0.9
    assert found.zones["accept"].error.k == 0
    assert found.zones["accept"].share.k == 900
    assert found.reject == 0  # what is below 0.9 is wrong, but 0.9 is above where we accept
    same = choose_thresholds(binary(np.full(1000, 0.9), np.ones(1000)))
    assert same.accept == 0
    assert len(same.candidates) <= 2


def test_what_can_be_promised_is_said_where_the_target_cannot():
    found = choose_thresholds(drawn(300, np.random.default_rng(0), falling), target_error=0.001)
    assert isinstance(found, Unreachable)
    better = found.best.bound + 1e-9
    again = choose_thresholds(drawn(300, np.random.default_rng(0), falling), target_error=better)
    assert isinstance(again, Thresholds)
    assert again.bound <= found.best.bound + 1e-9


def test_what_needs_thresholds_says_what_can_be_guaranteed_where_there_are_none(tmp_path):
    val = drawn(300, np.random.default_rng(0), falling)
    for per in (None, "class"):
        found = surefoot.choose_thresholds(val, target_error=0.001, per=per)
        document = json.loads(json.dumps(found.to_dict()))
        assert (document["n"], document["level"]) == (found.n, 0.95)
        assert len(found.to_frame()) == len(found.candidates)
        assert found.save_report(tmp_path / str(per)).is_file()
        assert copy.deepcopy(found) == found
        assert not hasattr(found, "no_such_name")
        for needs in (
            lambda: found.accepted(val),  # noqa: B023
            lambda: found.zones_of(val),  # noqa: B023
            lambda: found.prepare(val),  # noqa: B023
            lambda: found.accept,  # noqa: B023
        ):
            with pytest.raises(
                surefoot.InputError, match=r"no threshold can guarantee .* of at most 0\.001 .* can be"
            ):
                needs()
        with pytest.raises(surefoot.InputError, match=r"can be guaranteed.*allowed: Thresholds"):
            save_thresholds(found, tmp_path / "none.json")
        assert not (tmp_path / "none.json").exists()


def test_the_advice_where_there_are_no_thresholds_can_be_followed():
    one = surefoot.choose_thresholds(binary(np.array([0.9]), np.array([False])))
    assert one.sentence == "no threshold can guarantee any error below 1 with n = 1 rows"
    assert one.advice() == "use more rows"
    for seed in range(20):
        val = drawn(40, np.random.default_rng(seed), falling)
        found = surefoot.choose_thresholds(val, target_error=0.001)
        target = float(re.search(r"; (\S+) can be guaranteed", found.sentence)[1])
        assert found.advice("--target") == "use that as --target, or more rows"
        assert isinstance(surefoot.choose_thresholds(val, target_error=target), Thresholds)


def test_one_temperature_changes_nothing_for_two_classes():
    """Dividing by T keeps the order of two-class confidences: the same rows are accepted, whatever T."""
    val = drawn(1000, np.random.default_rng(3), falling)
    plain = choose_thresholds(val, target_error=0.2)
    calibrated = choose_thresholds(val, target_error=0.2, calibration=fit_temperature(val))
    assert np.array_equal(plain.accepted(val), calibrated.accepted(val))
    assert plain.accept != calibrated.accept
    assert plain.bound == calibrated.bound


def test_rows_without_a_label_are_left_out_and_still_judged_later():
    val = drawn(1000, np.random.default_rng(4), falling)
    some = Predictions.from_logits(val.logits, np.where(np.arange(1000) < 500, val.labels, IGNORE))
    found = choose_thresholds(some, target_error=0.2)
    assert found.n == 500
    assert len(found.accepted(some)) == 1000
    assert np.allclose(confidences(val)[0], val.outcomes.confidence, atol=1e-12)


def test_many_labels_one_class_at_a_time():
    many = draw_many_labels(3000, 3, sharpness=2, class_names=["cat", "dog", "<b>"])
    with pytest.raises(InputError, match="one class at a time \\(--for-class, in Python for_class\\)"):
        choose_thresholds(many)
    with pytest.raises(InputError, match="unknown class 'cow'; have: cat, dog, <b>"):
        choose_thresholds(many, for_class="cow")
    found = choose_thresholds(many, target_error=0.1, for_class="dog")
    known = many.labels[:, 1] >= 0
    assert found.n == int(known.sum())
    odds = many.logits[0, known, 1]
    taken = 1 / (1 + np.exp(-np.abs(odds))) >= found.accept
    wrong = (odds >= 0) != (many.labels[known, 1] == 1)
    error = found.zones["accept"].error
    assert (error.k, error.n) == ((taken & wrong).sum(), taken.sum())
    with pytest.raises(InputError, match="alone needs many labels; got one label per row"):
        draw_one_label().of_class("0")


def test_a_file_is_read_as_it_was_written(tmp_path):
    val = draw_one_label(2000, 3, sharpness=2)
    found = choose_thresholds(val, target_error=0.3, calibration=fit_temperature(val))
    elsewhere = {"unfamiliar": found.zones_of(draw_one_label(500, 3, seed=9))}
    save_thresholds(found, tmp_path / "t.json", sources={"val": "val.npz"}, elsewhere=elsewhere)
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["accept"] == found.accept
    assert document["measured"]["val"]["source"] == "val.npz"
    assert document["measured"]["unfamiliar"]["coverage"]["n"] == 500
    again = load_thresholds(tmp_path / "t.json")
    assert np.array_equal(again.accepted(val), found.accepted(val))
    assert again.guarantee == found.guarantee
    assert again.candidates == found.candidates
    assert again.zones["accept"] == found.zones["accept"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "temperature"}, "kind is 'temperature'"),
        ({"format": 9}, "format is 9"),
        ({"accept": 0.2, "reject": 0.4}, "0 <= reject <= accept"),
        ({"accept": None}, "missing or wrong"),
        ({"target_error": 7}, "target error is 7"),
        ({"calibration": {"kind": "magic"}}, "kind is 'magic'"),
        ({"measured": []}, "missing or wrong"),
    ],
)
def test_other_files_are_refused_in_a_sentence(change, message, tmp_path):
    found = choose_thresholds(draw_one_label(2000, 3), target_error=0.4)
    file = tmp_path / "t.json"
    save_thresholds(found, file, sources={}, elsewhere={})
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load_thresholds(file)


def test_files_that_are_not_json_and_other_classifiers_are_refused(tmp_path):
    (tmp_path / "t.json").write_text("[]")
    for name in ("gone.json", "t.json"):
        with pytest.raises(InputError, match=r"cannot read|not a thresholds file"):
            load_thresholds(tmp_path / name)
    found = choose_thresholds(draw_one_label(2000, 3), target_error=0.4)
    with pytest.raises(InputError, match="for one label of 3 classes, but the predictions are"):
        found.accepted(draw_one_label(classes=4))
    with pytest.raises(InputError, match="level is 1; allowed: above 0 and below 1"):
        Guarantee(level=1.0)


@pytest.mark.parametrize("reject", [0.0, None])
def test_a_card_says_that_nothing_is_rejected_where_nothing_is(reject):
    decisions = pytest.importorskip("surefoot.deploy.model_card")._decisions
    (message,) = decisions({"accept": 0.9, "reject": reject})
    assert "accepted at a confidence of 0.9 or more, never rejected" in message


def test_a_split_is_by_lot_and_loses_no_row():
    val = draw_one_label(101, ids=np.arange(101))
    first, rest = split_rows(val, 0.3, seed=1)
    assert sorted([*first.ids, *rest.ids]) == list(range(101))
    assert first.n == 30
    assert not np.array_equal(first.ids, split_rows(val, 0.3, seed=2)[0].ids)
    with pytest.raises(InputError, match="leaves a part empty"):
        split_rows(val, 0.001, seed=0)


def test_each_class_or_group_has_thresholds_of_its_own(tmp_path):
    rng = np.random.default_rng(5)
    error = {"easy": 0.0, "hard": 0.2, "few": 0.0}
    groups = np.repeat(list(error), [3000, 3000, 5])
    confidence = 0.5 + rng.random(len(groups)) / 2
    rates = np.array([error[name] for name in groups]) * np.where(confidence > 0.8, 0.01, 3)
    val = replace(binary(confidence, rng.random(len(groups)) >= rates), groups=groups)
    found = choose_thresholds(val, target_error=0.02, per="groups")
    assert found.parts["easy"].accept == 0
    assert found.parts["hard"].accept == pytest.approx(0.8, abs=0.02)
    assert found.parts["hard"].reject > 0.7
    assert found.parts["few"].accept == np.inf
    alone = choose_thresholds(val.take(groups == "hard"), target_error=0.02)
    assert (alone.accept, alone.reject) == (found.parts["hard"].accept, found.parts["hard"].reject)
    limits = np.array([found.parts[name].accept for name in groups])
    assert np.array_equal(found.accepted(val), confidences(val)[0] >= limits)
    assert found.zones["accept"].share.k == found.accepted(val).sum()
    elsewhere = replace(val, groups=np.full(val.n, "another"))
    assert not found.accepted(elsewhere).any()
    save_thresholds(found, tmp_path / "t.json", sources={}, elsewhere={})
    again = load_thresholds(tmp_path / "t.json")
    assert (again.parts, again.per, again.accept) == (found.parts, "groups", np.inf)
    three = draw_one_label(3000, 3, sharpness=3, class_names=["a", "b", "c"])
    per_class = choose_thresholds(three, target_error=0.2, per="class")
    assert set(per_class.parts) == {"a", "b", "c"}
    predicted = three.probs().argmax(axis=1)
    limits = np.array([per_class.parts[name].accept for name in "abc"])[predicted]
    assert np.array_equal(per_class.accepted(three), confidences(three)[0] >= limits)
    with pytest.raises(InputError, match="unknown column 'colour'"):
        choose_thresholds(three, per="colour")


def test_a_file_with_numbers_that_are_not_json_is_not_written(tmp_path):
    found = choose_thresholds(draw_one_label(2000, 2), target_error=0.3)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_thresholds(replace(found, bound=float("nan")), tmp_path / "t.json", sources={}, elsewhere={})
    assert list(tmp_path.iterdir()) == []
