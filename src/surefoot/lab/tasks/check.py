"""The checks behind `surefoot data check`: counts, unreadable images, leaks between splits."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import is_number
from surefoot.lab.images.decode import in_parallel
from surefoot.lab.tasks.alike import Fingerprint, fingerprint, similar_pairs
from surefoot.lab.tasks.features import Vector
from surefoot.lab.tasks.identifiers import has_codes, is_named_like_identifier
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.tables import values_in
from surefoot.text import count_of

MOST_VALUES = 12  # of an attribute that are counted one by one
SHARES_DIFFER = 0.05  # least difference of a label's share that is reported, if it is significant
SIGNIFICANT = 0.001  # divided by the number of labels (Bonferroni)
NEAR_ROWS = 0.05  # of the usual distance of neighbours
LEAST_DIMENSIONS = 4  # of numbers: with fewer, near rows are frequent
PROJECTED = 12  # components
ROWS_COMPARED = 256  # whose nearest neighbours give the usual distance
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
LEVELS = ("PROBLEM", "warning", "note")
NOTES = ("no_unlabelled",)  # findings that need no remedy
ALIKE = (
    'if they are copies, repeated_pictures in [splits] can be "alike" (use one) or "together" (in one split)'
)


@dataclass(frozen=True)
class Finding:
    """A sentence, the samples it is about, and whether the task should not be used like this."""

    name: str
    sentence: str
    samples: tuple[str, ...] = ()
    serious: bool = False

    @property
    def level(self) -> str:
        """PROBLEM if it is serious; a note if nothing needs to be done about it; else a warning."""
        return "PROBLEM" if self.serious else "note" if self.name in NOTES else "warning"


Fingerprints = Mapping[Split, list[Fingerprint]]
Pairs = dict[tuple[Split, Split], list[str]]
Counts = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # a header, and rows of text


def inspect(task: Task, *, tick: Callable[[int], None] | None = None) -> list[Finding]:
    """Read every file of a task and look for problems; the most serious findings first."""
    tick = tick or (lambda _: None)
    prints = {split: fingerprints(samples, tick) for split, samples in task.splits.items()}
    findings = [
        *_unreadable(task, prints),
        *_shared(task, prints),
        *_missing(task),
        *_different_shares(task),
        *_separated(task),
        *_repeated(task, prints),
        *(_similar(task, prints) if task.encoding is None else (*_near_rows(task), *_unseen(task))),
    ]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def fingerprints(samples: Samples, tick: Callable[[int], None]) -> list[Fingerprint]:
    """The fingerprint of every sample; every file is read and decoded completely."""
    if not isinstance(samples.inputs, ImageFiles):
        tick(len(samples))
        return [Fingerprint(hashlib.sha256(each.tobytes()).hexdigest(), None) for each in samples.inputs]
    result = []
    for each in in_parallel(fingerprint, samples.inputs.files()):
        result.append(each)
        tick(1)
    return result


def label_counts(task: Task) -> Counts:
    """A row per label, a column per split; the last row counts samples (with many labels not the sum)."""
    header = ("label", *(split.value for split in task.splits))
    counts = {split: task.class_counts(split) for split in task.splits}
    rows = [
        (name, *(f"{counts[split][index]:,}" for split in task.splits))
        for index, name in enumerate(task.class_names)
    ]
    if task.kind is LabelKind.MANY_LABELS:
        none = [int((each.labels != 1).all(axis=1).sum()) for each in task.splits.values()]
        rows.append(("(no label)", *(f"{count:,}" for count in none)))
    rows.append(("samples", *(f"{len(each):,}" for each in task.splits.values())))
    return header, tuple(rows)


def attribute_counts(task: Task) -> dict[str, Counts]:
    """A table per attribute: its values, or the range of a number with many different values."""
    attributes = _attributes(task)
    for split, samples in task.splits.items():
        if samples.attributes is None and samples.groups is not None:
            attributes.setdefault("group", {})[split] = list(samples.groups.tolist())
    counts = {}
    for name, values in attributes.items():
        everything = [value for of_split in values.values() for value in of_split]
        different = len(set(everything))
        are_numbers = all(value is None or is_number(value) for value in everything)
        if not are_numbers and different > MOST_VALUES and 2 * different > len(everything):
            continue  # ids and texts: nothing to count
        count = _ranges if are_numbers and different > MOST_VALUES else _frequencies
        counts[name] = (name, *(split.value for split in values)), count(list(values.values()))
    return counts


def _attributes(task: Task) -> dict[str, dict[Split, list[Any]]]:
    """The values of every attribute in each split."""
    result: dict[str, dict[Split, list[Any]]] = defaultdict(dict)
    for split, samples in task.splits.items():
        table = pa.table({}) if samples.attributes is None else samples.attributes
        for name in table.column_names:
            result[name][split] = values_in(table[name])
    return result


def _frequencies(columns: list[list[object]]) -> tuple[tuple[str, ...], ...]:
    """A row per value, at most MOST_VALUES of them, the most frequent ones."""
    total = Counter(value for column in columns for value in column)
    listed = sorted(total, key=lambda value: (-total[value], str(value)))[:MOST_VALUES]
    counts = [Counter(column) for column in columns]
    rows = [
        ("(missing)" if value is None else str(value), *(f"{count[value]:,}" for count in counts))
        for value in sorted(listed, key=lambda value: (value is None, str(value)))
    ]
    if len(total) > len(listed):
        rest = [sum(n for value, n in count.items() if value not in listed) for count in counts]
        rows.append((f"({len(total) - len(listed):,} others)", *(f"{n:,}" for n in rest)))
    return tuple(rows)


def _ranges(columns: list[list[object]]) -> tuple[tuple[str, ...], ...]:
    """Rows for the lowest, the median and the highest value."""
    numbers = [np.asarray([value for value in column if value is not None], float) for column in columns]
    rows = []
    for title, share in (("lowest", 0.0), ("median", 0.5), ("highest", 1.0)):
        rows.append((title, *(f"{np.quantile(each, share):g}" if len(each) else "" for each in numbers)))
    gaps = [column.count(None) for column in columns]
    if any(gaps):
        rows.append(("(missing)", *(f"{gap:,}" for gap in gaps)))
    return tuple(rows)


def _unreadable(task: Task, prints: Fingerprints) -> Iterator[Finding]:
    named = [
        f"{_name(task, split, row)} ({each.unreadable})"
        for split, of_split in prints.items()
        for row, each in enumerate(of_split)
        if each.unreadable
    ]
    if named:
        yield Finding("unreadable", f"{count_of(len(named), 'image')} cannot be read", tuple(named), True)


def _shared(task: Task, prints: Fingerprints) -> Iterator[Finding]:
    """The same bytes in two splits."""
    pairs: Pairs = defaultdict(list)
    for copies in _by_content(prints).values():
        first: dict[Split, int] = {}
        for split, row in copies:
            first.setdefault(split, row)
        splits = sorted(first, key=list(Split).index)
        for index, one in enumerate(splits):
            for other in splits[index + 1 :]:
                text = f"{_name(task, one, first[one])} = {_name(task, other, first[other])}"
                pairs[one, other].append(text)
    for (one, other), named in _in_order(pairs):
        what = f"{count_of(len(named), _noun(task))} in both {one} and {other}"
        if may_be_equal_by_chance(task, prints):
            sentence = f"{what}: copies of one sample, which leak, or samples whose features are equal"
            yield Finding("equal_rows", sentence, tuple(named))
        else:
            yield Finding("leak", f"{what}: a leak; {_once(task)}", tuple(named), True)


def _missing(task: Task) -> Iterator[Finding]:
    """Splits without samples, and labels without samples in a split."""
    if Split.TEST_UNFAMILIAR not in task.splits:
        sentence = "no unfamiliar sample to test on: the familiar conditions hold for all of them"
        yield Finding("no_unfamiliar", sentence, serious=True)
    for split in (Split.VAL, Split.TEST_FAMILIAR):
        if split not in task.splits:
            yield Finding("empty_split", f"no samples in {split}", serious=True)
    if Split.UNLABELLED not in task.splits:
        noun = "images" if task.encoding is None else "rows"
        yield Finding("no_unlabelled", f"no unlabelled {noun}: only G-distillation needs them")
    for split in (Split.VAL, *TESTED):
        if split in task.splits:
            counts = task.class_counts(split)
            empty = [name for name, count in zip(task.class_names, counts, strict=True) if not count]
            if empty:
                sentence = f"{count_of(len(empty), 'label')} never seen in {split}"
                yield Finding("one_sided_label", sentence, tuple(empty))


def _different_shares(task: Task) -> Iterator[Finding]:
    """Labels whose share of the familiar test set differs from that of train: by Fisher's exact test."""
    if Split.TEST_FAMILIAR not in task.splits:
        return
    differences = []
    for label, name in enumerate(task.class_names):
        (count, total), (tested, of_tested) = (
            _presence(task, task.splits[split], label) for split in (Split.TRAIN, Split.TEST_FAMILIAR)
        )
        if not total or not of_tested or abs(count / total - tested / of_tested) < SHARES_DIFFER:
            continue
        from scipy.stats import fisher_exact  # takes most of a second to import

        p = fisher_exact(np.asarray([[count, total - count], [tested, of_tested - tested]])).pvalue
        if p < SIGNIFICANT / len(task.class_names):
            shares = count / total, tested / of_tested
            text = f"{name} is {shares[0]:.1%} of train and {shares[1]:.1%} of {Split.TEST_FAMILIAR}"
            differences.append((abs(shares[0] - shares[1]), text))
    if differences:
        first, *others = [text for _, text in sorted(differences, key=lambda each: -each[0])]
        advice = 'balance = "label" in [splits] makes them equal'
        if task.kind is LabelKind.MANY_LABELS:
            advice = "val and test as shares in [splits] instead of a column make them similar"
        sentence = f"label shares of train and {Split.TEST_FAMILIAR} differ: {first}; {advice}"
        yield Finding("label_shares", sentence, tuple(others))


