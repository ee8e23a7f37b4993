"""The result of `surefoot monitor` as a table and a page."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter

import surefoot.plots as plots
from surefoot import __version__
from surefoot.decisions.chunks import Keys
from surefoot.io import replacing
from surefoot.monitoring.findings import FEWEST
from surefoot.monitoring.monitor import TITLES, Check, Checked, novelty_name
from surefoot.monitoring.monitor_text import monitor_document, monitor_verdict
from surefoot.predictions.outcomes import Array
from surefoot.report.pages import template_named
from surefoot.report.style import COLOURS, GREY, LINES, STYLE, drawn_svg
from surefoot.report.tables import Column, Section, Table, TableCell, to_html
from surefoot.report.views import View, flat
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


def _figures(checked: Checked, recent: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Title, SVG and caption of each figure."""
    reference, current = checked.reference, checked.current
    novelty = novelty_name(reference, current)
    histograms = {"confidence": (reference.confidence, current.confidence)}
    if novelty is not None:
        histograms[novelty] = (reference.novelty[novelty], current.novelty[novelty])
    for name, values in histograms.items():
        label = f"Histogram of {TITLES[name]}, reference and current"
        svg = drawn_svg(f"monitor-{name}", label, STYLE, partial(_histogram, name=name, values=values))
        yield TITLES[name].capitalize(), svg, CAPTIONS["novelty" if name == novelty else "confidence"]
    if len(recent) > 1:
        draw = partial(_timeline, check=checked.check, history=recent)
        svg = drawn_svg("monitor-looks", "Estimated accuracy at every check", STYLE, draw)
        yield "All checks", svg, CAPTIONS["checks"]
        draw = partial(_evidence_over_time, history=recent)
        svg = drawn_svg("monitor-evidence", "The smallest corrected p-value at every check", STYLE, draw)
        yield "Evidence over time", svg, CAPTIONS["evidence"]


def write_monitor_page(checked: Checked, sources: Mapping[str, str], path: str | Path) -> None:
    """Write one self-contained page."""
    check, reference, current = checked.check, checked.reference, checked.current
    recent = list(checked.checks)[-CHECKS_SHOWN:]
    text = template_named("monitor.html").render(
        check=check,
        verdict=monitor_verdict(check),
        table=to_html([monitor_table(check)], "compared"),
        parts=to_html([_parts_table(check)], "compared") if check.parts else "",
        fewest=FEWEST,
        new_groups=_new_groups(reference.groups, current.groups),
        unfamiliar=to_html([_unfamiliar_table(check)], "unfamiliar"),
        figures=[(title, Markup(svg), caption) for title, svg, caption in _figures(checked, recent)],
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


def _histogram(axes: Axes, name: str, values: tuple[Array, Array]) -> None:
    """Both sides in the same bins, over the middle 99.8% of them together."""
    low, high = np.percentile(np.concatenate(values), [0.1, 99.9])
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    for (side, style), of_side in zip(SIDES.items(), values, strict=True):
        counts, _ = np.histogram(np.clip(of_side, edges[0], edges[-1]), edges)
        line: Any = {"color": COLOURS[style], "linestyle": LINES[style], "linewidth": 2, "label": side}
        axes.stairs(counts / counts.sum(), edges, **line)
    axes.set(xlabel=TITLES[name], ylabel="share of rows")
    plots.percent_axes(axes.yaxis)
    axes.legend(loc="best")


def _timeline(axes: Axes, check: Check, history: Sequence[Mapping[str, Any]]) -> None:
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
    plots.percent_axes(axes.yaxis)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above: the intervals are everywhere


def _evidence_over_time(axes: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    """The smallest corrected p-value of every check that has any, with its level."""
    known = [each for each in history if each["adjusted"]]
    numbers = [each["look"] for each in known]
    axes.plot(numbers, [each["level"] for each in known], color=GREY, linewidth=1.2, label="level")
    smallest = [max(min(each["adjusted"].values()), SMALLEST_P) for each in known]
    axes.plot(numbers, smallest, "o-", color=COLOURS["familiar"], markersize=5, label="smallest p")
    axes.set(xlabel="check", ylabel="corrected p", yscale="log")
    axes.yaxis.set_major_formatter(lambda p, _: f"{p:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")


def check_view(check: Check) -> View:
    """How the check of a monitor looks."""
    verdict = monitor_verdict(check)

    def rows() -> Iterator[dict[str, Any]]:
        for each in check.findings:
            plain = ("name", "reference", "current", "distance", "p", "adjusted")
            intervals = flat(change=each.change, more_novel=each.more_novel)
            yield {name: getattr(each, name) for name in plain} | intervals

    def draw(ax: Axes | None) -> Axes:
        accuracies = {"reference": check.reference_accuracy, "current": check.accuracy}
        rows = {name: {"accuracy": interval} for name, interval in accuracies.items()}
        axes = plots.draw_intervals(plots.given_or_new(ax), rows, "accuracy, estimated for the current data")
        plots.percent_axes(axes.xaxis)
        return axes

    return View(
        "Monitor: " + ("alarm" if check.alarm else "no alarm"),
        tuple(verdict),
        (monitor_table(check).select("compared", "reference", "current", "change", "p", "p (corrected)"),),
        rows,
        lambda: monitor_document(check, verdict),
        draw,
    )
