"""Label kinds, and whether outputs can come from one classifier. Does not need torch."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from surefoot.errors import InputError

IGNORE = -100  # marks a label that is not known
ONE_HOT = (
    "note: {}: every row has exactly one label, and each class is scored separately (sigmoid); "
    "if the classes exclude each other, give the labels as class indices (softmax)"
)


class LabelKind(StrEnum):
    """One label per row (softmax) or any number of them (sigmoid per class)."""

    ONE_LABEL = "one_label"
    MANY_LABELS = "many_labels"

    @classmethod
    def _missing_(cls, value: object) -> "LabelKind":
        raise InputError(f"kind is {value!r}; allowed: {', '.join(cls)}")


class ClassifierOutputs(Protocol):
    """What Predictions and the shape of streamed predictions have in common."""

    @property
    def kind(self) -> LabelKind: ...

    @property
    def classes(self) -> int: ...

    @property
    def class_names(self) -> tuple[str, ...] | None: ...


def refuse_other_classifier(sides: Mapping[str, ClassifierOutputs]) -> None:
    """Raise if predictions, by the name of their source, cannot come from the same classifier."""
    _refuse_other(sides, "kind", "classes", "class_names")


def refuse_other_kind(sides: Mapping[str, ClassifierOutputs]) -> None:
    """The same, whatever the classes are called."""
    _refuse_other(sides, "kind", "classes")


def _refuse_other(sides: Mapping[str, ClassifierOutputs], *names: str) -> None:
    (first, expected), *others = sides.items()
    for side, outputs in others:
        for name in names:
            a, b = getattr(expected, name), getattr(outputs, name)
            if a != b and not (name == "class_names" and None in (a, b)):
                what = "kinds" if name == "kind" else name.replace("_", " ")
                raise InputError(f"{what} differ: {first} {short(a)}, {side} {short(b)}; must be equal")


def short(value: Any) -> str:
    """Class names, or any other value, in a line of limited length."""
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
