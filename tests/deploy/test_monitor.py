"""The monitor: every number against an independent oracle, the stated rates in drawn data, a history that counts."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cosine
from scipy.special import logsumexp
from scipy.stats import binomtest, ks_2samp, mannwhitneyu, permutation_test, rankdata, ttest_ind
from sklearn.metrics import roc_auc_score

import surefoot
from surefoot import InputError, LabelKind, Predictions, fit_temperature
from surefoot.decisions.thresholds import choose_thresholds
from surefoot.monitoring.detectors import (
    Detector,
    Ranked,
    Role,
    _smallest,
    class_cosine,
    combine,
    higher,
    kernel_distance,
    label_uncertainty,
    mean_change,
)
from surefoot.monitoring.history import AlphaBudget, opened
from surefoot.monitoring.monitor import DIFFERENCE, SCALED, check_shift, fingerprint, novelty_name
from surefoot.monitoring.monitor import _estimated as estimated
from surefoot.monitoring.monitor_text import SHIFTED, TYPICAL_ERROR, monitor_document, monitor_verdict
from surefoot.monitoring.scores import scores_of
from surefoot.report.monitor import monitor_table
from tests.conftest import draw_many_labels, draw_one_label

ONLY = AlphaBudget.only(0.05)


def source(n, rng, *, sharpness=2.0, blur=0.0):
    """Rows of one source; `blur` takes the logits towards nothing, and the labels go their own way."""
    logits = 3 * rng.standard_normal((n, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(sharpness * (1 - blur) * logits, labels)


def unlabelled(predictions):
    return Predictions.from_logits(predictions.logits, None, kind=predictions.kind)


def test_every_number_against_scipy_and_scikit_learn():
    rng = np.random.default_rng(0)
    reference, current = source(700, rng), source(150, rng, blur=0.4)
    thresholds = choose_thresholds(reference, target_error=0.3)
    then, now = (scores_of(each, accepted=thresholds.accepted) for each in (reference, current))
    look = check_shift(then, now, budget=ONLY)
    a, b = (each.probs().max(axis=1) for each in (reference, current))
    found = {each.name: each for each in look.findings}
    assert " ".join(found) == "confidence energy energy tail coverage outputs together"
    confidence, novelty, coverage = (found[name] for name in ("confidence", "energy", "coverage"))
    assert confidence.p == pytest.approx(mannwhitneyu(b, a, alternative="less").pvalue, abs=0.003)
    assert confidence.distance == pytest.approx(ks_2samp(a, b).statistic)
    welch = ttest_ind(b, a, equal_var=False)
    ends = welch.confidence_interval()
    assert confidence.change.value == pytest.approx(b.mean() - a.mean())
    assert [confidence.change.low, confidence.change.high] == pytest.approx([ends.low, ends.high], rel=0.03)
    auroc = roc_auc_score([0] * 700 + [1] * 150, -np.concatenate([a, b]))
    assert confidence.more_novel.value == pytest.approx(auroc)
    energies = [-logsumexp(each.logits[0], axis=1) for each in (reference, current)]
    assert novelty.more_novel.value == pytest.approx(
        roc_auc_score([0] * 700 + [1] * 150, np.concatenate(energies))
    )
    taken = [(each >= thresholds.accept).sum() for each in (a, b)]
    assert coverage.change.value == pytest.approx(taken[1] / 150 - taken[0] / 700)
    assert look.alarm
    assert look.estimator == SCALED
    assert "; difference of confidences, a fall counted three times)" in monitor_verdict(look)[-1]
    right = reference.outcomes.correct
    assert look.drop.value == pytest.approx(3 * (a.mean() - b.mean()))
    assert look.accuracy.value == pytest.approx(right.mean() - look.drop.value)
    assert look.reference_accuracy.value == pytest.approx(right.mean())
    assert look.reference_accuracy.low == pytest.approx(binomtest(int(right.sum()), 700).proportion_ci().low)
    bare = check_shift(scores_of(unlabelled(reference)), now, budget=ONLY)
    assert bare.accuracy.value == pytest.approx(a.mean() - look.drop.value)
    backwards = check_shift(now, then, budget=ONLY)
    assert backwards.drop.value == pytest.approx(b.mean() - a.mean())  # a rise counts once
    fitted = fit_temperature(reference)
    then, now = (scores_of(each, calibration=fitted) for each in (reference, current))
    calibrated = check_shift(then, now, budget=ONLY)
    assert calibrated.drop.value == pytest.approx(3 * (then.confidence.mean() - now.confidence.mean()))
    most = np.argsort(-energies[1])[:20]
    assert [name for name, _ in calibrated.unfamiliar] == [str(row) for row in most]


def test_probabilities_are_compared_with_logits_by_what_both_have():
    """`predict` writes probabilities: without the constant of each row's logits, which are no shift."""
    rng = np.random.default_rng(3)
    constant = 2 * rng.standard_normal((1200, 1))
    rows = source(1200, rng)
    logits = Predictions.from_logits(rows.logits[0] + constant, rows.labels)
    reference, current = logits.take(slice(900)), logits.take(slice(900, None))
    probabilities = Predictions.from_probs(current.probs(), None, kind="one_label")
    adjusted = {each.name: each.adjusted for each in surefoot.monitor(reference, probabilities).findings}
    assert list(adjusted) == ["confidence", "outputs", "together"]
    assert min(adjusted.values()) > 0.1


