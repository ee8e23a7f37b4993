"""A look of the monitor as a table, in plain words and as plain data."""

from dataclasses import asdict
from typing import Any

from surefoot.deploy.monitor import FEW_ROWS, Finding, Look
from surefoot.documents import number
from surefoot.report.table import Table
from surefoot.statistics import Interval
from surefoot.version import VERSION

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


def monitor_table(look: Look) -> Table:
    """A row per comparison."""
    return Table(
        title=f"{look.n_current:,} current rows against {look.n_reference:,} of the reference; "
        f"this look may spend {look.share.level:.3g}",
        header=("what", "reference", "current", "change", "stranger", "KS", "p", "p (Holm)"),
        rows=tuple(_row(each) for each in look.findings),
    )


def monitor_verdict(look: Look) -> list[str]:
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


def monitor_document(look: Look) -> dict[str, Any]:
    """The look as plain data; NaN becomes null."""
    return {
        "surefoot": VERSION,
        "alarm": look.alarm,
        "verdict": monitor_verdict(look),
        "look": look.share.number,
        "alpha": look.share.alpha,
        "level": look.share.level,
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
                "stranger": _interval(each.stranger),
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
    stranger = f"{found.stranger.value:.3f} [{found.stranger.low:.3f}, {found.stranger.high:.3f}]"
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


def _accuracy(look: Look) -> list[str]:
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
