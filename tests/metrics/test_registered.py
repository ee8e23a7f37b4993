"""Metrics that are declared here, outside the package, work wherever the package's own do."""

import json
import math

import numpy as np
import pytest

from surefoot import InputError, evaluate, fit_temperature, scan_predictions, write_predictions
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.compare import compare_runs
from surefoot.evaluation.comparison import MethodRun, MethodRuns
from surefoot.metrics import METRICS, ROOT, Metric
from surefoot.metrics.selective import grows_with_errors
from surefoot.predictions.labels import LabelKind
from surefoot.report.evaluation import write_report
from surefoot.report.evaluation_tables import Summary
from surefoot.tasks.task import Split
from tests.cli.command import surefoot
from tests.conftest import draw_many_labels, draw_one_label

ABOUT = ("formula", "reference")


def doubt_of_errors(decisions):
    return (1 - decisions.confidence) * ~decisions.correct


def is_error(decisions):
    return ~decisions.correct


def squared_doubt(decisions):
    return (1 - decisions.confidence) ** 2


def errors_in_first_half(curve):
    return curve.errors_at(curve.total[..., None] / 2)[..., 0] / curve.total


def median_confidence(predictions):
    """No ratio and no curve: weights are rows that are there more often."""
    outcomes = predictions.outcomes
    weight = np.ones(len(outcomes.row)) if outcomes.weight is None else outcomes.weight
    return float(np.median(np.repeat(outcomes.confidence, weight.astype(int))))


RATIO = Metric("doubt_of_errors", "Doubt of errors", *ABOUT, numerator=doubt_of_errors, denominator=is_error)
ROOT_OF_RATIO = Metric("root_doubt", "Root doubt", *ABOUT, numerator=squared_doubt, transform=ROOT)
CURVE = Metric(
    "first_half",
    "First half",
    *ABOUT,
    curve=errors_in_first_half,
    pooled=True,
    cells_range=grows_with_errors,
)
UNBOUNDED = Metric("by_class", "By class", *ABOUT, curve=errors_in_first_half)
PLAIN = Metric("median_confidence", "Median confidence", *ABOUT, median_confidence, "neither")
STREAMABLE = (RATIO, ROOT_OF_RATIO, CURVE, UNBOUNDED)
ADDED = (*STREAMABLE, PLAIN)

ONE = draw_one_label(400, sharpness=3)
MANY = draw_many_labels(200, 3, sharpness=3)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(METRICS, "_entries", list(METRICS))
    for metric in ADDED:
        METRICS.add(metric)


def value_by_hand(metric, predictions):
    outcomes = predictions.outcomes
    wrong, doubt = ~outcomes.correct, 1 - outcomes.confidence
    order = np.argsort(-outcomes.confidence, kind="stable")

    def half(of):
        return np.interp(len(of) / 2, np.arange(len(of) + 1), np.append(0, np.cumsum(wrong[of]))) / len(of)

    blocks = [order[(order >= block.start) & (order < block.stop)] for block in outcomes.blocks]
    return {
        RATIO: lambda: doubt[wrong].mean(),
        ROOT_OF_RATIO: lambda: math.sqrt((doubt**2).mean()),
        CURVE: lambda: half(order),
        UNBOUNDED: lambda: np.mean([half(block) for block in blocks]),
        PLAIN: lambda: np.median(outcomes.confidence),
    }[metric]()


@pytest.mark.parametrize("predictions", [ONE, MANY], ids=["one label", "many labels"])
@pytest.mark.parametrize("metric", ADDED, ids=lambda metric: metric.name)
def test_values_are_those_by_hand(metric, predictions):
    assert metric.function(predictions) == pytest.approx(value_by_hand(metric, predictions), rel=1e-12)


@pytest.mark.parametrize("predictions", [ONE, MANY], ids=["one label", "many labels"])
def test_resampled_values_are_those_of_the_rows_written_out(predictions):
    draw = Draw.of(predictions.n, None, resamples=5, rng=np.random.default_rng(0))
    values = resampled(predictions.outcomes, ADDED, draw)
    (drawn,) = draw.counts()
    for counts, column in zip(drawn, values.T, strict=True):
        rows = predictions.take(np.repeat(np.arange(predictions.n), counts.astype(int)))
        assert column == pytest.approx([metric.function(rows) for metric in ADDED], rel=1e-9)


@pytest.mark.usefixtures("registered")
def test_they_are_evaluated_compared_and_reported_by_default(tmp_path):
    other = draw_one_label(300, sharpness=5, seed=1)
    calibration = fit_temperature(ONE)
    evaluation = evaluate(ONE, other, calibration=calibration, resamples=40)
    for metric in ADDED:
        score = evaluation.sides["familiar"].metrics[metric.name]
        assert score.low <= score.value <= score.high
        assert evaluation.uncalibrated["familiar"].metrics[metric.name].value == metric.function(ONE)
        assert evaluation.gap[metric.name].low <= evaluation.gap[metric.name].high
        assert np.isfinite(evaluation.change["familiar"][metric.name].low)
    page = write_report(Summary(evaluation), tmp_path)
    text = page.read_text()
    written = json.loads((tmp_path / "report.json").read_text())
    for metric in ADDED:
        assert metric.title in text
        assert metric.name in json.dumps(written)


