"""Chance, from cells: how much a number would vary with other samples, and what calibrated ones would show.

A resample of n independent decisions is a multinomial draw over cells, right and wrong apart; nothing else
about them is read. Cells are first put together to a few thousand, since this is about a spread and not about
a value.
"""

from collections.abc import Callable, Mapping

import numpy as np

from surefoot.metrics import (
    augrc,
    aurc,
    coverage_at_1,
    coverage_at_5,
    debiased_l2,
    ece,
    risk_at_80,
    risk_at_90,
)
from surefoot.metrics.calibration import (
    FLOOR_RESAMPLES,
    ece_of,
    mean_of_defined,
    smooth_ece_of,
    spread_on_grid,
)
from surefoot.outcomes import Array, Curve
from surefoot.tally.cells import Column
from surefoot.tally.view import Binned

PARTS = 2000
Tick = Callable[[int], None]

RANKED = {
    "ece": ece,
    "debiased_l2": debiased_l2,
    "aurc": aurc,
    "augrc": augrc,
    "risk_at_80": risk_at_80,
    "risk_at_90": risk_at_90,
    "coverage_at_1": coverage_at_1,
    "coverage_at_5": coverage_at_5,
}


def replicates(
    column: Column, names: list[str], *, resamples: int, rng: np.random.Generator, tick: Tick
) -> Mapping[str, Array]:
    """Metrics of one block's decisions drawn anew, again and again."""
    count, wrong, confidence = coarse(column, PARTS)
    share = np.stack([count - wrong, wrong]) / count.sum()
    found = {name: np.empty(resamples) for name in names}
    for index in range(resamples):
        right, missed = rng.multinomial(int(count.sum()), share.reshape(-1)).reshape(2, -1).astype(float)
        drawn = right + missed
        sums = (drawn, missed, drawn * confidence)
        curve = Curve(*(np.append(0.0, np.cumsum(values)) for values in sums))
        for name in names:
            if name == "smooth_ece":
                residuals = spread_on_grid(confidence, right - drawn * confidence)
                found[name][index] = smooth_ece_of(residuals, drawn.sum())
            else:
                found[name][index] = RANKED[name](Binned((curve,), curve))
        tick(1)
    return found


def floors(columns: tuple[Column, ...]) -> Array:
    """The ECE again and again with 'correct' drawn from the confidences, a mean over blocks."""
    rng = np.random.default_rng(0)
    parts = max(50, 2 * PARTS // len(columns))
    blocks = [coarse(column, parts) for column in columns if len(column.count)]
    values = np.empty((len(blocks), FLOOR_RESAMPLES))
    for of_block, (count, _, confidence) in zip(values, blocks, strict=True):
        mass = np.append(0.0, np.cumsum(count))
        sure = np.append(0.0, np.cumsum(count * confidence))
        doubt = np.clip(1 - confidence, 0, 1)
        for index in range(FLOOR_RESAMPLES):
            errors = np.cumsum(rng.binomial(count.astype(np.int64), doubt))
            of_block[index] = ece_of(Curve(mass, np.append(0.0, errors), sure))
    return np.array([mean_of_defined(column.tolist()) for column in values.T])


def coarse(column: Column, parts: int) -> tuple[Array, Array, Array]:
    """Neighbouring cells put together: decisions, errors and mean confidence of about so many parts."""
    ends = np.cumsum(column.count)
    part = ((ends - column.count) / ends[-1] * parts).astype(np.int64)
    first = np.flatnonzero(np.diff(part, prepend=-1))
    count, wrong, sure = (
        np.add.reduceat(values, first) for values in (column.count, column.wrong, column.confidence)
    )
    return count, wrong, sure / count
