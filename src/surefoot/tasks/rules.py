"""Which row goes into which split. Unfamiliar rows are for testing: wherever else, they are left out."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.tasks.base import Split
from surefoot.tasks.description import ByColumn, ByShare, Resolved
from surefoot.tasks.partition import partition

GIVEN = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST_FAMILIAR}
Places = list[Split | None]


def assign(
    rule: ByShare | ByColumn | Resolved,
    table: pa.Table,
    familiar: NDArray[np.bool_],
    *,
    ids: Sequence[str],
    strata: Sequence[str],
) -> tuple[Places, tuple[str, ...]]:
    """A split for every row, None where it is left out, and remarks on what was."""
    if isinstance(rule, Resolved):
        return _resolved(table, rule.column), ()
    keys = _keys(table, rule.keep_together, ids)
    if isinstance(rule, ByShare):
        return _by_share(rule, familiar, keys, strata), ()
    places, left_out = _by_column(rule, table, familiar, keys, strata)
    if rule.keep_together is not None:
        _refuse_apart(rule.keep_together, keys, places)
    return places, left_out


def _by_share(rule: ByShare, familiar: NDArray[np.bool_], keys: list[str], strata: Sequence[str]) -> Places:
    """Cut the familiar rows; whoever also has unfamiliar ones belongs to the test side with all of them."""
    rows = np.flatnonzero(familiar).tolist()
    strangers = {key for key, known in zip(keys, familiar, strict=True) if not known}
    cut = partition(
        [keys[row] for row in rows],
        [strata[row] for row in rows],
        {Split.TRAIN: 1 - rule.val - rule.test, Split.VAL: rule.val, Split.TEST_FAMILIAR: rule.test},
        seed=rule.seed,
        settled={keys[row]: Split.TEST_FAMILIAR for row in rows if keys[row] in strangers},
    )
    places: Places = [Split.TEST_UNFAMILIAR] * len(keys)
    for row, split in zip(rows, cut, strict=True):
        places[row] = split
    return places


def _by_column(
    rule: ByColumn, table: pa.Table, familiar: NDArray[np.bool_], keys: list[str], strata: Sequence[str]
) -> tuple[Places, tuple[str, ...]]:
    given = [_given(value, rule.column, row) for row, value in enumerate(table[rule.column].to_pylist())]
    has_val = Split.VAL in given
    if has_val == (rule.val is not None):
        got = "both val rows and splits.val" if has_val else "neither val rows nor splits.val"
        raise InputError(f"{got}; needed: one of the two, column {rule.column!r} or a share of train")
    places: Places = []
    for split, known in zip(given, familiar, strict=True):
        unfamiliar = Split.TEST_UNFAMILIAR if split is Split.TEST_FAMILIAR else None
        places.append(split if known else unfamiliar)
    if rule.val is not None:
        rows = [row for row, split in enumerate(places) if split is Split.TRAIN]
        shares = {Split.TRAIN: 1 - rule.val, Split.VAL: rule.val}
        cut = partition([keys[r] for r in rows], [strata[r] for r in rows], shares, seed=rule.seed)
        for row, part in zip(rows, cut, strict=True):
            places[row] = part
    left_out = places.count(None)
    said = f"{left_out:,} unfamiliar rows that {rule.column!r} puts into train or val are left out"
    return places, (said,) if left_out else ()


def _resolved(table: pa.Table, column: str) -> Places:
    allowed = {split.value: split for split in Split}
    places: Places = []
    for row, value in enumerate(table[column].to_pylist()):
        if value not in allowed:
            raise InputError(f"{column!r} is {value!r} in row {row}; allowed: {', '.join(allowed)}")
        places.append(allowed[value])
    return places


def _given(value: str | None, column: str, row: int) -> Split:
    if value not in GIVEN:
        raise InputError(f"{column!r} is {value!r} in row {row}; allowed: {', '.join(GIVEN)}")
    return GIVEN[value]


def _keys(table: pa.Table, column: str | None, ids: Sequence[str]) -> list[str]:
    """What may not be parted: rows of one value; where it is missing, each row by itself."""
    if column is None:
        return [f"row {each}" for each in ids]
    values = table[column].to_pylist()
    return [
        f"row {each}" if value is None else f"key {value}" for value, each in zip(values, ids, strict=True)
    ]


def _refuse_apart(column: str, keys: list[str], places: Places) -> None:
    seen: dict[str, tuple[Split, int]] = {}
    for row, (key, split) in enumerate(zip(keys, places, strict=True)):
        side = Split.TEST_FAMILIAR if split is Split.TEST_UNFAMILIAR else split
        if side is None:
            continue
        before, first = seen.setdefault(key, (side, row))
        if before is not side:
            raise InputError(
                f"{column} {key.removeprefix('key ')!r} is in {before} (row {first}) and in {split} "
                f"(row {row}); keep_together allows one"
            )
