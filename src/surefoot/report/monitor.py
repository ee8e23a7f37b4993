"""The result of `surefoot monitor` as a table and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from surefoot import __version__
from surefoot.deploy.chunks import Keys
from surefoot.deploy.findings import FEWEST
from surefoot.deploy.monitor import Check, Checked, novelty_name
from surefoot.deploy.monitor_text import TITLES, monitor_verdict
from surefoot.io import replacing
from surefoot.pages import template_named
from surefoot.plots import percent_axes
from surefoot.predictions.outcomes import Array
from surefoot.report.style import COLOURS, GREY, LINES, STYLE, svg_of
from surefoot.report.tables import Column, Section, Table, TableCell, to_html
from surefoot.text import (
    count_of,
    interval_text,
    number_text,
    p_text,
    signed_interval_text,
    signed_text,
)

COLUMNS = (
    Column("compared", align="left"),
    *(Column(name) for name in ("reference", "current", "change", "more novel", "KS", "p", "p (corrected)")),
)
PARTS_LISTED = 50  # on the page


def monitor_table(check: Check) -> Table:
    """A row per comparison."""
    rows = []
    for each in check.findings:
        change, more_novel = each.change, each.more_novel
        rows.append(
            (
                TableCell(TITLES[each.name]),
                TableCell(number_text(each.reference)),
                TableCell(number_text(each.current)),
                TableCell(signed_text(change.value), detail=signed_interval_text(change.low, change.high)),
                TableCell(
                    number_text(more_novel.value, 3), detail=interval_text(more_novel.low, more_novel.high, 3)
                ),
                TableCell(number_text(each.distance, 3)),
                TableCell(p_text(each.p)),
                TableCell(p_text(each.adjusted), bold=each in check.significant),
            )
        )
    groups = "" if check.groups is None else f" ({check.groups[1]:,} groups with {check.groups[0]:,})"
    title = (
        f"{count_of(check.n_current, 'current row')} compared with {check.n_reference:,} reference rows"
        f"{groups}; significance level {check.budget.level:.3g}"
    )
    return Table(title, COLUMNS, (Section(None, tuple(rows)),))


BINS = 25
CHECKS_SHOWN = 200
SMALLEST_P = 1e-12  # drawn
SIDES = {"reference": "familiar", "current": "unfamiliar"}  # the style of each
CAPTIONS = {
    "confidence": "Share of the rows by confidence, calibrated if a calibration was given.",
    "novelty": "Share of the rows by novelty; more novel to the right. The outermost bins include everything "
    "beyond them.",
    "evidence": "The smallest corrected p-value of each check, and the level that it is compared with: at or "
    "below the line, a shift is detected.",
    "checks": "Estimated accuracy at each check, with its 95% interval; a cross is an alarm, the line is the "
    "accuracy of the reference.",
}


def write_monitor_page(checked: Checked, sources: Mapping[str, str], path: str | Path) -> None:
    """Write one self-contained page."""
    check, reference, current = checked.check, checked.reference, checked.current
    recent = list(checked.checks)[-CHECKS_SHOWN:]
    confidence = _histogram("confidence", reference.confidence, current.confidence)
    figures = [("Confidence", confidence, CAPTIONS["confidence"])]
    name = novelty_name(reference, current)
    if name is not None:
        novelty = _histogram(name, reference.novelty[name], current.novelty[name])
        figures.append((TITLES[name].capitalize(), novelty, CAPTIONS["novelty"]))
    if len(recent) > 1:
        figures.append(("All checks", _timeline(check, recent), CAPTIONS["checks"]))
        figures.append(("Evidence over time", _evidence_over_time(recent), CAPTIONS["evidence"]))
    text = template_named("monitor.html").render(
        check=check,
        verdict=monitor_verdict(check),
        table=to_html([monitor_table(check)], "compared"),
        parts=to_html([_parts_table(check)], "compared") if check.parts else "",
        fewest=FEWEST,
        new_groups=_new_groups(reference.groups, current.groups),
        unfamiliar=to_html([_unfamiliar_table(check)], "unfamiliar"),
        figures=[(title, Markup(svg), caption) for title, svg, caption in figures],
        history=to_html([_history_table(recent)], "checks") if len(recent) > 1 else "",
        count=len(recent),
        sources=sources,
        version=__version__,
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _parts_table(check: Check) -> Table:
    rows = [
        (
            f"{each.kind} {each.name}",
            f"{each.share_reference:.1%}",
            f"{each.share_current:.1%}",
            f"{each.confidence_reference:.3f}",
            f"{each.confidence_current:.3f}",
            p_text(each.adjusted),
        )
        for each in sorted(check.parts, key=lambda part: part.p)[:PARTS_LISTED]
    ]
    columns = ("share, reference", "share, current", "confidence, reference", "confidence, current")
    return Table.of_text("", ("part", *columns, "p (Holm)"), rows)


def _new_groups(known: Keys | None, current: Keys | None) -> str:
    """How many rows are in groups that cannot be compared."""
    if known is None or current is None:
        return ""
    names = set(known.names)
    is_new = np.array([name not in names for name in current.names])[current.codes]
    if not is_new.any():
        return ""
    of_all = f"{int(is_new.sum()):,} of {len(is_new):,}"
    return f" {of_all} current rows are in groups that the reference does not have."


def _unfamiliar_table(check: Check) -> Table:
    rows = [(name, number_text(score)) for name, score in check.unfamiliar]
    return Table.of_text("", ("row", check.unfamiliar_by), rows)


def _history_table(history: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            str(each["look"]),
            each["at"].replace("T", " "),
            str(each["n"]),
            f"{each['accuracy']['value']:.1%}",
            "alarm" if each["alarm"] else "",
        )
        for each in reversed(history)
    ]
    return Table.of_text("", ("check", "at", "n", "estimated accuracy", "alarm"), rows)


def _histogram(name: str, reference: Array, current: Array) -> str:
    """Both sides in the same bins, over the middle 99.8% of them together."""
    low, high = np.percentile(np.concatenate([reference, current]), [0.1, 99.9])
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for (side, style), values in zip(SIDES.items(), (reference, current), strict=True):
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            line: Any = {"color": COLOURS[style], "linestyle": LINES[style], "linewidth": 2, "label": side}
            axes.stairs(counts / counts.sum(), edges, **line)
        axes.set(xlabel=TITLES[name], ylabel="share of rows")
        percent_axes(axes.yaxis)
        axes.legend(loc="best")
        return svg_of(figure, f"monitor-{name}", f"Histogram of {TITLES[name]}, reference and current")


def _timeline(check: Check, history: Sequence[Mapping[str, Any]]) -> str:
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.axhline(check.reference_accuracy.value, color=GREY, linewidth=1.2)
        for alarm, marker, colour in ((False, "o", COLOURS["familiar"]), (True, "X", COLOURS["unfamiliar"])):
            some = [each for each in history if each["alarm"] is alarm]
            if not some:
                continue
            values, low, high = ([each["accuracy"][end] for each in some] for end in ("value", "low", "high"))
            numbers = [each["look"] for each in some]
            axes.vlines(numbers, low, high, color=colour, linewidth=1)
            label = "alarm" if alarm else "no alarm"
            axes.plot(numbers, values, marker, color=colour, markersize=6, label=label)
        axes.set(xlabel="check", ylabel="estimated accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        percent_axes(axes.yaxis)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above: the intervals are everywhere
        return svg_of(figure, "monitor-looks", "Estimated accuracy at every check")


def _evidence_over_time(history: Sequence[Mapping[str, Any]]) -> str:
    """The smallest corrected p-value of every check that has any, with its level."""
    known = [each for each in history if each["adjusted"]]
    numbers = [each["look"] for each in known]
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(numbers, [each["level"] for each in known], color=GREY, linewidth=1.2, label="level")
        smallest = [max(min(each["adjusted"].values()), SMALLEST_P) for each in known]
        axes.plot(numbers, smallest, "o-", color=COLOURS["familiar"], markersize=5, label="smallest p")
        axes.set(xlabel="check", ylabel="corrected p", yscale="log")
        axes.yaxis.set_major_formatter(lambda p, _: f"{p:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best")
        return svg_of(figure, "monitor-evidence", "The smallest corrected p-value at every check")
