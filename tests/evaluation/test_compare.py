import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from surefoot import InputError, Predictions
from surefoot.evaluation.evaluate import paired_differences
from surefoot.lab.comparison import compare as compared
from surefoot.lab.comparison import differences
from surefoot.lab.comparison.compare import BEST_T, HEADLINE, compare_runs
from surefoot.lab.comparison.comparison import Difference, Mark, MethodRun, MethodRuns, RunScore, summary
from surefoot.metrics import METRICS, nll, nll_unclipped
from surefoot.metrics.intervals import (
    UNKNOWN,
    StandardError,
    centred_interval,
    clopper_pearson,
    few_samples_factor,
)
from tests.evaluation.counts import sure, upper

SIDES = ("familiar", "unfamiliar")
RESAMPLES = 8


def predictions(side, noise, *, sharpness=2.0, n=150, groups=None, ids=None):
    """Noisy logits of the same samples: the side alone decides the labels."""
    rng = np.random.default_rng(side)
    logits = 2 * rng.standard_normal((n, 3))
    labels = (logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
    logits = logits + 0.5 * np.random.default_rng([7, noise]).standard_normal((n, 3))
    return Predictions.from_logits(sharpness * logits, labels, groups=groups, ids=ids)


def method_run(run, noise, **options):
    return MethodRun.of_sides(run, predictions(0, noise, **options), predictions(1, noise, **options))


def familiar_only(run):
    return MethodRun.of_sides(run.run, run.sides["familiar"])


def method(name, runs, *, sharpness=2.0, shift=0, **about):
    drawn_runs = tuple(method_run(run, 100 * shift + run, sharpness=sharpness) for run in runs)
    return MethodRuns(name, name.title(), drawn_runs, **about)


@pytest.fixture(scope="module")
def methods():
    return [
        method("single", range(4)),
        method("soft", range(4), sharpness=1.0),
        method("ensemble", [0], sharpness=1.2, shift=1, variance_from="single"),
        method("late", [2, 3, 4], sharpness=1.5, shift=2, missing=("seed005",)),
        method("oracle", range(4), sharpness=0.9, oracle=True),
    ]


@pytest.fixture(scope="module")
def comparison(methods):
    return compare_runs(methods, resamples=RESAMPLES, seed=3)


def test_values_are_the_metrics_of_each_run(methods, comparison):
    assert comparison.sides == SIDES
    assert comparison.baseline == "single"
    for given_, row in zip(methods, comparison.methods, strict=True):
        assert row.name == given_.name
        assert row.runs == given_.runs
        for metric in HEADLINE:
            for side in SIDES:
                values = [metric.function(s.sides[side]) for s in given_.runs]
                cell = row.cells[side, metric.name]
                assert [score.value for score in cell.runs] == pytest.approx(values)
                assert cell.mean == pytest.approx(np.mean(values))
                if len(values) > 1:
                    assert cell.deviation == pytest.approx(np.std(values, ddof=1))
                else:
                    assert math.isnan(cell.deviation)


def test_proportions_have_counts(methods, comparison):
    cell = comparison.method("single").cells["unfamiliar", "e99"]
    sure = [METRICS.named("e99").count(s.sides["unfamiliar"]) for s in methods[0].runs]
    assert cell.count == (sum(c.k for c in sure), sum(c.n for c in sure))
    assert comparison.method("single").cells["familiar", "nll"].count is None


def brute_force(metrics, pairs, *, rng):
    """Per metric, the mean over pairs of the differences, on rows written out."""

    def mean_differences(rows):
        taken = [(a.take(rows), b.take(rows)) for a, b in pairs]
        return [np.mean([m.function(a) - m.function(b) for a, b in taken]) for m in metrics]

    n = pairs[0][0].n
    spread = np.array([mean_differences(rng.integers(n, size=n)) for _ in range(RESAMPLES)]).T
    values = mean_differences(np.arange(n))
    factor = few_samples_factor(n)
    return [
        centred_interval(v, s, (-np.inf, np.inf), factor=factor) for v, s in zip(values, spread, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("soft", [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("ensemble", [(0, 0), (0, 1), (0, 2), (0, 3)]),  # run once: against every run
        ("late", [(0, 2), (1, 3)]),  # by place: its runs 2 and 3 against the same of the baseline
    ],
)
def test_differences_are_a_brute_force_bootstrap(methods, comparison, name, pairs):
    by_name = {m.name: m for m in methods}
    metrics = (METRICS.named("nll"), METRICS.named("ece"))
    for index, side in enumerate(SIDES):
        drawn_runs = [
            (by_name[name].runs[a].sides[side], by_name["single"].runs[b].sides[side]) for a, b in pairs
        ]
        seed = int(np.random.default_rng([3, index]).integers(2**63))
        expected = brute_force(metrics, drawn_runs, rng=np.random.default_rng(seed))
        for metric, interval in zip(metrics, expected, strict=True):
            gap = comparison.method(name).cells[side, metric.name].from_baseline
            assert (gap.value, gap.low, gap.high) == pytest.approx(
                (interval.value, interval.low, interval.high)
            )
            assert (gap.pairs, gap.resampled) == (len(pairs), len(pairs))


def test_from_best_is_from_the_best_of_the_column(methods, comparison):
    column = {m.name: m.cells["familiar", "nll"] for m in comparison.methods}
    (best,) = [name for name, cell in column.items() if cell.mark is Mark.BEST]
    assert column[best].from_best is None
    assert comparison.method("single").cells["familiar", "nll"].from_baseline is None
    means = {name: cell.mean for name, cell in column.items()}
    for name in ("single", "soft", "ensemble", "oracle"):
        if name != best:
            assert column[name].from_best.value == pytest.approx(means[name] - means[best])
    assert comparison.method("soft").cells["familiar", "entropy"].from_best is None


def test_agrees_with_the_paired_differences_of_scoring():
    pair = [
        MethodRuns(n, n, (familiar_only(method_run(0, noise)),)) for n, noise in (("single", 0), ("b", 1))
    ]
    metrics = [METRICS.named(name) for name in ("nll", "brier", "label_error", "ece")]
    cells = compare_runs(pair, metrics, resamples=50, seed=5).method("b").cells
    expected = paired_differences(
        *(each.runs[0].sides["familiar"] for each in reversed(pair)), metrics=metrics, resamples=50, seed=5
    )
    for metric in metrics:
        gap, score = cells["familiar", metric.name].from_baseline, expected[metric.name]
        assert (gap.value, gap.low, gap.high) == pytest.approx((score.value, score.low, score.high))


def e99_gap(ours, theirs, *, resamples=100):
    """Ours less theirs: each a run per pair of counts, wrong and sure."""
    runs = [
        MethodRuns(
            name, name, tuple(MethodRun.of_sides(run, sure(*count)) for run, count in enumerate(counts))
        )
        for name, counts in (("single", theirs), ("other", ours))
    ]
    comparison = compare_runs(runs, [METRICS.named("e99")], resamples=resamples).method("other")
    return comparison.cells["familiar", "e99"].from_baseline


@pytest.mark.parametrize("sign", [1, -1])
def test_the_difference_from_no_errors_has_the_exact_interval_and_its_sign(sign):
    gap = e99_gap(*([(2, 100)], [(0, 150)])[::sign])
    low, high = clopper_pearson(2, 100)
    ends = (0.02 - math.hypot(0.02 - low, upper(150)), high)
    assert gap.value == pytest.approx(sign * 0.02)
    assert (gap.low, gap.high) == pytest.approx(tuple(sorted(sign * end for end in ends)))


def test_no_errors_in_either_differ_by_what_each_leaves_open():
    gap = e99_gap([(0, 43)], [(0, 200)])
    assert gap.value == 0
    assert (gap.low, gap.high) == pytest.approx((-upper(200), upper(43)))
    all_wrong = e99_gap([(43, 43)], [(0, 200)])
    assert (all_wrong.value, all_wrong.high) == (1, 1)
    assert all_wrong.low == pytest.approx(1 - math.hypot(upper(43), upper(200)))


def test_equal_counts_of_other_predictions_are_not_certainly_the_same():
    def of_one(name, others):
        probabilities = [[0.999, 0.001], *[[others, 1 - others]] * 99]
        return MethodRuns(
            name, name, (MethodRun.of_sides(0, Predictions.from_probs(probabilities, [0] * 100)),)
        )

    def gap(others):
        compared = compare_runs([of_one("single", 0.9), of_one("other", others)], resamples=100).method(
            "other"
        )
        return [compared.cells["familiar", name].from_baseline for name in ("e99", "label_error")]

    e99, error = gap(0.8)  # both have the one confident prediction, and it is right
    assert (e99.value, e99.low, e99.high) == pytest.approx((0, -upper(1), upper(1)))
    assert (error.low, error.high) == (0, 0), "the same labels for all images"
    assert [(each.low, each.high) for each in gap(0.9)] == [(0, 0)] * 2, "the same predictions"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((0, 43), (0, 200)),
        ((0, 200), (0, 43)),
        ((43, 43), (0, 200)),
        ((43, 43), (200, 200)),
        ((0, 100), (0, 100)),
        ((2, 100), (0, 150)),
        ((0, 150), (2, 100)),
        ((0, 0), (0, 100)),
    ],
)
def test_counts_that_no_resample_changes_follow_one_rule_here_and_in_scoring(ours, theirs):
    gap = e99_gap([ours], [theirs])
    score = paired_differences(sure(*ours), sure(*theirs), metrics=[METRICS.named("e99")], resamples=100)[
        "e99"
    ]
    assert (gap.value, gap.low, gap.high) == pytest.approx((score.value, score.low, score.high), nan_ok=True)


def test_exact_ends_of_several_runs_are_of_their_mean_counts_around_the_mean_value():
    """1 of 100 and 8 of 200 are 4 or 5 of 150 together, and 0.025 on average."""
    gap = e99_gap([(1, 100), (8, 200)], [(0, 100), (0, 300)])
    assert gap.value == pytest.approx(0.025)
    low, high = clopper_pearson(round(4.5), 150)
    rate = round(4.5) / 150
    assert gap.low == pytest.approx(0.025 - math.hypot(rate - low, upper(200)))
    assert gap.high == pytest.approx(0.025 + high - rate)


def test_one_error_in_one_run_is_not_none_at_all():
    """0 of 100 and 1 of 100 count as 1 of 100 in the mean, as 99 and 100 of 100 count as 99."""
    rare, certain = ([(k, 100), (k + 1, 100)] for k in (0, 99))
    low, high = clopper_pearson(1, 100)
    gap = e99_gap(rare, [(0, 100), (0, 100)])
    assert (gap.low, gap.high) == pytest.approx((0.005 - math.hypot(0.01 - low, upper(100)), high - 0.005))
    mirror = e99_gap(certain, [(100, 100), (100, 100)])
    assert (mirror.low, mirror.high) == pytest.approx((-gap.high, -gap.low))


def test_undefined_stays_undefined():
    runs = [method("single", [0, 1], sharpness=0.01), method("b", [0, 1], sharpness=8.0)]
    comparison = compare_runs(runs, [METRICS.named("e99")], resamples=10)
    nothing = comparison.method("single").cells["familiar", "e99"]
    assert math.isnan(nothing.mean)
    assert nothing.count == (0, 0)
    assert nothing.mark is Mark.UNTESTED
    assert math.isnan(comparison.method("b").cells["familiar", "e99"].from_baseline.value)


def test_without_unfamiliar_without_baseline_without_bootstrap():
    one = replace(method("other", [0, 1]), runs=tuple(familiar_only(s) for s in method("x", [0, 1]).runs))
    comparison = compare_runs([one], resamples=10)
    assert (comparison.sides, comparison.baseline) == (("familiar",), None)
    assert comparison.methods[0].cells["familiar", "nll"].from_baseline is None
    without = compare_runs([one], resamples=0)
    assert without.resamples == 0
    assert (
        without.methods[0].cells["familiar", "nll"].mean
        == comparison.methods[0].cells["familiar", "nll"].mean
    )


def test_a_method_with_no_network_at_all_is_a_row_of_nothing():
    gone = MethodRuns("gone", "Gone", (), missing=("a", "b"))
    row = compare_runs([method("single", [0, 1]), gone], resamples=5).method("gone")
    assert row.runs == ()
    assert all(math.isnan(cell.mean) for cell in row.cells.values())
    assert math.isnan(row.cells["familiar", "nll"].from_baseline.value)


def test_mistakes_are_named(methods):
    single = methods[0]
    shuffled = MethodRun.of_sides(0, single.runs[0].sides["familiar"].take(np.arange(150)[::-1]))
    named = [
        MethodRuns(n, n, (method_run(0, 0, ids=np.arange(150) + shift),))
        for n, shift in (("single", 0), ("b", 1))
    ]
    for wrong, message in (
        ([], "no methods to compare; needed: at least one"),
        ([single, single], "method 'single' is given twice; names must differ"),
        (
            [single, replace(single, name="b", variance_from="c")],
            "takes its variance from 'c'; have: single, b",
        ),
        ([replace(single, runs=single.runs[:1] * 2)], r"has runs \[0, 0\]; every run must"),
        (
            [single, MethodRuns("b", "B", (shuffled,))],
            "run 0 of 'b' has other familiar rows or labels than run 0",
        ),
        (named, "run 0 of 'b' has other familiar rows"),
    ):
        with pytest.raises(InputError, match=message):
            compare_runs(wrong, resamples=5)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("crossed", [False, True])
def test_pairs_are_all_pairs_of_the_same_run_or_crossed_all(seed, crossed):
    rng = np.random.default_rng(seed)
    ours, theirs = (
        [RunScore(int(run), float(rng.choice([1.0, math.nan], p=[0.8, 0.2]))) for run in runs]
        for runs in (rng.permutation(8)[: rng.integers(0, 9)] for _ in range(2))
    )
    pairs = [(a, b) for a in ours for b in theirs if crossed or a.run == b.run]
    expected = [(a, b) for a, b in pairs if math.isfinite(a.value) and math.isfinite(b.value)]
    assert differences._pairs(ours, theirs, crossed) == expected
    # one run alone is compared with every run of the other, whatever its number
    columns = {"ours": summary(ours), "theirs": summary(theirs)}
    alone = [(a, b) for a in ours for b in theirs if 1 in (len(ours), len(theirs))]
    defined = [(a, b) for a, b in alone if math.isfinite(a.value) and math.isfinite(b.value)]
    drawn_values = {(name, s.run): np.zeros(3) for name, scores in columns.items() for s in scores.runs}
    gap = differences.difference(columns, "ours", "theirs", drawn_values, 1.0, crossed=crossed)
    assert gap.pairs == len(defined or expected)


def test_runs_of_several_networks_meet_all_runs_of_one_each():
    """Ensemble 1 is of other networks than run 1 of the single ones."""
    singles = method("single", range(4))
    ensembles = method("ensemble", range(2), shift=1, is_ensemble=True)
    cells = {
        m.name: m.cells["familiar", "nll"] for m in compare_runs([singles, ensembles], resamples=20).methods
    }
    gap = cells["ensemble"].from_baseline
    assert gap.pairs == 8
    assert gap.value == pytest.approx(cells["ensemble"].mean - cells["single"].mean)
    one, other = ([score.value for score in cells[name].runs] for name in ("ensemble", "single"))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert gap.over_runs.margin == pytest.approx((expected.high - expected.low) / 2)


@pytest.mark.parametrize("runs", [1, 4])
def test_the_margin_over_runs_is_of_pairs_or_of_the_method_that_was_run_again(runs):
    methods = [method("single", range(4)), method("bayesian", range(runs), shift=1)]
    single, bayesian = (m.cells["familiar", "nll"] for m in compare_runs(methods, resamples=20).methods)
    gaps = [other.value for other in single.runs]
    if runs > 1:
        gaps = [one.value - other.value for one, other in zip(bayesian.runs, single.runs, strict=True)]
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert bayesian.from_baseline.over_runs.margin == pytest.approx((expected.high - expected.low) / 2)


def test_oracles_are_not_among_the_pairs():
    runs = [method("single", [0]), method("soft", [0]), method("best", [0], oracle=True)]
    found = compare_runs([*runs, MethodRuns("empty", "empty")], HEADLINE, resamples=0)
    assert set(found.pairs) == {("single", "soft"), ("soft", "single")}


def scaled(predictions, temperature):
    return predictions.with_logits(predictions.logits / temperature)


@pytest.mark.parametrize("members", [1, 3])
def test_nll_at_best_t_is_that_of_the_best_of_all_t_after_averaging(members):
    rng = np.random.default_rng(members)
    labels = rng.integers(0, 3, 200)
    logits = 3 * rng.normal(size=(members, 200, 3)) + 2 * np.eye(3)[labels]
    given = Predictions.from_logits(logits, labels)
    average = given.average()
    best = optimize.minimize_scalar(
        lambda log_t: nll_unclipped(scaled(average, math.exp(log_t))), bounds=(-5, 5), method="bounded"
    )
    assert BEST_T.function(given) == pytest.approx(nll(scaled(average, math.exp(best.x))), abs=1e-6)
    assert BEST_T.function(scaled(average, 3.7)) == pytest.approx(BEST_T.function(given), abs=1e-9)
    assert BEST_T.function(given) <= nll(given)


def test_t_changes_the_nll_but_not_the_nll_at_best_t(methods):
    runs = [
        MethodRun.of_sides(run.run, *(scaled(p, 2.0) for p in run.sides.values())) for run in methods[0].runs
    ]
    both = compare_runs(
        [methods[0], MethodRuns("t", "T", tuple(runs))], resamples=50, pairs=[("t", "single")]
    )
    gaps = both.pairs["t", "single"]
    assert abs(gaps["unfamiliar", "nll"].value) > 0.01
    gap = gaps["unfamiliar", BEST_T.name]
    assert (gap.value, gap.low, gap.high) == pytest.approx((0, 0, 0), abs=1e-8)


def test_nll_at_best_t_is_resampled_at_that_t(methods):
    """As if each run's predictions at its best T were a method of their own, compared by NLL."""
    at_best = [
        replace(
            method,
            runs=tuple(
                MethodRun.of_sides(run.run, *(compared.at_best_temperature(p) for p in run.sides.values()))
                for run in method.runs
            ),
        )
        for method in methods[:2]
    ]
    oracle = compare_runs(methods[:2], resamples=50).method("soft").cells["unfamiliar", BEST_T.name]
    expected = compare_runs(at_best, resamples=50).method("soft").cells["unfamiliar", "nll"]
    assert oracle.mean == pytest.approx(expected.mean)
    ours, theirs = oracle.from_baseline, expected.from_baseline
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


def networks_of(name, seeds):
    return [(f"{name} {seed}",) for seed in seeds]  # any hashable value stands for a network


def of_networks(name, specs, shift, **about):
    runs = [replace(method_run(place, 100 * shift + place), specs=s) for place, s in enumerate(specs)]
    return MethodRuns(name, name, tuple(runs), **about)


def test_only_runs_of_the_same_networks_are_paired():
    one = of_networks("single", networks_of("student", range(4)), 0)
    same = of_networks("same", networks_of("student", range(4)), 1)
    other = of_networks("other", networks_of("other student", range(4)), 1)
    cells = {
        m.name: m.cells["unfamiliar", "nll"] for m in compare_runs([one, same, other], resamples=20).methods
    }
    ours, theirs = ([score.value for score in cells[name].runs] for name in ("other", "single"))
    margins = {
        "same": stats.ttest_rel(ours, theirs).confidence_interval(0.95),
        "other": stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95),
    }
    for name, pairs in (("same", 4), ("other", 16)):
        gap = cells[name].from_baseline
        assert gap.pairs == pairs
        assert gap.over_runs.margin == pytest.approx((margins[name].high - margins[name].low) / 2)


