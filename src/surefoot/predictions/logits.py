"""From logits and labels to one row of outcomes per decision, some rows at a time. Numpy only.

Logits are (members, rows, classes); within a function they are (classes, rows) in float64, so that sums over
few classes are sums of long rows.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import ONE, Array, Outcomes
from surefoot.runtime import in_parallel

Floats = NDArray[np.floating]
Whole = NDArray[np.integer]
Result = TypeVar("Result")

NUMBERS_AT_ONCE = 2**16  # logits in float64 at a time, so that they stay in the cache,
FEWEST_AT_ONCE = 128  # but so many rows, of which a sum over classes takes its steps

FACTS = ("log_p_true", "squared_error", "confidence", "entropy")  # numbers of each decision


def outcomes_of(logits: Floats, labels: Whole, kind: LabelKind) -> Outcomes:
    """Outcomes of all decisions with a known label, from logits (members, rows, classes)."""
    one = kind is LabelKind.ONE_LABEL
    chosen = np.flatnonzero(labels >= 0) if one and labels.min(initial=0) < 0 else None
    labels = labels if chosen is None else labels[chosen]

    shape = (len(labels),) if one else labels.T.shape
    names = FACTS if one else (*FACTS, "score")
    facts: dict[str, Any] = {name: np.empty(shape) for name in names} | {"correct": np.empty(shape, np.bool_)}

    def write(part: slice) -> None:
        averaged = averaged_columns(logits[:, part if chosen is None else chosen[part]], kind)
        of_part = softmax_facts(averaged, labels[part]) if one else sigmoid_facts(averaged, labels[part].T)
        for name, values in of_part.items():
            facts[name][..., part] = values

    map_rows(len(labels), logits, write)
    if one:
        row = np.arange(len(labels)) if chosen is None else chosen
        return Outcomes(**facts, row=row, blocks=(slice(0, len(labels)),))
    known = labels.T >= 0
    ends = np.cumsum(known.sum(axis=1)).tolist()
    return Outcomes(
        **{name: values[known] for name, values in facts.items()},
        row=np.nonzero(known)[1],
        blocks=tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False)),
        positive=labels.T[known] == 1,
    )


def softmax_facts(logits: Array, labels: Whole) -> dict[str, Any]:
    """Facts of rows (rows,) that all have a label. `logits` (classes, rows) is overwritten."""
    rows = np.arange(len(labels))
    logits -= logits.max(axis=0)
    true = logits[labels, rows]
    unnormalised = np.exp(logits)
    total = unnormalised.sum(axis=0)
    log_total = np.log(total)
    correct = true >= 0
    tied = np.flatnonzero((total >= 2) & correct)  # with two at the top, the first is the predicted class
    correct[tied] = logits[:, tied].argmax(axis=0) == labels[tied]
    logits *= unnormalised
    entropy = log_total - logits.sum(axis=0) / total
    # The true class is set to 0, so that 1 - p(true) is a sum and not a difference of near equals.
    unnormalised[labels, rows] = 0.0
    others = unnormalised.sum(axis=0)
    squares = np.square(unnormalised, out=unnormalised).sum(axis=0)
    return {
        "log_p_true": true - log_total,
        "squared_error": (np.square(others) + squares) / np.square(total) / len(logits),
        "confidence": np.rint(1 / total * ONE) / ONE,
        "correct": correct,
        "entropy": entropy,
    }


def sigmoid_facts(score: Array, labels: Whole) -> dict[str, Any]:
    """Facts of every row and class, from log odds and labels (classes, rows)."""
    positive = labels == 1
    magnitude = np.abs(score)
    small = np.exp(-magnitude)
    softplus, whole = np.log1p(small), 1 + small
    against = np.where(positive, score < 0, score > 0)  # the truth has the smaller probability
    return {
        "log_p_true": -softplus - np.where(against, magnitude, 0.0),
        "squared_error": np.square(np.where(against, 1.0, small) / whole),
        "confidence": np.rint(1 / whole * ONE) / ONE,
        "correct": (score >= 0) == positive,  # a probability of exactly one half predicts 'present'
        "entropy": softplus + magnitude * (small / whole),
        "score": score,
    }


def average(logits: Floats, kind: LabelKind) -> Floats:
    """Of (members, n, classes), (n, classes): as given if there is one, else of the mean probability.

    For one label log probabilities, for many labels log odds, in float64.
    """
    if len(logits) == 1:
        return np.asarray(logits[0])
    result = np.empty(logits.shape[1:])

    def write(part: slice) -> None:
        result[part] = averaged_columns(logits[:, part], kind).T

    map_rows(logits.shape[1], logits, write)
    return result


def averaged_columns(logits: Floats, kind: LabelKind) -> Array:
    """The average of some rows in float64, (classes, rows), to be overwritten."""
    if len(logits) == 1:
        return np.array(logits[0].T, dtype=np.float64, order="C")
    every = np.array(logits.transpose(0, 2, 1), dtype=np.float64, order="C")
    if kind is LabelKind.MANY_LABELS:  # the log odds of sums, because log M would round off those close to 0
        return _log_sum(-np.logaddexp(0, -every)) - _log_sum(-np.logaddexp(0, every))
    every -= every.max(axis=1, keepdims=True)
    every -= np.log(np.exp(every).sum(axis=1, keepdims=True))
    return np.asarray(_log_sum(every) - np.log(len(every)))


def _log_sum(logs: Array) -> Array:
    top = logs.max(axis=0)
    return np.asarray(np.log(np.exp(logs - top).sum(axis=0)) + top)


def probabilities(logits: Floats, kind: LabelKind) -> Array:
    """(n, classes) in float64: softmax, or sigmoid per class, of logits (n, classes).

    >>> probabilities(np.array([[0.0, 0.0], [800.0, -800.0]]), LabelKind.ONE_LABEL).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    result = np.empty(logits.shape)

    def write(part: slice) -> None:
        values = np.array(logits[part].T, dtype=np.float64, order="C")
        if kind is LabelKind.MANY_LABELS:
            small = np.exp(-np.abs(values))
            result[part] = (np.where(values >= 0, 1.0, small) / (1 + small)).T
            return
        values -= values.max(axis=0)
        np.exp(values, out=values)
        values /= values.sum(axis=0)
        result[part] = values.T

    map_rows(len(logits), logits[None], write)
    return result


def extremes_of(logits: Floats) -> tuple[float, float]:
    """The lowest and the highest logit."""
    ends = map_rows(logits.shape[1], logits, lambda part: (logits[:, part].min(), logits[:, part].max()))
    return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)


def map_rows(n: int, logits: Floats, work: Callable[[slice], Result]) -> list[Result]:
    """`work` of some of n rows at a time, several at once; the results are in the order of the rows."""
    numbers = len(logits) * logits.shape[2]
    rows = max(FEWEST_AT_ONCE, NUMBERS_AT_ONCE // max(1, numbers))
    return in_parallel(work, spans(n, rows), numbers=n * numbers)


def spans(n: int, rows: int, *, start: int = 0) -> list[slice]:
    """0, or another start, to n in parts of so many rows."""
    return [slice(first, min(first + rows, n)) for first in range(start, n, rows)]
