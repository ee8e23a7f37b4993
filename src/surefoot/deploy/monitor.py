"""Shift detection: predictions without labels compared with a reference from familiar data."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surefoot import __version__
from surefoot.calibrators import Calibration
from surefoot.deploy.thresholds import Thresholds, confidences
from surefoot.errors import InputError
from surefoot.intervals import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    difference_of_proportions,
    few_samples_factor,
)
from surefoot.io import ClaimedError, locked, parse_json, read_text, replacing
from surefoot.novelty import average_ranks, energy
from surefoot.predictions.logits import map_chunks
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result

FEW_ROWS = 50
LEAST_RANGE = 1e-6  # an energy that varies by less is constant: the logits were made from probabilities
NO_INTERVAL = Interval(NAN)


@dataclass(frozen=True, eq=False)
class Scores:
    """The compared scores of predictions, a number for each row, and which rows are accepted."""

    confidence: Array
    novelty: Mapping[str, Array]  # 'energy', and 'novelty' if the file has it
    accepted: Array | None  # 0 or 1 for each row, with thresholds
    surplus: Array | None  # correct (0 or 1) less confidence, for each labelled row; None without labels
    accuracy: Interval  # NaN without labels

    @property
    def n(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True)
class Finding:
    """One comparison: the means of both sides, their difference, and its p-value."""

    name: str
    reference: float
    current: float
    change: Interval  # current less reference
    distance: float  # Kolmogorov-Smirnov; NaN for a share
    more_novel: Interval  # P(a current row is more novel than one of the reference); NaN for a share
    p: float
    adjusted: float  # Holm, within the check


@dataclass(frozen=True)
class AlphaBudget:
    """The probability of a false alarm at this check (`level`), of that over all checks (`alpha`)."""

    alpha: float
    number: int = 1
    level: float = NAN

    @staticmethod
    def only(alpha: float) -> "AlphaBudget":
        """For a single check, which may spend everything."""
        return AlphaBudget(alpha, 1, alpha)

    @staticmethod
    def of_check(number: int, alpha: float) -> "AlphaBudget":
        """alpha * 6 / (pi * number)^2: over any number of checks, these add up to at most alpha.

        >>> round(sum(AlphaBudget.of_check(k, 0.05).level for k in range(1, 100_000)), 5)
        0.05
        """
        return AlphaBudget(alpha, number, alpha * 6 / (np.pi * number) ** 2)


@dataclass(frozen=True, kw_only=True)
class Check(Result):
    """One comparison of current predictions with the reference."""

    n_reference: int
    n_current: int
    findings: tuple[Finding, ...]
    labelled: bool  # whether the reference's labels have corrected the estimate
    reference_accuracy: Interval  # measured where there are labels, else estimated
    accuracy: Interval  # estimated
    drop: Interval  # of the estimate: reference less current
    budget: AlphaBudget
    bound: float | None

    @property
    def significant(self) -> tuple[Finding, ...]:
        """The significant findings, at this check's level."""
        return tuple(each for each in self.findings if each.adjusted <= self.budget.level)

    @property
    def alarm(self) -> bool:
        """A significant change and, if a bound is given, an estimated drop of at least that much."""
        return bool(self.significant) and (self.bound is None or self.drop.value >= self.bound)


