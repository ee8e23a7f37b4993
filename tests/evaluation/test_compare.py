import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from surefoot import InputError, Predictions
from surefoot.evaluation import compare as compared
from surefoot.evaluation import compare as differences
from surefoot.evaluation.compare import HEADLINE, compare
from surefoot.evaluation.comparison import Mark, MethodRun, MethodRuns, RunScore, summary
from surefoot.evaluation.evaluate import paired_differences
from surefoot.intervals import centred_interval, clopper_pearson, few_samples_factor
from surefoot.metrics import METRICS

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
    return compare(methods, resamples=RESAMPLES, seed=3)


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


def test_an_oracle_is_shown_but_never_best(comparison):
    oracle = comparison.method("oracle")
    assert {cell.mark for cell in oracle.cells.values()} == {Mark.UNTESTED}
    nll = {m.name: m.cells["familiar", "nll"].mean for m in comparison.methods}
    assert min(nll, key=nll.__getitem__) == "oracle"


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
        expected = brute_force(metrics, drawn_runs, rng=np.random.default_rng([3, index]))
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
    cells = compare(pair, metrics, resamples=50, seed=5).method("b").cells
    expected = paired_differences(
        *(each.runs[0].sides["familiar"] for each in reversed(pair)), metrics=metrics, resamples=50, seed=5
    )
    for metric in metrics:
        gap, score = cells["familiar", metric.name].from_baseline, expected[metric.name]
        assert (gap.value, gap.low, gap.high) == pytest.approx((score.value, score.low, score.high))


def test_groups_widen_the_intervals():
    def width(groups):
        runs = [
            MethodRuns(n, n, (method_run(0, noise, groups=groups),)) for n, noise in (("single", 0), ("b", 1))
        ]
        gap = (
            compare(runs, [METRICS.named("nll")], resamples=200)
            .method("b")
            .cells["familiar", "nll"]
            .from_baseline
        )
        return gap.high - gap.low

    assert width(np.arange(150) % 3) > 1.3 * width(None)
    assert math.isnan(width(["same"] * 150))


def test_no_errors_among_the_sure_is_not_certainty():
    n = 200
    labels = [0] * n

    def sure(wrong):
        return Predictions.from_probs([[0.001, 0.999]] * wrong + [[0.999, 0.001]] * (n - wrong), labels)

    runs = [
        MethodRuns("single", "S", (MethodRun.of_sides(0, sure(10)),)),
        MethodRuns("never", "N", (MethodRun.of_sides(0, sure(0)),)),
    ]
    gap = (
        compare(runs, [METRICS.named("e99")], resamples=100)
        .method("never")
        .cells["familiar", "e99"]
        .from_baseline
    )
    assert gap.value == pytest.approx(-0.05)
    upper = 1 - 0.025 ** (1 / n)  # Clopper-Pearson for 0 of n
    low = METRICS.named("e99").count(sure(10)).low
    assert gap.high >= -0.05 + math.hypot(upper, 0.05 - low) - 1e-9
    same = [MethodRuns(name, name, (MethodRun.of_sides(0, sure(10)),)) for name in ("single", "twin")]
    twin = (
        compare(same, [METRICS.named("e99")], resamples=20)
        .method("twin")
        .cells["familiar", "e99"]
        .from_baseline
    )
    assert (twin.value, twin.low, twin.high) == (0, 0, 0)


def sure(wrong, of, *, n=400):
    """Of n rows `of` are sure, the first so many of them wrongly; the others are right with 0.9."""
    probabilities = [[0.001, 0.999]] * wrong + [[0.999, 0.001]] * (of - wrong) + [[0.9, 0.1]] * (n - of)
    return Predictions.from_probs(probabilities, [0] * n)


def upper(n):
    """The exact upper end of 0 of n, in closed form."""
    return 1 - 0.025 ** (1 / n)