def test_all_permutations_by_hand(monkeypatch):
    """Seven rows, three of them current: 35 subsets, each with the mean rank and tail score computed here."""
    reference, current = np.array([0.3, 0.1, 0.4, 0.15]), np.array([0.9, 0.35, 0.6])
    rows = np.concatenate([reference, current])
    ranks = np.array([sorted(rows).index(value) + 1 for value in rows])
    columns = [ranks, -np.log(1 - ranks / 8)]
    subsets = [list(each) for each in combinations(range(7), 3)]
    values = np.array([[column[each].sum() for column in columns] for each in subsets])
    exact = np.array([(values >= own - 1e-9).mean(axis=0) for own in values])
    monkeypatch.setattr("surefoot.monitoring.detectors.PERMUTATIONS", 9999)
    scores = higher("x", Ranked.of(reference, current))
    features = Detector("f", np.array([2.0, 0.0, 1.0, 3.0, 2.5, 3.5, 0.5])[:, None], Role.ADDED)
    change = Detector("c", np.array([1.0, 0.0, 3.0, 2.0, 4.0, 5.0, 1.5])[:, None], Role.ALONE, 0.25)
    results = combine([*scores, features, change], 3, level=0.05)
    values = np.array([[*own, *(each.columns[rows, 0].sum() for each in (features, change))]
                       for own, rows in zip(values, subsets, strict=True)])  # fmt: skip
    exact = np.array([(values >= own - 1e-9).mean(axis=0) for own in values])
    here = subsets.index([4, 5, 6])
    assert [each.p for each in results[:-1]] == pytest.approx(exact[here], abs=0.012)

    def p_of(evidence):  # smaller is more
        return np.array([(evidence <= each + 1e-9).mean() for each in evidence])

    smallest = p_of(exact[:, :2].min(axis=1))
    both = p_of(smallest * exact[:, 2])
    together = p_of(np.minimum(both, exact[:, 3] / 0.25))[here]
    assert results[-1].name == "together"
    assert results[-1].p == results[-1].adjusted == pytest.approx(together, abs=0.012)
    alone = (np.minimum(both, exact[:, 3] / 0.25) <= exact[here, 3] / 0.25).mean()
    assert results[3].adjusted == pytest.approx(max(alone, together), abs=0.04)  # ties of equal evidence
    assert min(each.adjusted for each in results) == results[-1].p


