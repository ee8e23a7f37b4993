"""Label kinds, and whether outputs can come from one classifier. Does not need torch."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from surefoot.errors import InputError

IGNORE = -100  # marks a label that is not known


class LabelKind(StrEnum):
    """One label per row (softmax) or any number of them (sigmoid per class)."""

    ONE_LABEL = "one_label"
    MANY_LABELS = "many_labels"


class ClassifierOutputs(Protocol):
    """What can be answered: of Predictions, or of the shape of those that are streamed."""

    @property
    def kind(self) -> LabelKind: ...

    @property
    def classes(self) -> int: ...

    @property
    def class_names(self) -> tuple[str, ...] | None: ...


def refuse_other_classifier(sides: Mapping[str, ClassifierOutputs]) -> None:
    """Refuse predictions, by the name of their side, that cannot come from the classifier of the first."""
    (first, ours), *others = sides.items()
    for side, theirs in others:
        for what in ("kind", "classes", "class_names"):
            a, b = getattr(ours, what), getattr(theirs, what)
            if a != b and not (what == "class_names" and None in (a, b)):
                name = what.replace("_", " ")
                raise InputError(f"{name} differ: {first} {_short(a)}, {side} {_short(b)}; must be equal")


def _short(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
