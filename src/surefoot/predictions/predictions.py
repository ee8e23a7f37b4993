"""A classifier's outputs with the true labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.errors import InputError
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.logits import (
    average_sigmoid,
    average_softmax,
    many_label_outcomes,
    one_label_outcomes,
)
from surefoot.predictions.outcomes import Outcomes
from surefoot.predictions.validate import (
    as_float,
    as_keys,
    as_labels,
    check_class_names,
    check_length,
    check_logits,
    check_many_labels,
    check_one_label,
    check_probability_range,
    check_probability_sums,
    first_not_finite,
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of one or more members and the true labels. Always logits: `from_probs` takes their log.

    Metrics read several members as an ensemble, by the mean of their probabilities.

    >>> Predictions.from_probs([[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    Predictions(one_label, members=1, n=2, classes=2)
    """

    logits: Tensor  # (members, n, classes), float32 or float64
    labels: Tensor  # (n,) class index, or (n, classes) 0 / 1; IGNORE where unknown
    kind: LabelKind
    class_names: tuple[str, ...] | None = None
    groups: NDArray[Any] | None = None  # (n,) text or whole numbers: what samples belong together
    ids: NDArray[Any] | None = None  # (n,) text or whole numbers
    novelty: Tensor | None = None  # (n,) float64, higher is stranger
    attributes: pa.Table | None = None  # any further columns, n rows

    def __post_init__(self) -> None:
        check_logits(self.logits)
        check_labels = check_one_label if self.kind is LabelKind.ONE_LABEL else check_many_labels
        check_labels(self.labels, self.n, self.classes)
        check_class_names(self.class_names, self.classes)
        for name in ("groups", "ids", "novelty", "attributes"):
            check_length(name, getattr(self, name), self.n)
        if self.novelty is not None and not torch.isfinite(self.novelty).all():
            raise InputError(f"novelty holds {first_not_finite(self.novelty)}; allowed: finite numbers")

    @staticmethod
    def from_logits(logits: Any, labels: Any, **optional: Any) -> "Predictions":
        """From logits of shape (n, classes) or (members, n, classes); (n,) or a last axis of 1 is binary.

        `labels` of shape (n,) are class indices; of shape (n, classes) they are 0 / 1 / -100 (ignored), and
        the logits are then one sigmoid each. Labels that are not known are None, with `kind` said instead.
        Optional: class_names, groups, ids, novelty, attributes.

        >>> Predictions.from_logits([1.5, -0.5], labels=[1, 0]).logits  # one logit: the log odds of class 1
        tensor([[[ 0.0000,  1.5000],
                 [ 0.0000, -0.5000]]], dtype=torch.float64)
        """
        return _build(as_float("logits", logits), labels, **optional)

    @staticmethod
    def from_probs(probs: Any, labels: Any, **optional: Any) -> "Predictions":
        """From probabilities, shaped and labelled as in `from_logits`.

        A probability of exactly 0 has no logarithm; it is read as the smallest positive normal number of
        its type (1.2e-38 for float32, 2.2e-308 for float64).
        """
        given = as_float("probs", probs)
        check_probability_range(given)
        given = _with_members(given)
        if given.shape[2] == 1 or _kind_of(labels, optional.get("kind")) is LabelKind.MANY_LABELS:
            return _build(_log_odds(given), labels, **optional)
        check_probability_sums(given)
        return _build(given.clamp(min=torch.finfo(given.dtype).tiny).log_(), labels, **optional)

    @property
    def members(self) -> int:
        return self.logits.shape[0]

    @property
    def n(self) -> int:
        return self.logits.shape[1]

    @property
    def classes(self) -> int:
        return self.logits.shape[2]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Predictions({self.kind}, members={self.members}, n={self.n}, classes={self.classes})"

    @cached_property
    def outcomes(self) -> Outcomes:
        """What the metrics read, computed on first use."""
        judge = one_label_outcomes if self.kind is LabelKind.ONE_LABEL else many_label_outcomes
        return judge(self.logits, self.labels)

    def average(self) -> "Predictions":
        """One member whose probabilities are the mean of all members'."""
        if self.members == 1:
            return self
        average = average_softmax if self.kind is LabelKind.ONE_LABEL else average_sigmoid
        return self.with_logits(average(self.logits).unsqueeze(0))

    def member(self, index: int) -> "Predictions":
        """One member alone."""
        return self.with_logits(self.logits[index : index + 1])

    def with_logits(self, logits: Tensor) -> "Predictions":
        """The same samples under other logits."""
        return replace(self, logits=logits)

    def probs(self) -> Tensor:
        """Probabilities (n, classes) in float64: softmax, or sigmoid per class, averaged over members."""
        logits = self.average().logits[0].to(torch.float64)
        return logits.softmax(dim=1) if self.kind is LabelKind.ONE_LABEL else logits.sigmoid()

    def always_one_label(self) -> bool:
        """Whether labels of the many-label kind look like one-hot ones."""
        if self.kind is LabelKind.ONE_LABEL:
            return False
        return bool(((self.labels == 1).sum(dim=1) == 1).all() and (self.labels >= 0).all())

    def take(self, rows: Any) -> "Predictions":
        """The named rows, by index, by mask or by slice."""
        index = np.arange(self.n)[rows if isinstance(rows, slice) else np.asarray(rows)]
        rows_of = torch.from_numpy(index)
        return replace(
            self,
            logits=self.logits[:, rows_of],
            labels=self.labels[rows_of],
            groups=None if self.groups is None else self.groups[index],
            ids=None if self.ids is None else self.ids[index],
            novelty=None if self.novelty is None else self.novelty[rows_of],
            attributes=None if self.attributes is None else self.attributes.take(index),
        )

    def of_class(self, name: str) -> "Predictions":
        """One class of many labels by itself: is it there or not, as predictions of one label."""
        names = self.class_names or tuple(str(index) for index in range(self.classes))
        if self.kind is LabelKind.ONE_LABEL:
            raise InputError(f"class {name!r} by itself needs many labels; got one label a row")
        if name not in names:
            raise InputError(f"unknown class {name!r}; have: {', '.join(names)}")
        at = names.index(name)
        return replace(
            self,
            logits=_two_logits(self.logits[:, :, at : at + 1]),
            labels=self.labels[:, at].to(torch.int64),
            kind=LabelKind.ONE_LABEL,
            class_names=(f"not {name}", name),
        )

    def grouped_by(self, column: str) -> "Predictions":
        """The same predictions with an attribute column as groups."""
        if column == "groups" and self.groups is not None:
            return self
        have = [] if self.attributes is None else self.attributes.column_names
        if column not in have:
            raise InputError(f"unknown column {column!r}; have: {', '.join(have) or 'no attributes'}")
        assert self.attributes is not None
        values = self.attributes[column]
        if values.null_count:
            raise InputError(
                f"column {column!r} is empty in {values.null_count} rows; every row needs a group"
            )
        return replace(self, groups=as_keys(f"column {column!r}", values.to_pylist()))


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """The rows of all parts, one after another; groups and novelty where every part has them."""
    first = parts[0]
    groups = [part.groups for part in parts if part.groups is not None]
    novelty = [part.novelty for part in parts if part.novelty is not None]
    return Predictions(
        logits=torch.cat([part.logits for part in parts], dim=1),
        labels=torch.cat([part.labels for part in parts]),
        kind=first.kind,
        class_names=first.class_names,
        groups=np.concatenate(groups) if len(groups) == len(parts) else None,
        novelty=torch.cat(novelty) if len(novelty) == len(parts) else None,
    )


