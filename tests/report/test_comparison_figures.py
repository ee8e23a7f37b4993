"""The numbers behind the figures that compare methods, and that the figures draw those numbers."""

import ast
import io
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.special import softmax
from scipy.stats import binomtest

from surefoot import Predictions
from surefoot.calibrators.temperature import MemberTemperatures, Temperature
from surefoot.evaluation.compare import tabulate
from surefoot.evaluation.comparison import TEST_SPLITS, MethodRun, MethodRuns, RunScore
from surefoot.metrics import METRICS, e99, nll
from surefoot.plots.curves import nll_by_temperature, reliability
from surefoot.predictions.labels import LabelKind
from surefoot.report import study_curves as numbers
from surefoot.report import study_figures as pictures
from surefoot.report import study_panels as panels
from surefoot.report import style
from surefoot.report.study_figures import cost_picture
from tests.conftest import draw_many_labels, draw_one_label

HOSTILE = (
    "<script>alert(1)</script>",
    r"$\frac{1}{$",
    "_hidden",
    'id="x" url(#y) #123456',
    "日本語 и ещё" * 20,
    "\x00\x1b[31m]]>\u202e&amp;\ud800",
)


def scaled(predictions, temperature):
    return predictions.with_logits(predictions.logits / temperature)


def of_sides(name, familiar, unfamiliar, **about):
    return MethodRuns(name, about.pop("title", name), (MethodRun.of_sides(0, familiar, unfamiliar),), **about)


def method(name, title="", *, sharpness=3.0, seed=0, calibration=None, n=400, **optional):
    sides = [
        draw_one_label(n, 2, sharpness=s, seed=seed + i, **optional)
        for i, s in enumerate((sharpness, 2 * sharpness))
    ]
    run = MethodRun(0, dict(zip(TEST_SPLITS.values(), sides, strict=True)), calibration)
    return MethodRuns(name, title or name, (run,))


def divided_by(temperature):
    t = temperature
    return Temperature(temperature=t, low=t, high=t, n=1, label_kind=LabelKind.ONE_LABEL, classes=2)


def scored(methods):
    """The methods with the cells of their NLL."""
    values = {
        each.name: {
            (side, "nll"): [RunScore(run.run, nll(run.sides[side])) for run in each.runs]
            for side in TEST_SPLITS
        }
        for each in methods
    }
    return tabulate(methods, [METRICS.named("nll")], list(TEST_SPLITS), values).methods


@pytest.fixture(scope="module")
def methods():
    plain = [method(f"m{i}", name, seed=10 * i) for i, name in enumerate(HOSTILE)]
    unsure = method("unsure", "never sure", calibration=divided_by(500), seed=70)
    return (*plain, unsure, method("scaled", "scaled", calibration=divided_by(2.5), seed=80))


PICTURES = (
    pictures.e99_picture,
    pictures.temperature_picture,
    pictures.risk_coverage_picture,
    panels.confidence_picture,
    panels.reliability_picture,
    lambda methods: cost_picture(
        [replace(m, seconds_training=10.0, seconds_per_sample=0.002) for m in scored(methods)]
    ),
    lambda methods: pictures.overview_picture(scored(methods), [methods[0].name], None, {}),
)


@pytest.mark.parametrize("make", PICTURES)
def test_every_picture_is_small_and_sound(methods, make):
    picture = make(methods)
    svg = picture.svg()
    assert len(svg.encode()) < 150_000
    assert ET.fromstring(svg).get("aria-label") == picture.title
    assert picture.title.endswith(".")
    assert "<script" not in svg
    assert "currentColor" in svg
    assert f"{style.INK};" not in svg
    ids = re.findall(r'\bid="([^"]+)"', re.sub(r">[^<]*<", "><", svg))
    assert len(ids) == len(set(ids))
    assert all(name.startswith(f"{picture.name}-") for name in ids)


@pytest.mark.parametrize("make", PICTURES[1:])
def test_every_picture_is_the_same_every_time(methods, make):
    assert make(methods[-1:]).svg() == make(methods[-1:]).svg()


def test_png_is_the_same_every_time_and_as_wide_as_told(methods):
    first, again = (pictures.e99_picture(methods[-1:]) for _ in range(2))
    assert first.png(dpi=50) == again.png(dpi=50)
    assert first.svg() == again.svg() == first.svg()
    assert Image.open(io.BytesIO(first.png())).width == 1680
    assert Image.open(io.BytesIO(first.png(dpi=50))).width == 560


