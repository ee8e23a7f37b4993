"""Has the ground become unfamiliar? Predictions without labels against a reference from familiar data.

A look tests whether the current rows could be further draws of what the reference was drawn from: their
confidences and their novelty (Kolmogorov-Smirnov), and the share above the threshold (Fisher's exact test).
Each p-value is valid by itself whatever the distribution, and Holm's correction makes the look one test. The
accuracy is estimated from the calibrated confidence, mended by what the reference's labels say of it:
Guillory et al., "Predicting with confidence on unseen distributions", ICCV 2021.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import fisher_exact, ks_2samp, rankdata

from surefoot.calibrators import Calibration
from surefoot.deploy.confidences import confidences, energies, tells
from surefoot.deploy.thresholds import Thresholds
from surefoot.errors import InputError
from surefoot.outcomes import Array
from surefoot.predictions import Predictions
from surefoot.statistics import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    difference_of_proportions,
    few_samples_factor,
)

FEW_ROWS = 50
NO_INTERVAL = Interval(NAN)


@dataclass(frozen=True, eq=False)
class Scores:
    """What is compared of some predictions: a number a row under each name, and which rows are accepted."""

    confidence: Array
    novelty: Mapping[str, Array]  # 'novelty' where the file has it, 'energy' where the logits tell it
    accepted: Array | None  # 0 or 1 a row, where there are thresholds
    surplus: Array | None  # how much more often right than confident, a row; None without labels
    accuracy: Interval  # NaN without labels

    @property
    def n(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True)
class Finding:
    """One comparison: the means of both sides, their difference, and how surprising it is."""

    name: str
    reference: float
    current: float
    change: Interval  # current less reference
    distance: float  # Kolmogorov-Smirnov; NaN for a share
    stranger: Interval  # the chance that a current row is stranger than one of the reference; NaN for a share
    p: float
    adjusted: float  # Holm, within the look


@dataclass(frozen=True)
class Share:
    """How much false alarm this look may spend, of how much in all."""

    alpha: float
    number: int = 1
    level: float = NAN

    @staticmethod
    def only(alpha: float) -> "Share":
        """The one look there will be: it may spend everything."""
        return Share(alpha, 1, alpha)

    @staticmethod
    def of_look(number: int, alpha: float) -> "Share":
        """alpha * 6 / (pi * number)^2: over all looks, for ever, these add up to alpha.

        >>> round(sum(Share.of_look(k, 0.05).level for k in range(1, 100_000)), 5)
        0.05
        """
        return Share(alpha, number, alpha * 6 / (np.pi * number) ** 2)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One comparison of current predictions with the reference."""

    n_reference: int
    n_current: int
    findings: tuple[Finding, ...]
    labelled: bool  # whether the reference's labels have mended the estimate
    reference_accuracy: Interval  # measured where there are labels, else estimated
    accuracy: Interval  # estimated
    drop: Interval  # of the estimate: reference less current
    share: Share
    bound: float | None

    @property
    def significant(self) -> tuple[Finding, ...]:
        """What cannot be chance, at this look's share."""
        return tuple(each for each in self.findings if each.adjusted <= self.share.level)

    @property
    def alarm(self) -> bool:
        """A change that cannot be chance and, where a bound was chosen, a drop of at least that much."""
        return bool(self.significant) and (self.bound is None or self.drop.value >= self.bound)


def scores_of(
    predictions: Predictions, *, calibration: Calibration | None = None, thresholds: Thresholds | None = None
) -> Scores:
    """What a look compares; labels, where there are any, are used for the accuracy alone."""
    calibrated = predictions if calibration is None else calibration(predictions)
    novelty = {"energy": energies(predictions)}
    if predictions.novelty is not None:
        novelty["novelty"] = predictions.novelty.numpy()
    surplus, accuracy = _against_labels(calibrated)
    return Scores(
        confidence=confidences(calibrated),
        novelty=novelty,
        accepted=None if thresholds is None else thresholds.accepted(predictions).astype(float),
        surplus=surplus,
        accuracy=accuracy,
    )


def take_look(reference: Scores, current: Scores, *, share: Share, bound: float | None = None) -> Look:
    """Compare the current rows with the reference's."""
    for name, side in (("reference", reference), ("current", current)):
        if side.n < 2:
            raise InputError(f"the {name} predictions have {side.n} row; allowed: two or more")
    findings = [_shift("confidence", reference.confidence, current.confidence, sign=-1)]
    strange = novelty_name(reference, current)
    if strange is not None:
        findings.append(_shift(strange, reference.novelty[strange], current.novelty[strange], sign=1))
    if reference.accepted is not None and current.accepted is not None:
        findings.append(_coverage(reference.accepted, current.accepted))
    drop = _less(reference.confidence, current.confidence)
    estimate, own = _estimate(current.confidence, reference.surplus), _estimate(reference.confidence, None)
    return Look(
        n_reference=reference.n,
        n_current=current.n,
        findings=_holm(findings),
        labelled=reference.surplus is not None,
        reference_accuracy=own if reference.surplus is None else reference.accuracy,
        accuracy=estimate,
        drop=drop,
        share=share,
        bound=bound,
    )


