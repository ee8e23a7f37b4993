"""A shift check as a table, a verdict, plain data and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from surefoot import __version__
from surefoot.deploy.monitor import FEW_ROWS, Check, Finding, Scores, novelty_name
from surefoot.evaluation.scores import number
from surefoot.intervals import Interval
from surefoot.io import replacing
from surefoot.predictions.outcomes import Array
from surefoot.report.style import COLOURS, GREY, LINES, STYLE, svg_of, template_named
from surefoot.report.tables import Table

UNFAMILIAR = "The ground has become unfamiliar."
TITLES = {
    "confidence": "confidence",
    "energy": "novelty (energy)",
    "novelty": "novelty",
    "coverage": "share accepted",
}
DEFINITIONS = {
    "p": "Kolmogorov-Smirnov, two samples; for the share accepted Fisher's exact test",
    "adjusted": "Holm's p within the look; a finding counts where it is at most 'level'",
    "level": "what this look may spend of alpha; over all looks of a history the chance of any false alarm "
    "is at most alpha",
    "stranger": "the chance that a current row is stranger than one of the reference: 0.5 if nothing changed",
    "accuracy": "estimated: mean confidence, plus accuracy less mean confidence of the reference if labelled",
    "low, high": "95% interval",
}


def monitor_table(look: Check) -> Table:
    """A row per comparison."""
    return Table(
        title=f"{look.n_current:,} current rows against {look.n_reference:,} of the reference; "
        f"this look may spend {look.budget.level:.3g}",
        header=("what", "reference", "current", "change", "stranger", "KS", "p", "p (Holm)"),
        rows=tuple(_row(each) for each in look.findings),
    )


def monitor_verdict(look: Check) -> list[str]:
    """What was found, with its evidence."""
    found = look.significant
    if look.alarm:
        sentences = [UNFAMILIAR]
    elif found:
        sentences = [
            f"The data have changed, but the estimated accuracy has fallen by {look.drop.value:.3g} only "
            f"({_ends(look.drop)}), less than the bound {look.bound:g}: no alarm."
        ]
    else:
        sentences = ["No sign that the ground has become unfamiliar."]
    sentences += [_evidence(each) for each in found]
    sentences += _accuracy(look)
    if look.n_current < FEW_ROWS:
        sentences.append(f"{look.n_current} rows are few: only a large change would be seen.")
    if found and look.drop.value < 0:
        sentences.append("The classifier is surer than it was; it need not be right more often.")
    return sentences


def monitor_document(look: Check) -> dict[str, Any]:
    """The look as plain data; NaN becomes null."""
    return {
        "surefoot": __version__,
        "alarm": look.alarm,
        "verdict": monitor_verdict(look),
        "look": look.budget.number,
        "alpha": look.budget.alpha,
        "level": look.budget.level,
        "bound": look.bound,
        "n": {"reference": look.n_reference, "current": look.n_current},
        "accuracy": {
            "reference": _interval(look.reference_accuracy),
            "reference_labelled": look.labelled,
            "estimated": _interval(look.accuracy),
            "drop": _interval(look.drop),
        },
        "findings": [
            {
                **{name: number(getattr(each, name)) for name in ("reference", "current", "distance", "p")},
                "name": each.name,
                "adjusted": each.adjusted,
                "change": _interval(each.change),
                "stranger": _interval(each.more_novel),
            }
            for each in look.findings
        ],
        "definitions": DEFINITIONS,
    }


def p_text(p: float) -> str:
    """A p-value; what is smaller than can be written is said so.

    >>> p_text(0.0), p_text(0.25), p_text(1e-7)
    ('< 1e-300', '0.25', '1e-07')
    """
    return f"{p:.2g}" if p > 1e-300 else "< 1e-300"


def _row(found: Finding) -> tuple[str, ...]:
    with_ends = f"{found.change.value:+.4f} [{found.change.low:+.4f}, {found.change.high:+.4f}]"
    compared = found.distance == found.distance
    stranger = f"{found.more_novel.value:.3f} [{found.more_novel.low:.3f}, {found.more_novel.high:.3f}]"
    return (
        TITLES[found.name],
        f"{found.reference:.4f}",
        f"{found.current:.4f}",
        with_ends,
        stranger if compared else "-",
        f"{found.distance:.3f}" if compared else "-",
        p_text(found.p),
        p_text(found.adjusted),
    )


def _evidence(found: Finding) -> str:
    title = TITLES[found.name]
    change = f"{found.change.value:+.3g}, {found.change.low:+.3g} to {found.change.high:+.3g}"
    return (
        f"{title[0].upper()}{title[1:]}: {found.reference:.3g} in the reference, {found.current:.3g} now "
        f"(change {change}), corrected p = {p_text(found.adjusted)}."
    )


def _accuracy(look: Check) -> list[str]:
    then, now = look.reference_accuracy, look.accuracy
    how = "measured" if look.labelled else "by its mean confidence, as it has no labels"
    return [
        f"Estimated accuracy {now.value:.1%} ({now.low:.1%} to {now.high:.1%}); the reference's is "
        f"{then.value:.1%} ({then.low:.1%} to {then.high:.1%}), {how}. The estimate trusts the confidence; "
        "on unfamiliar ground it is too high more often than not."
    ]


def _ends(interval: Interval) -> str:
    return f"{interval.low:.3g} to {interval.high:.3g}"


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: number(value) for name, value in asdict(interval).items()}


BINS = 25
LOOKS_SHOWN = 200
SIDES = {"reference": "familiar", "current": "unfamiliar"}  # drawn in the colours of


def write_monitor_page(
    look: Check,
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
        version=__version__,
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


def _timeline(look: Check, looks: Sequence[Mapping[str, Any]]) -> str:
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
