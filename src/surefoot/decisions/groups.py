"""Rows that are not independent, such as the images of one person: whole groups count instead of rows."""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.metrics.intervals import (
    LEVEL,
    NAN,
    NORMAL,
    Interval,
    Proportion,
    few_samples_factor,
    quantile_of,
)
from surefoot.predictions.outcomes import Array, Index
from surefoot.predictions.predictions import Predictions
from surefoot.text import count_of

NO_INTERVAL = Interval(NAN)
PREDICTED_CLASS = "class"  # instead of a column


class RepeatedRows(UserWarning):
    """Rows without groups, whose ids repeat; the command line says it in the verdict."""


Grouped = tuple[Array, Index | None]  # values, and the group of each as a number; None: they are independent
IDENTITY = re.compile(  # names of columns in which a repeated value is a group
    r"(ids?|uid|mrn|identity|(person|patient|subject|participant|individual|customer|client|user|donor"
    r"|animal|speaker|writer|household|session|video|recording)s?)([ _-]?(ids?|no|nr|number|name|key|code))?",
    re.IGNORECASE,
)


def group_numbers(groups: NDArray[Any] | None) -> Index | None:
    """The group of each row, numbered as they first appear; None where no two rows are of one group."""
    if groups is None:
        return None
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    if len(first) == len(groups):
        return None
    return np.argsort(np.argsort(first))[group_of]


def number_of_groups(rows: int, group_of: Index | None) -> int:
    """How many independent groups there are; each row is one where there are no others."""
    return rows if group_of is None else int(group_of.max()) + 1


def some_of(group_of: Index | None, rows: NDArray[Any]) -> Index | None:
    """The groups of some of the rows, numbered in the same order."""
    if group_of is None:
        return None
    kept, numbers = np.unique(group_of[rows], return_inverse=True)
    return None if len(kept) == len(numbers) else numbers


def group_values(values: Array, group_of: Index | None) -> Array:
    """A number per group; their mean is that of the rows, and its variance is estimated by var(ddof=1) / n.

    The deviations of a group's rows from the mean are added up (the cluster-robust variance of a ratio).

    >>> group_values(np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    array([0.5, 0.5])
    """
    if group_of is None:
        return values
    mean = values.mean()
    sums = np.bincount(group_of, values - mean)
    per_group: Array = mean + sums * len(sums) / len(values)
    return per_group


def of_groups(groups: int | None) -> str:
    """` in 12 groups`, after the number of rows."""
    return "" if groups is None else f" in {count_of(groups, 'group')}"


def split_rows(predictions: Predictions, share: float, seed: int) -> tuple[Predictions, Predictions]:
    """Two random parts: that share of the rows, or of the groups, and the rest."""
    group_of = group_numbers(predictions.groups)
    n = number_of_groups(predictions.n, group_of)
    first = round(share * n)
    if not 0 < first < n:
        what = "rows" if group_of is None else "groups"
        raise InputError(f"a share of {share:g} of {n} {what} leaves a part empty; allowed: 0 to 1")
    order = np.random.default_rng(seed).permutation(n)
    parts = order[:first], order[first:]
    if group_of is None:
        return predictions.take(np.sort(parts[0])), predictions.take(np.sort(parts[1]))
    return predictions.take(np.isin(group_of, parts[0])), predictions.take(np.isin(group_of, parts[1]))


def normal_interval(value: float, samples: Sequence[Grouped], limits: tuple[float, float]) -> Interval:
    """A 95% interval from the variances of the independent samples behind the value.

    From a single row or group, whatever is possible; NaN where that has no end.
    """
    each = [group_values(*sample) for sample in samples]
    fewest = min(map(len, each))
    if fewest < 2:
        return Interval(value, *(limits if np.isfinite(limits).all() else ()))
    with np.errstate(over="ignore"):  # the interval of numbers such as 1e300 has no end
        error = float(np.sqrt(sum(values.var(ddof=1) / len(values) for values in each)))
    reach = NORMAL * few_samples_factor(fewest) * error
    return Interval(value, max(limits[0], value - reach), min(limits[1], value + reach))


def mean_of(values: Grouped) -> Interval:
    """The mean of values from 0 to 1."""
    return normal_interval(float(values[0].mean()), [values], (0.0, 1.0))


def proportion_of(hits: NDArray[np.bool_], group_of: Index | None) -> Proportion:
    """k of n with its exact interval; with groups, for the number of independent rows of the same variance.

    Korn & Graubard, Survey Methodology 1998. 0 of n and n of n show no variance: groups count, not rows.

    >>> proportion_of(np.zeros(80, dtype=bool), np.repeat(np.arange(10), 8)).high == Proportion.of(0, 10).high
    True
    """
    exact = Proportion.of(int(hits.sum()), len(hits))
    if group_of is None or not exact.n:
        return exact
    means = group_values(hits.astype(float), group_of)
    groups, independent = len(means), float(len(means))
    if 0 < exact.k < exact.n and groups > 1:
        variance = float(means.var(ddof=1)) / groups
        few = (quantile_of(exact.n - 1) / quantile_of(groups - 1)) ** 2
        most = float(exact.n)
        independent = min(most, exact.value * (1 - exact.value) / variance * few) if variance else most
    return Proportion(exact.k, exact.n, exact.value, *_binomial_ends(exact.value, max(1.0, independent)))


def _binomial_ends(share: float, n: float) -> tuple[float, float]:
    """Clopper-Pearson for n that is no whole number."""
    from scipy.special import betaincinv  # slow to import

    tail, k = (1 - LEVEL) / 2, share * n
    low = float(betaincinv(k, n - k + 1, tail)) if share > 0 else 0.0
    return low, float(betaincinv(k + 1, n - k, 1 - tail)) if share < 1 else 1.0


def repeated_identity(columns: Mapping[str, pa.ChunkedArray]) -> str:
    """The first column with values that repeat, other than one value throughout; empty if there is none."""
    for name, column in columns.items():
        values = column.drop_null()
        if 1 < len(values.unique()) < len(values):
            return name
    return ""


def identity_warning(column: str) -> str:
    """What a repeated column means for a result without groups."""
    return (
        f"{column!r} repeats, and there are no groups: rows of one {column!r} are probably not "
        f"independent, and then this result is not valid. Group them: --group-by {column}, in Python "
        f"grouped_by({column!r})."
    )


def repeated_sentences(column: str) -> list[str]:
    """The same as a part of a verdict, where there is such a column."""
    return [f"Warning: {identity_warning(column)}"] if column else []


def warn_of_repeated(*given: Mapping[str, pa.ChunkedArray], per: str | None = None) -> str:
    """Warn of the first repeated column of any of these, except `per`, whose values are apart; its name."""
    column = next((each for each in map(repeated_identity, given) if each and each != per), "")
    if column:
        warnings.warn(identity_warning(column), RepeatedRows, stacklevel=4)
    return column


def plain(interval: Interval | Proportion) -> dict[str, float | None]:
    """As plain values; what is undefined or infinite becomes None."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(interval).items()}


def groups_document(groups: int | dict[str, int] | None, repeated: str) -> dict[str, Any]:
    """How many groups there are, and the column that repeats without; nothing where there is neither."""
    return {name: value for name, value in (("groups", groups), ("repeated", repeated)) if value}