def test_an_ensemble_varies_as_its_leave_one_out_ensembles_do():
    """Jackknife, by hand; its members are the runs of the single networks, which are left out with them."""
    members = [predictions(1, noise) for noise in range(5)]
    specs = networks_of("plain", range(5))

    def joined(of_members):
        return of_members[0].with_logits(np.concatenate([member.logits for member in of_members]))

    def run_of(of_members, **about):
        return MethodRun.of_sides(0, joined(of_members), joined(of_members), **about)

    rests = [members[:place] + members[place + 1 :] for place in range(5)]
    ensemble = replace(
        run_of(members), specs=tuple(s for (s,) in specs), without=tuple(run_of(rest) for rest in rests)
    )
    singles = [
        MethodRun(i, run_of([m]).before, specs=s) for i, (m, s) in enumerate(zip(members, specs, strict=True))
    ]
    methods = [
        MethodRuns("single", "single", tuple(singles)),
        MethodRuns("ensemble", "ensemble", (ensemble,), is_ensemble=True),
    ]
    cell = compare_runs(methods, resamples=20).method("ensemble").cells["unfamiliar", "nll"]
    alone = np.array([nll(member) for member in members])
    left = np.array([nll(joined(rest)) for rest in rests])
    error = math.sqrt(4 / 5 * ((left - left.mean()) ** 2).sum())
    assert (cell.over_runs.value, cell.over_runs.freedom) == pytest.approx((error, 4))
    without = left - (alone.sum() - alone) / 4  # ensemble less the mean of its members, both without one
    error = math.sqrt(4 / 5 * ((without - without.mean()) ** 2).sum())
    assert cell.from_baseline.over_runs.value == pytest.approx(error)


