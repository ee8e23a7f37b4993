"""The report of an evaluation: one self-contained page and a JSON document with the same numbers."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

import surefoot.plots as plots
from surefoot import __version__
from surefoot.calibrators import calibration_document
from surefoot.errors import InputError
from surefoot.evaluation.scores import Evaluation, evaluation_document
from surefoot.metrics import METRICS
from surefoot.plots import (
    DIAGONAL,
    curves,
    draw_histogram,
    draw_reliability,
    draw_risk_coverage,
    draw_temperature_path,
    finish_risk_coverage,
    limit_risk,
    mark_keys,
    write_temperatures,
)
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.report.evaluation_tables import Summary, headline_tables, score_rows, score_text
from surefoot.report.pages import template_named
from surefoot.report.style import GREY, drawn_svg, side_style
from surefoot.report.tables import Table, to_html
from surefoot.report.views import View, write_files
from surefoot.text import number_text, signed_text

GROUPS_SHOWN = 500


def write_report(
    summary: Summary, directory: str | Path, *, sources: Mapping[str, str] | None = None
) -> Path:
    """Write `report.html` and `report.json` into a folder, created if missing; the path of the page.

    `sources` are the files of the predictions, by side.
    """
    folder, evaluation = Path(directory), summary.evaluation
    data = figure_data(evaluation)
    document = evaluation_document(evaluation)
    document |= {"verdict": summary.verdict, "sources": dict(sources or {})}
    if evaluation.calibration is not None:
        document["calibration"] = calibration_document(evaluation.calibration)
    document["figures"] = _plain(data)
    html = page(summary, data, sources or {})
    write_files(folder, {"report.json": json.dumps(document, indent=1), "report.html": html})
    return folder / "report.html"


def figure_data(evaluation: Evaluation) -> dict[str, Any]:
    """The numbers behind every figure, after calibration where there is one."""
    before, calibration = evaluation.predictions, evaluation.calibration
    after = calibrated(evaluation, "a report")
    data: dict[str, Any] = {
        "reliability": {side: curves.reliability(p.outcomes) for side, p in after.items()},
        "confidence": {
            side: curves.histogram(curves.lowest_confidence(p), p.outcomes) for side, p in after.items()
        },
        "risk_coverage": {side: curves.risk_coverage(p.outcomes.pooled_curve) for side, p in after.items()},
        "classes": {side: curves.class_scores(p) for side, p in after.items()},
    }
    if calibration is not None:
        data["reliability_before"] = {side: curves.reliability(p.outcomes) for side, p in before.items()}
    if "unfamiliar" in before:
        fitted = curves.single_temperature(calibration)
        data["temperature"] = curves.temperature_curve(*before.values(), fitted=fitted)
    return data


def calibrated(evaluation: Evaluation, what: str) -> dict[str, Predictions]:
    """The predictions as they were scored; `what` needs them."""
    if not evaluation.predictions:
        raise InputError(f"{what} needs the predictions, and these were streamed; allowed: in memory")
    fitted, given = evaluation.calibration, evaluation.predictions
    return {side: p if fitted is None else fitted(p) for side, p in given.items()}


def page(summary: Summary, data: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The page as text; whatever a user's file holds is escaped by the template and the table writer."""
    evaluation, calibration = summary.evaluation, summary.evaluation.calibration
    scores, *others = summary.tables
    groups = {}
    for side, of_side in evaluation.sides.items():
        if of_side.groups:
            header = ("group", "n", *of_side.groups[0].metrics)
            rows = [
                (group.group, f"{group.n:,}", *map(score_text, group.metrics.values()))
                for group in of_side.groups[:GROUPS_SHOWN]
            ]
            groups[side] = to_html([Table.of_text("", header, rows)], "groups")
    return template_named("evaluation.html").render(
        evaluation=evaluation,
        verdict=summary.verdict,
        scores=to_html([scores], "scores"),
        others=[(table.title, to_html([replace(table, title="")], "scores")) for table in others],
        figures=[(title, Markup(svg), caption) for title, svg, caption in _figures(data)],
        classes=to_html(
            [
                _class_table(side, rows, evaluation.sides[side].classes)
                for side, rows in data["classes"].items()
            ],
            "classes",
        ),
        groups=groups,
        groups_shown=GROUPS_SHOWN,
        many_labels=next(iter(evaluation.sides.values())).kind is LabelKind.MANY_LABELS,
        calibration=calibration,
        remarks=[] if calibration is None else calibration.notes(),
        sources=sources,
        definitions=to_html(
            [
                Table.of_text(
                    "",
                    ("metric", "definition", "better", "reference"),
                    [(m.title, m.formula, m.better, m.reference) for m in evaluation.metrics if m in METRICS],
                )
            ],
            "wrap",
        ),
        version=__version__,
    )