def scores_of(
    predictions: Predictions, *, calibration: Calibration | None = None, thresholds: Thresholds | None = None
) -> Scores:
    """The scores that a check compares; labels, if there are any, are used for the accuracy only."""
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


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged logits have another one."""
    total = torch.zeros(predictions.n, dtype=torch.float64)
    for member in predictions.logits:

        def add(part: slice, logits: torch.Tensor, _scratch: torch.Tensor) -> None:
            total[part] += energy(logits, predictions.kind).cpu()

        map_chunks(member.unsqueeze(0), lambda one: one[0], add)
    mean: Array = total.numpy() / predictions.members
    return mean


def check_shift(
    reference: Scores, current: Scores, *, budget: AlphaBudget, bound: float | None = None
) -> Check:
    """Compare the current rows with the reference's."""
    for which, side in (("reference", reference), ("current", current)):
        if side.n < 2:
            raise InputError(f"the {which} predictions have {side.n} row; allowed: two or more")
    findings = [_shift("confidence", reference.confidence, current.confidence, sign=-1)]
    name = novelty_name(reference, current)
    if name is not None:
        findings.append(_shift(name, reference.novelty[name], current.novelty[name], sign=1))
    if reference.accepted is not None and current.accepted is not None:
        findings.append(_coverage(reference.accepted, current.accepted))
    own_accuracy = reference.accuracy
    if reference.surplus is None:
        own_accuracy = _estimate(reference.confidence, None)
    return Check(
        n_reference=reference.n,
        n_current=current.n,
        findings=_holm(findings),
        labelled=reference.surplus is not None,
        reference_accuracy=own_accuracy,
        accuracy=_estimate(current.confidence, reference.surplus),
        drop=_difference(reference.confidence, current.confidence),
        budget=budget,
        bound=bound,
    )


def novelty_name(reference: Scores, current: Scores) -> str | None:
    """The novelty that both sides have and that varies: the files' own if possible, else the energy.

    The files' own may be constant on one side, at its maximum. An energy that is constant on a side comes
    from probabilities, and has no meaning.
    """
    sides = reference.novelty, current.novelty
    if all("novelty" in side for side in sides):
        both = np.concatenate([side["novelty"] for side in sides])
        if np.ptp(both) > LEAST_RANGE:
            return "novelty"
    return "energy" if all(np.ptp(side["energy"]) > LEAST_RANGE for side in sides) else None


def fingerprint(reference: Scores) -> str:
    """A digest of the reference: another model, file or calibration has another."""
    digest = hashlib.sha256()
    for values in (reference.confidence, *reference.novelty.values()):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def _against_labels(calibrated: Predictions) -> tuple[Array | None, Interval]:
    """Correct less confidence per labelled row (many labels: the mean over its classes); and the accuracy."""
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
    correct = np.bincount(outcomes.row, outcomes.correct, calibrated.n)[known] / decisions[known]
    return surplus, _estimate(correct, None)


def _shift(name: str, reference: Array, current: Array, *, sign: int) -> Finding:
    from scipy.stats import ks_2samp  # takes most of a second to import

    with warnings.catch_warnings():  # where its exact p is a rounding error above 1, it is approximated
        warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
        test: Any = ks_2samp(reference, current)
    return Finding(
        name=name,
        reference=float(reference.mean()),
        current=float(current.mean()),
        change=_difference(current, reference),
        distance=float(test.statistic),
        more_novel=_probability_above(sign * reference, sign * current),
        p=float(test.pvalue),
        adjusted=NAN,
    )


def _coverage(reference: Array, current: Array) -> Finding:
    from scipy.stats import fisher_exact

    sides = [Proportion.of(int(side.sum()), len(side)) for side in (reference, current)]
    before, now = (Interval(side.value, side.low, side.high) for side in sides)
    table = np.array([[side.k, side.n - side.k] for side in sides])
    return Finding(
        name="coverage",
        reference=before.value,
        current=now.value,
        change=difference_of_proportions(now, before),
        distance=NAN,
        more_novel=NO_INTERVAL,
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


def _probability_above(reference: Array, current: Array) -> Interval:
    """P(current > reference), ties half, with DeLong's interval (Biometrics 1988)."""
    n, m = len(reference), len(current)
    ranks = average_ranks(np.concatenate([reference, current]))
    # The share of the other side's rows that are below each row.
    below_current = (ranks[n:] - average_ranks(current)) / n
    below_reference = (ranks[:n] - average_ranks(reference)) / m
    value = float(below_current.mean())
    return _normal_interval(value, [below_current, below_reference], (0.0, 1.0))


def _difference(a: Array, b: Array) -> Interval:
    """The mean of a less the mean of b."""
    return _normal_interval(float(a.mean() - b.mean()), [a, b], (-np.inf, np.inf))


def _estimate(confidence: Array, surplus: Array | None) -> Interval:
    """The mean confidence, plus the reference's accuracy less its mean confidence."""
    if surplus is None:
        return _normal_interval(float(confidence.mean()), [confidence], (0.0, 1.0))
    value = float(np.clip(confidence.mean() + surplus.mean(), 0, 1))
    return _normal_interval(value, [confidence, surplus], (0.0, 1.0))


def _normal_interval(value: float, samples: list[Array], limits: tuple[float, float]) -> Interval:
    """A 95% interval from the variances of the independent samples behind the value."""
    fewest = min(len(each) for each in samples)
    if fewest < 2:
        return Interval(value)
    error = float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in samples)))
    reach = NORMAL * few_samples_factor(fewest) * error
    return Interval(value, max(limits[0], value - reach), min(limits[1], value + reach))