def _presence(task: Task, samples: Samples, label: int) -> tuple[int, int]:
    """The number of samples with the label, and of those where it is not ignored."""
    labels = samples.labels if task.kind is LabelKind.ONE_LABEL else samples.labels[:, label]
    return int(task.has_label(samples, label).sum()), int((labels != IGNORE).sum())


def _separated(task: Task) -> Iterator[Finding]:
    """Persons, or other sources of several rows, in several splits; the two test splits count as one."""
    features = () if task.encoding is None else tuple(each.column for each in task.encoding.features)
    for name, by_split in _attributes(task).items():
        sides: dict[object, dict[Split, Split]] = defaultdict(dict)
        counts: Counter[object] = Counter()
        for split, values in by_split.items():
            if split is Split.UNLABELLED:
                continue
            known = [value for value in values if value not in (None, "") and value == value]
            counts.update(known)
            for value in set(known):
                sides[value].setdefault(Split.TEST_FAMILIAR if split in TESTED else split, split)
        several = [value for value, used in sides.items() if len(used) > 1]
        is_code = name not in features and has_codes(counts)
        if several and (is_named_like_identifier(name, counts) or is_code):
            sentence = (
                f"column {name!r} looks like an identifier of persons or sources, and {len(several):,} of "
                f'its {len(counts):,} values are in several splits; keep_together = "{name}" in [splits] '
                "keeps the rows of each in one"
            )
            named = tuple(f"{value} in {' and '.join(sides[value].values())}" for value in several)
            yield Finding("separated", sentence, named)


