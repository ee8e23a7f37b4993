"""The report of an evaluation: one self-contained page and its JSON document."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from surefoot import __version__
from surefoot.calibrators import Calibration, calibration_document
from surefoot.errors import InputError
from surefoot.evaluation.scores import Evaluation, evaluation_document
from surefoot.io import replacing
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.report import curves as data
from surefoot.report import figures
from surefoot.report.style import template_named
from surefoot.report.tables import evaluation_tables, text_of
from surefoot.report.verdict import verdict


@dataclass(frozen=True)
class Subject:
    """What a report is about: the evaluation, the predictions per side, the calibration, file names."""

    evaluation: Evaluation
    predictions: Mapping[str, Predictions]
    calibration: Calibration | None = None
    sources: Mapping[str, str] | None = None


def write_report(subject: Subject, directory: str | Path) -> Path:
    """Write `report.html` and `report.json` into a folder, made if need be; the path of the page."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {directory}: {error.strerror}") from error
    shown = figure_data(subject)
    twin = evaluation_document(subject.evaluation)
    twin |= {"verdict": verdict(subject.evaluation), "sources": dict(subject.sources or {})}
    if subject.calibration is not None:
        twin["calibration"] = calibration_document(subject.calibration)
    twin["figures"] = _plain(shown)
    for name, text in (("report.json", json.dumps(twin, indent=1)), ("report.html", page(subject, shown))):
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return folder / "report.html"


def figure_data(subject: Subject) -> dict[str, Any]:
    """The numbers behind every figure, after calibration where there is one."""
    after = {side: _calibrated(subject, p) for side, p in subject.predictions.items()}
    shown: dict[str, Any] = {
        "reliability": {side: data.reliability(p.outcomes) for side, p in after.items()},
        "confidence": {side: data.histogram(p.outcomes, _lowest_confidence(p)) for side, p in after.items()},
        "risk_coverage": {side: data.risk_coverage(p.outcomes) for side, p in after.items()},
        "classes": {side: data.class_scores(p) for side, p in after.items()},
    }
    if subject.calibration is not None:
        before = subject.predictions.items()
        shown["reliability_before"] = {side: data.reliability(p.outcomes) for side, p in before}
    if "unfamiliar" in subject.predictions:
        used = subject.calibration
        fitted = None if used is None else used.single_temperature
        shown["temperature"] = data.temperature_curve(*subject.predictions.values(), fitted=fitted)
    return shown


def page(subject: Subject, shown: Mapping[str, Any]) -> str:
    """The page as text; whatever a user's file holds is escaped by the template."""
    return template_named("evaluation.html").render(
        evaluation=subject.evaluation,
        tables=evaluation_tables(subject.evaluation),
        verdict=verdict(subject.evaluation),
        figures=[(title, Markup(svg), caption) for title, svg, caption in _figures(shown)],
        classes=shown["classes"],
        score_text=text_of,
        many_labels=next(iter(subject.predictions.values())).kind is LabelKind.MANY_LABELS,
        calibration=subject.calibration,
        remarks=[] if subject.calibration is None else subject.calibration.remarks(),
        sources=subject.sources or {},
        definitions=[metric for metric in subject.evaluation.metrics if metric in METRICS],
        version=__version__,
    )


def _figures(shown: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    before = shown.get("reliability_before", {})
    for side, of_side in shown["reliability"].items():
        caption = (
            "Ten bins of equal size. On the diagonal, confidence equals accuracy; below it the model is too "
            "sure. The grey band is where a calibrated model's bins would fall by chance; bars are exact 95% "
            "intervals."
        )
        found.append(
            (f"Reliability, {side}", figures.reliability_figure(side, of_side, before.get(side)), caption)
        )
    found.append(
        ("Confidence", figures.histogram_figure(shown["confidence"]), "How often the model is how sure.")
    )
    caption = "The error rate that is left when only the most confident share is answered."
    found.append(("Risk against coverage", figures.risk_coverage_figure(shown["risk_coverage"]), caption))
    if "temperature" in shown:
        curve = shown["temperature"]
        caption = (
            "NLL on both sides as the logits are divided by T. The best T for unfamiliar data is usually "
            f"higher than the best for familiar data. Drawn from at most {curve.rows:,} rows a side."
        )
        svg = figures.temperature_figure(curve)
        found.append(("Temperature", svg, caption))
    return found


def _calibrated(subject: Subject, predictions: Predictions) -> Predictions:
    return predictions if subject.calibration is None else subject.calibration(predictions)


def _lowest_confidence(predictions: Predictions) -> float:
    return 0.5 if predictions.kind is LabelKind.MANY_LABELS else 1 / predictions.classes


def _plain(value: Any) -> Any:
    """Dataclasses and their containers as plain data; NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    return None if isinstance(value, float) and value != value else value
