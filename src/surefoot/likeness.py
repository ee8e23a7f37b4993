"""Whether answers can come from one classifier. Needs no torch."""

from collections.abc import Mapping
from typing import Any, Protocol

from surefoot.errors import InputError
from surefoot.kinds import LabelKind


class Answers(Protocol):
    """What can be answered: of Predictions, or of the shape of those that are streamed."""

    @property
    def kind(self) -> LabelKind: ...

    @property
    def classes(self) -> int: ...

    @property
    def class_names(self) -> tuple[str, ...] | None: ...


def refuse_unlike(sides: Mapping[str, Answers]) -> None:
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