def novelty_name(reference: Scores, current: Scores) -> str | None:
    """The novelty that both sides have and that varies: the files' own before the energy.

    The files' own may be one number all over a side: as strange as can be. An energy that is was made
    from probabilities, and is none.
    """
    sides = reference.novelty, current.novelty
    if all("novelty" in side for side in sides) and tells(
        np.concatenate([each["novelty"] for each in sides])
    ):
        return "novelty"
    return "energy" if all(tells(side["energy"]) for side in sides) else None


def fingerprint(reference: Scores) -> str:
    """A name for what the looks are compared with: another model, file or calibration has another."""
    digest = hashlib.sha256()
    for values in (reference.confidence, *reference.novelty.values()):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def _against_labels(calibrated: Predictions) -> tuple[Array | None, Interval]:
    """Per labelled row, right less confident (many labels: the mean over its classes); and the accuracy."""
    outcomes = calibrated.outcomes
    decisions = np.bincount(outcomes.row, minlength=calibrated.n)
    known = decisions > 0
    if known.sum() < 2:
        return None, NO_INTERVAL
    surplus = (
        np.bincount(outcomes.row, outcomes.correct - outcomes.confidence, calibrated.n)[known]
        / decisions[known]
    )
    if len(outcomes.blocks) == 1:
        k = Proportion.of(int(outcomes.correct.sum()), len(outcomes.row))
        return surplus, Interval(k.value, k.low, k.high)
    right = np.bincount(outcomes.row, outcomes.correct, calibrated.n)[known] / decisions[known]
    return surplus, _estimate(right, None)


def _shift(name: str, reference: Array, current: Array, *, sign: int) -> Finding:
    found: Any = ks_2samp(reference, current)
    change = _less(current, reference)
    return Finding(
        name=name,
        reference=float(reference.mean()),
        current=float(current.mean()),
        change=change,
        distance=float(found.statistic),
        stranger=_stranger(sign * reference, sign * current),
        p=float(found.pvalue),
        adjusted=NAN,
    )


def _coverage(reference: Array, current: Array) -> Finding:
    sides = [Proportion.of(int(side.sum()), len(side)) for side in (reference, current)]
    then, now = (Interval(side.value, side.low, side.high) for side in sides)
    table = np.array([[side.k, side.n - side.k] for side in sides])
    return Finding(
        name="coverage",
        reference=then.value,
        current=now.value,
        change=difference_of_proportions(now, then),
        distance=NAN,
        stranger=NO_INTERVAL,
        p=float(fisher_exact(table).pvalue),
        adjusted=NAN,
    )


def _holm(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Holm's step-down p-values: the smallest times their number, the next times one less, never falling."""
    ranked = sorted(range(len(findings)), key=lambda i: findings[i].p)
    adjusted, so_far = [NAN] * len(findings), 0.0
    for place, i in enumerate(ranked):
        so_far = max(so_far, min(1.0, (len(findings) - place) * findings[i].p))
        adjusted[i] = so_far
    return tuple(
        Finding(**{**vars(each), "adjusted": value}) for each, value in zip(findings, adjusted, strict=True)
    )


def _stranger(reference: Array, current: Array) -> Interval:
    """P(current > reference), ties half, with DeLong's interval (Biometrics 1988)."""
    n, m = len(reference), len(current)
    ranks = rankdata(np.concatenate([reference, current]))
    # How many of the other side lie below each row, as a share.
    below_current = (ranks[n:] - rankdata(current)) / n
    below_reference = (ranks[:n] - rankdata(reference)) / m
    value = float(below_current.mean())
    return _spread(value, [below_current, below_reference], (0.0, 1.0))


def _less(a: Array, b: Array) -> Interval:
    """The mean of a less the mean of b."""
    return _spread(float(a.mean() - b.mean()), [a, b], (-np.inf, np.inf))


def _estimate(confidence: Array, surplus: Array | None) -> Interval:
    """The mean confidence, plus how much more often than that the reference was right."""
    if surplus is None:
        return _spread(float(confidence.mean()), [confidence], (0.0, 1.0))
    value = float(np.clip(confidence.mean() + surplus.mean(), 0, 1))
    return _spread(value, [confidence, surplus], (0.0, 1.0))


def _spread(value: float, samples: list[Array], limits: tuple[float, float]) -> Interval:
    """A 95% interval from the variances of the independent samples that the value is made of."""
    fewest = min(len(each) for each in samples)
    if fewest < 2:
        return Interval(value)
    error = float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in samples)))
    reach = NORMAL * few_samples_factor(fewest) * error
    return Interval(value, max(limits[0], value - reach), min(limits[1], value + reach))
