"""Which row goes into which split."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.lab.images.cache import UNOPENED, content_of
from surefoot.lab.images.decode import in_parallel
from surefoot.lab.tasks.alike import cached_fingerprints, linked, look_alikes
from surefoot.lab.tasks.columns import column_of
from surefoot.lab.tasks.description import ByColumn, ByShare, Repeated, Resolved
from surefoot.lab.tasks.features import RawColumns
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, shuffled
from surefoot.predictions.tables import empty_cells, values_in
from surefoot.text import count_of

GIVEN = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST_FAMILIAR}
PREFERRED = (Split.TEST_UNFAMILIAR, Split.TEST_FAMILIAR, Split.VAL, Split.TRAIN)

MOST_LABELS = 12  # that a remark lists

Assignment = list[Split | None]  # a split per row; None where the row is left out


def partition(
    keys: Sequence[str],
    strata: Sequence[str],
    shares: Mapping[Split, float],
    *,
    seed: int,
    fixed: Mapping[str, Split] | None = None,
) -> list[Split]:
    """A split for every row; rows of one key get the same.

    Within each stratum the keys come in a random order, and each goes into the split that has the most rows
    still to get. So a split is off its share of a stratum by less than one row where every key is one row,
    and by less than the largest key otherwise. `fixed` are splits of certain keys, which count towards the
    shares. The order of the rows does not matter.

    >>> partition("abcd", "xxxx", {Split.TRAIN: 0.5, Split.VAL: 0.5}, seed=0).count(Split.VAL)
    2
    """
    size = Counter(keys)
    chosen = dict(fixed or {})
    overall = {split: share * len(keys) for split, share in shares.items()}  # breaks ties
    for stratum, members in sorted(_keys_by_stratum(keys, strata).items()):
        total = sum(size[key] for key in members)
        remaining = {split: share * total for split, share in shares.items()}
        drawn = shuffled(members, random.Random(f"surefoot split {seed} {stratum}"))
        for key in sorted(drawn, key=lambda key: key not in chosen):  # fixed ones come first
            largest = max(remaining, key=lambda split: (round(remaining[split], 6), overall[split]))
            split = chosen.setdefault(key, largest)
            remaining[split] -= size[key]
            overall[split] -= size[key]
    return [chosen[key] for key in keys]


def _keys_by_stratum(keys: Sequence[str], strata: Sequence[str]) -> dict[str, list[str]]:
    """The sorted keys of each stratum; a key belongs to the stratum of most of its rows."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for key, stratum in zip(keys, strata, strict=True):
        votes[key][stratum] += 1
    members: dict[str, list[str]] = defaultdict(list)
    for key in sorted(votes):
        winner = min(votes[key], key=lambda stratum: (-votes[key][stratum], stratum))
        members[winner].append(key)
    return members


def assign(
    rule: ByShare | ByColumn | Resolved,
    table: pa.Table,
    familiar: list[bool | None],
    *,
    ids: Sequence[str],
    strata: Sequence[str],
    alike: Sequence[str] | None = None,
) -> tuple[Assignment, tuple[str, ...]]:
    """A split for every row, None where it is left out, and remarks on the rows left out.

    Rows of which it is not known whether they are familiar (None) are left out, without a remark.
    Rows whose text in `alike` is the same get the same split, as do those of one `keep_together`.
    """
    if isinstance(rule, Resolved):
        names = {split.value: split for split in Split}
        return list(_read_splits(table, rule.column, names)), ()
    # Rows that must stay together have the same key; a row with an empty cell is on its own.
    keys = [f"row {each}" for each in ids]
    if rule.keep_together is not None:
        column = column_of(table, rule.keep_together)
        empty = empty_cells(column)
        for row, value in enumerate(values_in(column)):
            keys[row] = keys[row] if empty[row] else f"key {value}"
    both = keys if alike is None else _merged(keys, alike)
    if isinstance(rule, ByShare):
        splits, remarks = _by_share(rule, familiar, both, strata)
    else:
        splits, remarks = _by_column(rule, table, familiar, both, strata)
        if rule.keep_together is not None:
            _refuse_separated(rule.keep_together, keys, splits)
        if alike is not None:
            _refuse_separated_pictures(alike, splits, ids)
    if rule.keep_together is not None:
        _refuse_empty(rule, familiar, both, splits)
    return splits, remarks


