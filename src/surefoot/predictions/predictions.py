"""A classifier's outputs with the true labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError, did_you_mean, one_line, refuse_unknown, shown
from surefoot.predictions.arguments import checked
from surefoot.predictions.arrays import as_numpy, frozen_table, is_frozen, own, own_keys, read_only
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.columns import class_indices, names_true_or_false
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Whole, average, extremes_of, outcomes_of, probabilities
from surefoot.predictions.outcomes import Array, Outcomes
from surefoot.predictions.tables import empty_cells, values_in
from surefoot.predictions.validate import (
    Floats,
    as_floats,
    as_labels,
    as_predictions,
    as_rectangle,
    check_features,
    check_length,
    check_novelty,
    check_predictions,
)
from surefoot.predictions.zeros import count_true_zeros, half_of_smallest, raise_zeros
from surefoot.text import count_of

OPTIONAL = ("groups", "ids", "novelty", "features")  # arrays with a value, or a row of them, for each sample


@checked
@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of one or more members and the true labels. Always logits: `from_probs` takes their log.

    Metrics read several members as an ensemble, by the mean of their probabilities.

    >>> Predictions.from_probs([[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    Predictions(one_label, members=1, n=2, classes=2)
    """

    logits: Floats  # (members, n, classes), float32 or float64
    labels: Whole  # (n,) class index, or (n, classes) 0 / 1; IGNORE where unknown
    kind: LabelKind
    class_names: tuple[str, ...] | None = None
    groups: NDArray[Any] | None = None  # (n,) text or whole numbers: the group of each sample
    ids: NDArray[Any] | None = None  # (n,) text or whole numbers
    novelty: Array | None = None  # (n,) float64, higher is less familiar
    attributes: pa.Table | None = None  # any further columns, n rows
    features: Floats | None = None  # (n, up to 64) float32 or float64: penultimate features, projected

    def __post_init__(self) -> None:
        for name in ("logits", "labels", *OPTIONAL):
            given = getattr(self, name)
            if given is not None and not is_frozen(given):
                object.__setattr__(self, name, own(name, given))
        check_predictions(self.logits, self.labels, self.kind, self.class_names)
        for name in (*OPTIONAL, "attributes"):
            check_length(name, getattr(self, name), self.n)
        if self.novelty is not None:
            check_novelty(self.novelty)
        if self.features is not None:
            check_features(self.features)

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest logit."""
        return extremes_of(self.logits)

    @staticmethod
    @checked
    def from_logits(
        logits: Any,
        labels: Any,
        *,
        kind: LabelKind | str | None = None,
        class_names: Sequence[str | int] | None = None,
        groups: Any = None,
        ids: Any = None,
        novelty: Any = None,
        attributes: pa.Table | Mapping[str, Any] | None = None,
        features: Any = None,
    ) -> "Predictions":
        """From logits of shape (n, classes) or (members, n, classes); (n,) or a last axis of 1 is binary.

        `labels` of shape (n,) are class indices, or names among `class_names`; of shape (n, classes) they
        are 0 / 1 / -100 (ignored), and the logits are then one sigmoid each. Without labels, give None and
        `kind`. Tensors of torch, on a GPU too, are read like arrays.

        >>> Predictions.from_logits([1.5, -0.5], labels=[1, 0]).logits  # one logit: the log odds of class 1
        array([[[ 0. ,  1.5],
                [ 0. , -0.5]]])
        """
        scores = as_floats("logits", as_numpy("logits", logits))
        columns = (groups, ids, novelty, attributes, features)
        return from_scores("logit", scores, labels, kind, class_names, *columns)

    @staticmethod
    @checked
    def from_probs(
        probs: Any,
        labels: Any,
        *,
        kind: LabelKind | str | None = None,
        class_names: Sequence[str | int] | None = None,
        groups: Any = None,
        ids: Any = None,
        novelty: Any = None,
        attributes: pa.Table | Mapping[str, Any] | None = None,
        features: Any = None,
    ) -> "Predictions":
        """From probabilities, shaped and labelled as in `from_logits`.

        A probability of exactly 0 has no logarithm; it, and any below 2^-126 = 1.2e-38, is read as that,
        whatever the type. Calibrations read it as half the smallest positive probability of the data they
        were fitted on.

        >>> Predictions.from_probs([[0.9, 0.1], [0.4, 0.6]], ["cat", "dog"], class_names=["cat", "dog"])
        Predictions(one_label, members=1, n=2, classes=2)
        """
        scores = as_floats("probs", as_numpy("probs", probs))
        columns = (groups, ids, novelty, attributes, features)
        return from_scores("prob", scores, labels, kind, class_names, *columns)

    @staticmethod
    @checked
    def from_frame(
        frame: Any,
        *,
        logits: str | int | Sequence[str | int] | None = None,
        probs: str | int | Sequence[str | int] | None = None,
        label: str | int | Sequence[str | int] | None = None,
        class_names: Sequence[str | int] | None = None,
        groups: str | int | None = None,
        ids: str | int | None = None,
        novelty: str | int | None = None,
        kind: LabelKind | str | None = None,
    ) -> "Predictions":
        """From a table: pandas, polars, pyarrow, or a Hugging Face dataset; arguments are columns' names.

        `logits` or `probs` is a column for each class, or one column of lists (or of one number: binary).
        `label` holds class names or indices; several columns of 0 / 1, in the order of the classes, are many
        labels. The classes are called as their columns, without `logit_` or `prob_`, unless `class_names` are
        given. Without any of these names, columns are read as in a file: `logit_<class>`, `label`, ... All
        other columns become `attributes`, so that `grouped_by` finds them.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"cat": [2.0, -1.0], "dog": [0.5, 0.1], "truth": ["cat", "dog"]})
        >>> Predictions.from_frame(frame, logits=["cat", "dog"], label="truth").labels
        array([0, 1])
        """
        from surefoot.predictions.frames import read_frame

        columns = {"logit": logits, "prob": probs, "label": label}
        keys = {"groups": groups, "ids": ids, "novelty": novelty}
        return read_frame(frame, columns, keys, class_names, None if kind is None else LabelKind(kind))

    @staticmethod
    @checked
    def from_batches(batches: Iterable[Any], **optional: Any) -> "Predictions":
        """From any iterable of (logits, labels), such as a generator that runs a model over a loader.

        Batches are logits (n, classes), or (n,) for binary; further arguments are those of `from_logits`.

        >>> Predictions.from_batches(([[z, 0.0]], [0]) for z in (1.0, 2.0))
        Predictions(one_label, members=1, n=2, classes=2)
        """
        logits: list[NDArray[Any]] = []
        labels: list[NDArray[Any]] = []
        for batch in batches:
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                got = f"{len(batch)} parts" if isinstance(batch, list | tuple) else type(batch).__name__
                raise InputError(f"a batch is {got}; allowed: (logits, labels)")
            scores = as_floats("logits", as_numpy("logits", batch[0]))
            truth = as_rectangle("labels", as_numpy("labels", batch[1]))
            if not truth.ndim or len(scores) != len(truth):
                got = f"{len(truth)} labels" if truth.ndim else f"labels {shown(batch[1])}"
                raise InputError(f"a batch has {len(scores)} rows of logits and {got}; must be equal")
            for what, arrays, array in (("logits", logits, scores), ("labels", labels, truth)):
                if arrays and array.shape[1:] != arrays[0].shape[1:]:
                    first, other = arrays[0].shape[1:], array.shape[1:]
                    raise InputError(
                        f"a row of {what} has shape {first} in the first batch and {other} in another"
                    )
                arrays.append(np.array(array))  # the next batch may be in the same memory
        if not logits:
            raise InputError("no batches; needed: at least one")
        return Predictions.from_logits(np.concatenate(logits), np.concatenate(labels), **optional)

    @staticmethod
    @checked
    def from_prediction_output(output: Any, **optional: Any) -> "Predictions":
        """From what `Trainer.predict` of Hugging Face returns; further arguments are those of `from_logits`.

        Where the model returns more than its logits, they are the first.

        >>> Predictions.from_prediction_output(trainer.predict(test), class_names=names)  # doctest: +SKIP
        """
        logits, labels = getattr(output, "predictions", None), getattr(output, "label_ids", None)
        needed = "a PredictionOutput"
        if logits is not None:
            needed = "a test set with labels, or from_logits(output.predictions, labels)"
        for name, given in (("predictions", logits), ("label_ids", labels)):
            if given is None:
                raise InputError(f"{type(output).__name__} has no {name}; needed: {needed}")
        return Predictions.from_logits(logits[0] if isinstance(logits, tuple) else logits, labels, **optional)

    @property
    def members(self) -> int:
        return int(self.logits.shape[0])

    @property
    def n(self) -> int:
        return int(self.logits.shape[1])

    @property
    def classes(self) -> int:
        return int(self.logits.shape[2])

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Predictions({self.kind}, members={self.members}, n={self.n}, classes={self.classes})"

    @cached_property
    def outcomes(self) -> Outcomes:
        """The facts per decision that the metrics are computed from; computed on first use."""
        return outcomes_of(self.logits, self.labels, self.kind)

    def average(self) -> "Predictions":
        """One member whose probabilities are the mean of all members'."""
        return self if self.members == 1 else self.with_logits(average(self.logits, self.kind)[None])

    @checked
    def member(self, index: int) -> "Predictions":
        """One member alone."""
        if not 0 <= index < self.members:
            raise InputError(f"there is no member {index}; allowed: 0 to {self.members - 1}")
        return self.with_logits(self.logits[index : index + 1])

    @checked
    def with_logits(self, logits: Any) -> "Predictions":
        """The same samples with other logits."""
        return replace(self, logits=as_numpy("logits", logits))

    def probs(self) -> Array:
        """Probabilities (n, classes) in float64: softmax, or sigmoid per class, averaged over members."""
        return probabilities(self.average().logits[0], self.kind)

    def half_of_smallest(self) -> float | None:
        """Half the smallest positive probability where some are exactly 0; None where none is."""
        return half_of_smallest(self.logits, self.kind)

    def true_zeros(self) -> int:
        """How many known labels have a probability of exactly 0."""
        return count_true_zeros(self.logits, self.labels, self.kind)

    def with_zeros_as(self, lowest: float) -> "Predictions":
        """The same samples with probabilities of at least `lowest`."""
        return self.with_logits(raise_zeros(self.logits, self.kind, lowest))

    def always_one_label(self) -> bool:
        """Whether labels of the many-label kind are all one-hot."""
        if self.kind is LabelKind.ONE_LABEL:
            return False
        return bool(((self.labels == 1).sum(axis=1) == 1).all() and (self.labels >= 0).all())

    @checked
    def take(self, rows: Any) -> "Predictions":
        """The named rows, by index, by mask or by slice."""
        index = _row_indices(rows, self.n)
        taken: dict[str, Any] = {"logits": self.logits[:, index]}
        for name in ("labels", *OPTIONAL):
            values = getattr(self, name)
            taken[name] = None if values is None else values[index]
        attributes = None if self.attributes is None else self.attributes.take(index)
        return replace(self, attributes=attributes, **taken)

    @checked
    def of_class(self, name: str) -> "Predictions":
        """One class of many labels as binary predictions: present or not."""
        names = class_names_of(self)
        if self.kind is LabelKind.ONE_LABEL:
            raise InputError(f"class {name!r} alone needs many labels; got one label per row")
        refuse_unknown("class", [name], names)
        column = names.index(name)
        log_odds = self.logits[:, :, column]
        return replace(
            self,
            logits=np.stack([np.zeros_like(log_odds), log_odds], axis=2),
            labels=self.labels[:, column].astype(np.int64),
            kind=LabelKind.ONE_LABEL,
            class_names=(f"not {name}", name),
        )

    def column(self, name: str) -> pa.ChunkedArray:
        """The attribute column of that name."""
        have = [] if self.attributes is None else self.attributes.column_names
        if name not in have:
            have += [] if self.groups is None else ["groups"]
            near = did_you_mean(name, have)
            raise InputError(f"unknown column {name!r}{near}; have: {', '.join(have) or 'no attributes'}")
        assert self.attributes is not None
        return self.attributes[name]

    @checked
    def grouped_by(self, column: str) -> "Predictions":
        """The same predictions with an attribute column, or `ids`, as groups."""
        if column == "groups" and self.groups is not None:
            return self
        if column == "ids" and self.ids is not None:
            return replace(self, groups=self.ids)
        values = self.column(column)
        empty = np.flatnonzero(empty_cells(values))
        if len(empty):
            rows = count_of(len(empty), "row")
            raise InputError(
                f"column {column!r} is empty in {rows}, first in row {empty[0]}; every row needs a group"
            )
        return replace(self, groups=own_keys(f"column {column!r}", values_in(values)))


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """The rows of all parts, one after another; of OPTIONAL what every part has."""
    optional = {name: [getattr(part, name) for part in parts] for name in OPTIONAL}
    return Predictions(
        logits=np.concatenate([part.logits for part in parts], axis=1),
        labels=np.concatenate([part.labels for part in parts]),
        kind=parts[0].kind,
        class_names=parts[0].class_names,
        **{
            name: None if any(each is None for each in values) else np.concatenate(values)
            for name, values in optional.items()
        },
    )


