"""Thresholds as a table, a verdict and a page."""

import decimal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from surefoot import __version__
from surefoot.deploy.thresholds import Thresholds, Zone
from surefoot.intervals import Proportion
from surefoot.io import replacing
from surefoot.predictions.predictions import Predictions
from surefoot.report import curves as data
from surefoot.report.style import COLOURS, GREY, INK, LINES, STYLE, svg_of, template_named
from surefoot.report.tables import Table

Elsewhere = Mapping[str, Mapping[str, Zone]]


def share_text(proportion: Proportion) -> str:
    """`3.1% [2.1%, 4.4%] 31/1008`; a dash where there is nothing.

    >>> share_text(Proportion.of(0, 100))
    '0.0% [0.0%, 3.6%] 0/100'
    """
    if not proportion.n:
        return "-"
    ends = f"[{proportion.low:.1%}, {proportion.high:.1%}]"
    return f"{proportion.value:.1%} {ends} {proportion.k}/{proportion.n}"


def thresholds_table(chosen: Thresholds, elsewhere: Elsewhere) -> Table:
    """For each set of data: how much is accepted, looked at and rejected, and how much of it is wrong."""
    rows = []
    for name, zones in {"val (chosen on it)": chosen.zones, **elsewhere}.items():
        shown = {zone: of for zone, of in zones.items() if zone != "reject" or chosen.reject}
        rows += [(name, zone, share_text(of.share), share_text(of.error)) for zone, of in shown.items()]
    below = f", reject below {chosen.reject:.6g}" if chosen.reject else ""
    return Table(
        title=f"accept from {chosen.accept:.6g}{below}; exact 95% intervals",
        header=("data", "answers to", "share of the rows", "wrong among them"),
        rows=tuple(rows),
    )


def thresholds_verdict(chosen: Thresholds, elsewhere: Elsewhere) -> list[str]:
    """What is promised, of which data, and what is not."""
    promise = chosen.guarantee
    rest = f"; reject it below {chosen.reject:.6g}" if chosen.reject else ""
    whose = "" if chosen.for_class is None else f" for {chosen.for_class!r}"
    sentences = [
        f"Accept an answer{whose} at a confidence of {chosen.accept:.6g} or more{rest}; the others are for "
        "a person.",
        f"Promised with probability {promise.level:.3g} over the draw of these {chosen.n:,} rows: on "
        f"familiar data at most {promise.target_error:.3g} of the accepted answers are wrong "
        f"(the bound reached is {chosen.bound:.3g}).",
    ]
    if not chosen.reject:
        sentences.append(
            f"Nothing is rejected: nowhere is surely a share of {promise.reject_error:.3g} or more wrong."
        )
    return [*sentences, *_kept(chosen, elsewhere), *_beyond(chosen, elsewhere)]


def promised(bound: float) -> str:
    """A bound in three digits, rounded up: what is promised must be kept.

    >>> promised(0.044637), promised(0.25), promised(1.0)
    ('0.0447', '0.25', '1')
    """
    up = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    return f"{float(up.create_decimal_from_float(bound)):.3g}"


def coverage_conflict(chosen: Thresholds, min_coverage: float) -> str | None:
    """What cannot be had together; None where it can."""
    coverage = chosen.zones["accept"].share.value
    if coverage >= min_coverage:
        return None
    enough = [each for each in chosen.candidates if each.share >= min_coverage]
    instead = min(enough, key=lambda each: each.bound)
    return (
        f"an error of at most {chosen.guarantee.target_error:.3g} can be promised for {coverage:.1%} of the "
        f"rows, less than the {min_coverage:.1%} asked for; for {instead.share:.1%} of them it is "
        f"{promised(instead.bound)}"
    )


def _kept(chosen: Thresholds, elsewhere: Elsewhere) -> list[str]:
    if "familiar test" not in elsewhere or not elsewhere["familiar test"]["accept"].error.n:
        return []
    error = elsewhere["familiar test"]["accept"].error
    found = f"On the familiar test {_wrong_of(error)}"
    if error.low > chosen.guarantee.target_error:
        return [
            f"{found}: the promise is broken. These rows are not drawn like val, or the draw was unlucky."
        ]
    return [f"{found}, which the promise allows."]


def _beyond(chosen: Thresholds, elsewhere: Elsewhere) -> list[str]:
    if "unfamiliar" not in elsewhere:
        return ["Of unfamiliar data this promises nothing: --unfamiliar FILE shows how far it fails there."]
    target, error = chosen.guarantee.target_error, elsewhere["unfamiliar"]["accept"].error
    start = "A promise on familiar data is none on unfamiliar data"
    if not error.n:
        return [f"{start}; of these unfamiliar rows none is accepted."]
    found = f"there {_wrong_of(error)}"
    times = f"{error.value / target:.1f} times what was promised"
    if error.low > target:
        return [f"{start}: {found}, {times}. It fails there."]
    if error.value > target:
        return [f"{start}: {found}, {times}, on too few rows to be sure."]
    return [f"{start}: {found}. It holds in these rows, by luck and not by right."]


def _wrong_of(error: Proportion) -> str:
    ends = f"{error.low:.1%} to {error.high:.1%}"
    return f"{error.k:,} of {error.n:,} accepted answers are wrong ({error.value:.1%}, {ends})"


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
        version=__version__,
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
                shown = data.risk_coverage(chosen.prepare(predictions[name]).outcomes)
                style: Any = {"color": COLOURS[side], "linestyle": LINES[side], "linewidth": 2, "label": name}
                axes.plot(shown.coverage, shown.risk, **style)
                highest = max(highest, *shown.risk)
        promised = [(each.share, each.bound) for each in chosen.candidates if each.n]
        axes.plot(
            *zip(*promised, strict=True), "_", color=INK, markersize=9, label="can be promised, familiar"
        )
        axes.axhline(chosen.guarantee.target_error, color=GREY, linewidth=1.2, label="target")
        for name, side in SIDES.items():
            if name in predictions:
                zone = chosen.zones_of(predictions[name])["accept"]
                if zone.error.n:
                    axes.plot(zone.share.value, zone.error.value, "D", color=COLOURS[side], markersize=9)
        axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
        axes.set(xlim=(0, 1.02), ylim=(0, min(1.0, max(1.15 * highest, 2 * chosen.guarantee.target_error))))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="upper left")
        return svg_of(figure, "thresholds", "Error against coverage, with the threshold that was chosen")