@settings(max_examples=50)
@given(st.text())
def test_plain_text_is_one_short_line_of_xml(text):
    line = style.plain_text(text)
    assert len(line) <= style.NAME_LETTERS
    assert line.isprintable()
    line.encode("utf-8")


def test_no_figure_uses_global_state():
    for path in Path(style.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            assert not [name for name in names if "pyplot" in name], path


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(0, 60), st.integers(0, 10**6))
def test_confidence_bins_against_a_count_by_hand(classes, n, seed):
    predictions = draw_one_label(n + 1, classes, sharpness=3, seed=seed)
    bins = numbers.confidence_bins([predictions])
    p = softmax(predictions.logits[0], axis=1)
    wrong = p.argmax(axis=1) != predictions.labels
    for i, (low, high) in enumerate(zip(bins.edges, bins.edges[1:], strict=False)):
        inside = (p.max(axis=1) > low) & (p.max(axis=1) <= high)
        assert (bins.errors[i].k, bins.errors[i].n) == ((inside & wrong).sum(), inside.sum())
    assert sum(each.n for each in bins.errors) == n + 1
    assert bins.edges[-2:] == (0.99, 1.0)
    assert bins.edges[0] <= 1 / classes < bins.edges[1]


def test_a_confidence_at_an_edge_lies_below_it():
    predictions = Predictions.from_probs([[0.5, 0.5], [0.9, 0.1], [0.99, 0.01], [1.0, 0.0]], [0, 1, 1, 0])
    bins = numbers.confidence_bins([predictions])
    assert bins.edges == (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
    assert [(each.k, each.n) for each in bins.errors] == [
        (0, 1),
        (0, 0),
        (0, 0),
        (1, 1),
        (0, 0),
        (1, 1),
        (0, 1),
    ]
    assert math.isnan(bins.errors[1].value)


def test_many_labels_are_binned_decision_by_decision():
    predictions = draw_many_labels(seed=3)
    bins = numbers.confidence_bins([predictions])
    assert bins.edges[0] == 0.5
    assert sum(each.n for each in bins.errors) == (predictions.labels >= 0).sum()
    assert bins.errors[-1].value == pytest.approx(e99(predictions), nan_ok=True)


def test_an_error_over_runs_is_their_mean_and_as_uncertain_as_one_run():
    error = numbers.MeanError.of([(1, 10), (3, 30), (0, 0)])
    assert (error.value, error.k, error.n) == (pytest.approx(0.1), 4, 40)
    exact = binomtest(2, 20).proportion_ci(0.95, method="exact")
    assert (error.low, error.high) == pytest.approx((exact.low, exact.high))
    assert numbers.MeanError.of([(0, 1), (1, 1)]).high == 1
    assert math.isnan(numbers.MeanError.of([(0, 0)]).value)


def test_figures_draw_the_mean_over_runs():
    sides = [(draw_one_label(300, 2, seed=s), draw_one_label(300, 2, seed=s + 9)) for s in range(3)]
    runs = tuple(MethodRun.of_sides(number, *both) for number, both in enumerate(sides))
    (many,) = scored([replace(MethodRuns("m", "m", runs), seconds_training=10.0, seconds_per_sample=0.01)])
    expected = [np.mean([nll(both[place]) for both in sides]) for place in (0, 1)]
    drawn = pictures.overview_picture([many], ["m"], "m", {"m": 0.01}).figure.axes[0]
    assert drawn.collections[0].get_offsets()[0].tolist() == pytest.approx(expected)
    assert cost_picture([many]).figure.axes[0].lines[0].get_ydata()[0] == pytest.approx(expected[1])
    assert numbers.method_curve(runs).uncalibrated == pytest.approx(expected)
    fitted = [replace(run, calibration=divided_by(t)) for run, t in zip(runs, (1.5, 2.0, 9.0), strict=True)]
    at_their_t = [
        np.mean([nll(scaled(both[place], t)) for both, t in zip(sides, (1.5, 2.0, 9.0), strict=True)])
        for place in (0, 1)
    ]
    assert numbers.method_curve(fitted).calibrated == pytest.approx(at_their_t)
    error = [np.mean([1 - both[place].outcomes.correct.mean() for both in sides]) for place in (0, 1)]
    risk = pictures.risk_coverage_picture([many]).figure.axes
    assert [axes.lines[0].get_ydata()[-1] for axes in risk] == pytest.approx(error)
    bins = reliability(*(both[1].outcomes for both in sides))
    assert sum(bins.number) == pytest.approx(300)
    assert np.average(bins.accuracy, weights=bins.number) == pytest.approx(1 - error[1])
    alone, thrice = reliability(sides[0][0].outcomes), reliability(*[sides[0][0].outcomes] * 3)
    assert (thrice.number, thrice.low, thrice.band_high) == (alone.number, alone.low, alone.band_high)
    assert thrice.confidence == pytest.approx(alone.confidence)


def test_a_point_of_the_overview_is_as_large_as_its_time_and_the_named_are_labelled():
    given = scored([method(name, seed=5 * place) for place, name in enumerate("abc")])
    times = {"a": 0.001, "b": 0.004, "c": math.inf}
    axes = pictures.overview_picture(given, ["a", "b"], "b", times).figure.axes[0]
    areas = sorted(points.get_sizes()[0] for points in axes.collections)
    assert areas[1] == pytest.approx(4 * areas[0])
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    grey = [c for c in axes.collections if c.get_facecolor()[0][:3] == pytest.approx((0x8C / 255,) * 3)]
    assert len(grey) == 1


def test_e99_bars_are_exact_and_drawn(methods):
    bars = numbers.e99_bars(methods)
    for each in methods:
        for side, predictions in each.runs[0].sides.items():
            p = predictions.probs()
            sure = p.max(axis=1) > 0.99
            k = int((sure & (p.argmax(axis=1) != predictions.labels)).sum())
            bar = bars[each.name][side]
            assert (bar.k, bar.n) == (k, sure.sum())
            if bar.n:
                exact = binomtest(k, bar.n).proportion_ci(0.95, method="exact")
                assert (bar.low, bar.high) == pytest.approx((exact.low, exact.high))
    axes = pictures.e99_picture(methods).figure.axes[0]
    defined = [bars[each.name][side] for each in methods for side in numbers.SIDES if bars[each.name][side].n]
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([each.value for each in defined])
    written = [text.get_text().strip() for text in axes.texts]
    assert [text for text in written if " of " in text] == [f"{each.k:,} of {each.n:,}" for each in defined]
    assert written.count("no sample above 0.99") == 2
    assert bars["unsure"]["familiar"].n == 0


@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_nll_by_temperature_is_nll_at_each_temperature(draw):
    temperatures = [0.5, 1.0, 2.25]
    for predictions in (draw(seed=1), draw(seed=2, sharpness=3)):
        expected = [nll(scaled(predictions, t)) for t in temperatures]
        assert nll_by_temperature(predictions, temperatures) == pytest.approx(expected, rel=1e-6)


def test_temperature_of_an_ensemble_divides_the_averaged_log_probabilities():
    familiar = draw_one_label(members=3, sharpness=4)
    p = softmax(familiar.logits, axis=2).mean(axis=0)
    at_two = np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True)
    true = at_two[np.arange(familiar.n), familiar.labels]
    expected = [-np.log(np.clip(true, 0.001, 0.999)).mean()]
    assert nll_by_temperature(familiar, [2.0]) == pytest.approx(expected)


