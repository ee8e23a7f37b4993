"""The monitor's page: the verdict, the comparisons, both distributions and, with a history, every look."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from surefoot.deploy.monitor import Look, Scores, novelty_name
from surefoot.files import replacing
from surefoot.outcomes import Array
from surefoot.report.monitor_words import TITLES, monitor_table, monitor_verdict
from surefoot.report.pages import template_named
from surefoot.report.style import COLOURS, GREY, LINES, STYLE, svg_of
from surefoot.version import VERSION

BINS = 25
LOOKS_SHOWN = 200
SIDES = {"reference": "familiar", "current": "unfamiliar"}  # drawn in the colours of


def write_monitor_page(
    look: Look,
    reference: Scores,
    current: Scores,
    looks: Sequence[Mapping[str, Any]],
    sources: Mapping[str, str],
    path: str | Path,
) -> None:
    """Write one self-contained page."""
    figures = [("Confidence", _histogram("confidence", reference.confidence, current.confidence))]
    name = novelty_name(reference, current)
    if name is not None:
        title = TITLES[name].capitalize()
        figures.append((title, _histogram(name, reference.novelty[name], current.novelty[name])))
    if len(looks) > 1:
        figures.append(("Every look", _timeline(look, looks)))
    text = template_named("monitor.html").render(
        look=look,
        verdict=monitor_verdict(look),
        table=monitor_table(look),
        figures=[(title, Markup(svg), CAPTIONS.get(title, CAPTION)) for title, svg in figures],
        looks=list(looks)[-LOOKS_SHOWN:],
        sources=sources,
        version=VERSION,
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


CAPTION = "Share of the rows by novelty; further right is stranger. The ends' bins hold what lies beyond."
CAPTIONS = {
    "Confidence": "Share of the rows by confidence, calibrated if a calibration was given.",
    "Every look": "Estimated accuracy at each look, with its 95% interval; a cross is an alarm, the line is "
    "the reference's accuracy.",
}


def _histogram(name: str, reference: Array, current: Array) -> str:
    """Both sides in the same bins, over the middle 99.8% of them together."""
    low, high = np.percentile(np.concatenate([reference, current]), [0.1, 99.9])
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for (side, look), values in zip(SIDES.items(), (reference, current), strict=True):
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            style: Any = {"color": COLOURS[look], "linestyle": LINES[look], "linewidth": 2, "label": side}
            axes.stairs(counts / counts.sum(), edges, **style)
        axes.set(xlabel=TITLES[name], ylabel="share of rows")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="best")
        return svg_of(figure, f"monitor-{name}", f"Histogram of {TITLES[name]}, reference and current")


def _timeline(look: Look, looks: Sequence[Mapping[str, Any]]) -> str:
    shown = looks[-LOOKS_SHOWN:]
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.axhline(look.reference_accuracy.value, color=GREY, linewidth=1.2)
        for alarm, mark, colour in ((False, "o", COLOURS["familiar"]), (True, "X", COLOURS["unfamiliar"])):
            some = [each for each in shown if each["alarm"] is alarm]
            if not some:
                continue
            values, low, high = ([each["accuracy"][end] for each in some] for end in ("value", "low", "high"))
            numbers = [each["look"] for each in some]
            axes.vlines(numbers, low, high, color=colour, linewidth=1)
            axes.plot(
                numbers, values, mark, color=colour, markersize=6, label="alarm" if alarm else "no alarm"
            )
        axes.set(xlabel="look", ylabel="estimated accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="best")
        return svg_of(figure, "monitor-looks", "Estimated accuracy at every look")