def _by_share(
    rule: ByShare, familiar: list[bool | None], keys: list[str], strata: Sequence[str]
) -> tuple[Assignment, tuple[str, ...]]:
    """Split the familiar rows; a key that also has unfamiliar rows is for testing with all of its rows."""
    rows = [row for row, is_familiar in enumerate(familiar) if is_familiar]
    also_unfamiliar = _with_unfamiliar(keys, familiar)
    assigned = partition(
        [keys[row] for row in rows],
        [strata[row] for row in rows],
        {Split.TRAIN: 1 - rule.val - rule.test, Split.VAL: rule.val, Split.TEST_FAMILIAR: rule.test},
        seed=rule.seed,
        fixed={keys[row]: Split.TEST_FAMILIAR for row in rows if keys[row] in also_unfamiliar},
    )
    splits: Assignment = [None if each is None else Split.TEST_UNFAMILIAR for each in familiar]
    for row, split in zip(rows, assigned, strict=True):
        splits[row] = split
    fixed = sum(keys[row] in also_unfamiliar for row in rows)
    what = rule.keep_together or "picture"
    remark = f"{count_of(fixed, 'familiar row')} for testing only, as the {what} has unfamiliar rows, too"
    return splits, (remark,) if fixed else ()


def _with_unfamiliar(keys: list[str], familiar: list[bool | None]) -> set[str]:
    return {key for key, is_familiar in zip(keys, familiar, strict=True) if is_familiar is False}


def _refuse_empty(
    rule: ByShare | ByColumn, familiar: list[bool | None], keys: list[str], splits: Assignment
) -> None:
    """Raise where a split gets no rows because so many are kept together."""
    drawn = GIVEN.values() if isinstance(rule, ByShare) else [Split.TRAIN, Split.VAL] if rule.val else []
    empty = next((split for split in drawn if split not in splits), None)
    of_familiar = {key for key, is_familiar in zip(keys, familiar, strict=True) if is_familiar}
    if empty is not None and of_familiar:
        fixed = len(of_familiar & _with_unfamiliar(keys, familiar))
        raise InputError(
            f"no rows for {empty}: by splits.keep_together = {rule.keep_together!r} the familiar rows are "
            f"{count_of(len(of_familiar), 'group')}, and {fixed:,} for testing only because of unfamiliar "
            "rows in it; allowed: a column with smaller groups, or no keep_together"
        )


def _by_column(
    rule: ByColumn,
    table: pa.Table,
    familiar: list[bool | None],
    keys: list[str],
    strata: Sequence[str],
) -> tuple[Assignment, tuple[str, ...]]:
    """Familiar rows as the column has them; unfamiliar rows are for testing, or left out."""
    given = _read_splits(table, rule.column, GIVEN)
    has_val = Split.VAL in given
    if has_val == (rule.val is not None):
        got = "both val rows and splits.val" if has_val else "neither val rows nor splits.val"
        raise InputError(f"{got}; needed: one of the two, column {rule.column!r} or a share of train")
    splits: Assignment = []
    for split, is_familiar in zip(given, familiar, strict=True):
        is_tested = is_familiar is False and split is Split.TEST_FAMILIAR
        unfamiliar = Split.TEST_UNFAMILIAR if is_tested else None
        splits.append(split if is_familiar else unfamiliar)
    if rule.val is not None:
        rows = [row for row, split in enumerate(splits) if split is Split.TRAIN]
        shares = {Split.TRAIN: 1 - rule.val, Split.VAL: rule.val}
        assigned = partition([keys[r] for r in rows], [strata[r] for r in rows], shares, seed=rule.seed)
        for row, part in zip(rows, assigned, strict=True):
            splits[row] = part
    left_out = splits.count(None) - familiar.count(None)
    remark = f"{left_out:,} unfamiliar rows that {rule.column!r} puts into train or val are left out"
    return splits, (remark,) if left_out else ()


def _read_splits(table: pa.Table, column: str, allowed: Mapping[str, Split]) -> list[Split]:
    values = values_in(table[column])
    for row, value in enumerate(values):
        if not isinstance(value, str) or value not in allowed:
            raise InputError(f"{column!r} is {value!r} in row {row}; allowed: {', '.join(allowed)}")
    return [allowed[value] for value in values]