def test_larger_than_what_can_be_permuted_is_corrected_by_bonferroni(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(300), rng.standard_normal(100) + 0.3
    permuted = combine(
        [*higher("x", Ranked.of(a, b)), *kernel_distance("k", a[:, None], b[:, None])], 100, level=0.05
    )
    monkeypatch.setattr("surefoot.monitoring.detectors.MOST_WORK", 1)
    mean, tail, together = combine(
        [*higher("x", Ranked.of(a, b)), *kernel_distance("k", a[:, None], b[:, None])], 100, level=0.05
    )
    assert mean.p == pytest.approx(
        mannwhitneyu(b, a, alternative="greater", method="asymptotic").pvalue, rel=0.02
    )
    assert mean.adjusted == pytest.approx(2 * mean.p)
    assert together.p == pytest.approx(2 * min(mean.p, tail.p))
    assert tail.p == pytest.approx(permuted[1].p, abs=0.02)


def test_the_smallest_alpha_is_a_number_like_others():
    window = draw_one_label(200)
    found = surefoot.monitor(window, draw_one_label(200, seed=1), alpha=1e-320)
    assert not found.alarm
    assert np.isfinite(found.smallest_drop)


@pytest.mark.parametrize("level", [1e-8, 1e-320])
def test_a_level_that_no_number_of_permutations_reaches_is_asymptotic(level):
    a, b = np.random.default_rng(1).normal(size=(2, 100))
    mean, *_ = combine(
        [*higher("x", Ranked.of(a, b)), *kernel_distance("k", a[:, None], b[:, None])], 100, level=level
    )
    assert mean.p == pytest.approx(
        mannwhitneyu(b, a, alternative="greater", use_continuity=False).pvalue, rel=0.02
    )


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_the_kernel_distance_is_that_of_the_gaussian_kernel(unit):
    """The statistic against the kernel matrix with the same width; a variance changes, no mean does."""
    rng = np.random.default_rng(0)
    a, b = unit * rng.standard_normal((400, 2)), unit * 2 * rng.standard_normal((200, 2))
    (detector,) = kernel_distance("k", a, b)
    found = detector.statistic(detector.columns[-200:].sum(axis=0, keepdims=True), 200)[0] / 64
    both = np.concatenate([a, b]) / np.concatenate([a, b]).std(axis=0)
    squares = ((both[:, None] - both[None]) ** 2).sum(axis=2)
    kernel = np.exp(-squares / 2 / np.median(squares[squares > 0]))
    weight = np.concatenate([np.full(400, -1 / 400), np.full(200, 1 / 200)])
    assert found == pytest.approx(weight @ kernel @ weight, rel=0.4)
    assert combine([detector], 200, level=0.05)[0].adjusted < 0.002  # beyond all permutations


def observed(detector, n):
    return detector.statistic(detector.columns[-n:].sum(axis=0, keepdims=True), n)[0]


def test_changes_of_labels_and_of_means_by_hand():
    """The mean of the labels' Savage scores, and Hotelling's T^2 with a ridge."""
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(4), 300), rng.dirichlet([1, 1, 1, 2], 100)
    both = np.concatenate([a, b])
    tails = -np.log(1 - rankdata(np.minimum(both, 1 - both), axis=0) / 401)
    assert np.concatenate(label_uncertainty(a, b)) == pytest.approx(tails.mean(axis=1))
    x, y = a @ rng.standard_normal((4, 3)), b @ rng.standard_normal((4, 3))
    (means,) = mean_change("m", x, y)
    pooled = np.cov(np.concatenate([x, y]).T, bias=True)
    difference = y.mean(axis=0) - x.mean(axis=0)
    ridged = pooled + 0.1 * np.trace(pooled) / 3 * np.eye(3)
    assert observed(means, 100) == pytest.approx(difference @ np.linalg.solve(ridged, difference))
    up, down = (
        combine(mean_change("x", a[:, :1], a[:100, :1] + d), 100, level=0.05)[0].p for d in (0.2, -0.2)
    )
    assert max(up, down) < 0.01  # a single column is two-sided, too
    assert mean_change("x", np.ones((5, 2)), np.ones((4, 2))) == []


def test_the_cosine_with_the_other_rows_of_a_class_by_hand():
    """Rows far from their class have the highest ranks; the length of a row does not matter; nor the order."""
    rng = np.random.default_rng(0)
    rows, classes = rng.standard_normal((40, 3)) + 1, rng.integers(3, size=40)
    classes[0] = 3  # the only row of its class
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    centred = units - units.mean(axis=0)
    cosines = [
        0.0 if number == 0 else 1 - cosine(centred[number], sum(
            centred[other] / np.linalg.norm(centred[other])
            for other in range(40) if other != number and classes[other] == classes[number]
        ))
        for number in range(40)
    ]  # fmt: skip
    (found,) = class_cosine("c", (rows[:30], rows[30:]), (classes[:30], classes[30:]))
    assert found.columns[:, 0] == pytest.approx(rankdata(-np.array(cosines)))
    assert found.role is Role.ADDED
    scaled = rows * rng.uniform(0.1, 9, (40, 1))
    order = rng.permutation(40)
    (other,) = class_cosine(
        "c", (scaled[order][:5], scaled[order][5:]), (classes[order][:5], classes[order][5:])
    )
    assert other.columns == pytest.approx(found.columns[order])
    assert class_cosine("c", (np.zeros((5, 2)), np.zeros((4, 2))), (classes[:5], classes[5:9])) == []


