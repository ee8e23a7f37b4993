"""The report of an evaluation: one self-contained page and a JSON document with the same numbers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from surefoot import __version__
from surefoot.calibrators import Calibration, calibration_document
from surefoot.evaluation.scores import evaluation_document
from surefoot.io import all_or_none, make_folder, replacing
from surefoot.metrics import METRICS
from surefoot.pages import template_named
from surefoot.plots import curves
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.report import figures
from surefoot.report.summary import Summary, score_text
from surefoot.report.tables import Table, to_html
from surefoot.text import number_text, signed_text

GROUPS_SHOWN = 500


@dataclass(frozen=True)
class Subject:
    """What a report is about: the evaluation, the predictions per side, the calibration, file names."""

    summary: Summary
    predictions: Mapping[str, Predictions]
    calibration: Calibration | None = None
    sources: Mapping[str, str] | None = None


def write_report(subject: Subject, directory: str | Path) -> Path:
    """Write `report.html` and `report.json` into a folder, created if missing; the path of the page."""
    folder = Path(directory)
    curves_of = figure_data(subject)
    document = evaluation_document(subject.summary.evaluation)
    document |= {"verdict": list(subject.summary.verdict), "sources": dict(subject.sources or {})}
    if subject.calibration is not None:
        document["calibration"] = calibration_document(subject.calibration)
    document["figures"] = _plain(curves_of)
    texts = {"report.json": json.dumps(document, indent=1), "report.html": page(subject, curves_of)}
    with all_or_none():
        make_folder(folder)
        for name, text in texts.items():
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    return folder / "report.html"


def figure_data(subject: Subject) -> dict[str, Any]:
    """The numbers behind every figure, after calibration where there is one."""
    before, calibration = subject.predictions, subject.calibration
    after = before if calibration is None else {side: calibration(p) for side, p in before.items()}
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


def page(subject: Subject, data: Mapping[str, Any]) -> str:
    """The page as text; whatever a user's file holds is escaped by the template and the table writer."""
    evaluation = subject.summary.evaluation
    scores, *others = subject.summary.tables
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
        verdict=subject.summary.verdict,
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
        many_labels=next(iter(subject.predictions.values())).kind is LabelKind.MANY_LABELS,
        calibration=subject.calibration,
        remarks=[] if subject.calibration is None else subject.calibration.notes(),
        sources=subject.sources or {},
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
    before = data.get("reliability_before", {})
    for side, reliability in data["reliability"].items():
        yield (
            f"Reliability, {side}",
            figures.reliability_figure(side, reliability, before.get(side), data["confidence"][side]),
            "Ten bins of equal size. On the diagonal, confidence equals accuracy; below it, the model is "
            "overconfident. The band is where the bins of a calibrated model would fall by chance; bars are "
            "exact 95% intervals. At the bottom: the distribution of the confidence.",
        )
    yield (
        "Confidence",
        figures.histogram_figure(data["confidence"]),
        "Distribution of the confidence.",
    )
    yield (
        "Risk against coverage",
        figures.risk_coverage_figure(data["risk_coverage"]),
        "The error rate among the most confident predictions, as more of them are accepted.",
    )
    if "temperature" in data:
        yield (
            "Temperature",
            figures.temperature_figure(data["temperature"]),
            "NLL on both sides as the logits are divided by T. The best T for unfamiliar data is usually "
            "higher than the best T for familiar data. Computed from at most "
            f"{data['temperature'].rows:,} rows per side.",
        )


def _plain(value: Any) -> Any:
    """Dataclasses and their containers as plain data; NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    return None if isinstance(value, float) and value != value else value