def test_they_are_compared():
    runs = [
        MethodRuns(name, name, (MethodRun.of_sides(0, ONE.with_logits(t * ONE.logits)),))
        for name, t in (("a", 1), ("b", 0.5))
    ]
    comparison = compare_runs(runs, ADDED, resamples=50, baseline="a")
    for metric in ADDED:
        cell = comparison.method("b").cells["familiar", metric.name]
        assert cell.mean == metric.function(runs[1].runs[0].after[Split.TEST_FAMILIAR])
        difference = cell.from_baseline
        assert difference.low <= difference.value <= difference.high


def source_of(folder, predictions):
    folder.mkdir()
    for index, rows in enumerate(np.array_split(np.arange(predictions.n), 3)):
        write_predictions(predictions.take(rows), folder / f"{index}.parquet")
    return scan_predictions(folder)


@pytest.mark.parametrize("predictions", [ONE, MANY], ids=["one label", "many labels"])
def test_they_stream(predictions, tmp_path):
    source = source_of(tmp_path / "f", predictions)
    streamed = evaluate(source, calibration=fit_temperature(predictions), metrics=STREAMABLE, resamples=60)
    for metric in STREAMABLE:
        score = streamed.uncalibrated["familiar"].metrics[metric.name]
        bound = score.bound if score.bound and np.isfinite(score.bound) else 1e-3
        assert score.value == pytest.approx(metric.function(predictions), abs=bound + 1e-9), metric.name
    whole = evaluate(predictions, metrics=STREAMABLE, resamples=300).sides["familiar"].metrics
    ratios = [metric for metric in STREAMABLE if metric.of_kind(predictions.kind).numerator]
    for metric in STREAMABLE if predictions.kind is LabelKind.ONE_LABEL else ratios:
        ours, theirs = streamed.uncalibrated["familiar"].metrics[metric.name], whole[metric.name]
        assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low, rel=0.35), metric.name
    for metric in ratios:
        assert np.isfinite(streamed.change["familiar"][metric.name].low)


def test_a_curve_without_a_range_is_streamed_without_a_bound(tmp_path):
    source = source_of(tmp_path / "f", ONE)
    scores = evaluate(source, metrics=STREAMABLE, resamples=0).sides["familiar"].metrics
    assert scores[CURVE.name].bound <= 1e-4
    assert scores[RATIO.name].bound is None
    assert scores[UNBOUNDED.name].bound == 0 or math.isnan(scores[UNBOUNDED.name].bound)


@pytest.mark.usefixtures("registered")
def test_a_plain_function_is_left_out_of_a_stream_or_refused_if_requested(tmp_path):
    source = source_of(tmp_path / "f", ONE)
    streamed = evaluate(source, resamples=0).sides["familiar"].metrics
    assert set(streamed) == {metric.name for metric in METRICS} - {PLAIN.name}
    refusal = "metric 'median_confidence' cannot be streamed; needed: all rows in memory"
    with pytest.raises(InputError, match=refusal):
        evaluate(source, metrics=ADDED)
    words = ("evaluate", tmp_path / "f", "--resamples", 0)
    left_out = surefoot(*words)
    assert "metric 'median_confidence' cannot be streamed and is left out" in " ".join(
        left_out.stderr.split()
    )
    for option in (("--metric", PLAIN.name), ("--fail-if", f"familiar.{PLAIN.name}>0")):
        assert refusal in " ".join(surefoot(*words, *option, check=2).stderr.split())
    in_memory = surefoot(*words, "--no-stream", "--metric", PLAIN.name, "--format", "json")
    assert list(json.loads(in_memory.stdout)["familiar"]["metrics"]) == [PLAIN.name]


def test_every_declaration_agrees_with_its_function():
    """A ratio or curve is written beside the function that users call; both must be one number."""
    for predictions in (ONE, MANY, draw_one_label(30, 2), draw_many_labels(40, ignored=0.7)):
        for metric in METRICS:
            declared = metric.of_kind(predictions.kind)
            if declared.numerator is not None or declared.curve is not None:
                parts = {
                    name: getattr(declared, name)
                    for name in ("numerator", "denominator", "curve", "pooled", "by_score", "transform")
                }
                again = Metric(metric.name, metric.title, *ABOUT, **parts).function(predictions)
                assert again == pytest.approx(metric.function(predictions), rel=1e-12, abs=1e-15, nan_ok=True)


def test_a_declaration_must_say_how_it_is_computed_once():
    with pytest.raises(InputError, match="metric 'x' does not say how it is computed; needed: a function"):
        Metric("x", "X", *ABOUT)
    with pytest.raises(InputError, match="metric 'x' has a numerator and a curve; allowed: one of them"):
        Metric("x", "X", *ABOUT, numerator=is_error, curve=errors_in_first_half)
    with pytest.raises(InputError, match="metric 'x' has a denominator only; needed: a numerator too"):
        Metric("x", "X", *ABOUT, median_confidence, denominator=is_error)
    assert Metric("x", "X", *ABOUT, numerator=is_error) == Metric("x", "X", *ABOUT, numerator=is_error)
