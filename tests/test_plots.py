"""Plots on the user's own axes draw the numbers of the metrics, in matplotlib's style."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from cycler import cycler
from matplotlib.figure import Figure

from surefoot import InputError, evaluate, fit_temperature, metrics, plots
from surefoot.plots import curves
from tests.conftest import draw_many_labels, draw_one_label


@pytest.fixture(scope="module")
def sides():
    return {
        "familiar": draw_one_label(500, sharpness=2, seed=1),
        "unfamiliar": draw_one_label(500, sharpness=4, seed=2),
    }


def new_axes():
    return Figure().subplots()


def drawn(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def assert_visible(axes, line):
    """Whatever was drawn is within the limits, also where it was drawn after something else."""
    if line.get_transform() == axes.transData:
        (left, right), (bottom, top) = axes.get_xlim(), sorted(axes.get_ylim())
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        inside = (x >= left) & (x <= right)
        assert inside.any()
        assert (np.isnan(y[inside]) | ((y[inside] >= bottom) & (y[inside] <= top))).all()


def test_each_draws_on_the_given_axes_or_on_a_new_figure(sides):
    both = tuple(sides.values())
    draw = {
        plots.reliability: (sides,),
        plots.confidence_histogram: (sides,),
        plots.risk_coverage: (sides,),
        plots.temperature_curve: (sides,),
        plots.nll_familiar_vs_unfamiliar: both,
        plots.compare_methods: ({"a": both[0]}, {"a": both[1]}),
        plots.calibration_map: (fit_temperature(both[0]),),
    }
    assert {function.__name__ for function in draw} == set(plots.__all__)
    for function, given in draw.items():
        axes = new_axes()
        options = {"resamples": 3} if function is plots.compare_methods else {}
        assert function(*given, ax=axes, **options) is axes
        assert axes.get_xlabel()
        for line in axes.lines:
            assert_visible(axes, line)
    worse = replace(both[0], labels=np.roll(both[0].labels, 1))
    axes = plots.risk_coverage({"good": both[0], "worse": worse}, new_axes())
    assert_visible(axes, drawn(axes, "worse"))
    fresh = plots.risk_coverage(both[0])
    assert fresh.get_legend() is None
    matplotlib.pyplot.close(fresh.figure)


def test_colours_lines_and_markers_are_those_of_the_style(sides):
    style = {"axes.prop_cycle": cycler(color=["#111111", "#222222"], marker=["s", "v"], linestyle=["-", ":"])}
    with matplotlib.rc_context(style):
        axes = plots.reliability(sides, new_axes())
        points = [drawn(axes, name) for name in sides]
        assert [line.get_color() for line in points] == ["#111111", "#222222"]
        assert [line.get_marker() for line in points] == ["s", "v"]
        curve = drawn(plots.risk_coverage(sides, new_axes()), "unfamiliar")
        assert (curve.get_color(), curve.get_linestyle(), curve.get_marker()) == ("#222222", ":", "")


def test_reliability_and_risk_are_the_curves_of_the_report(sides):
    name, predictions = "familiar", sides["familiar"]
    bins = curves.reliability(predictions.outcomes)
    x, y = drawn(plots.reliability(sides, new_axes()), name).get_data()
    assert (tuple(x), tuple(y)) == (bins.confidence, bins.accuracy)
    x, y = drawn(plots.risk_coverage(sides, new_axes()), name).get_data()
    assert (x[-1], y[-1]) == (1, pytest.approx(metrics.label_error(predictions)))


def test_the_temperature_curve_has_its_minimum_at_the_fitted_temperature(sides):
    axes = plots.temperature_curve(sides, new_axes())
    for name, predictions in sides.items():
        fitted = fit_temperature(predictions).temperature
        x, y = drawn(axes, f"{name}, T = {fitted:.2f}").get_data()
        assert x[np.argmin(y)] == fitted
        assert min(y) == pytest.approx(metrics.nll_unclipped(fit_temperature(predictions)(predictions)))


def test_points_of_both_sides_are_their_nll_before_and_after(sides):
    fitted = fit_temperature(draw_one_label(300, sharpness=2, seed=3))
    axes = plots.nll_familiar_vs_unfamiliar(*sides.values(), new_axes(), calibration=fitted)
    marked = {line.get_marker(): line.get_data() for line in axes.lines}
    for marker, change in (("^", lambda p: p), ("X", fitted)):
        expected = [metrics.nll(change(p)) for p in sides.values()]
        assert [float(v[0]) for v in marked[marker]] == pytest.approx(expected)


def test_compared_methods_have_the_values_and_intervals_of_evaluate(sides):
    named = {"first": sides["familiar"], "second": sides["unfamiliar"]}
    axes = plots.compare_methods(named, metric="ece", resamples=20, seed=3, ax=new_axes())
    points = drawn(axes, "familiar").get_xdata()
    scores = [evaluate(p, metrics=["ece"], resamples=20, seed=3).sides["familiar"] for p in named.values()]
    assert list(points) == [score.metrics["ece"].value for score in scores]
    ends = axes.lines[0].get_xdata()
    assert ends[0] == scores[0].metrics["ece"].low
    assert ends[4] == scores[1].metrics["ece"].high
    assert [text.get_text() for text in axes.get_yticklabels()] == ["first", "second"]


def test_what_cannot_be_drawn_is_refused(sides):
    many = draw_many_labels(100)
    assert plots.reliability(many, new_axes()).lines
    for call, sentence in (
        (lambda: plots.reliability({}), "no predictions to draw"),
        (
            lambda: plots.reliability([1]),
            r"predictions has type list; allowed: Predictions .* or a dict of Predictions",
        ),
        (
            lambda: plots.compare_methods({"a": many}, {"b": many}),
            "familiar has the name 'a', the other side has: b",
        ),
        (lambda: plots.compare_methods(many, metric="nil"), "unknown metric 'nil'"),
        (lambda: plots.nll_familiar_vs_unfamiliar(many, sides["familiar"]), "kinds differ"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
