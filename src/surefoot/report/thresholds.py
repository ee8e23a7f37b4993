"""The result of `surefoot thresholds` as a table, a verdict and a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

import surefoot.plots as plots
from surefoot import __version__
from surefoot.deploy.chunks import Source
from surefoot.deploy.groups import groups_document, of_groups, repeated_sentences
from surefoot.deploy.thresholds import Thresholds, Unreachable, Zone
from surefoot.deploy.thresholds_file import thresholds_document
from surefoot.intervals import Proportion
from surefoot.io import replacing
from surefoot.pages import template_named
from surefoot.plots.curves import highest_risk, risk_coverage
from surefoot.report.style import COLOURS, GREY, INK, LINES, SMALL, WIDTH, drawn_svg
from surefoot.report.tables import Table, to_html
from surefoot.report.views import View, flat
from surefoot.text import count_of, percent_range, rounded_up

Measured = Mapping[str, Mapping[str, Zone]]  # the zones on each further set of data
CURVE = (
    "The error among the most confident predictions, as more of them are accepted; the diamond is the chosen "
    "threshold. At very low coverage the curve is noisy, because there are few rows. "
)
BOUNDS = (
    "Dashes are errors that can be guaranteed for {} further thresholds on familiar data: exact bounds that "
    "hold simultaneously, and so are higher than that of the chosen threshold."
)
SIDES = {"val": "familiar", "unfamiliar": "unfamiliar"}  # the sets that are drawn, and the style of each


def thresholds_table(chosen: Thresholds, measured: Measured) -> Table:
    """For each set of data: how much is accepted, reviewed and rejected, and how much of it is wrong."""
    rows = []
    any_rejected = bool(chosen.reject) or any(part.reject for part in chosen.parts.values())
    for name, zones in {"val (chosen here)": chosen.zones, **measured}.items():
        for zone, rows_in in zones.items():
            if zone != "reject" or any_rejected:
                rows.append((name, zone, proportion_text(rows_in.share), proportion_text(rows_in.error)))
    below = f", reject below {chosen.reject:.6g}" if chosen.reject else ""
    at = "at " if chosen.accept > 0 else ""
    title = f"Accept {at}{_accepted(chosen.accept)}{below}" if chosen.per is None else f"Per {_part(chosen)}"
    return Table.of_text(
        f"{title}; {'exact ' if chosen.groups is None else ''}95% intervals",
        ("data", "decision", "share of the rows", "wrong among them"),
        rows,
    )


def _part(chosen: Thresholds) -> str:
    """What has thresholds of its own: a class, a group of the file, or a value of a column."""
    return "group" if chosen.per == "groups" else str(chosen.per)


def _accepted(threshold: float) -> str:
    """The confidences that a threshold accepts.

    >>> [_accepted(each) for each in (0.0, 0.75, math.inf)]
    ['everything', '0.75 or more', 'nothing']
    """
    if threshold <= 0:
        return "everything"
    return f"{threshold:.6g} or more" if threshold < math.inf else "nothing"


def parts_table(chosen: Thresholds) -> Table:
    """The thresholds of each class or group."""
    rows = [
        (
            name,
            f"{part.n:,}",
            _accepted(part.accept),
            f"below {part.reject:.6g}" if part.reject else "nothing",
        )
        for name, part in chosen.parts.items()
    ]
    return Table.of_text(f"Thresholds per {_part(chosen)}", (_part(chosen), "n", "accept", "reject"), rows)


def proportion_text(proportion: Proportion) -> str:
    """`3.1% [2.1%, 4.4%] 31/1008`; a dash for no rows.

    >>> proportion_text(Proportion.of(0, 100))
    '0.0% [0.0%, 3.6%] 0/100'
    """
    if not proportion.n:
        return "-"
    ends = f"[{proportion.low:.1%}, {proportion.high:.1%}]"
    return f"{proportion.value:.1%} {ends} {proportion.k}/{proportion.n}"


def thresholds_verdict(chosen: Thresholds, measured: Measured) -> list[str]:
    """What is guaranteed, for which data, and what is not."""
    elsewhere = [
        *_on_familiar_test(chosen, measured),
        *_on_unfamiliar(chosen, measured),
        *repeated_sentences(chosen.repeated),
    ]
    if chosen.per is not None:
        return [*_of_parts(chosen), *elsewhere]
    guarantee = chosen.guarantee
    whose = "" if chosen.for_class is None else f" for {chosen.for_class!r}"
    others = "; a person reviews the others."
    if chosen.reject:
        meet = f"{chosen.reject:.6g}" == f"{chosen.accept:.6g}"  # as shown
        others = "; reject the others." if meet else f"; reject them below {chosen.reject:.6g}{others}"
    which = f"predictions{whose} at a confidence of {_accepted(chosen.accept)}{others}"
    sentences = [
        f"Accept {which}" if chosen.accept > 0 else f"Accept all predictions{whose}.",
        f"Guaranteed with probability {guarantee.level:.3g} over the draw of these {chosen.n:,} rows"
        f"{of_groups(chosen.groups)}: on familiar data at most {rounded_up(chosen.bound)} of the accepted "
        f"predictions{_of_new_groups(chosen)} are wrong.",
    ]
    sentences.append(
        f"With the same probability, {guarantee.reject_error:.3g} or more of the rejected ones are wrong."
        if chosen.reject
        else "Nothing is rejected: no confidence is so low that the error below it is shown to be "
        f"{guarantee.reject_error:.3g} or more."
    )
    return [*sentences, *elsewhere]


def _of_new_groups(chosen: Thresholds) -> str:
    if chosen.groups == 1:
        return " of this group"
    return "" if chosen.groups is None else " of new groups (each counts the same, whatever its size)"


def _of_parts(chosen: Thresholds) -> list[str]:
    guarantee, without = chosen.guarantee, [n for n, each in chosen.parts.items() if each.accept == math.inf]
    sentences = [
        f"Each {_part(chosen)} has its own thresholds; a person reviews rows of any other.",
        f"Guaranteed for each on its own, with probability {guarantee.level:.3g} over the draw of its rows: "
        f"on familiar data at most {guarantee.target_error:.3g} of its accepted predictions"
        f"{_of_new_groups(chosen)} are wrong.",
    ]
    if without:
        sentences.append(
            f"Nothing is accepted for {', '.join(map(repr, without))}: no threshold reaches the target with "
            "so few rows or so many errors."
        )
    return sentences


def _on_familiar_test(chosen: Thresholds, measured: Measured) -> list[str]:
    if "familiar test" not in measured or not measured["familiar test"]["accept"].error.n:
        return []
    error = measured["familiar test"]["accept"].error
    sentence = f"On the familiar test data {_wrong_of(error)}"
    if error.low > chosen.guarantee.target_error:
        return [
            f"{sentence}: more than guaranteed. These rows have another distribution than val, or the "
            "draw was unlucky."
        ]
    return [f"{sentence}, within the guarantee."]


def _on_unfamiliar(chosen: Thresholds, measured: Measured) -> list[str]:
    scope = "The guarantee does not cover unfamiliar data"
    if "unfamiliar" not in measured:
        return [f"{scope}; give unfamiliar predictions to measure the error there."]
    target, error = chosen.guarantee.target_error, measured["unfamiliar"]["accept"].error
    if not error.n:
        return [f"{scope}; none of these unfamiliar rows is accepted."]
    wrong = f"there {_wrong_of(error)}"
    times = f"{error.value / target:.1f} times the target"
    if error.low > target:
        return [f"{scope}: {wrong}, {times}."]
    if error.value > target:
        return [f"{scope}: {wrong}, {times}, but from too few rows to be significant."]
    return [f"{scope}, but these rows meet the target: {wrong}."]


def _wrong_of(error: Proportion) -> str:
    ends = percent_range(error.low, error.high)
    wrong = "is wrong" if error.k == 1 else "are wrong"
    return f"{error.k:,} of {count_of(error.n, 'accepted prediction')} {wrong} ({error.value:.1%}, {ends})"


def coverage_conflict(chosen: Thresholds, min_coverage: float) -> str | None:
    """Why the target error and the coverage cannot both be reached; None where they can."""
    coverage = chosen.zones["accept"].share.value
    if coverage >= min_coverage:
        return None
    conflict = (
        f"an error of at most {chosen.guarantee.target_error:.3g} can be guaranteed for {coverage:.1%} of "
        f"the rows, less than the requested {min_coverage:.1%}"
    )
    enough = [each for each in chosen.candidates if each.share >= min_coverage]
    if not enough:
        return conflict
    instead = min(enough, key=lambda each: each.bound)
    return f"{conflict}; for {instead.share:.1%} of them the guaranteed error is {rounded_up(instead.bound)}"


def write_thresholds_page(
    chosen: Thresholds,
    verdict: Sequence[str],
    table: Table,
    predictions: Mapping[str, Source],
    sources: Mapping[str, str],
    path: str | Path,
) -> None:
    """Write one self-contained page."""
    caption = CURVE
    if chosen.candidates:
        caption += BOUNDS.format(len(chosen.candidates))
    draw = partial(_draw_curves, chosen=chosen, predictions=predictions)
    title = "Error against coverage, with the chosen threshold"
    svg = drawn_svg("thresholds", title, SMALL, draw, size=(WIDTH, 3.8))
    text = template_named("result.html").render(
        title="Confidence thresholds",
        verdict=verdict,
        tables=to_html([table, *([parts_table(chosen)] if chosen.parts else [])], "measured"),
        figure=Markup(svg),
        caption=caption,
        sources=sources,
        written="The thresholds file",
        version=__version__,
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _draw_curves(axes: Axes, chosen: Thresholds, predictions: Mapping[str, Source]) -> None:
    """Error against coverage, the bounds that hold together, the target and the chosen threshold."""
    sides = {name: side for name, side in SIDES.items() if name in predictions}
    decisions = {name: chosen.decisions_of(predictions[name]) for name in sides}
    highest = 0.0
    for name, side in sides.items():
        curve = risk_coverage(decisions[name].curve)
        style: Any = {"color": COLOURS[side], "linestyle": LINES[side], "linewidth": 2, "label": name}
        axes.plot(curve.coverage, curve.risk, **style)
        highest = max(highest, highest_risk(curve.coverage, curve.risk))
    bounds = [(each.share, each.bound) for each in chosen.candidates if each.n]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "_", color=INK, markersize=9, label="guaranteed, familiar")
    axes.axhline(chosen.guarantee.target_error, color=GREY, linewidth=1.2, label="target")
    for name, side in sides.items():
        zone = chosen.zones_in(decisions[name])["accept"]
        if zone.error.n:
            axes.plot(zone.share.value, zone.error.value, "D", color=COLOURS[side], markersize=9)
    axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
    axes.set(xlim=(0, 1.02), ylim=(0, min(1.0, max(1.15 * highest, 2 * chosen.guarantee.target_error))))
    plots.percent_axes(axes.xaxis, axes.yaxis)
    axes.legend(loc="upper left")


def thresholds_view(chosen: Thresholds) -> View:
    """How thresholds look."""

    def rows() -> Iterator[dict[str, Any]]:
        measured: dict[str, Mapping[str, Zone]] = {"val": chosen.zones, **chosen.measured}
        for data, zones in measured.items():
            for name, zone in zones.items():
                yield {"data": data, "decision": name, **flat(share=zone.share, error=zone.error)}

    return View(
        "Confidence thresholds",
        tuple(thresholds_verdict(chosen, chosen.measured)),
        (*([parts_table(chosen)] if chosen.parts else []), thresholds_table(chosen, chosen.measured)),
        rows,
        lambda: thresholds_document(chosen, sources={}, elsewhere=chosen.measured),
        lambda ax: _draw_candidates(chosen, plots.given_or_new(ax)),
    )


def unreachable_view(unreachable: Unreachable) -> View:
    """How it looks that no threshold can be guaranteed."""
    return View(
        "Confidence thresholds: none",
        (
            f"{unreachable.sentence[0].upper()}{unreachable.sentence[1:]}.",
            *repeated_sentences(unreachable.repeated),
        ),
        (),
        lambda: (asdict(each) for each in unreachable.candidates),
        lambda: {
            **asdict(unreachable.guarantee),
            "n": unreachable.n,
            **groups_document(unreachable.groups, unreachable.repeated),
            "candidates": [asdict(each) for each in unreachable.candidates],
        },
        lambda ax: _draw_candidates(unreachable, plots.given_or_new(ax)),
    )


def _draw_candidates(chosen: Thresholds | Unreachable, axes: Axes) -> Axes:
    """The measured and the guaranteed error of every candidate, the target, and what was chosen."""
    some = [each for each in chosen.candidates if each.n]
    shares = [each.share for each in some]
    style = plots.Style(axes)
    if some:  # with thresholds per class or group, there are none of all rows
        axes.plot(shares, [each.wrong / each.n for each in some], label="measured", **style.line)
        axes.plot(shares, [each.bound for each in some], **plots.Style(axes).point("_"), label="guaranteed")
    target = chosen.guarantee.target_error
    axes.axhline(target, color=plots.GREY, linewidth=1, label="target")
    if isinstance(chosen, Thresholds) and chosen.zones["accept"].error.n:
        zone = chosen.zones["accept"]
        point: Any = {"color": style.colour, "marker": "D", "linestyle": "none", "markersize": 9}
        label = f"accept at {chosen.accept:.4g}" if chosen.per is None else f"accepted, per {chosen.per}"
        axes.plot(zone.share.value, zone.error.value, label=label, **point)
    highest = max([target, *(each.wrong / each.n for each in some)])
    axes.set(xlim=(0, 1.02), ylim=(0, min(1.0, 2 * highest)))
    axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
    plots.percent_axes(axes.xaxis, axes.yaxis)
    axes.legend()
    return axes
