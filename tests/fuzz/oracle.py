"""What the numbers must be: numpy from the definitions, sharing no code with the package.

Equal confidences (to 12 decimals) are ties, and each row of a tie counts with the mean of its tie.
"""

from itertools import pairwise

import numpy as np
from scipy.optimize import minimize_scalar

IGNORE = -100
DECIMALS = 12
LEAST = 2.0**-126  # what a probability of 0, or any below this, is read as
METRICS = (
    "nll", "nll_unclipped", "brier", "brier_true_class", "label_error", "ece", "e99", "entropy", "nll_minus_entropy",
    "signed_ece", "aurc", "risk_at_80", "coverage_at_5",
)  # fmt: skip


def log_probabilities(logits, many):
    """Log p of each class, members averaged: (n, classes), or (2, n, classes) for absent and present."""
    logits = np.asarray(logits, dtype=np.float64)
    if many:
        both = np.stack([-np.logaddexp(0, logits), -np.logaddexp(0, -logits)])  # absent, present
        return np.logaddexp.reduce(both, axis=1) - np.log(len(logits))
    logs = logits - logits.max(axis=2, keepdims=True)  # first: log p near 0 loses digits to large logits
    logs -= np.log(np.exp(logs).sum(axis=2, keepdims=True))
    return np.logaddexp.reduce(logs, axis=0) - np.log(len(logits))


NUDGES = (1.5e-16, -1.5e-16, 3e-16, -3e-16)  # about an ulp of 1: rounded, such probabilities can differ


def scores(logits, labels, nudge=0.0):
    """Every metric of (members, n, classes) logits, and the number of labelled rows.

    The nudge is added to confidences before they are rounded, which decides what is a tie.
    """
    labels = np.asarray(labels)
    many = labels.ndim == 2
    logs = log_probabilities(logits, many)
    found = _many(logs, labels, nudge) if many else _one(logs, labels, nudge)
    return {name: None if np.isnan(value) else float(value) for name, value in found.items()}


def _one(logs, labels, nudge):
    known = labels >= 0
    logs, labels = logs[known], labels[known]
    rows = np.arange(len(labels))
    probs = np.exp(logs)
    true = logs[rows, labels]
    others = np.where(np.arange(logs.shape[1]) == labels[:, None], 0.0, probs)
    squares = (others.sum(axis=1) ** 2 + (others**2).sum(axis=1)) / logs.shape[1]
    with np.errstate(invalid="ignore"):
        entropy = -np.where(probs > 0, probs * logs, 0.0).sum(axis=1)
    confidence = (probs.max(axis=1) + nudge).round(DECIMALS)
    correct = logs.argmax(axis=1) == labels
    found = _shared(true, squares, entropy, confidence, correct)
    found["label_error"] = 1 - correct.mean()
    found["ece"] = ece(confidence, correct)
    found["signed_ece"] = confidence.mean() - correct.mean()
    return {"n": len(rows), **found}


def _many(logs, labels, nudge):
    absent, present = logs
    known = labels >= 0
    positive = labels == 1
    true = np.where(positive, present, absent)
    probs = np.exp(np.maximum(absent, present))
    correct = (present >= absent) == positive
    entropy = -(np.exp(present) * present + np.exp(absent) * absent)
    wrong = np.exp(np.where(positive, absent, present))
    confidence = (probs + nudge).round(DECIMALS)
    found = _shared(true[known], wrong[known] ** 2, entropy[known], confidence[known], correct[known])
    columns = [(confidence[k, i], correct[k, i]) for i, k in enumerate(known.T) if k.any()]
    found["ece"] = np.mean([ece(*each) for each in columns])
    found["signed_ece"] = np.mean([c.mean() - r.mean() for c, r in columns])
    odds = present - absent
    precisions = [average_precision(odds[k, i], positive[k, i]) for i, k in enumerate(known.T)]
    precisions = [each for each in precisions if not np.isnan(each)]
    found["label_error"] = 1 - np.mean(precisions) if precisions else np.nan
    return {"n": int(known.any(axis=1).sum()), **found}