def _repeated(task: Task, prints: Fingerprints) -> Iterator[Finding]:
    """The same bytes twice in one split: no leak, but one image counts twice."""
    for split in task.splits:
        named = []
        for copies in _by_content({split: prints[split]}).values():
            if len(copies) > 1:
                named.append(" = ".join(str(task.splits[split].ids[row]) for _, row in copies))
        if named:
            sentence = f"{count_of(len(named), _noun(task))} more than once in {split}; {_once(task)}"
            yield Finding("repeated", sentence, tuple(named))


def _similar(task: Task, prints: Fingerprints) -> Iterator[Finding]:
    """Different bytes with near perceptual hashes in two splits: for a person to look at."""
    rows = [(split, row) for split, of_split in prints.items() for row in range(len(of_split))]
    sides = np.asarray([list(Split).index(split) for split, _ in rows], dtype=np.int64)
    pairs: Pairs = defaultdict(list)
    for left, right in similar_pairs([prints[split][row] for split, row in rows], sides):
        (one, row), (other, other_row) = rows[left], rows[right]
        pairs[one, other].append(f"{_name(task, one, row)} ~ {_name(task, other, other_row)}")
    for (one, other), named in _in_order(pairs):
        sentence = f"{count_of(len(named), 'pair')} of pictures that look alike in {one} and {other}; {ALIKE}"
        yield Finding("look_alike", sentence, tuple(named))


def may_be_equal_by_chance(task: Task, prints: Fingerprints) -> bool:
    """Whether equal rows need not be copies: columns may be few and coarse, so that train has equal rows."""
    if task.encoding is None or any(isinstance(each, Vector) for each in task.encoding.features):
        return False
    train = prints[Split.TRAIN]
    return len({each.content for each in train}) < len(train)


def _once(task: Task) -> str:
    key = "repeated_pictures" if task.encoding is None else "repeated_rows"
    return f'{key} = "once" in [splits] uses each once'