@pytest.mark.parametrize("sharpness", [1.0, 40.0], ids=["plain", "saturated: most confidences are exactly 1"])
def test_false_alarms_and_detection_in_drawn_data(sharpness):
    rng, turns, false, found = np.random.default_rng(1), 40, 0, 0
    for _ in range(turns):
        reference = scores_of(source(300, rng, sharpness=sharpness))
        false += check_shift(reference, scores_of(source(100, rng, sharpness=sharpness)), budget=ONLY).alarm
        strange = scores_of(source(100, rng, sharpness=sharpness, blur=0.9))
        found += check_shift(reference, strange, budget=ONLY).alarm
    assert binomtest(false, turns, 0.05, alternative="greater").pvalue > 1e-4
    assert found > 0.95 * turns


def with_features(n, rng, kind, *, strange=False):
    """Features near those of the row's label; `strange`: near those of another one, with the same outputs."""
    label = rng.integers(5, size=n)
    logits = np.where(np.arange(5) == label[:, None], 3, -3) + rng.standard_normal((n, 5))
    prototypes = 3 * np.random.default_rng(0).standard_normal((5, 16))
    features = prototypes[(label + strange) % 5] + rng.standard_normal((n, 16))
    return scores_of(Predictions.from_logits(logits, None, kind=kind, features=features))


@pytest.mark.parametrize("kind", LabelKind)
def test_false_alarms_and_detection_with_features(kind):
    """The cosine within classes, for many labels, sees what neither the outputs nor the features' means show."""
    rng, turns, false = np.random.default_rng(1), 40, 0
    for _ in range(turns):
        false += check_shift(with_features(300, rng, kind), with_features(60, rng, kind), budget=ONLY).alarm
    assert binomtest(false, turns, 0.05, alternative="greater").pvalue > 1e-4
    strange = check_shift(
        with_features(300, rng, kind), with_features(60, rng, kind, strange=True), budget=ONLY
    )
    found = {each.name: each.p for each in strange.findings}
    if kind is LabelKind.MANY_LABELS:
        assert list(found) == ["confidence", "features", "class cosine", "together"]
        assert strange.alarm
        assert found["class cosine"] <= 0.002 < 0.01 < min(found["confidence"], found["features"])
    else:
        assert list(found) == ["confidence", "energy", "energy tail", "features", "together"]


def test_ten_looks_at_one_reference_alarm_no_more_often_than_alpha():
    rng, turns, false = np.random.default_rng(2), 12, 0
    for _ in range(turns):
        reference = scores_of(source(300, rng))
        looks = (
            check_shift(reference, scores_of(source(80, rng)), budget=AlphaBudget.of_check(k, 0.2))
            for k in range(1, 11)
        )
        false += any(look.alarm for look in looks)
    assert binomtest(false, turns, 0.2, alternative="greater").pvalue > 1e-4
    assert sum(AlphaBudget.of_check(k, 0.2).level for k in range(1, 2000)) < 0.2
    assert AlphaBudget.of_check(1, 0.2).level == pytest.approx(0.2 * 6 / np.pi**2)


def test_the_estimate_s_interval_holds_the_truth_where_confidence_errs_the_same_everywhere():
    """Overconfident everywhere alike: the reference's labels correct it; without them the estimate is too high."""
    rng, turns, corrected, trusting = np.random.default_rng(3), 200, 0, 0
    truth = source(100_000, rng).outcomes.correct.mean()
    for _ in range(turns):
        labelled, current = source(400, rng), scores_of(unlabelled(source(200, rng)))
        for reference, counts in ((labelled, True), (unlabelled(labelled), False)):
            interval = estimated(scores_of(reference), current).accuracy
            inside = interval.low <= truth <= interval.high
            corrected, trusting = corrected + (inside and counts), trusting + (inside and not counts)
    assert binomtest(corrected, turns, 0.95, alternative="less").pvalue > 1e-4
    assert trusting < 0.5 * turns


