"""A user's task: a TOML file and a table with a row per sample; and the resolved split written to files."""

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from surefoot.errors import InputError, did_you_mean
from surefoot.io import read_regular, refuse_special, replacing, write_toml
from surefoot.lab.tasks.columns import NAMED, column_of, read_array
from surefoot.lab.tasks.description import (
    Description,
    FeatureColumns,
    Repeated,
    Resolved,
    missing_in,
    read_description,
    rows_where,
    unlabelled_samples,
)
from surefoot.lab.tasks.features import (
    Category,
    Encoding,
    RawColumns,
    Vector,
    read_alike,
    read_features,
)
from surefoot.lab.tasks.split import (
    Assignment,
    alike_of,
    assign,
    balance_labels,
    contents_of,
    drop_duplicates,
)
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task, unlabelled_labels
from surefoot.predictions.columns import refuse_repeated
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.tables import (
    CSV_PARSING,
    arrow_file,
    decoding,
    empty_cells,
    fits_csv,
    from_csv,
    read_parquet,
    validated,
    values_in,
    write_csv,
)
from surefoot.predictions.validate import check_class_names
from surefoot.text import count_of

COLUMNS = ("split", "id", "path", "label", "ignored", "group")  # of a resolved split


def load_task(file: str | Path) -> Task:
    """The task that a TOML file describes. Its paths are relative to the file's folder."""
    description = read_description(Path(file))
    table = read_table(description.manifest, description.text_columns())
    try:
        if isinstance(description.splits, Resolved) and description.manifest.suffix.lower() == ".csv":
            table = from_csv(table)
        refuse_repeated(table.column_names)
        return _build(description, table)
    except InputError as error:
        raise InputError(f"{description.manifest}: {error}") from error


def write_resolved(task: Task, path: str | Path) -> Path:
    """Write the split as a csv, and with it a TOML with its hash; returns the path of the TOML.

    The TOML is a task: reading it gives the same samples, and an error if their hash differs. Samples made
    in memory have no path, so the csv of a built-in task cannot be read again.
    """
    target = Path(path)
    if target.suffix.lower() != ".csv":
        raise InputError(f"{path}: unknown file type {target.suffix!r}; have: .csv")
    roots = [each.inputs.root for each in task.splits.values() if isinstance(each.inputs, ImageFiles)]
    root = Path(os.path.commonpath(roots)) if roots else None
    tables = [_resolved_table(task, split, samples, root) for split, samples in task.splits.items()]
    features = _write_features(task, target)
    with replacing(target) as temporary:
        write_csv(pa.concat_tables(tables, promote_options="permissive"), temporary)
    is_one_label = task.kind is LabelKind.ONE_LABEL
    entries = {
        "name": task.name,
        "manifest": target.name,
        "images": None if root is None else Path(os.path.relpath(root, target.parent.resolve())).as_posix(),
        "label" if is_one_label else "labels": "label",
        "ignored": None if is_one_label else "ignored",
        "classes": list(task.class_names),
        **features,
        "id": "id",
        "groups": "group",
        "identity": task.identity,
    }
    toml = target.with_suffix(".toml")
    comment = "The resolved split; reading it checks the hash."
    write_toml({"task": entries, "splits": {"resolved": "split"}}, toml, comment=comment)
    return toml


@dataclass(frozen=True)
class Labels:
    """Class names, the label or labels of each row, and its stratum: its label, or the rarest of them."""

    kind: LabelKind
    names: tuple[str, ...]
    values: NDArray[np.int64]
    strata: list[str]


def read_table(file: Path, text_columns: Sequence[str], number_columns: Sequence[str] = ()) -> pa.Table:
    """A csv or parquet table; an empty cell is a missing value, and names stay text as written."""
    with _naming(file), decoding("data"):
        if file.suffix.lower() not in (".csv", ".parquet"):
            raise InputError(f"unknown file type {file.suffix!r}; have: .csv, .parquet")
        refuse_special(file)
        if file.suffix.lower() == ".csv":
            with arrow_file(file) as source:
                table = csv_table(source, text_columns, number_columns)
        else:
            table = read_parquet(file)
        if not table.num_rows:
            raise InputError("no rows; needed: a row per sample")
    return table


