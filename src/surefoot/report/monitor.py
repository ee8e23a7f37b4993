"""The result of `surefoot monitor` as a table, a verdict, plain data and a page."""

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
from surefoot.deploy.monitor import FEW_ROWS, Check, Scores, novelty_name
from surefoot.evaluation.scores import number
from surefoot.intervals import Interval
from surefoot.io import replacing
from surefoot.pages import template_named
from surefoot.predictions.outcomes import Array
from surefoot.report.style import COLOURS, GREY, LINES, STYLE, svg_of
from surefoot.report.tables import Column, Section, Table, TableCell, to_html
from surefoot.text import (
    count_of,
    interval_text,
    number_text,
    p_text,
    percent_range,
    signed_interval_text,
    signed_text,
)

SHIFTED = "The data has shifted."
TITLES = {
    "confidence": "confidence",
    "energy": "novelty (energy)",
    "novelty": "novelty",
    "coverage": "share accepted",
}
COLUMNS = (
    Column("compared", align="left"),
    *(Column(name) for name in ("reference", "current", "change", "more novel", "KS", "p", "p (Holm)")),
)
DEFINITIONS = {
    "p": "two-sample Kolmogorov-Smirnov test; for the share accepted Fisher's exact test",
    "adjusted": "Holm's p within the check; a finding is significant if it is at most 'level'",
    "level": "the part of alpha that this check may spend; over all checks of a history the probability of "
    "any false alarm is at most alpha",
    "stranger": "the probability that a current row is more novel than a reference row; 0.5 without shift",
    "accuracy": "estimated: mean confidence, plus (accuracy - mean confidence) of the reference if labelled",
    "low, high": "95% interval",
}


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
    title = (
        f"{count_of(check.n_current, 'current row')} compared with {check.n_reference:,} reference rows; "
        f"significance level {check.budget.level:.3g}"
    )
    return Table(title, COLUMNS, (Section(None, tuple(rows)),))


def monitor_verdict(check: Check) -> list[str]:
    """Whether the data has shifted, with the evidence."""
    significant = check.significant
    if check.alarm:
        sentences = [SHIFTED]
    elif significant:
        drop = check.drop
        sentences = [
            f"The data has shifted, but the estimated accuracy has fallen by only {drop.value:.3g} "
            f"({drop.low:.3g} to {drop.high:.3g}), less than the bound {check.bound:g}: no alarm."
        ]
    else:
        sentences = ["No significant shift."]
    for each in significant:
        title = TITLES[each.name]
        change = f"{each.change.value:+.3g}, 95% interval {each.change.low:+.3g} to {each.change.high:+.3g}"
        sentences.append(
            f"{title[0].upper()}{title[1:]}: {each.reference:.3g} in the reference, {each.current:.3g} now "
            f"(change {change}), corrected p = {p_text(each.adjusted)}."
        )
    then, now = check.reference_accuracy, check.accuracy
    how = "measured" if check.labelled else "its mean confidence, because it has no labels"
    sentences.append(
        f"Estimated accuracy {now.value:.1%} ({percent_range(now.low, now.high)}); accuracy of the reference "
        f"{then.value:.1%} ({percent_range(then.low, then.high)}; {how}). The estimate relies on the "
        "confidence, which is usually too high on unfamiliar data."
    )
    if check.n_current < FEW_ROWS:
        sentences.append(f"Only {count_of(check.n_current, 'row')}: only a large shift would be detected.")
    if significant and check.drop.value < 0:
        sentences.append("The classifier is more confident than before; it is not necessarily more accurate.")
    return sentences


def monitor_document(check: Check, verdict: Sequence[str]) -> dict[str, Any]:
    """The check as plain data; NaN becomes null."""
    return {
        "surefoot": __version__,
        "alarm": check.alarm,
        "verdict": list(verdict),
        "look": check.budget.number,
        "alpha": check.budget.alpha,
        "level": check.budget.level,
        "bound": check.bound,
        "n": {"reference": check.n_reference, "current": check.n_current},
        "accuracy": {
            "reference": _interval(check.reference_accuracy),
            "reference_labelled": check.labelled,
            "estimated": _interval(check.accuracy),
            "drop": _interval(check.drop),
        },
        "findings": [
            {
                **{name: number(getattr(each, name)) for name in ("reference", "current", "distance", "p")},
                "name": each.name,
                "adjusted": each.adjusted,
                "change": _interval(each.change),
                "stranger": _interval(each.more_novel),
            }
            for each in check.findings
        ],
        "definitions": DEFINITIONS,
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: number(value) for name, value in asdict(interval).items()}


BINS = 25
CHECKS_SHOWN = 200
SIDES = {"reference": "familiar", "current": "unfamiliar"}  # the style of each
CAPTIONS = {
    "confidence": "Share of the rows by confidence, calibrated if a calibration was given.",
    "novelty": "Share of the rows by novelty; more novel to the right. The outermost bins include everything "
    "beyond them.",
    "checks": "Estimated accuracy at each check, with its 95% interval; a cross is an alarm, the line is the "
    "accuracy of the reference.",
}


def write_monitor_page(
    check: Check,
    verdict: Sequence[str],
    table: Table,
    reference: Scores,
    current: Scores,
    history: Sequence[Mapping[str, Any]],
    sources: Mapping[str, str],
    path: str | Path,
) -> None:
    """Write one self-contained page."""
    recent = list(history)[-CHECKS_SHOWN:]
    confidence = _histogram("confidence", reference.confidence, current.confidence)
    figures = [("Confidence", confidence, CAPTIONS["confidence"])]
    name = novelty_name(reference, current)
    if name is not None:
        novelty = _histogram(name, reference.novelty[name], current.novelty[name])
        figures.append((TITLES[name].capitalize(), novelty, CAPTIONS["novelty"]))
    if len(recent) > 1:
        figures.append(("All checks", _timeline(check, recent), CAPTIONS["checks"]))
    text = template_named("monitor.html").render(
        check=check,
        verdict=verdict,
        table=to_html([table], "compared"),
        figures=[(title, Markup(svg), caption) for title, svg, caption in figures],
        history=to_html([_history_table(recent)], "checks") if len(recent) > 1 else "",
        count=len(recent),
        sources=sources,
        version=__version__,
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
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
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="best")
        return svg_of(figure, "monitor-looks", "Estimated accuracy at every check")