def _build(
    logits: Tensor,
    labels: Any,
    *,
    kind: LabelKind | None = None,
    class_names: Sequence[str] | None = None,
    groups: Any = None,
    ids: Any = None,
    novelty: Any = None,
    attributes: pa.Table | Mapping[str, Any] | None = None,
) -> Predictions:
    logits = _with_members(logits)
    if logits.shape[2] == 1 and np.ndim(labels) == 2 and np.shape(labels)[1] == 1:
        labels = as_labels(labels).squeeze(1)  # one logit and one label a row, each in a column of its own
    kind = _kind_of(labels, kind)
    if logits.shape[2] == 1 and kind is LabelKind.ONE_LABEL:
        logits = _two_logits(logits)
    return Predictions(
        logits=logits,
        labels=_unknown_labels(logits, kind) if labels is None else as_labels(labels),
        kind=kind,
        class_names=None if class_names is None else tuple(str(name) for name in class_names),
        groups=None if groups is None else as_keys("groups", groups),
        ids=None if ids is None else as_keys("ids", ids),
        novelty=None if novelty is None else as_float("novelty", novelty).to(torch.float64),
        attributes=pa.table(attributes) if isinstance(attributes, Mapping) else attributes,
    )


def _kind_of(labels: Any, kind: LabelKind | None) -> LabelKind:
    """The shape of the labels says it; where there are none, the caller must."""
    if labels is None:
        if kind is None:
            raise InputError("no labels and no kind; allowed: labels, or kind=one_label or many_labels")
        return LabelKind(kind)
    shaped = LabelKind.MANY_LABELS if np.ndim(labels) == 2 else LabelKind.ONE_LABEL
    if kind is not None and kind is not shaped:
        raise InputError(f"labels of {np.ndim(labels)} dimensions are {shaped}, but kind is {kind}")
    return shaped


def _unknown_labels(logits: Tensor, kind: LabelKind) -> Tensor:
    shape = logits.shape[1:2] if kind is LabelKind.ONE_LABEL else logits.shape[1:]
    return torch.full(shape, IGNORE, dtype=torch.int64 if kind is LabelKind.ONE_LABEL else torch.int8)


def _two_logits(log_odds: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(log_odds), log_odds], dim=2)


def _log_odds(probs: Tensor) -> Tensor:
    tiny = torch.finfo(probs.dtype).tiny
    return probs.clamp(min=tiny).log() - (1 - probs).clamp(min=tiny).log()


def _with_members(logits: Tensor) -> Tensor:
    if logits.ndim == 1:
        return logits.reshape(1, -1, 1)
    if logits.ndim == 2:
        return logits.unsqueeze(0)
    if logits.ndim == 3:
        return logits
    shape = tuple(logits.shape)
    raise InputError(f"logits or probs have shape {shape}; allowed: (n, classes) or (members, n, classes)")