@dataclass(frozen=True)
class History:
    """The checks so far, oldest first, and the file they are in."""

    path: Path
    text: str
    checks: tuple[dict[str, Any], ...]

    def added(self, check: Check, *, reference: str, source: str) -> "History":
        """With this check at its end; nothing is written yet."""
        entry = {
            "look": check.budget.number,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "surefoot": __version__,
            "source": source,
            "reference": reference,
            "n": check.n_current,
            "alpha": check.budget.alpha,
            "level": check.budget.level,
            "p": {each.name: each.p for each in check.findings},
            "accuracy": asdict(check.accuracy),
            "drop": asdict(check.drop),
            "alarm": check.alarm,
        }
        text = self.text + json.dumps(entry, allow_nan=False) + "\n"
        return History(self.path, text, (*self.checks, entry))

    def write(self) -> None:
        """Write the file, which spends the budget of its last check."""
        with replacing(self.path) as temporary:
            temporary.write_text(self.text, encoding="utf-8")


LOCK_NAME = 50  # characters of the history's name in the name of its lock, which has 255 bytes at most


@contextmanager
def opened(path: Path, *, alpha: float, reference: str) -> Iterator[History]:
    """The history, locked until the check is written: two at once would spend the same budget twice."""
    if not path.name:
        raise InputError(f"the history {path} is not a file; allowed: the path of a file, new or existing")
    try:
        lock = path.with_name(f".{path.name[:LOCK_NAME]}.lock")
        with locked(lock):
            try:
                yield _read(path, alpha=alpha, reference=reference)
            finally:
                lock.unlink(missing_ok=True)
    except ClaimedError as error:
        raise InputError(f"another check with the history {path} is running; try again") from error


def _read(path: Path, *, alpha: float, reference: str) -> History:
    text = read_text(path) if path.exists() else ""
    text += "" if text.endswith("\n") or not text else "\n"
    lines = enumerate(text.split("\n")[:-1], start=1)
    checks = tuple(_check_from(path, number, line) for number, line in lines)
    for check in checks:
        if check["alpha"] != alpha:
            raise InputError(
                f"{path} was started with --alpha {check['alpha']:g}, got {alpha:g}; allowed: the same"
            )
        if check["reference"] != reference:
            raise InputError(
                f"{path} has checks against another reference (or with another calibration); allowed: a new "
                "history for a new reference"
            )
    return History(path, text, checks)


def _check_from(path: Path, number: int, line: str) -> dict[str, Any]:
    """The keys of a check that are used again; anything else on its line stays in the file."""
    try:
        entry = parse_json(line)
        if entry["look"] != number:
            raise ValueError(f"look {entry['look']!r}")
        return {
            "look": number,
            "at": str(entry["at"]),
            "n": int(entry["n"]),
            "alpha": float(entry["alpha"]),
            "reference": str(entry["reference"]),
            "accuracy": {name: float(entry["accuracy"][name]) for name in ("value", "low", "high")},
            "alarm": bool(entry["alarm"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} is not a history of checks: line {number} is wrong ({error}); allowed: a file that "
            "'surefoot monitor --history' wrote"
        ) from error