def _noun(task: Task) -> str:
    return "picture" if task.encoding is None else "row"


def _near_rows(task: Task) -> Iterator[Finding]:
    """Different rows of two splits, much nearer than neighbours usually are: for a person to look at."""
    values = np.concatenate([np.asarray(each.inputs, np.float64) for each in task.splits.values()])
    rows = [(split, row) for split, each in task.splits.items() for row in range(len(each))]
    sides = np.asarray([list(Split).index(split) for split, _ in rows])
    _, row_of = np.unique(values, axis=0, return_inverse=True)
    first = np.unique(np.stack([row_of.ravel(), sides]), axis=1, return_index=True)[1]  # of equal rows
    values, sides, rows = values[first], sides[first], [rows[each] for each in first]
    assert task.encoding is not None
    pairs: Pairs = defaultdict(list)
    if task.encoding.continuous().sum() >= LEAST_DIMENSIONS:
        train = np.asarray(task.splits[Split.TRAIN].inputs, np.float64)
        for left, right in near_rows(values, sides, NEAR_ROWS * usual_distance(train)):
            (one, row), (other, other_row) = rows[left], rows[right]
            pairs[one, other].append(f"{_name(task, one, row)} ~ {_name(task, other, other_row)}")
    for (one, other), named in _in_order(pairs):
        sentence = f"{count_of(len(named), 'pair')} of nearly equal rows in {one} and {other}"
        yield Finding("look_alike", sentence, tuple(named))


def usual_distance(values: NDArray[np.float64]) -> float:
    """The median distance of a row to the nearest other one, estimated from some rows."""
    unique = np.unique(values, axis=0)
    some = unique[np.unique(np.linspace(0, len(unique) - 1, ROWS_COMPARED).astype(np.int64))]
    if len(unique) < 2:
        return 0.0
    squares = (some**2).sum(axis=1)[:, None] - 2 * some @ unique.T + (unique**2).sum(axis=1)
    return float(np.median(np.sqrt(np.maximum(np.partition(squares, 1, axis=1)[:, 1], 0))))


def near_rows(values: NDArray[np.float64], sides: NDArray[np.int64], most: float) -> list[tuple[int, int]]:
    """Pairs of different rows from different sides whose distance is at most `most`, by side.

    Only rows that are near in their first principal components are compared in full: a distance is never
    smaller than that of the projections.
    """
    from scipy.spatial import cKDTree  # takes a fifth of a second to import

    centred = values - values.mean(axis=0)
    some = centred[np.linspace(0, len(centred) - 1, min(len(centred), 2000)).astype(np.int64)]
    directions = np.linalg.svd(some, full_matrices=False)[2][:PROJECTED]
    pairs = cKDTree(centred @ directions.T).query_pairs(most * (1 + 1e-9), output_type="ndarray")
    pairs = pairs[sides[pairs[:, 0]] != sides[pairs[:, 1]]]
    found = []
    for part in np.array_split(pairs, len(pairs) // 10_000 + 1):
        distances = np.linalg.norm(values[part[:, 0]] - values[part[:, 1]], axis=1)
        found.append(part[(distances > 0) & (distances <= most)])
    near = np.concatenate(found)
    swapped = sides[near[:, 0]] > sides[near[:, 1]]
    near[swapped] = near[swapped][:, ::-1]
    return sorted(map(tuple, near.tolist()))


def _unseen(task: Task) -> Iterator[Finding]:
    """Values that no training row has, in other splits."""
    assert task.encoding is not None
    for split in (split for split in task.splits if split is not Split.TRAIN):
        counts = task.encoding.unseen_inputs(np.asarray(task.splits[split].inputs))
        if counts:
            listed = tuple(f"{column}: {count_of(count, 'row')}" for column, count in counts.items())
            sentence = f"{split} has values that train never has, in {count_of(len(counts), 'column')}"
            yield Finding("unseen_values", sentence, listed)


def _by_content(prints: Fingerprints) -> dict[str, list[tuple[Split, int]]]:
    """The rows that have the same content, by content."""
    copies: dict[str, list[tuple[Split, int]]] = defaultdict(list)
    for split, of_split in prints.items():
        for row, each in enumerate(of_split):
            if each.content:
                copies[each.content].append((split, row))
    return copies


def _in_order(pairs: Pairs) -> list[tuple[tuple[Split, Split], list[str]]]:
    return sorted(pairs.items(), key=lambda item: [list(Split).index(split) for split in item[0]])


def _name(task: Task, split: Split, row: int) -> str:
    return f"{split} {task.splits[split].ids[row]}"
