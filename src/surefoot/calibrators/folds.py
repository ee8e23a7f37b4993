"""Folds of the validation rows, for choices and evidence on rows that a fit has not seen."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.outcomes import Bools
from surefoot.predictions.predictions import Predictions

FOLDS = 5
SEED = 0


def folds_of(n: int, groups: NDArray[np.generic] | None, folds: int = FOLDS) -> Iterator[Bools]:
    """For each fold, whether a row is held out; a group is never divided. The same every time.

    Fewer folds where there are fewer rows or groups; none where there is one only.

    >>> [fold.tolist() for fold in folds_of(4, np.array(["a", "b", "a", "b"]))]
    [[True, False, True, False], [False, True, False, True]]
    """
    unit_of = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(unit_of.max()) + 1 if n else 0
    count = min(folds, units)
    if count < 2:
        return
    fold_of = np.empty(units, dtype=np.int64)
    fold_of[np.random.default_rng(SEED).permutation(units)] = np.arange(units) % count
    for fold in range(count):
        yield fold_of[unit_of] == fold


def out_of_fold(
    val: Predictions, fit: Callable[[Bools], Callable[[Predictions], Predictions]]
) -> Predictions | None:
    """Every row calibrated by a fit on the other folds, members averaged; None where rows are too few."""
    averaged = val.average()
    logits = averaged.logits.copy()
    held_out = list(folds_of(val.n, val.groups))
    for fold in held_out:
        if not bool((val.labels[~fold] >= 0).any()):
            return None
        logits[:, fold] = fit(~fold)(val.take(fold)).average().logits
    return averaged.with_logits(logits) if held_out else None
