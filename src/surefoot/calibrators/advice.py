"""Remarks on predictions that are probably not what the user meant, and on calibrations that do not help."""

import math
from typing import TYPE_CHECKING

import numpy as np

from surefoot.metrics import ece
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.predictions.zeros import LOG_ZERO, TOLERANCE, log_probs
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

FEWEST_ROWS = 20  # below, such patterns occur by chance
SUM_TOLERANCE = 1e-3
STANDARD_TOLERANCE = 1e-3
FIRST_ROWS = 100  # which show at once that most logits are no probabilities
CLIPPED_SHARE = 0.01  # of the numbers that are exactly the largest or the smallest one
CLEARLY = 2  # standard errors of the mean rise of the NLL
WORSE_ECE = 0.02
DISTINCT_SHARE = 0.5  # of the other numbers that are different; trees have few different ones


def data_remarks(val: "Predictions") -> list[str]:
    """What looks wrong with the logits for a calibrator; empty if nothing does."""
    zeros = zeros_remark(val)
    if zeros is not None or val.n < FEWEST_ROWS:
        return [] if zeros is None else [zeros]
    logits = val.logits[0].astype(np.float64)
    found = _probabilities(logits, val.kind) or _standardised(logits) or _clipped(logits, val.kind)
    return [] if found is None else [found]


def probabilities_remark(predictions: "Predictions") -> str | None:
    """Whether the logits look like probabilities; this is the mistake that changes every metric."""
    logits = predictions.logits[0]
    if predictions.n < FEWEST_ROWS or _probabilities(logits[:FIRST_ROWS], predictions.kind) is None:
        return None
    return _probabilities(logits, predictions.kind)


def _probabilities(logits: Array, kind: LabelKind) -> str | None:
    low, high = float(logits.min()), float(logits.max())
    if low < 0 or high > 1 or low == high:
        return None
    if kind is LabelKind.ONE_LABEL:
        if logits.shape[1] == 2 and not bool(logits[:, 0].any()):
            seen = "every log odds is between 0 and 1"  # one number a row, whose class 0 has the logit 0
        elif bool((np.abs(logits.sum(axis=1) - 1) < SUM_TOLERANCE).all()):
            seen = "every row is between 0 and 1 and sums to 1"
        else:
            return None
    else:
        seen = "every number is between 0 and 1"
    return (
        f"{seen}: these look like probabilities and are read as logits; give probabilities as such "
        "('probs' or 'prob_<class>' in a file, Predictions.from_probs in Python)"
    )


def _standardised(logits: Array) -> str | None:
    for axis, what in ((0, "column"), (1, "row")):
        if logits.shape[axis] < 3:  # two numbers with mean 0 and deviation 1 are -1 and 1
            continue
        if bool((np.abs(logits.mean(axis=axis)) >= STANDARD_TOLERANCE).any()):
            continue
        deviation, sample = logits.std(axis=axis), logits.std(axis=axis, ddof=1)
        is_one = np.minimum(np.abs(deviation - 1), np.abs(sample - 1)) < STANDARD_TOLERANCE
        if bool(is_one.all()):
            return (
                f"every {what} has mean 0 and deviation 1: these look like standardised logits, whose size "
                "says nothing about the confidence; use the model's own logits"
            )
    return None


def zeros_remark(val: "Predictions") -> str | None:
    """Whether probabilities of exactly 0 are read as larger ones by a fit."""
    lowest = val.half_of_smallest()
    if lowest is None:
        return None
    logs = log_probs(val.logits, val.kind)
    count, labels = int((np.abs(logs - LOG_ZERO) <= TOLERANCE).sum()), val.true_zeros()
    true = f", {count_of(labels, 'true label')} among them" if labels else ""
    return (
        f"{count:,} of {logs.size:,} probabilities are exactly 0, as trees and nearest neighbours give "
        f"them{true}; the fit reads them as {lowest:.3g}, half the smallest positive one"
    )


def _clipped(logits: Array, kind: LabelKind) -> str | None:
    two = kind is LabelKind.ONE_LABEL and logits.shape[1] == 2
    values = (logits[:, 1] - logits[:, 0] if two else logits).reshape(-1)
    low, high = values.min(), values.max()
    ends = [low] if float(high) == 0 else [low, high]  # 0: p = 1
    counts = [int((values == end).sum()) for end in ends]
    fewest = max(CLIPPED_SHARE * len(values), FEWEST_ROWS // 2 + 1)
    often = [(end, count) for end, count in zip(ends, counts, strict=True) if count >= fewest]
    if not often:
        return None
    inside = values[(values != low) & (values != high)]
    if not len(inside) or len(np.unique(inside)) < DISTINCT_SHARE * len(inside):
        return None
    end, count = often[0]
    what = "log odds" if two else "logits"
    return (
        f"{count / len(values):.0%} of the {what} are exactly {float(end):.6g}: they look clipped, and "
        "confident rows can no longer be distinguished; use the model's own logits, or give "
        "probabilities as such"
    )


def effect_remarks(before: "Predictions", held_out: "Predictions") -> list[str]:
    """Whether NLL or ECE are clearly worse on rows that the fit has not seen, each calibrated without it."""
    worse = []
    rises = before.outcomes.log_p_true - held_out.outcomes.log_p_true
    rise, error = float(rises.mean()), float(rises.std()) / math.sqrt(max(1, len(rises)))
    if rise > CLEARLY * error and rise > 0:
        nll = -float(before.outcomes.log_p_true.mean())
        worse.append(f"the NLL from {nll:.4g} to {nll + rise:.4g}")
    eces = ece(before), ece(held_out)
    if eces[1] > eces[0] + WORSE_ECE:
        worse.append(f"the ECE from {eces[0]:.4g} to {eces[1]:.4g}")
    if not worse:
        return []
    return [
        f"on rows left out of the fit, calibration raises {' and '.join(worse)} (cross-validation): use "
        "more validation data or fewer parameters, or leave these predictions as they are"
    ]