def _row_indices(rows: Any, n: int) -> NDArray[np.int64]:
    every = np.arange(n)
    try:
        given = rows if isinstance(rows, slice) else np.asarray(as_numpy("rows", rows))
        # An empty list has no type.
        index = every[given] if isinstance(given, slice) or given.size else every[:0]
        if index.ndim == 1:
            return np.ascontiguousarray(index)  # torch has no negative strides
        reason = f"shape {np.shape(rows)}"
    except (IndexError, TypeError, ValueError) as error:
        reason = one_line(error)
    raise InputError(
        f"rows cannot be taken ({reason}); allowed: indices below {n}, a mask of {n}, or a slice"
    )


def from_scores(
    scale: str,
    scores: Floats,
    labels: Any,
    kind: LabelKind | str | None,
    class_names: Sequence[str | int] | None,
    groups: Any = None,
    ids: Any = None,
    novelty: Any = None,
    attributes: pa.Table | Mapping[str, Any] | None = None,
    features: Any = None,
    *,
    out: Floats | None = None,
) -> Predictions:
    """Predictions from scores on the scale `logit` or `prob`; `out` is explained in `as_predictions`."""
    known = None if kind is None else LabelKind(kind)
    truth = None if labels is None else _label_indices(as_numpy("labels", labels), class_names)
    logits, truth, known = as_predictions(scale, scores, truth, known, out=out)
    if novelty is not None:
        novelty = as_floats("novelty", as_numpy("novelty", novelty)).astype(np.float64)
    return Predictions(
        logits=read_only(logits) if scale == "prob" else logits,  # nobody else has logarithms
        labels=truth,
        kind=known,
        class_names=None if class_names is None else tuple(str(name) for name in class_names),
        groups=None if groups is None else own_keys("groups", groups),
        ids=None if ids is None else own_keys("ids", ids),
        novelty=novelty,
        attributes=None if attributes is None else _as_table(attributes),
        features=None if features is None else as_floats("features", as_numpy("features", features)),
    )