def test_without_a_known_label_the_nll_is_undefined():
    none = replace(draw_one_label(5, 2), labels=draw_one_label(5, 2).labels * 0 - 100)
    assert math.isnan(nll_by_temperature(none, [1.0])[0])


def test_method_curves_and_their_marks():
    plain = method("plain").runs[0]
    before = list(plain.before.values())
    fitted_method = method("scaled", calibration=divided_by(3.1))
    curve = numbers.method_curve(fitted_method.runs)
    assert curve.uncalibrated == pytest.approx([nll(side) for side in before])
    assert curve.calibrated == pytest.approx([nll(scaled(side, 3.1)) for side in before])
    for fitted in (0.4, 9.0):  # outside the curve: it is extended, and the mark lies on it
        further = numbers.method_curve([replace(plain, calibration=divided_by(fitted))])
        at = further.temperature.index(fitted)
        assert further.calibrated == (further.familiar[at], further.unfamiliar[at])
        assert set(curve.temperature) < set(further.temperature)
    of_one = divided_by(2.5)
    members = MemberTemperatures(
        members=(of_one,), n=of_one.n, label_kind=of_one.label_kind, classes=of_one.classes
    )
    by_predictions = numbers.method_curve([replace(plain, calibration=members)])
    assert by_predictions.calibrated == pytest.approx([nll(scaled(side, 2.5)) for side in before])
    assert numbers.method_curve([plain]).calibrated is None
    assert tuple(2 + 0.25 * i for i in range(17)) == numbers.DOTS
    for t, x, y in zip(curve.temperature, curve.familiar, curve.unfamiliar, strict=True):
        assert (x, y) == pytest.approx([nll(scaled(side, t)) for side in before])
    axes = pictures.temperature_picture([fitted_method]).figure.axes[0]
    marks = {line.get_marker(): line for line in axes.lines}
    assert [float(marks["X"].get_xdata()[0]), float(marks["X"].get_ydata()[0])] == list(curve.calibrated)
    assert [float(marks["^"].get_xdata()[0]), float(marks["^"].get_ydata()[0])] == list(curve.uncalibrated)
    assert len(marks["."].get_xdata()) == 17


