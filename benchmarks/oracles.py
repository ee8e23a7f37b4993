"""The compared metrics, and a simple reference implementation of each definition in float64.

If a definition is ambiguous (to which bin an edge belongs), every interpretation is accepted.
"""

from itertools import pairwise

import numpy as np

BINS = 10

METRICS = (
    # metric, ours, its definition; then the peers' names, contestants and definitions
    (
        "ECE",
        ("surefoot_ece", "ece, equal mass"),
        (
            ("netcal, equal mass", "netcal_ece_mass", "ece, equal mass"),
            ("torch-uncertainty, equal mass", "torch_uncertainty_ece", "ece, equal mass"),
            ("netcal, equal width", "netcal_ece_width", "ece, equal width"),
            ("torchmetrics, equal width", "torchmetrics_ece", "ece, equal width"),
        ),
    ),
    (
        "NLL",
        ("surefoot_nll", "nll"),
        (
            ("scikit-learn", "sklearn_nll", "nll"),
            ("torch-uncertainty", "torch_uncertainty_nll", "nll"),
            ("torch itself", "torch_nll", "nll"),
        ),
    ),
    (
        "Brier",
        ("surefoot_brier", "brier, root mean"),
        (
            ("scikit-learn", "sklearn_brier", "brier, sum"),
            ("torch-uncertainty", "torch_uncertainty_brier", "brier, sum"),
        ),
    ),
    (
        "label error",
        ("surefoot_error", "error"),
        (
            ("scikit-learn", "sklearn_error", "error"),
            ("torchmetrics", "torchmetrics_error", "error"),
        ),
    ),
)


def right_answers(definition, values, labels, are_logits):
    """The accepted values of a metric with that definition, over the labelled rows."""
    known = labels >= 0
    labels = labels[known]
    logs = _log_probs(values[known].astype(np.float64), are_logits)
    probs = np.exp(logs) if are_logits else values[known].astype(np.float64)
    if np.isnan(probs).any():
        return [np.nan]
    rows = np.arange(len(labels))
    if definition == "nll":
        return [-logs[rows, labels].mean()]
    if definition == "error":
        return [(probs.argmax(axis=1) != labels).mean()]
    if definition.startswith("brier"):
        off = probs.copy()
        off[rows, labels] -= 1
        summed = (off**2).sum(axis=1).mean()
        return [np.sqrt(summed / probs.shape[1]) if definition == "brier, root mean" else summed]
    confidence, correct = probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float)
    if definition == "ece, equal mass":
        return [_equal_mass(confidence, correct)]
    return [_equal_width(confidence, correct, side) for side in ("left", "right")]


def _log_probs(values, are_logits):
    if not are_logits:
        with np.errstate(divide="ignore"):
            return np.log(values)
    below = values - values.max(axis=1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=1, keepdims=True))


def _equal_width(confidence, correct, side):
    """Bins (a, b] or [a, b), and the last one is closed; 0.7 in float32 is on the edge at 0.7."""
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    places = np.searchsorted(edges, np.round(confidence, 7), side)
    return _gap(places, confidence, correct)


def _equal_mass(confidence, correct):
    """Bins by rank, the first ones larger; a tied decision counts with the mean accuracy of its tie."""
    _, run = np.unique(np.round(confidence, 7 if len(confidence) < 1000 else 12), return_inverse=True)
    correct = (np.bincount(run, correct) / np.bincount(run))[run]
    order = np.argsort(confidence, kind="stable")
    edges = np.ceil(np.linspace(0, len(order), BINS + 1)).astype(int)
    places = np.empty(len(order), dtype=int)
    for place, (start, stop) in enumerate(pairwise(edges)):
        places[order[start:stop]] = place
    return _gap(places, confidence, correct)


def _gap(places, confidence, correct):
    total = 0.0
    for place in range(BINS):
        inside = places == place
        total += abs(correct[inside].sum() - confidence[inside].sum())
    return total / len(confidence)
