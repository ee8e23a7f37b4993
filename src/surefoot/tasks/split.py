"""Which row goes into which split."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.images.cache import UNOPENED, content_of
from surefoot.images.decode import in_parallel
from surefoot.tasks.description import ByColumn, ByShare, Resolved
from surefoot.tasks.task import ImageFiles, Samples, Split, shuffled


def partition(
    keys: Sequence[str],
    strata: Sequence[str],
    shares: Mapping[Split, float],
    *,
    seed: int,
    settled: Mapping[str, Split] | None = None,
) -> list[Split]:
    """A split for every row; rows of one key share theirs.

    Within each stratum the keys come in an order drawn by lot, and each goes where most rows are still
    missing. So a split is off its share of a stratum by less than one row where every key is one row, and
    by less than the largest key otherwise. `settled` says where certain keys go whatever the lot says;
    they count. The order of the rows does not matter.

    >>> partition("abcd", "xxxx", {Split.TRAIN: 0.5, Split.VAL: 0.5}, seed=0).count(Split.VAL)
    2
    """
    size = Counter(keys)
    chosen = dict(settled or {})
    overall = {split: share * len(keys) for split, share in shares.items()}  # decides between equals
    for stratum, members in sorted(_members(keys, strata).items()):
        total = sum(size[key] for key in members)
        lacking = {split: share * total for split, share in shares.items()}
        drawn = shuffled(members, random.Random(f"surefoot split {seed} {stratum}"))
        for key in sorted(drawn, key=lambda key: key not in chosen):  # those settled come first
            neediest = max(lacking, key=lambda split: (round(lacking[split], 6), overall[split]))
            split = chosen.setdefault(key, neediest)
            lacking[split] -= size[key]
            overall[split] -= size[key]
    return [chosen[key] for key in keys]


def _members(keys: Sequence[str], strata: Sequence[str]) -> dict[str, list[str]]:
    """The keys of each stratum in the order of their names; a key is where most of its rows are."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for key, stratum in zip(keys, strata, strict=True):
        votes[key][stratum] += 1
    members: dict[str, list[str]] = defaultdict(list)
    for key in sorted(votes):
        winner = min(votes[key], key=lambda stratum: (-votes[key][stratum], stratum))
        members[winner].append(key)
    return members


PREFERRED = (Split.TEST_UNFAMILIAR, Split.TEST_FAMILIAR, Split.VAL, Split.TRAIN)


def contents_of(images: ImageFiles) -> list[str]:
    """The sha256 of every file; of those that cannot be opened, a text that no other has."""
    found = in_parallel(content_of, images.files())
    return [f"{each}{row}" if each.startswith(UNOPENED) else each for row, each in enumerate(found)]


def once(
    contents: Sequence[str], places: Sequence[Split | None], ids: Sequence[str], labels: Sequence[bytes]
) -> list[Split | None]:
    """The places of rows with each picture left in one row only: a test keeps it, training gives it up.

    Where copies have different labels, or one is familiar and another is not, no one knows which is right,
    and all are left out.
    """
    copies: dict[str, list[int]] = defaultdict(list)
    for row, place in enumerate(places):
        if place is not None:
            copies[contents[row]].append(row)
    kept = list(places)
    for rows in copies.values():
        if len(rows) > 1:
            found = {places[row] for row in rows}
            disagree = len({labels[row] for row in rows}) > 1
            disagree |= Split.TEST_UNFAMILIAR in found and len(found) > 1
            best = min(rows, key=lambda row: (PREFERRED.index(places[row] or Split.TRAIN), ids[row]))
            for row in rows:
                if disagree or row != best:
                    kept[row] = None
    return kept


def without(samples: Samples, contents: set[str]) -> Samples:
    """The samples whose picture is none of these."""
    assert isinstance(samples.inputs, ImageFiles)
    mine = contents_of(samples.inputs)
    return samples.take([row for row, content in enumerate(mine) if content not in contents])


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
