"""The page of the thresholds: what is promised, what was measured, and the risk-coverage picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from surefoot.deploy.thresholds import Thresholds
from surefoot.files import replacing
from surefoot.predictions import Predictions
from surefoot.report import data
from surefoot.report.pages import template_named
from surefoot.report.style import COLOURS, GREY, INK, LINES, STYLE, svg_of
from surefoot.report.threshold_tables import Elsewhere, thresholds_table, thresholds_verdict
from surefoot.version import VERSION

SIDES = {"val": "familiar", "unfamiliar": "unfamiliar"}  # which of the data are drawn, and how


def write_thresholds_page(
    chosen: Thresholds,
    elsewhere: Elsewhere,
    predictions: Mapping[str, Predictions],
    sources: Mapping[str, str],
    path: str | Path,
) -> None:
    """Write one self-contained page."""
    text = template_named("thresholds.html").render(
        verdict=thresholds_verdict(chosen, elsewhere),
        table=thresholds_table(chosen, elsewhere),
        figure=Markup(_figure(chosen, predictions)),
        sources=sources,
        candidates=len(chosen.candidates),
        version=VERSION,
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _figure(chosen: Thresholds, predictions: Mapping[str, Predictions]) -> str:
    """Error against coverage, the bounds that hold together, the target and where the threshold stops."""
    with rc_context(STYLE):
        figure = Figure(figsize=(5.4, 4.2), layout="constrained")
        axes = figure.subplots()
        highest = 0.0
        for name, side in SIDES.items():
            if name in predictions:
                shown = data.risk_coverage(chosen.seen(predictions[name]).outcomes)
                style: Any = {"color": COLOURS[side], "linestyle": LINES[side], "linewidth": 2, "label": name}
                axes.plot(shown.coverage, shown.risk, **style)
                highest = max(highest, *shown.risk)
        promised = [(each.share, each.bound) for each in chosen.candidates if each.n]
        axes.plot(
            *zip(*promised, strict=True), "_", color=INK, markersize=9, label="can be promised, familiar"
        )
        axes.axhline(chosen.promise.target_error, color=GREY, linewidth=1.2, label="target")
        for name, side in SIDES.items():
            if name in predictions:
                zone = chosen.zones_of(predictions[name])["accept"]
                if zone.error.n:
                    axes.plot(zone.share.value, zone.error.value, "D", color=COLOURS[side], markersize=9)
        axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
        axes.set(xlim=(0, 1.02), ylim=(0, min(1.0, max(1.15 * highest, 2 * chosen.promise.target_error))))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="upper left")
        return svg_of(figure, "thresholds", "Error against coverage, with the threshold that was chosen")