def test_these_groups_and_sign_flips_are_of_the_rows_differences():
    groups = np.repeat(["a", "b", "c", "d", "e", "f"], 25)
    one, other = (
        MethodRuns(name, name, tuple(method_run(run, 10 * shift + run, groups=groups) for run in range(3)))
        for shift, name in enumerate(("single", "other"))
    )
    gap = compare_runs([one, other], resamples=20, pairs=[("other", "single")]).pairs["other", "single"]
    gap = gap["unfamiliar", "nll"]
    losses = [
        np.mean(
            [-np.log(np.clip(true_probability(run.sides["unfamiliar"]), 0.001, 0.999)) for run in m.runs],
            axis=0,
        )
        for m in (other, one)
    ]
    rows = losses[0] - losses[1]
    assert gap.value == pytest.approx(rows.mean())
    parts = [rows[groups == name] for name in np.unique(groups)]
    error = math.sqrt(sum(len(part) * part.var(ddof=1) for part in parts)) / 150
    assert (gap.within.value, gap.within.freedom) == (pytest.approx(error), 144)
    assert gap.independent == 6
    totals = np.array([part.sum() for part in parts])
    signs = np.array(np.meshgrid(*[[1, -1]] * 6)).reshape(6, -1)
    assert gap.p == pytest.approx(np.mean(abs(totals @ signs) >= abs(totals.sum()) - 1e-12))


def true_probability(predictions):
    return predictions.probs()[np.arange(predictions.n), predictions.labels]


def test_the_combined_interval_has_satterthwaites_freedom():
    gap = Difference(1.0, 0.2, 1.8, independent=8, over_runs=StandardError(0.3, 2))
    images = 0.8 / stats.t.ppf(0.975, 7)
    variance = images**2 + 0.09
    freedom = variance**2 / (images**4 / 7 + 0.3**4 / 2)
    margin = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert gap.ends == pytest.approx((1 - margin, 1 + margin))
    assert replace(gap, over_runs=UNKNOWN).ends == (0.2, 1.8)
    assert all(map(math.isnan, replace(gap, low=math.nan, high=math.nan).ends))