def csv_table(source: Any, text_columns: Sequence[str], number_columns: Sequence[str] = ()) -> pa.Table:
    """A csv table; columns with numbers only become numbers, unless they are to be text."""
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(text_columns, pa.string()) | dict.fromkeys(number_columns, pa.float64()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    return validated(pyarrow.csv.read_csv(source, convert_options=convert, parse_options=CSV_PARSING))


def _build(description: Description, table: pa.Table) -> Task:
    have = set(table.column_names)
    for name in description.columns():
        if name not in have:
            near = did_you_mean(name, table.column_names)
            raise InputError(f"no column {name!r}{near}; have: {', '.join(table.column_names)}")
    if description.features is None and not description.images.is_dir():
        raise InputError(f"the image root {description.images} is not a folder; see task.images")
    labels = _read_labels(description, table)
    check_class_names(labels.names)
    samples = _all_samples(description, table, labels)
    familiar = rows_where(description.familiar, table)
    ids = samples.ids.tolist()
    unlabelled = None
    if description.unlabelled is not None:
        inputs: Any = samples.inputs
        if isinstance(inputs, RawColumns):
            unlabelled = _unlabelled_rows(description, inputs, labels)
        else:
            unlabelled = unlabelled_samples(description.unlabelled, labels.kind, len(labels.names))
    copies = _copies(description.repeated, samples, unlabelled)
    splits, remarks = assign(
        description.splits,
        table,
        familiar,
        ids=ids,
        strata=labels.strata,
        alike=copies[0] if copies is not None and description.repeated is Repeated.TOGETHER else None,
    )
    remarks = (*_without_condition(description, table), *remarks)
    if copies is not None:
        splits, unlabelled, more = _without_copies(description, samples, splits, unlabelled, copies)
        remarks += more
    if description.balance and not isinstance(description.splits, Resolved):
        seed = description.splits.seed
        splits, more = balance_labels(splits, labels.strata, samples.groups, ids=ids, seed=seed)
        remarks += more
    order = np.argsort(samples.ids, kind="stable")  # so that the order of the manifest does not matter
    sorted_splits = np.asarray([split or "" for split in splits], dtype=np.str_)[order]
    by_split = {split: samples.take(order[sorted_splits == split]) for split in Split if split in splits}
    task = Task(
        name=description.name,
        kind=labels.kind,
        class_names=labels.names,
        splits=by_split if unlabelled is None else by_split | {Split.UNLABELLED: unlabelled},
        remarks=remarks,
    )
    task = task if description.features is None else _encoded(task)
    if description.identity not in (None, task.identity):
        raise InputError(f"the split is {task.identity}, but task.identity is {description.identity}")
    return task


def _without_condition(description: Description, table: pa.Table) -> tuple[str, ...]:
    """Remarks on the rows left out as it is not known whether they are familiar."""
    remarks = []
    for column, missing in missing_in(description.familiar, table).items():
        rows = np.flatnonzero(missing).tolist()
        listed = ", ".join(map(str, rows[:NAMED])) + (", ..." if len(rows) > NAMED else "")
        remarks.append(
            f"{count_of(len(rows), 'row')} without a value of {column!r} left out, as neither familiar nor "
            f"unfamiliar (row {listed}); familiar.{column}.missing = true or false would use them"
        )
    return tuple(remarks)


def _all_samples(description: Description, table: pa.Table, labels: Labels) -> Samples:
    """The samples of all rows, whatever their split; vectors are not encoded yet."""
    inputs: Any
    if description.features is None:
        inputs = _image_files(description, table)
        names = list(inputs.paths)
    else:
        inputs = _features(description.features, table)
        names = [f"row-{row:07d}" for row in range(table.num_rows)]
    groups = None
    if description.groups is not None:
        column = column_of(table, description.groups)
        given = zip(values_in(column), empty_cells(column).tolist(), strict=True)
        groups = np.asarray(["" if empty else str(value) for value, empty in given])
    used = {description.path, description.label, description.labels, description.ignored, description.id}
    rest = [each.name for each in table.schema if each.name not in used and fits_csv(each.type)]
    return Samples(
        ids=np.asarray(names if description.id is None else _texts(table, description.id), dtype=np.str_),
        labels=labels.values,
        inputs=inputs,
        groups=groups,
        attributes=table.select(rest) if rest else None,
    )


def _image_files(description: Description, table: pa.Table) -> ImageFiles:
    assert description.path is not None
    paths = [PurePosixPath(path).as_posix() for path in _texts(table, description.path)]
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        if first.setdefault(path, row) != row:
            raise InputError(f"path {path!r} is in rows {first[path]} and {row}; allowed: one row per image")
    return ImageFiles(description.images, tuple(paths))


def _features(given: FeatureColumns, table: pa.Table) -> RawColumns:
    if given.array is None:
        return read_features(table, given.names, given.categories)
    with _naming(given.array):
        values = read_array(given.array)
        if len(values) != table.num_rows:
            raise InputError(
                f"the array has {len(values):,} rows; needed: {table.num_rows:,}, as the manifest"
            )
    return RawColumns({given.names[0]: values})


def _unlabelled_rows(description: Description, alike: RawColumns, labels: Labels) -> Samples:
    """The rows of a table, or of an array, that have the same features and no labels."""
    source, given = description.unlabelled, description.features
    assert source is not None
    assert given is not None
    attributes = None
    with _naming(source.source):
        if source.source.suffix.lower() == ".npy":
            raw = _unlabelled_array(source.source, alike)
            names = [f"row-{row:07d}" for row in range(len(raw))]
        else:
            numbers = [name for name, values in alike.columns.items() if values.dtype == np.float64]
            texts = [name for name, values in alike.columns.items() if values.dtype == object]
            table = read_table(source.source, [*texts, *filter(None, [description.id])], numbers)
            raw = read_alike(table, alike)
            names = [f"row-{row:07d}" for row in range(len(raw))]
            if description.id is not None:
                column_of(table, description.id)
                names = _texts(table, description.id)
            attributes = table.select(texts + numbers) if texts + numbers else None
    row_of = {name: row for row, name in enumerate(names)}
    drawn = source.drawn(list(row_of))
    samples = Samples(
        ids=np.asarray([f"{Split.UNLABELLED}/{name}" for name in names], dtype=np.str_),
        labels=unlabelled_labels(len(names), labels.kind, len(labels.names)),
        inputs=cast(Any, raw),
        attributes=attributes,
    )
    return samples.take([row_of[name] for name in drawn])


def _unlabelled_array(file: Path, alike: RawColumns) -> RawColumns:
    (name, values), *others = alike.columns.items()
    if others or values.ndim != 2:
        raise InputError("an array for features that are columns; needed: a .csv or .parquet with them")
    array = read_array(file)
    Vector(name, values.shape[1]).encode(array)  # refuses another length
    return RawColumns({name: array})


def _encoded(task: Task) -> Task:
    """The task with its rows encoded by what the training rows contain."""
    raw: Mapping[Split, Any] = {split: samples.inputs for split, samples in task.splits.items()}
    encoding = Encoding.fit(raw[Split.TRAIN])
    ids = [i for samples in task.splits.values() for i in samples.ids.tolist()]
    contents = dict(zip(ids, [content for each in raw.values() for content in each.contents()], strict=True))
    digest = hashlib.sha256(raw[Split.TRAIN].description().encode())
    for name in sorted(contents):
        digest.update(contents[name].encode())
    return replace(
        task,
        splits={
            split: replace(samples, inputs=encoding.encode(raw[split]))
            for split, samples in task.splits.items()
        },
        remarks=(encoding.sentence(), *task.remarks),
        encoding=encoding,
        contents=digest.hexdigest(),
    )


def _copies(
    repeated: Repeated, samples: Samples, unlabelled: Samples | None
) -> tuple[list[str], list[str]] | None:
    """A text for every labelled and every unlabelled sample, the same for copies; None: used as given."""
    if repeated is Repeated.AS_GIVEN:
        return None
    if repeated is Repeated.ONCE:
        return contents_of(samples), [] if unlabelled is None else contents_of(unlabelled)
    return alike_of(samples, unlabelled)


def _without_copies(
    description: Description,
    samples: Samples,
    splits: Assignment,
    unlabelled: Samples | None,
    copies: tuple[list[str], list[str]],
) -> tuple[Assignment, Samples | None, tuple[str, ...]]:
    """Each sample once, none of them among the unlabelled, and remarks."""
    (of_labelled, of_unlabelled), others = copies, unlabelled
    remarks: tuple[str, ...] = ()
    equal, labels = of_labelled, [each.tobytes() for each in samples.labels]
    if description.repeated is Repeated.TOGETHER:
        equal = contents_of(samples)
        count = sum(count for count in Counter(of_labelled).values() if count > 1)
        if count:
            remarks += (f"{count:,} pictures look like another one, and each is in the split of the other",)
    result = drop_duplicates(equal, splits, samples.ids.tolist(), labels)
    if unlabelled is not None:
        known = set(of_labelled)
        others = unlabelled.take([row for row, each in enumerate(of_unlabelled) if each not in known])
    left_out = result.count(None) - splits.count(None) + len(unlabelled or ()) - len(others or ())
    if left_out:
        what = "files whose picture occurs" if description.features is None else "rows whose features occur"
        if description.repeated is not Repeated.ONCE:
            what = "files whose picture, or one that looks like it, occurs"
        remarks += (f"{left_out:,} {what} elsewhere too are left out",)
    return result, others, remarks


def _read_labels(description: Description, table: pa.Table) -> Labels:
    """The labels in the described columns. Only the unlabelled rows of a resolved split have none."""
    unlabelled = np.zeros(table.num_rows, dtype=np.bool_)
    if isinstance(description.splits, Resolved):
        unlabelled = np.asarray(values_in(table[description.splits.column])) == Split.UNLABELLED
    if description.label is not None:
        return _one_label(description.label, description.classes, table, unlabelled)
    return _many_labels(description, table, unlabelled)


def _one_label(
    column: str, classes: tuple[str, ...] | None, table: pa.Table, unlabelled: NDArray[np.bool_]
) -> Labels:
    values = values_in(table[column])
    for row in np.flatnonzero(~unlabelled).tolist():
        _refuse_gap(values[row], column, row)
    texts = ["" if unlabelled[row] else str(value) for row, value in enumerate(values)]
    names = classes or tuple(sorted({texts[row] for row in np.flatnonzero(~unlabelled).tolist()}))
    _refuse_other_labels([[] if unlabelled[row] else [text] for row, text in enumerate(texts)], names)
    index = {name: index for index, name in enumerate(names)}
    labels = [IGNORE if unlabelled[row] else index[text] for row, text in enumerate(texts)]
    return Labels(LabelKind.ONE_LABEL, names, np.asarray(labels, dtype=np.int64), texts)


def _many_labels(description: Description, table: pa.Table, unlabelled: NDArray[np.bool_]) -> Labels:
    assert description.labels is not None
    present = _lists(table, description.labels)
    ignored = [[] for _ in present] if description.ignored is None else _lists(table, description.ignored)
    both = [[*a, *b] for a, b in zip(present, ignored, strict=True)]
    names = description.classes or tuple(sorted({name for row in both for name in row}))
    split = next((name for name in names if ";" in name), None)
    if split is not None:
        raise InputError(f"class name {split!r}; allowed: no ';', which separates the labels of a row")
    _refuse_other_labels(both, names)
    index = {name: index for index, name in enumerate(names)}
    labels = np.zeros((len(present), len(names)), dtype=np.int64)
    for row in range(len(present)):
        labels[row, [index[name] for name in ignored[row]]] = IGNORE
        labels[row, [index[name] for name in present[row]]] = 1  # wins over an ignored object of the class
    labels[unlabelled] = IGNORE
    frequency = Counter(name for row in present for name in row)
    strata = [min(row, key=lambda name: (frequency[name], name), default="") for row in present]
    return Labels(LabelKind.MANY_LABELS, names, labels, strata)


def _lists(table: pa.Table, column: str) -> list[list[str]]:
    return [
        [name.strip() for name in str(text or "").split(";") if name.strip()]
        for text in values_in(table[column])
    ]


def _texts(table: pa.Table, column: str) -> list[str]:
    """A column as text, without gaps."""
    values = values_in(table[column])
    for row, value in enumerate(values):
        _refuse_gap(value, column, row)
    return [str(value) for value in values]


def _refuse_gap(value: Any, column: str, row: int) -> None:
    if value is None or value == "":
        raise InputError(f"column {column!r} is empty in row {row}; allowed: a value in every row")


def _refuse_other_labels(labels: list[list[str]], names: tuple[str, ...]) -> None:
    known = set(names)
    for row, of_row in enumerate(labels):
        for name in of_row:
            if name not in known:
                raise InputError(f"label {name!r} in row {row} is not a class; allowed: {', '.join(names)}")


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the file in a refusal."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _write_features(task: Task, target: Path) -> dict[str, Any]:
    """The keys of [task] for the features of a resolved split; an .npy is written where they are a vector."""
    if task.encoding is None:
        return {}
    features = task.encoding.features
    if task.encoding.only_vector is not None:
        data = io.BytesIO()
        np.save(data, np.concatenate([each.inputs for each in task.splits.values()]))
        file = target.with_suffix(".npy")
        if file.exists() and read_regular(file) != data.getvalue():
            raise InputError(f"{file} exists with other vectors; allowed: another name for the split")
        with replacing(file) as temporary:
            temporary.write_bytes(data.getvalue())
        return {"features": file.name}
    vector = next((each.column for each in features if isinstance(each, Vector)), None)
    reserved = next((each.column for each in features if each.column in COLUMNS), None)
    if vector or reserved:
        raise InputError(
            f"feature {vector or reserved!r} cannot be in the resolved split: "
            + ("a .csv has no lists" if vector else f"a column there is called so ({', '.join(COLUMNS)})")
        )
    categories = [each.column for each in features if isinstance(each, Category)]
    return {"features": [each.column for each in features], "categories": categories or None}


def _resolved_table(task: Task, split: Split, samples: Samples, root: Path | None) -> pa.Table:
    texts = [task.label_text(split, row) for row in range(len(samples))]
    groups = np.full(len(samples), "") if samples.groups is None else samples.groups
    paths = [""] * len(samples)
    if root is not None and isinstance(samples.inputs, ImageFiles):
        start = samples.inputs.root.relative_to(root)
        paths = [(start / path).as_posix() for path in samples.inputs.paths]
    values = {
        "split": [split.value] * len(samples),
        "id": samples.ids.tolist(),
        "path": paths,
        "label": [label for label, _ in texts],
        "ignored": [ignored for _, ignored in texts],
        "group": groups.tolist(),
    }
    table = pa.table({name: pa.array(values[name], pa.string()) for name in COLUMNS})
    for field in [] if samples.attributes is None else samples.attributes.schema:
        assert samples.attributes is not None
        if field.name not in COLUMNS:
            table = table.append_column(field, samples.attributes[field.name])
    return table