def e99_gap(ours, theirs, *, resamples=100):
    """Ours less theirs: each a run per pair of counts, wrong and sure."""
    runs = [
        MethodRuns(
            name, name, tuple(MethodRun.of_sides(run, sure(*count)) for run, count in enumerate(counts))
        )
        for name, counts in (("single", theirs), ("other", ours))
    ]
    comparison = compare(runs, [METRICS.named("e99")], resamples=resamples).method("other")
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
    comparison = compare(runs, [METRICS.named("e99")], resamples=10)
    nothing = comparison.method("single").cells["familiar", "e99"]
    assert math.isnan(nothing.mean)
    assert nothing.count == (0, 0)
    assert nothing.mark is Mark.UNTESTED
    assert math.isnan(comparison.method("b").cells["familiar", "e99"].from_baseline.value)


def test_much_work_takes_fewer_runs_for_intervals_but_all_for_values(methods, comparison, monkeypatch):
    monkeypatch.setattr(compared, "SLOW_WORK", 150 * 60 * 6.0)
    few = compare(methods, resamples=60, seed=3).method("soft").cells["familiar", "ece"].from_baseline
    full = comparison.method("soft").cells["familiar", "ece"].from_baseline
    assert (few.value, few.pairs) == (full.value, 4)
    assert few.resampled == 1
    assert few.low < few.value < few.high
    quick = (
        compare(methods, [METRICS.named("nll")], resamples=60, seed=3).method("soft").cells["familiar", "nll"]
    )
    assert quick.from_baseline.resampled == 4


@pytest.mark.parametrize(
    ("work", "selected", "few"),
    [
        (1e9, 16, 500),
        (150 * 16 * 300, 16, 300),  # fewer resamples first
        (150 * 16 * 200, 16, 200),
        (150 * 16 * 199, 15, 200),  # then without run 4, which one method alone has
        (150 * 4 * 200, 4, 200),  # run 0 of three methods, and the one run once
        (150 * 4 * 150, 4, 150),  # then fewer resamples again
        (1, 4, 100),
    ],
)
def test_what_the_work_allows(methods, monkeypatch, work, selected, few):
    monkeypatch.setattr(compared, "SLOW_WORK", work)
    outputs = {(m.name, run.run): run.sides["familiar"] for m in methods for run in m.runs}
    keys, resamples = compared._slow_share(outputs, [METRICS.named("ece")], 500)
    assert (len(keys), resamples) == (selected, few)
    assert compared._slow_share(outputs, [METRICS.named("nll")], 500) == (set(outputs), 500)


def test_without_unfamiliar_without_baseline_without_bootstrap():
    one = replace(method("other", [0, 1]), runs=tuple(familiar_only(s) for s in method("x", [0, 1]).runs))
    comparison = compare([one], resamples=10)
    assert (comparison.sides, comparison.baseline) == (("familiar",), None)
    assert comparison.methods[0].cells["familiar", "nll"].from_baseline is None
    without = compare([one], resamples=0)
    assert without.resamples == 0
    assert (
        without.methods[0].cells["familiar", "nll"].mean
        == comparison.methods[0].cells["familiar", "nll"].mean
    )


def test_a_method_with_no_network_at_all_is_a_row_of_nothing():
    gone = MethodRuns("gone", "Gone", (), missing=("a", "b"))
    row = compare([method("single", [0, 1]), gone], resamples=5).method("gone")
    assert row.runs == ()
    assert all(math.isnan(cell.mean) for cell in row.cells.values())
    assert math.isnan(row.cells["familiar", "nll"].from_baseline.value)


def test_same_seed_same_numbers_and_progress_is_told(methods):
    ticks = []
    first, again = (compare(methods[:2], resamples=20, seed=1, tick=ticks.append) for _ in range(2))
    assert first.methods[1].cells == again.methods[1].cells
    assert len(ticks) == 2 * 2 * 8
    other = compare(methods[:2], resamples=20, seed=2)
    assert other.methods[1].cells["familiar", "nll"] != first.methods[1].cells["familiar", "nll"]


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
            compare(wrong, resamples=5)