def _shared(true, squares, entropy, confidence, correct):
    clipped = -np.log(np.clip(np.exp(true), 0.001, 0.999))
    above = confidence > 0.99
    coverage, errors = risk_curve(confidence, correct)
    return {
        "nll": clipped.mean(),
        "nll_unclipped": -true.mean(),
        "brier": np.sqrt(squares.mean()),
        "brier_true_class": np.sqrt(((1 - np.exp(true)) ** 2).mean()),
        "e99": (~correct[above]).mean() if above.any() else np.nan,
        "entropy": entropy.mean(),
        "nll_minus_entropy": (clipped - entropy).mean(),
        "aurc": (errors / coverage).mean(),
        "risk_at_80": _risk(errors, 0.8),
        "coverage_at_5": _coverage(confidence, correct, 0.05),
    }


def with_tie_means(confidence, values):
    """The values with those of a tie replaced by their mean."""
    _, tie, count = np.unique(confidence, return_inverse=True, return_counts=True)
    return (np.bincount(tie, values) / count)[tie]


def risk_curve(confidence, correct):
    """1 to n, and the expected errors among so many of the most confident."""
    wrong = with_tie_means(confidence, ~correct)[np.argsort(-confidence, kind="stable")]
    return np.arange(1, len(wrong) + 1), np.cumsum(wrong)


def _risk(errors, coverage):
    accepted = int(np.ceil(coverage * len(errors) - 1e-9))
    return errors[accepted - 1] / accepted


def _coverage(confidence, correct, risk):
    best = 0
    for threshold in np.unique(confidence):
        accepted = confidence >= threshold
        if (~correct[accepted]).sum() <= risk * accepted.sum() + 1e-12:
            best = max(best, int(accepted.sum()))
    return best / len(confidence)


def ece(confidence, correct, bins=10):
    """Ten bins of equal mass by rank; the edges are ceil(linspace(0, n, 11)) from the least confident."""
    order = np.argsort(confidence, kind="stable")
    residual = (with_tie_means(confidence, correct) - confidence)[order]
    edges = np.ceil(np.linspace(0, len(order), bins + 1)).astype(int)
    return sum(abs(residual[a:b].sum()) for a, b in pairwise(edges)) / len(order)


def average_precision(score, positive):
    """VOC 2010: the best precision at this recall or a higher one, summed over steps of recall."""
    if not positive.any():
        return np.nan
    values, tie, count = np.unique(-score, return_inverse=True, return_counts=True)
    hits = np.cumsum(np.bincount(tie, positive, len(values)))
    precision = hits / np.cumsum(count)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.diff(hits, prepend=0) @ best / hits[-1])


def without_zeros(logits, many):
    """The same with probabilities of 0 as half the smallest positive one (at most 1/4), as calibrations read them."""
    size = np.abs(logits)
    logs = (
        -size - np.log1p(np.exp(-size))
        if many
        else logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    )
    zeros = np.abs(logs - np.log(LEAST)) <= 1.1e-3
    if not zeros.any() or zeros.all() or np.exp(logs[~zeros].min()) <= 4 * LEAST:
        return logits
    least = min(np.exp(logs[~zeros].min()) / 2, 0.25)
    limit = np.log(least) - np.log1p(-least)
    return np.clip(logits, limit, -limit) if many else np.maximum(logs, np.log(least))


def mean_nll(logits, labels, temperature):
    """The unclipped NLL with members averaged first, then divided by T."""
    labels = np.asarray(labels)
    many = labels.ndim == 2
    logs = log_probabilities(logits, many)
    averaged = (logs[1] - logs[0] if many else logs) / temperature
    logs = log_probabilities(averaged[None], many)
    known = labels >= 0
    if many:
        return -np.where(labels == 1, logs[1], logs[0])[known].mean()
    return -logs[known][np.arange(known.sum()), labels[known]].mean()


def best_temperature(logits, labels):
    """By a bounded search of log T: the NLL has one minimum in it."""
    bounds = (np.log(1e-6), np.log(1e6))
    found = minimize_scalar(
        lambda log_t: mean_nll(logits, labels, np.exp(log_t)),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(np.exp(found.x))
