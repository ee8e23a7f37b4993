"""Predictions as a table: a row per sample.

Scores and labels as `prediction_columns` reads them; optionally `groups`, `ids`, `novelty`. Any further
column is kept as an attribute.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from surefoot.errors import InputError
from surefoot.prediction_columns import (
    METADATA,
    are_answers,
    csv_options,
    labels_in,
    numbers_in,
    refuse_answers,
    refuse_gaps,
    refuse_repeated,
    scores_in,
    scores_of_answers,
    stored_in,
)
from surefoot.predictions import LabelKind, Predictions


def read_parquet(path: Path) -> pa.Table:
    """A parquet file as a table; where pages carry checksums, they are verified."""
    return pyarrow.parquet.read_table(path, partitioning=None, page_checksum_verification=True)


def read_csv(path: Path) -> pa.Table:
    """A csv file as a table; what names things (ids, groups, labels) stays text as it is written."""
    table = pyarrow.csv.read_csv(path, convert_options=csv_options())
    return table.rename_columns([name.strip() for name in table.column_names])


def write_parquet(table: pa.Table, path: Path) -> None:
    """A table as a parquet file, with checksums."""
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)


def write_csv(table: pa.Table, path: Path) -> None:
    """A table as a csv file."""
    for field in table.schema:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            raise InputError(f"column {field.name!r} has type {field.type}; a .csv holds numbers and text")
    pyarrow.csv.write_csv(table, path)


def from_table(table: pa.Table, unlabelled: LabelKind | None = None, *, answers: bool = False) -> Predictions:
    """Predictions from a table; without labels only if `unlabelled` says of which kind they are.

    What `surefoot predict` wrote has none, and is read only where `answers` will do.
    """
    refuse_repeated(table.column_names)
    if not answers:
        refuse_answers(table.column_names)
    elif are_answers(table.column_names):
        table = scores_of_answers(table)
    scale, scores, names, used = scores_in(table)
    stored = stored_in(table)
    names = stored.get("class_names") or names
    labels, label_columns = labels_in(table, None if stored.get("label") == "index" else names)
    if labels is None and unlabelled is None:
        raise InputError("no column 'label'; needed: 'label', 'labels' or 'label_<class>'")
    build = Predictions.from_logits if scale == "logit" else Predictions.from_probs
    known = {*used, *label_columns, "groups", "ids", "novelty"}
    rest = [name for name in table.column_names if name not in known]
    return build(
        scores,
        labels,
        kind=unlabelled if labels is None else None,
        class_names=names,
        groups=_keys(table, "groups"),
        ids=_keys(table, "ids"),
        novelty=numbers_in(table, "novelty") if "novelty" in table.column_names else None,
        attributes=table.select(rest).replace_schema_metadata(None) if rest else None,
    )


def to_list_table(predictions: Predictions) -> pa.Table:
    """The predictions with list columns, exact to the bit."""
    logits, labels = predictions.logits.numpy(), predictions.labels.numpy()
    columns = {"logits": _list_column(logits[0] if len(logits) == 1 else logits.transpose(1, 0, 2))}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = pa.array(labels)
    else:
        columns["labels"] = _list_column(labels)
    stored = json.dumps({"class_names": predictions.class_names, "label": "index"})
    return _with_the_rest(columns, predictions).replace_schema_metadata({METADATA: stored})


def to_wide_table(predictions: Predictions) -> pa.Table:
    """The predictions of one member with a column per class; labels by class name."""
    names = predictions.class_names or tuple(str(index) for index in range(predictions.classes))
    logits, labels = predictions.logits.numpy(), predictions.labels.numpy()
    columns: dict[str, Any] = {f"logit_{name}": logits[0, :, i] for i, name in enumerate(names)}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = [names[label] if label >= 0 else str(label) for label in labels.tolist()]
    else:
        columns |= {f"label_{name}": labels[:, i] for i, name in enumerate(names)}
    return _with_the_rest(columns, predictions)


def _with_the_rest(columns: dict[str, Any], predictions: Predictions) -> pa.Table:
    keys = ("groups", "ids")
    columns |= {key: getattr(predictions, key) for key in keys if getattr(predictions, key) is not None}
    if predictions.novelty is not None:
        columns["novelty"] = predictions.novelty.numpy()
    table = pa.table(columns)
    attributes = predictions.attributes
    for name in [] if attributes is None else attributes.column_names:
        assert attributes is not None
        table = table.append_column(attributes.schema.field(name), attributes[name])
    return table


def _list_column(values: Any) -> pa.Array:
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, int(size))
    return column


def _keys(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        return None
    refuse_gaps(table[name], name)
    return np.asarray(table[name].to_pylist())
