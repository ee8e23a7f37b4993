"""The classes that something was made for, and those of predictions. Does not need torch."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.errors import InputError, remark, shown
from surefoot.predictions.labels import LabelKind, refuse_other_kind, short
from surefoot.predictions.validate import check_class_names

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

Names = tuple[str, ...] | None
Order = tuple[int, ...] | None  # of columns; None: as they are


def class_order(names: Names, given: Names, owner: str) -> Order:
    """Where each of the named classes is among those given by predictions; other classes are refused.

    Where only one side has names, columns are taken in their order, with a remark. `owner` is what was made
    for the named classes.
    """
    if names == given:
        return None
    if names is None or given is None:
        _remark_on_unnamed(names, given, owner)
        return None
    place, known = {name: index for index, name in enumerate(given)}, set(names)
    extra = [name for name in given if name not in known]
    missing = [name for name in names if name not in place]
    if extra or missing:
        what = f"a class {shown(extra[0])}" if extra else f"no class {shown(missing[0])}"
        raise InputError(
            f"the predictions have {what}; the classes of {owner} are {short(names)}, and must be the same"
        )
    return tuple(place[name] for name in names)


def _remark_on_unnamed(names: Names, given: Names, owner: str) -> None:
    """Nothing where the names of the other side are its places."""
    named = names or given or ()
    if named == tuple(map(str, range(len(named)))):
        return
    if given is None:
        remark(f"no class names in the predictions: the order is taken as in {owner}: {short(named)}")
    else:
        remark(f"no class names in {owner}: the order is taken as in the predictions: {short(named)}")


def reordered(predictions: "Predictions", order: Order) -> "Predictions":
    """The same samples with their classes in another order."""
    if order is None:
        return predictions
    labels, names = predictions.labels, predictions.class_names
    if predictions.kind is LabelKind.ONE_LABEL:
        labels = np.where(labels >= 0, np.argsort(order)[np.maximum(labels, 0)], labels)
    else:
        labels = labels[:, list(order)]
    return replace(
        predictions,
        logits=predictions.logits[:, :, list(order)],
        labels=labels,
        class_names=None if names is None else tuple(names[index] for index in order),
    )


def class_names_of(predictions: "Predictions") -> tuple[str, ...]:
    """Their names, or else their places."""
    return predictions.class_names or tuple(str(index) for index in range(predictions.classes))


def class_names_from(document: Mapping[str, Any]) -> Names:
    """The class names in the plain values of a file; None in a file without."""
    names = document.get("class_names")
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError("class_names are not a list of texts; allowed: the names of the classes")
    check_class_names(names)
    return tuple(names)


def unnamed(predictions: "Predictions") -> "Predictions":
    """The same without class names, which does not check them again."""
    if predictions.class_names is None:
        return predictions
    result = copy(predictions)
    object.__setattr__(result, "class_names", None)
    return result


def with_classes(predictions: "Predictions", names: Names, owner: str) -> "Predictions":
    """The predictions with the named classes, in that order; those without names are called so."""
    if names is not None and len(names) != predictions.classes:
        raise InputError(
            f"the predictions have {predictions.classes} classes; those of {owner} are {short(names)}"
        )
    arranged = reordered(predictions, class_order(names, predictions.class_names, owner))
    return arranged if arranged.class_names is not None else replace(arranged, class_names=names)


def in_one_order(sides: Mapping[str, "Predictions"]) -> dict[str, "Predictions"]:
    """Predictions by the name of their source, with their classes in the order of the first."""
    refuse_other_kind(sides)
    (first, expected), *_ = sides.items()
    return {
        name: each if name == first else with_classes(each, expected.class_names, f"{first!r}")
        for name, each in sides.items()
    }