def test_calibration_is_applied_to_what_is_compared():
    rng = np.random.default_rng(4)
    reference, current = source(500, rng), source(100, rng)
    fitted = fit_temperature(reference)
    plain, corrected = (scores_of(reference, calibration=each).confidence for each in (None, fitted))
    assert corrected.mean() < plain.mean()
    assert np.allclose(corrected, fitted(reference).probs().max(axis=1))
    assert fingerprint(scores_of(reference)) != fingerprint(scores_of(reference, calibration=fitted))
    assert fingerprint(scores_of(current)) == fingerprint(scores_of(current))


def test_a_bound_silences_a_small_drop_and_it_is_said():
    rng = np.random.default_rng(5)
    reference, current = scores_of(source(3000, rng)), scores_of(source(2000, rng, blur=0.3))
    loud, quiet = (check_shift(reference, current, budget=ONLY, bound=bound) for bound in (0.01, 0.5))
    assert loud.alarm
    assert not quiet.alarm
    assert quiet.significant
    assert monitor_verdict(loud)[0] == SHIFTED
    assert "less than the bound 0.5: no alarm" in monitor_verdict(quiet)[0]
    same = check_shift(reference, scores_of(source(2000, rng)), budget=ONLY)
    assert monitor_verdict(same)[0].startswith("No shift detected. With 2,000 rows, a drop in the estimated")
    sure = check_shift(reference, scores_of(source(2000, rng, blur=-3)), budget=ONLY)
    assert "more confident than before" in monitor_verdict(sure)[-1]
    assert "Only 9 rows" in " ".join(
        monitor_verdict(check_shift(reference, scores_of(source(9, rng)), budget=ONLY))
    )
    late = monitor_verdict(replace(loud, budget=AlphaBudget(0.05, 9, 1e-9)))
    assert late[0].startswith("No shift detected")
    assert "A single check would have detected a shift" in late[1]
    assert "as check 9 of a history, the limit is 1e-09" in late[1]
    assert len(monitor_table(loud).rows) == 5
    document = json.loads(json.dumps(monitor_document(loud, monitor_verdict(loud)), allow_nan=False))
    assert document["alarm"] is True
    assert document["accuracy"]["drop"]["value"] == pytest.approx(loud.drop.value)


def test_the_file_s_novelty_comes_first_and_probabilities_have_no_energy():
    given = draw_one_label(100, novelty=np.arange(100.0))
    assert novelty_name(scores_of(given), scores_of(given)) == "novelty"
    assert novelty_name(scores_of(given), scores_of(draw_one_label(100))) == "energy"
    scores = scores_of(Predictions.from_probs(draw_one_label(100).probs(), draw_one_label(100).labels))
    assert novelty_name(scores, scores) is None
    names = [each.name for each in check_shift(scores, scores, budget=ONLY).findings]
    assert names == ["confidence", "outputs", "together"]
    one_logit = scores_of(Predictions.from_logits(np.linspace(-3, 3, 100), np.arange(100) % 2))
    assert novelty_name(one_logit, one_logit) is None  # stored beside a 0: its energy would rank by class
    members = scores_of(draw_one_label(100, members=3))
    assert novelty_name(members, members) == "energy"


def test_novelty_that_is_as_high_as_can_be_everywhere_is_compared():
    rng = np.random.default_rng(0)
    then, now = (source(n, rng) for n in (400, 200))
    rows = ((then, rng.beta(2, 5, 400)), (now, np.ones(200)))
    sides = [
        scores_of(Predictions.from_logits(each.logits, None, kind=each.kind, novelty=strange))
        for each, strange in rows
    ]
    look = check_shift(*sides, budget=ONLY)
    assert {each.name for each in look.significant} == {"novelty", "novelty tail", "together"}
    assert look.alarm