@pytest.mark.parametrize("seed", range(40))
def test_which_runs_are_resampled_is_what_a_plain_search_finds(seed):
    rng = np.random.default_rng(seed)
    shared = predictions(0, 0, n=int(rng.choice([150, 4_000, 40_000])))
    counts = rng.integers(1, 9, size=rng.integers(1, 7))
    outputs = {
        (f"m{index}", int(run)): shared
        for index, count in enumerate(counts)
        for run in rng.permutation(10)[:count]
    }
    metrics, resamples = [METRICS.named("ece")], int(rng.choice([50, 500, 5_000]))
    selected, few = compared._slow_share(outputs, metrics, resamples)
    assert (selected, few) == plain_slow_share(list(outputs), next(iter(outputs.values())).n, resamples)


def plain_slow_share(keys, n, resamples):
    """Remove one run after the other, and search all that is left each time."""
    names, runs = [name for name, _ in keys], [run for _, run in keys]
    selected = everything = set(keys)
    allowed = compared.SLOW_WORK / n
    few = min(resamples, max(compared.ENOUGH_RESAMPLES, int(allowed / len(everything))))
    shared = sorted(set(runs), key=lambda run: (-runs.count(run), run))
    while len(selected) * few > allowed and len(shared) > 1:
        shared = shared[:-1]
        selected = {(name, run) for name, run in everything if run in shared or names.count(name) == 1}
    return selected, min(few, max(compared.FEWEST_RESAMPLES, int(allowed / len(selected))))


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
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)

    def method_run(run):
        return MethodRun.of_sides(run, Predictions.from_logits(rng.normal(size=(60, 3)), labels))

    singles = MethodRuns("single", "Single", tuple(method_run(run) for run in range(4)))
    ensembles = MethodRuns(
        "ensemble", "Ensemble", tuple(method_run(run) for run in range(2)), is_ensemble=True
    )
    cells = {m.name: m.cells["familiar", "nll"] for m in compare([singles, ensembles], resamples=20).methods}
    gap = cells["ensemble"].from_baseline
    assert gap.pairs == 8
    assert gap.value == pytest.approx(cells["ensemble"].mean - cells["single"].mean)
    one, other = ([score.value for score in cells[name].runs] for name in ("ensemble", "single"))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert gap.over_runs.margin == pytest.approx((expected.high - expected.low) / 2)


@pytest.mark.parametrize("runs", [1, 4])
def test_the_margin_over_runs_is_of_pairs_or_of_the_method_that_was_run_again(runs):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    methods = [
        MethodRuns(name, name, tuple(MethodRun.of_sides(run, drawn(rng, labels)) for run in range(count)))
        for name, count in (("single", 4), ("bayesian", runs))
    ]
    single, bayesian = (m.cells["familiar", "nll"] for m in compare(methods, resamples=20).methods)
    gaps = [other.value for other in single.runs]
    if runs > 1:
        gaps = [one.value - other.value for one, other in zip(bayesian.runs, single.runs, strict=True)]
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert bayesian.from_baseline.over_runs.margin == pytest.approx((expected.high - expected.low) / 2)


def drawn(rng, labels):
    return Predictions.from_logits(rng.normal(size=(len(labels), 3)), labels)


def test_oracles_are_labelled():
    assert MethodRuns("a", "A").label == "A"
    assert MethodRuns("a", "A", oracle=True).label == "A (oracle)"


def test_a_method_is_in_the_paper_and_no_oracle_unless_told():
    plain = MethodRuns("a", "A")
    assert (plain.oracle, plain.not_in_paper, plain.is_ensemble) == (False, False, False)


def test_oracles_are_not_among_the_pairs():
    runs = [method("single", [0]), method("soft", [0]), method("best", [0], oracle=True)]
    found = compare([*runs, MethodRuns("empty", "empty")], HEADLINE, resamples=0)
    assert set(found.pairs) == {("single", "soft"), ("soft", "single")}