def _class_table(side: str, scores: list[curves.ClassScores], classes: int) -> Table:
    title = side if len(scores) == classes else f"{side} ({len(scores)} of {classes} classes)"
    header = ("class", "n", "error", "confidence less accuracy")
    rows = [
        (each.name, f"{each.n:,}", number_text(each.error), signed_text(each.overconfidence))
        for each in scores
    ]
    return Table.of_text(title, header, rows)


def _figures(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, SVG and caption of each figure."""

    def svg(name: str, title: str, draw: Callable[[Axes], None], *sides: str) -> str:
        return drawn_svg(name, title, side_style(*sides), draw, size=(4.6, 3.8))

    before, sides = data.get("reliability_before", {}), tuple(data["reliability"])
    for side, reliability in data["reliability"].items():
        draw = partial(
            _draw_reliability,
            side=side,
            calibrated=reliability,
            before=before.get(side),
            confidence=data["confidence"][side],
        )
        yield (
            f"Reliability, {side}",
            svg(f"reliability-{side}", f"Reliability diagram, {side}", draw, side),
            "Ten bins of equal size. On the diagonal, confidence equals accuracy; below it, the model is "
            "overconfident. The band is where the bins of a calibrated model would fall by chance; bars are "
            "exact 95% intervals. At the bottom: the distribution of the confidence.",
        )
    draw = partial(_draw_histogram, sides=data["confidence"])
    yield (
        "Confidence",
        svg("histogram", "Histogram of confidences", draw, *sides),
        "Distribution of the confidence.",
    )
    draw = partial(_draw_risk_coverage, sides=data["risk_coverage"])
    yield (
        "Risk against coverage",
        svg("risk-coverage", "Risk against coverage", draw, *sides),
        "The error rate among the most confident predictions, as more of them are accepted.",
    )
    if "temperature" in data:
        draw = partial(_draw_temperature, curve=data["temperature"])
        yield (
            "Temperature",
            svg("temperature", "Familiar against unfamiliar NLL as T varies", draw, "familiar"),
            "NLL on both sides as the logits are divided by T. The best T for unfamiliar data is usually "
            "higher than the best T for familiar data. Computed from at most "
            f"{data['temperature'].rows:,} rows per side.",
        )


def _draw_reliability(
    axes: Axes,
    side: str,
    calibrated: curves.Reliability,
    before: curves.Reliability | None,
    confidence: curves.Histogram,
) -> None:
    """Accuracy against confidence, ten equal-mass bins, the confidences at the foot, the noise band."""
    axes.plot([0, 1], [0, 1], **DIAGONAL)
    if before is not None:
        label = "before calibration"
        axes.plot(before.confidence, before.accuracy, "x", color=GREY, markersize=6, label=label)
    draw_reliability(axes, calibrated, confidence, side)
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.set_title(f"n = {sum(calibrated.number):,.0f}", loc="left", fontsize=9)
    axes.legend(loc="upper left", fontsize=9)


def _draw_histogram(axes: Axes, sides: Mapping[str, curves.Histogram]) -> None:
    """The share of predictions at each confidence."""
    for side, histogram in sides.items():
        draw_histogram(axes, histogram, side)
    axes.set(xlabel="confidence", ylabel="share of predictions")
    axes.legend(loc="best")


def _draw_risk_coverage(axes: Axes, sides: Mapping[str, curves.RiskCoverage]) -> None:
    """The error rate when only the most confident share is accepted."""
    for side, curve in sides.items():
        draw_risk_coverage(axes, curve, side)
    finish_risk_coverage(axes)
    limit_risk(axes)
    axes.legend(loc="best")


def _draw_temperature(axes: Axes, curve: curves.TemperatureCurve) -> None:
    """NLL on both sides while T varies: triangle uncalibrated, X calibrated, dots from T = 2 by 0.25."""
    draw_temperature_path(axes, curve, "")
    write_temperatures(axes, curve)
    axes.set(xlabel="NLL, familiar", ylabel="NLL, unfamiliar")
    keys = mark_keys(calibrated=curve.fitted is not None)
    if curve.fitted is not None:
        keys[1].set_label(f"calibrated, T = {curve.fitted[0]:.2f}")
    axes.legend(handles=keys, loc="center right")


def _plain(value: Any) -> Any:
    """Dataclasses and their containers as plain data; NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    return None if isinstance(value, float) and value != value else value


def evaluation_view(evaluation: Evaluation) -> View:
    """How an evaluation looks."""
    summary = Summary(evaluation)
    return View(
        "Evaluation",
        tuple(summary.verdict),
        tuple(headline_tables(evaluation, more="to_frame() has every metric.")),
        lambda: score_rows(evaluation),
        lambda: evaluation_document(evaluation),
        lambda ax: plots.reliability(calibrated(evaluation, "a plot"), ax),
        lambda folder: write_report(summary, folder),
    )