def test_many_labels_are_watched_row_by_row():
    many = draw_many_labels(400, 5)
    scores = scores_of(many)
    probs = many.probs()
    assert scores.confidence == pytest.approx(np.maximum(probs, 1 - probs).mean(axis=1))
    labels = many.labels
    right = np.where(labels < 0, np.nan, (probs >= 0.5) == (labels == 1))
    sure = np.where(labels < 0, np.nan, np.maximum(probs, 1 - probs))
    known = (labels >= 0).any(axis=1)
    assert scores.surplus == pytest.approx(np.nanmean(right - sure, axis=1)[known])
    assert scores.accuracy.value == pytest.approx(np.nanmean(right, axis=1)[known].mean())
    blurred = Predictions.from_logits(many.logits * 0.2, None, kind=LabelKind.MANY_LABELS)
    found = check_shift(scores, scores_of(blurred), budget=ONLY)
    assert found.alarm
    assert found.estimator == DIFFERENCE
    assert found.drop.value == pytest.approx(scores.confidence.mean() - scores_of(blurred).confidence.mean())
    assert [each.name for each in found.findings] == ["confidence", "outputs", "together"]
    window = many.take(slice(100))
    shaken = scores_of(window.with_logits(window.logits * 0.97))
    check = check_shift(scores, shaken, budget=ONLY)
    rows = label_uncertainty(scores.probs, shaken.probs)
    ranks = [
        rankdata(np.concatenate(sides))
        for sides in (rows, (scores.novelty["energy"], shaken.novelty["energy"]))
    ]
    added = sum(each / each.std() for each in ranks)
    exact = permutation_test(
        (added[400:], added[:400]), lambda a, b: a.mean() - b.mean(), alternative="greater", rng=0
    )
    assert check.findings[0].p == pytest.approx(exact.pvalue, abs=0.06)


def looked(path, **changes):
    rng = np.random.default_rng(6)
    given = {"alpha": 0.05, "reference": "r"} | changes
    with opened(path, **given) as past:
        share = AlphaBudget.of_check(past.count + 1, given["alpha"])
        look = check_shift(scores_of(source(50, rng)), scores_of(source(50, rng)), budget=share)
        recorded = past.added(look, reference=given["reference"], source="<b>")
        recorded.write()
        return recorded


def test_a_history_counts_its_looks_and_spends_less_each_time(tmp_path):
    path = tmp_path / "h.jsonl"
    for number in (1, 2, 3):
        assert len(looked(path).checks) == number
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["look"] for line in lines] == [1, 2, 3]
    assert [line["level"] for line in lines] == pytest.approx(
        [0.05 * 6 / (np.pi * k) ** 2 for k in (1, 2, 3)]
    )
    with (
        opened(path, alpha=0.05, reference="r"),
        pytest.raises(InputError, match=r"another check .* try again"),
    ):
        looked(path)
    with pytest.raises(InputError, match=r"started with an alpha of 0\.05, got 0\.1; allowed: the same"):
        looked(path, alpha=0.1)
    with pytest.raises(InputError, match="checks against another reference"):
        looked(path, reference="another")
    assert len(path.read_text().splitlines()) == 3


def test_a_history_may_give_its_first_check_most_of_alpha(tmp_path):
    """The levels add up to alpha; later checks keep the share, another one is refused."""
    rng = np.random.default_rng(0)
    path = tmp_path / "h.jsonl"
    reference = source(300, rng)
    checks = [
        surefoot.monitor(reference, source(60, rng), history=path, first_share=share)
        for share in (0.9, None, 0.9)
    ]
    rest = 0.1 * 0.05 / (np.pi**2 / 6 - 1)
    assert [each.budget.level for each in checks] == pytest.approx([0.045, rest / 4, rest / 9])
    assert sum(AlphaBudget.of_check(k, 0.2, 0.9).level for k in range(1, 20_000)) == pytest.approx(0.2, 1e-3)
    with pytest.raises(InputError, match=r"started with a first share of 0\.9, got 0\.5; allowed: the same"):
        surefoot.monitor(reference, source(60, rng), history=path, first_share=0.5)
    with pytest.raises(InputError, match="first_share without a history"):
        surefoot.monitor(reference, source(60, rng), first_share=0.5)
    with pytest.raises(InputError, match="first_share"):
        surefoot.monitor(reference, source(60, rng), history=path, first_share=1.0)
    assert len(path.read_text().splitlines()) == 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    old = [{name: value for name, value in line.items() if name != "first_share"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))  # of an earlier version
    usual = surefoot.monitor(reference, source(60, rng), history=path).budget
    assert usual.level == pytest.approx(0.05 * 6 / (np.pi * 4) ** 2)


