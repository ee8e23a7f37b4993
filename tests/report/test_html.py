"""The page: escaped, self-contained, light, and right in a real browser."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from surefoot import InputError, Predictions, fit_member_temperatures, fit_temperature
from surefoot.evaluation.evaluate import evaluate
from surefoot.plots import curves as data
from surefoot.report.evaluation import write_report
from surefoot.report.evaluation_tables import Summary
from tests.browser import CHROMIUM
from tests.conftest import draw_many_labels, draw_one_label

NASTY = ["<script>alert(1)</script>", "a & b", '"quoted"', "{{ 7 * 7 }}"]


def summary(*, n=400, calibrated=True, resamples=20, **optional):
    sides = {
        "familiar": draw_one_label(n, 4, sharpness=4, class_names=NASTY, **optional),
        "unfamiliar": draw_one_label(n, 4, sharpness=8, seed=1, class_names=NASTY, **optional),
    }
    val = draw_one_label(n, 4, sharpness=4, seed=2, class_names=NASTY)
    calibration = fit_temperature(val) if calibrated else None
    evaluation = evaluate(*sides.values(), calibration=calibration, resamples=resamples)
    return Summary(evaluation)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    groups = [NASTY[0], "plain"] * 200
    sources = {"familiar": "<b>f.npz</b>", "unfamiliar": "u.npz"}
    folder = tmp_path_factory.mktemp("report") / "deep" / "er"
    return write_report(summary(groups=groups), folder, sources=sources)


def test_nothing_a_file_holds_reaches_the_page_unescaped(report):
    text = report.read_text()
    assert "<script" not in text
    assert "<b>f.npz" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_the_page_needs_nothing_from_elsewhere(report):
    text = re.sub(r'xmlns(:xlink)?="[^"]*"', "", report.read_text())
    assert "http" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)


def test_ids_are_unique_and_references_resolve(report):
    text = report.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    referred = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
    assert referred
    assert {a or b for a, b in referred} <= set(ids)


def test_every_figure_is_sound_svg_in_the_page_ink(report):
    figures = re.findall(r"<svg.*?</svg>", report.read_text(), flags=re.DOTALL)
    assert len(figures) == 5
    for figure in figures:
        ET.fromstring(figure)
        assert "currentColor" in figure


def test_the_json_twin_holds_the_same_numbers(report):
    document = json.loads((report.parent / "report.json").read_text())
    assert document["familiar"]["n"] == 400
    bins = document["figures"]["reliability"]["familiar"]
    assert sum(bins["number"]) == 400
    assert len(document["figures"]["temperature"]["temperature"]) == len(data.TEMPERATURES)
    assert document["verdict"]
    assert document["calibration"]["kind"] == "temperature"
    assert document["sources"]["unfamiliar"] == "u.npz"


def test_a_hundred_thousand_rows_make_a_light_page(tmp_path):
    page = write_report(summary(n=100_000, resamples=0), tmp_path)
    assert page.stat().st_size < 500_000
    assert (tmp_path / "report.json").stat().st_size < 500_000


def test_many_labels_members_and_one_side(tmp_path):
    sides = {"familiar": draw_many_labels(members=3), "unfamiliar": draw_many_labels(seed=1, members=3)}
    calibration = fit_member_temperatures(sides["familiar"])
    evaluation = evaluate(*sides.values(), calibration=calibration, resamples=5)
    assert "Calibrated with T of each member = " in write_report(Summary(evaluation), tmp_path).read_text()
    text = write_report(Summary(evaluate(draw_one_label(), resamples=5)), tmp_path).read_text()
    assert text.count("<svg") == 3


def test_degenerate_predictions_still_make_a_page(tmp_path):
    sides = {
        "familiar": Predictions.from_logits(np.zeros((1, 2)), [0]),
        "unfamiliar": Predictions.from_probs([[1.0, 0.0], [0.0, 1.0]], [0, 0]),
    }
    assert write_report(Summary(evaluate(*sides.values(), resamples=3)), tmp_path).exists()


def test_an_unwritable_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*folder: Not a directory"):
        write_report(summary(n=50, resamples=0), tmp_path / "file" / "folder")


def test_reliability_bins_and_band():
    outcomes = draw_one_label(1000, 4).outcomes
    diagram = data.reliability(outcomes)
    assert list(diagram.number) == [100] * 10
    inside = [
        low <= a <= high
        for low, a, high in zip(diagram.band_low, diagram.accuracy, diagram.band_high, strict=True)
    ]
    assert sum(inside) >= 8
    assert np.average(diagram.accuracy) == pytest.approx(outcomes.correct.mean())


def test_risk_coverage_ends_at_the_error_rate():
    outcomes = draw_one_label(5000, 4).outcomes
    curve = data.risk_coverage(outcomes.pooled_curve)
    assert len(curve.coverage) <= data.CURVE_POINTS
    assert (curve.coverage[0], curve.coverage[-1]) == (0, 1)
    assert curve.risk[-1] == pytest.approx(1 - outcomes.correct.mean())


def test_temperature_curve_has_its_minimum_at_the_right_temperature():
    familiar, unfamiliar = draw_one_label(4000, sharpness=3), draw_one_label(4000, sharpness=5, seed=1)
    curve = data.temperature_curve(familiar, unfamiliar)
    assert curve.temperature[np.argmin(curve.familiar)] == pytest.approx(3, abs=0.5)
    assert curve.temperature[np.argmin(curve.unfamiliar)] == pytest.approx(5, abs=0.75)
    for far in (40.0, 0.01):
        wide = data.temperature_curve(familiar, unfamiliar, fitted=far)
        assert wide.temperature[0] < far < wide.temperature[-1]
        assert wide.fitted[0] == far


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_in_a_real_browser(browser, report, width, scheme):
    problems = []
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    page.goto(report.as_uri())
    figures = page.locator("figure svg")
    assert figures.count() == 5
    for index in range(5):
        box = figures.nth(index).bounding_box()
        assert box["width"] > 250
        assert box["height"] > 200
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert NASTY[0] in page.locator("table.classes").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] < brightness[1]) == (scheme == "light")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 less its margins
    page.emulate_media(media="print")
    cut = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.parentElement.clientWidth).length"
    assert page.evaluate(cut) == 0
    assert len(page.pdf()) > 10_000
    page.close()
    assert problems == []