def _as_table(columns: pa.Table | Mapping[str, Any]) -> pa.Table:
    try:
        return frozen_table(columns if isinstance(columns, pa.Table) else pa.table(columns))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InputError(f"attributes are not columns ({one_line(error)}); allowed: lists by name") from error


def _label_indices(labels: Any, class_names: Sequence[str | int] | None) -> NDArray[np.integer]:
    """Labels as numbers; names are looked up among the class names, as in a file."""
    try:
        array = np.asarray(labels)
    except ValueError:
        return as_labels(labels)  # which says what is wrong
    names = None if class_names is None else [str(name) for name in class_names]
    if array.dtype.kind == "b" and array.ndim == 1 and names is not None and names_true_or_false(set(names)):
        return as_labels(class_indices(pa.chunked_array([pa.array(array)]), names))
    if array.dtype.kind not in "UOT" or not any(isinstance(each, str) for each in array.flat):
        return as_labels(labels)
    if names is None:
        raise InputError("labels are text, and no classes are named; needed: class_names, or class indices")
    if array.ndim != 1:
        raise InputError(f"labels are text of shape {array.shape}; allowed: one name for each row")
    texts = [None if _is_missing(each) else str(each) for each in array.tolist()]
    return as_labels(class_indices(pa.chunked_array([pa.array(texts)]), names))


def _is_missing(label: Any) -> bool:
    """Whether it is None, NaN, or what pandas has instead."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label