def test_reliability_panels_draw_their_bins():
    drawn_methods = [method("a"), method("b", seed=5)]
    axes = panels.reliability_picture(drawn_methods).figure.axes
    sides = [predictions for each in drawn_methods for predictions in each.runs[0].sides.values()]
    for of_side, predictions in zip(axes, sides, strict=True):
        bins = reliability(predictions.outcomes)
        points = of_side.lines[-1]
        assert tuple(points.get_xdata()) == bins.confidence
        assert tuple(points.get_ydata()) == bins.accuracy
        assert f"n = {predictions.n}" in of_side.get_title(loc="left")


def test_confidence_panels_draw_error_rates_and_counts():
    one = method("a")
    upper, lower = (panels.confidence_picture([one]).figure.axes[i] for i in (0, 4))
    for i, predictions in enumerate(one.runs[0].sides.values()):
        bins = [each for each in numbers.confidence_bins([predictions]).errors if each.n]
        points, whiskers = upper.lines[2 * i + 1], upper.lines[2 * i].get_ydata()
        assert list(points.get_ydata()) == [each.value for each in bins]
        assert list(whiskers[0::3]) == [each.low for each in bins]
        assert list(whiskers[1::3]) == [each.high for each in bins]
        heights = lower.lines[i].get_ydata()[1::3]
        assert [height for height in heights if height >= 1] == [each.n for each in bins]


def test_cost_points_lie_at_cost_and_nll():
    drawn_methods = scored(
        [
            replace(method("a"), seconds_training=100.0, seconds_per_sample=0.0025),
            replace(method("b", seed=5), seconds_training=1000.0),
        ]
    )
    axes = cost_picture(drawn_methods).figure.axes
    places = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes[0].lines]
    assert places == [
        (cost, nll(each.runs[0].sides["unfamiliar"]))
        for cost, each in zip((100.0, 1000.0), drawn_methods, strict=True)
    ]
    assert [float(line.get_xdata()[0]) for line in axes[1].lines] == [2.5]
    untimed = cost_picture([replace(drawn_methods[0], seconds_per_sample=None)]).figure.axes[1]
    assert [text.get_text() for text in untimed.texts] == ["not measured"]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("make", [*PICTURES[1:3], PICTURES[5]])
def test_the_legend_names_every_method_within_the_figure(methods, make):
    figure = make(methods).figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [style.plain_text(m.title) for m in methods]
    box, panel = legend.get_window_extent(), figure.axes[0].xaxis.label.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.y1 <= panel.y0, "below the label of the axis"
    assert box.y0 >= figure.bbox.y0


def test_predictions_without_a_known_label_still_make_pictures():
    one = draw_one_label(20, 2)
    unknown = replace(one, labels=one.labels * 0 - 100)
    drawn_methods = [of_sides("m", one, unknown)]
    for make in (
        pictures.e99_picture,
        pictures.temperature_picture,
        pictures.risk_coverage_picture,
        panels.reliability_picture,
        panels.confidence_picture,
    ):
        ET.fromstring(make(drawn_methods).svg())


def test_a_hostile_title_stays_a_title():
    title = "<b>\"a\" & 'b'</b>"
    svg = replace(pictures.e99_picture([method("m", n=20)]), title=title).svg()
    assert ET.fromstring(svg).get("aria-label") == title
    assert "<b>" not in svg


def test_a_curve_ends_soon_after_it_is_worse_on_both_sides_than_uncalibrated():
    sure = draw_one_label(sharpness=1.0)  # calibrated as it is, so that every T above 1 is worse
    run = MethodRun.of_sides(0, sure, sure)
    curve = numbers.method_curve([run])
    assert 1.0 in curve.temperature
    assert curve.temperature[-1] < 6
    worse = [
        t for t, nll in zip(curve.temperature, curve.familiar, strict=True) if nll > curve.uncalibrated[0]
    ]
    assert len(worse) == numbers.BEYOND_USE
    fitted = numbers.method_curve([replace(run, calibration=divided_by(4.1))])
    assert fitted.temperature[-1] > 4.1, "and never before the T that was fitted"
