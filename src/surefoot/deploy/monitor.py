"""Shift detection: predictions without labels compared with a reference from familiar data."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import fisher_exact, ks_2samp, rankdata

from surefoot import __version__
from surefoot.calibrators import Calibration
from surefoot.deploy.thresholds import Thresholds, confidences, energies, tells
from surefoot.errors import InputError
from surefoot.intervals import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    difference_of_proportions,
    few_samples_factor,
)
from surefoot.io import ClaimedError, locked, replacing
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions

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
class AlphaBudget:
    """How much false alarm this look may spend, of how much in all."""

    alpha: float
    number: int = 1
    level: float = NAN

    @staticmethod
    def only(alpha: float) -> "AlphaBudget":
        """The one look there will be: it may spend everything."""
        return AlphaBudget(alpha, 1, alpha)

    @staticmethod
    def of_look(number: int, alpha: float) -> "AlphaBudget":
        """alpha * 6 / (pi * number)^2: over all looks, for ever, these add up to alpha.

        >>> round(sum(Share.of_look(k, 0.05).level for k in range(1, 100_000)), 5)
        0.05
        """
        return AlphaBudget(alpha, number, alpha * 6 / (np.pi * number) ** 2)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison of current predictions with the reference."""

    n_reference: int
    n_current: int
    findings: tuple[Finding, ...]
    labelled: bool  # whether the reference's labels have mended the estimate
    reference_accuracy: Interval  # measured where there are labels, else estimated
    accuracy: Interval  # estimated
    drop: Interval  # of the estimate: reference less current
    share: AlphaBudget
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


def check_shift(
    reference: Scores, current: Scores, *, share: AlphaBudget, bound: float | None = None
) -> Check:
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
    return Check(
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


@dataclass(frozen=True)
class History:
    """The looks so far, oldest first, and the file they are in."""

    path: Path
    text: str
    looks: tuple[dict[str, Any], ...]

    def added(self, look: Check, *, reference: str, source: str) -> "History":
        """Write the file with this look at its end."""
        entry = _entry(look, reference=reference, source=source)
        text = self.text + json.dumps(entry, allow_nan=False) + "\n"
        with replacing(self.path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return History(self.path, text, (*self.looks, entry))


@contextmanager
def opened(path: Path, *, alpha: float, reference: str) -> Iterator[History]:
    """The history, ours alone until the look is written: two at once would spend the same share twice."""
    if not path.name:
        raise InputError(f"the history {path} is no file; allowed: the path of one, there or not")
    try:
        with locked(path.with_name(f".{path.name}.lock")):
            yield _read(path, alpha=alpha, reference=reference)
    except ClaimedError as error:
        raise InputError(f"another look with the history {path} is being taken; try again") from error


def _read(path: Path, *, alpha: float, reference: str) -> History:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    text += "" if text.endswith("\n") or not text else "\n"
    looks = tuple(_check(path, number, line) for number, line in enumerate(text.splitlines(), start=1))
    for look in looks:
        if look["alpha"] != alpha:
            raise InputError(
                f"{path} was begun with --alpha {look['alpha']:g}, got {alpha:g}; allowed: the same"
            )
        if look["reference"] != reference:
            raise InputError(
                f"{path} holds looks at another reference (or under another calibration); allowed: a new "
                "history for a new reference"
            )
    return History(path, text, looks)


def _check(path: Path, number: int, line: str) -> dict[str, Any]:
    """What is read of a look again; whatever else its line holds stays in the file."""
    try:
        found = json.loads(line)
        if found["look"] != number:
            raise ValueError(f"look {found['look']!r}")
        return {
            "look": number,
            "at": str(found["at"]),
            "n": int(found["n"]),
            "alpha": float(found["alpha"]),
            "reference": str(found["reference"]),
            "accuracy": {name: float(found["accuracy"][name]) for name in ("value", "low", "high")},
            "alarm": bool(found["alarm"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} is not a history of looks: line {number} is wrong ({error}); allowed: what "
            "'surefoot monitor --history' wrote"
        ) from error


def _entry(look: Check, *, reference: str, source: str) -> dict[str, Any]:
    return {
        "look": look.share.number,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "surefoot": __version__,
        "source": source,
        "reference": reference,
        "n": look.n_current,
        "alpha": look.share.alpha,
        "level": look.share.level,
        "p": {each.name: each.p for each in look.findings},
        "accuracy": asdict(look.accuracy),
        "drop": asdict(look.drop),
        "alarm": look.alarm,
    }
