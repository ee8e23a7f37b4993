"""The result of `surefoot monitor` as a table, a verdict, plain data and a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from surefoot import __version__
from surefoot.deploy.monitor import (
    AVERAGE,
    DIFFERENCE,
    FEW_ROWS,
    THRESHOLDED,
    Check,
    Finding,
    Scores,
    novelty_name,
)
from surefoot.evaluation.scores import number
from surefoot.intervals import Interval
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
    percent_range,
    signed_interval_text,
    signed_text,
)

SHIFTED = "The data has shifted."
TITLES = {
    "confidence": "confidence",
    "confidence tail": "confidence, lowest",
    "energy": "novelty (energy)",
    "energy tail": "novelty (energy), highest",
    "novelty": "novelty",
    "novelty tail": "novelty, highest",
    "coverage": "share accepted",
    "outputs": "outputs (any change)",
    "features": "features (any change)",
}
COLUMNS = (
    Column("compared", align="left"),
    *(Column(name) for name in ("reference", "current", "change", "more novel", "KS", "p", "p (corrected)")),
)
DEFINITIONS = {
    "p": "by permutation of the rows: lower confidence, higher novelty or a smaller share accepted (mean "
    "rank; 'tail': Savage scores, which weigh the most unfamiliar rows); outputs and features: any change of "
    "their distribution (maximum mean discrepancy)",
    "adjusted": "p corrected for all comparisons of the check (Westfall-Young); significant if at most level",
    "level": "the part of alpha that this check may spend; over all checks of a history the probability of "
    "any false alarm is at most alpha",
    "stranger": "the probability that a current row is more novel than a reference row; 0.5 without shift",
    "accuracy": "estimated, by 'estimator': the average confidence; the share above the confidence that as "
    "many reference rows exceed as are correct (thresholded confidence, ATC); or the reference's accuracy "
    "plus the difference of the average confidences",
    "smallest_drop": "of the estimated accuracy, that would have been detected with probability 0.8",
    "matters": "the data has shifted, and the 95% interval of the estimated drop is above 0",
    "parts": "predicted classes and groups: confidences compared by Mann-Whitney, corrected by Holm",
    "low, high": "95% interval",
}
# Mean absolute error on unfamiliar rows, in points: benchmarks/results/accuracy.md, both halves.
TYPICAL_ERROR = {
    (AVERAGE, True): 15,
    (AVERAGE, False): 20,
    (THRESHOLDED, False): 15,
    (DIFFERENCE, False): 18,
}
PARTS_SHOWN = 5  # in the verdict
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
    title = (
        f"{count_of(check.n_current, 'current row')} compared with {check.n_reference:,} reference rows; "
        f"significance level {check.budget.level:.3g}"
    )
    return Table(title, COLUMNS, (Section(None, tuple(rows)),))


def monitor_verdict(check: Check) -> list[str]:
    """Whether a shift is detected, with the evidence, or how large a change would have been."""
    significant = check.significant
    if not significant:
        return [*_not_detected(check), _estimated(check)]
    drop = check.drop
    sentences = [SHIFTED]
    if not check.alarm:
        sentences = [
            f"The data has shifted, but the estimated accuracy has fallen by only {drop.value:.3g} "
            f"({drop.low:.3g} to {drop.high:.3g}), less than the bound {check.bound:g}: no alarm."
        ]
    sentences += [_evidence(each) for each in significant]
    if check.matters:
        sentences.append(
            f"It matters: the estimated accuracy has fallen by {drop.value:.1%} "
            f"({percent_range(drop.low, drop.high)})."
        )
    else:
        sentences.append(
            "The rows look different, but the estimated accuracy has not fallen significantly (change "
            f"{-drop.value:+.1%}, 95% interval {-drop.high:+.1%} to {-drop.low:+.1%})."
        )
    parts = sorted((each for each in check.parts if each.adjusted <= check.budget.level), key=lambda x: x.p)
    if parts:
        names = ", ".join(f"{each.kind} {each.name!r}" for each in parts[:PARTS_SHOWN])
        more = f" and {len(parts) - PARTS_SHOWN} more" if len(parts) > PARTS_SHOWN else ""
        sentences.append(f"Confidence has changed most in: {names}{more}.")
    sentences.append(_estimated(check))
    if drop.value < 0:
        sentences.append("The classifier is more confident than before; it is not necessarily more accurate.")
    return sentences


def _not_detected(check: Check) -> list[str]:
    """What the check did not see, and what it could not have seen."""
    sentences = [
        f"No shift detected. With {count_of(check.n_current, 'row')}, a drop of the estimated accuracy by "
        f"{check.smallest_drop:.1%} or more would have been detected four times of five; smaller ones may be "
        "missed."
    ]
    apart = [each for each in check.findings if each.change.low > 0 or each.change.high < 0]
    if apart:
        names = " and ".join(TITLES[each.name] for each in apart)
        sentences.append(
            f"The 95% interval of the change in {names} excludes 0, but after correction for "
            f"{len(check.findings)} comparisons and repeated checks this is not evidence of a shift."
        )
    if check.n_current < FEW_ROWS:
        sentences.append(f"Only {count_of(check.n_current, 'row')}: only a large shift would be detected.")
    return sentences


def _evidence(finding: Finding) -> str:
    title = TITLES[finding.name]
    corrected = f"corrected p = {p_text(finding.adjusted)}"
    if math.isnan(finding.reference):
        return f"{title[0].upper()}{title[1:]}: {corrected}."
    change = (
        f"{finding.change.value:+.3g}, 95% interval {finding.change.low:+.3g} to {finding.change.high:+.3g}"
    )
    return (
        f"{title[0].upper()}{title[1:]}: {finding.reference:.3g} in the reference, {finding.current:.3g} now "
        f"(change {change}), {corrected}."
    )


def _estimated(check: Check) -> str:
    then, now = check.reference_accuracy, check.accuracy
    measured = not math.isnan(then.value) and check.reference_measured
    how = "measured" if measured else "its mean confidence, because it has no labels"
    typical = TYPICAL_ERROR.get((check.estimator, check.calibrated), TYPICAL_ERROR[AVERAGE, False])
    return (
        f"Estimated accuracy {now.value:.1%} ({percent_range(now.low, now.high)}; {check.estimator}); "
        f"accuracy of the reference {then.value:.1%} ({percent_range(then.low, then.high)}; {how}). On "
        f"unfamiliar data the estimate is too high, by {typical} points on average in our measurements."
    )


def monitor_document(check: Check, verdict: Sequence[str]) -> dict[str, Any]:
    """The check as plain data; NaN becomes null."""
    return {
        "surefoot": __version__,
        "alarm": check.alarm,
        "verdict": list(verdict),
        "shift": bool(check.significant),
        "matters": check.matters,
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
            "estimator": check.estimator,
            "smallest_drop": number(check.smallest_drop),
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
        "parts": [asdict(each) for each in check.parts],
        "unfamiliar": {"by": check.unfamiliar_by, "rows": [list(each) for each in check.unfamiliar]},
        "definitions": DEFINITIONS,
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: number(value) for name, value in asdict(interval).items()}


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
        figures.append(("Evidence over time", _evidence_over_time(recent), CAPTIONS["evidence"]))
    text = template_named("monitor.html").render(
        check=check,
        verdict=verdict,
        table=to_html([table], "compared"),
        parts=to_html([_parts_table(check)], "parts") if check.parts else "",
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
        axes.legend(loc="best")
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best")
        return svg_of(figure, "monitor-evidence", "The smallest corrected p-value at every check")