def test_of_a_long_history_only_the_end_is_read(tmp_path):
    """Three megabytes of checks: the next is number 6,001, and nothing before it has changed."""
    path = tmp_path / "h.jsonl"
    entry = looked(path).checks[0]
    lines = [json.dumps(entry | {"look": number}) for number in range(1, 6001)]
    path.write_text("\n".join(["far away, so not read", *lines[1:]]))  # the last line is not ended
    before = path.read_text()
    history = looked(path)
    assert history.count == 6001
    assert 200 < len(history.checks) < 4000
    assert [each["look"] for each in history.checks[-2:]] == [6000, 6001]
    assert history.checks[-1]["level"] == pytest.approx(0.05 * 6 / (np.pi * 6001) ** 2)
    assert path.read_text().startswith(before + "\n")
    assert len(path.read_text().splitlines()) == 6001
    for wrong in ("x" * 2_000_000, "x\n" * 1_000_000, '{"look": 0}\n' * 200_000):
        path.write_text(wrong)
        with pytest.raises(InputError, match="not a history of checks: the last 1,048,576 bytes are wrong"):
            looked(path)


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"look": 7}', '{"look": 2, "alpha": "x"}', "\x00", "[" * 100_000]
)
def test_a_damaged_history_is_refused_and_left_alone(damage, tmp_path):
    path = tmp_path / "h.jsonl"
    looked(path)
    path.write_text(path.read_text() + damage)
    before = path.read_bytes()
    with pytest.raises(InputError, match="not a history of checks: line 2 is wrong"):
        looked(path)
    assert path.read_bytes() == before
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read"):
        looked(path)


def test_coverage_is_compared_only_where_both_sides_have_thresholds():
    predictions = draw_one_label(2000, 2, sharpness=1)
    thresholds = choose_thresholds(predictions, target_error=0.3)
    with_them, without = scores_of(predictions, accepted=thresholds.accepted), scores_of(predictions)
    for reference, current, expected in (
        (with_them, with_them, 1),
        (with_them, without, 0),
        (without, with_them, 0),
        (without, without, 0),
    ):
        found = check_shift(reference, current, budget=ONLY)
        assert len(found.findings) == 5 + expected
    assert AlphaBudget(0.05).number == 1


def test_the_printed_error_is_the_one_of_the_published_study():
    page = Path(__file__).parents[2] / "benchmarks" / "results" / "monitor.md"
    published = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("reference with"):
            estimator = SCALED if cells[0] == "one label" else DIFFERENCE
            labelled = cells[1] == "reference with labels"
            published[estimator, labelled, True] = int(cells[2])
            published[estimator, labelled, False] = int(cells[3])
    assert published == TYPICAL_ERROR


def test_as_many_rows_as_wanted_are_drawn_also_where_random_numbers_tie():
    values = np.random.default_rng(0).integers(0, 7, (500, 9)).astype(np.float32)
    for n in (1, 4, 9):
        chosen = _smallest(values, n)
        expected = np.zeros_like(chosen)
        np.put_along_axis(expected, values.argpartition(n - 1, axis=1)[:, :n], True, axis=1)
        assert np.array_equal(chosen, expected)
        assert (chosen.sum(axis=1) == n).all()


def test_a_group_that_has_changed_is_named_where_no_shift_is_detected():
    rng = np.random.default_rng(5)
    logits, groups = 3 * rng.standard_normal((4000, 3)), np.repeat(np.arange(40).astype(str), 100)
    current = 3 * rng.standard_normal((2000, 3))
    of_current = np.repeat(np.arange(40).astype(str), 50)
    then = scores_of(Predictions.from_logits(logits, None, kind=LabelKind.ONE_LABEL, groups=groups))

    def verdict(factor):
        scaled = current * np.where(of_current == "7", factor, 1.0)[:, None]
        now = Predictions.from_logits(scaled, None, kind=LabelKind.ONE_LABEL, groups=of_current)
        look = check_shift(then, scores_of(now), budget=ONLY)
        assert not look.significant
        return " ".join(monitor_verdict(look))

    changed = verdict(0.2)
    assert "No shift detected." in changed
    assert "But confidence has changed in: group '7' (smallest p = " in changed
    assert "corrected for 43 classes and groups)" in changed
    assert "confidence has changed" not in verdict(1.0)


def test_the_difference_of_huge_novelties_has_no_end():
    rows = replace(draw_one_label(5, 2), novelty=np.array([1e300, 0, 0, 0, 1]))
    (finding,) = [each for each in surefoot.monitor(rows, rows).findings if each.name == "novelty"]
    assert (finding.change.low, finding.change.high) == (-np.inf, np.inf)