def _merged(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """Keys that are the same for rows that are linked by either."""
    links = []
    for names in (keys, others):
        first: dict[str, int] = {}
        links += [(first.setdefault(name, row), row) for row, name in enumerate(names)]
    return [keys[row] for row in linked(len(keys), links)]


def _refuse_separated(column: str, keys: list[str], splits: Assignment) -> None:
    for first, row in _separated(keys, splits):
        raise InputError(
            f"{column} {keys[row].removeprefix('key ')!r} is in {splits[first]} (row {first}) and in "
            f"{splits[row]} (row {row}); keep_together allows one"
        )


def _refuse_separated_pictures(alike: Sequence[str], splits: Assignment, ids: Sequence[str]) -> None:
    for first, row in _separated(alike, splits):
        raise InputError(
            f"{ids[first]} in {splits[first]} looks like {ids[row]} in {splits[row]}; repeated_pictures = "
            f"'{Repeated.TOGETHER}' allows one split: draw them by val and test, or use '{Repeated.ALIKE}'"
        )


def _separated(keys: Sequence[str], splits: Assignment) -> Iterator[tuple[int, int]]:
    """Two rows of one key in different splits; the two test splits count as one."""
    seen: dict[str, tuple[Split, int]] = {}
    for row, (key, split) in enumerate(zip(keys, splits, strict=True)):
        side = Split.TEST_FAMILIAR if split is Split.TEST_UNFAMILIAR else split
        if side is not None:
            before, first = seen.setdefault(key, (side, row))
            if before is not side:
                yield first, row


def alike_of(samples: Samples, unlabelled: Samples | None) -> tuple[list[str], list[str]]:
    """A text for every labelled and every unlabelled image; the same for those that look alike."""
    files = []
    for each in (samples, unlabelled):
        if each is not None:
            assert isinstance(each.inputs, ImageFiles)
            files += each.inputs.files()
    groups = list(map(str, look_alikes(cached_fingerprints(files))))
    return groups[: len(samples)], groups[len(samples) :]


def contents_of(samples: Samples) -> list[str]:
    """The sha256 of every file or row; a unique text for each file that cannot be opened."""
    inputs: object = samples.inputs
    if isinstance(inputs, RawColumns):
        return inputs.contents()
    assert isinstance(inputs, ImageFiles)
    contents = in_parallel(content_of, inputs.files())
    return [f"{each}{row}" if each.startswith(UNOPENED) else each for row, each in enumerate(contents)]


def drop_duplicates(
    contents: Sequence[str], splits: Sequence[Split | None], ids: Sequence[str], labels: Sequence[bytes]
) -> Assignment:
    """The splits of rows with each image in one row only, in a test split rather than in val or train.

    If copies have different labels, or one is familiar and another is not, it is not known which is right,
    and all are left out.
    """
    copies: dict[str, list[int]] = defaultdict(list)
    for row, split in enumerate(splits):
        if split is not None:
            copies[contents[row]].append(row)
    result = list(splits)
    for rows in copies.values():
        if len(rows) > 1:
            used = {splits[row] for row in rows}
            disagree = len({labels[row] for row in rows}) > 1
            disagree |= Split.TEST_UNFAMILIAR in used and len(used) > 1
            best = min(rows, key=lambda row: (PREFERRED.index(splits[row] or Split.TRAIN), ids[row]))
            for row in rows:
                if disagree or row != best:
                    result[row] = None
    return result


def balance_labels(
    splits: Assignment,
    labels: Sequence[str],
    groups: NDArray[np.str_] | None,
    *,
    ids: Sequence[str],
    seed: int,
) -> tuple[Assignment, tuple[str, ...]]:
    """The same number of rows per label in each split, and a remark per split on the rows left out.

    A split's number is that of its rarest label; a label without any rows in a split does not count there.
    Within a label every group gives the same number, or all rows that it has if those are fewer. Rows are
    left out, never moved, so rows of one key stay in one split. The order of the rows does not matter.
    """
    rows_of: dict[tuple[Split, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(range(len(ids)), key=lambda row: ids[row]):
        split = splits[row]
        if split is not None:
            rows_of[split, labels[row]]["" if groups is None else str(groups[row])].append(row)
    result, remarks = list(splits), []
    for split in Split:
        drawn = {
            label: _in_turns(by_group, random.Random(f"surefoot balance {seed} {split} {label}"))
            for (of_split, label), by_group in sorted(rows_of.items())
            if of_split is split
        }
        count = min((len(rows) for rows in drawn.values()), default=0)
        surplus = {label: rows[count:] for label, rows in drawn.items() if len(rows) > count}
        for rows in surplus.values():
            for row in rows:
                result[row] = None
        if surplus:
            remarks.append(_balance_remark(split, count, {label: len(surplus[label]) for label in surplus}))
    return result, tuple(remarks)


def _in_turns(by_group: Mapping[str, list[int]], generator: random.Random) -> list[int]:
    """All rows, one of every group in each turn; the groups and the rows of each are in a random order."""
    queues = [shuffled(by_group[group], generator) for group in shuffled(sorted(by_group), generator)]
    return [row for turn in zip_longest(*queues) for row in turn if row is not None]


def _balance_remark(split: Split, count: int, left_out: Mapping[str, int]) -> str:
    largest = sorted(left_out, key=lambda label: (-left_out[label], label))
    listed = [f"{label} {left_out[label]:,}" for label in largest[:MOST_LABELS]]
    if len(largest) > MOST_LABELS:
        rest = sum(left_out[label] for label in largest[MOST_LABELS:])
        listed.append(f"{len(largest) - MOST_LABELS:,} other labels {rest:,}")
    return (
        f"{split} has {count:,} rows per label; to balance the labels, {sum(left_out.values()):,} rows are "
        f"left out ({', '.join(listed)})"
    )
