"""How a calibration looks: what was fitted, and what it changed on the data of the fit."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import surefoot.plots as plots
from surefoot.calibrators import Calibration, calibration_document
from surefoot.intervals import NAN
from surefoot.report.tables import Table
from surefoot.report.views import View


def calibration_view(calibration: Calibration) -> View:
    """How a calibration looks."""
    evidence, numbers = calibration.evidence, {**calibration.details()}
    facts = {} if evidence is None else {k: v for k, v in asdict(evidence).items() if isinstance(v, float)}

    def rows() -> Iterator[dict[str, Any]]:
        ends = {name: getattr(calibration, name, NAN) for name in ("low", "high")}
        for name, values in calibration.parameters().items():
            for index, value in enumerate(values):
                interval = ends if len(values) == 1 else {"low": NAN, "high": NAN}
                yield {"name": name, "index": index, "value": value, **interval}
        for name, value in (facts | numbers).items():
            yield {"name": name, "index": 0, "value": value, "low": NAN, "high": NAN}

    columns = {"before": "before", "after": "after", "held_out": "after, on rows left out of the fit"}
    columns = {name: title for name, title in columns.items() if f"nll_{name}" in facts}
    table = Table.of_text(
        "On the data that it was fitted on",
        ("metric", *columns.values()),
        [
            (title, *(f"{facts[f'{metric}_{name}']:.4f}" for name in columns))
            for metric, title in (("nll", "NLL (not clipped)"), ("ece", "ECE"))
            if facts
        ],
    )
    return View(
        f"Calibration: {calibration.kind}, {calibration.label_kind}, {calibration.classes} classes",
        (*calibration.lines(), *(f"note: {remark}" for remark in calibration.notes())),
        (table,) if facts else (),
        rows,
        lambda: calibration_document(calibration),
        lambda ax: plots.calibration_map(calibration, ax),
    )
