"""Refuse arguments of another type than a public function declares: its annotations are the only rules."""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union

import numpy as np

from surefoot.errors import InputError, missing_torch, shown

Declared = TypeVar("Declared", bound=Callable[..., Any])

WORDS: Any = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    type(None): "None",
}
PLAIN = (str, int, float, bool, Path)  # shown as they are, not by their type
SOURCES = {  # where values of our types come from
    "Predictions": " (read_predictions, Predictions.from_logits)",
    "ScannedPredictions": " (scan_predictions)",
    "Calibration": " (fit_calibration, load_calibration)",
    "Thresholds": " (choose_thresholds, load_thresholds)",
    "Axes": " of matplotlib",
}


def checked(declared: Declared) -> Declared:
    """Compare the arguments of a function, or of a class's constructor, with their annotations.

    Annotations that cannot be compared, such as protocols and `Any`, allow everything.

    >>> @checked
    ... def draw(times: int, *, names: Sequence[str] = ()) -> None: ...
    >>> draw(2, names="cat")
    Traceback (most recent call last):
    surefoot.errors.InputError: names has type str; allowed: a list of text
    """
    if isinstance(declared, type):
        declared.__init__ = checked(declared.__init__)  # type: ignore[misc]
        return declared
    signature = inspect.signature(declared)
    right: set[tuple[object, ...]] = set()  # calls with arguments of these types, whatever their values are

    def compared(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as declared."""
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            return given, named  # Python says what is wrong, with the function's name
        arguments, hints = bound.arguments, _hints(declared)
        values = {name: value for name, value in arguments.items() if name in hints}
        for name, value in values.items():
            arguments[name] = _as_declared(value, hints[name])
            _require(name, arguments[name], hints[name])
        if all(value is arguments[name] and _is_known_by_type(value) for name, value in values.items()):
            right.add(_types(given, named))
        return bound.args, bound.kwargs

    @wraps(declared)
    def call(*given: Any, **named: Any) -> Any:
        if _types(given, named) not in right:
            given, named = compared(given, named)
        try:
            return declared(*given, **named)
        except InputError as error:
            if isinstance(error.__cause__, InputError | OSError):  # whose words are in the sentence
                error.__cause__ = None
            raise
        except ModuleNotFoundError as error:
            if missing := missing_torch(error):
                raise missing from None
            raise

    return typing.cast("Declared", call)


def _is_known_by_type(value: object) -> bool:
    """Whether every value of its type is allowed if this one is."""
    return isinstance(value, StrEnum) or not isinstance(value, str | Sequence | Mapping)


def _types(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, ...]:
    return (*map(type, given), *((name, type(value)) for name, value in named.items()))


def _as_declared(value: Any, hint: Any) -> Any:
    """A number of numpy as Python's, an array as a list, and text as an enumeration's, as declared."""
    if isinstance(value, str):
        enumerations = (each for each in _options(hint) if _is_enumeration(each))
        return next((each(value) for each in enumerations), value)
    package = type(value).__module__.partition(".")[0]
    has_list = package in ("numpy", "pandas") and hasattr(value, "tolist")
    if has_list and any(typing.get_origin(option) is Sequence for option in _options(hint)):
        return value.tolist()
    is_scalar = package == "numpy" and not getattr(value, "shape", True)
    return (
        value.item()
        if is_scalar and any(option in (int, float, bool) for option in _options(hint))
        else value
    )


def is_tensor(values: Any) -> bool:
    """Whether it is a tensor of torch, which is not imported to find out."""
    return any(
        (of.__module__.split(".")[0], of.__name__) == ("torch", "Tensor") for of in type(values).__mro__
    )


def _require(name: str, value: object, hint: Any) -> None:
    arrays = (option for option in _options(hint) if (typing.get_origin(option) or option) is np.ndarray)
    if is_tensor(value) and any(arrays):
        return  # it becomes an array where it is used
    for where, wrong, allowed in _mistakes(name, value, hint):
        raise InputError(f"{where} {_shown(wrong, allowed)}; allowed: {_described(allowed)}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the arguments; those of names that are only imported for type checkers, by name."""
    if function in _RESOLVED:
        return _RESOLVED[function]
    hints, names = {}, _PublicNames()
    for name, annotation in function.__annotations__.items():
        if name == "return":
            continue
        hints[name] = annotation
        if isinstance(annotation, str):
            try:
                hints[name] = eval(annotation, vars(inspect.getmodule(function)), names)
            except NameError:
                hints[name] = Any
    if names.all_loaded:
        _RESOLVED[function] = hints
    return hints


_RESOLVED: dict[Callable[..., Any], dict[str, Any]] = {}


class _PublicNames(dict[str, Any]):
    """Public names of the package. Nothing is imported: of a type that is not loaded there are no values."""

    all_loaded = True

    def __missing__(self, name: str) -> Any:
        package = sys.modules["surefoot"]
        if name not in package.__all__:
            raise KeyError(name)
        if package._HOMES[name] in sys.modules:
            return getattr(package, name)
        self.all_loaded = False
        return type(name, (), {})


def _mistakes(where: str, value: object, hint: Any) -> Iterator[tuple[str, object, Any]]:
    """Where a value is not what is allowed: the place, the value there, and what is allowed there."""
    inside = []
    for option in _options(hint):
        if _fits(value, option):
            wrong = next(_mistakes_inside(where, value, option), None)
            if wrong is None:
                return
            inside.append(wrong)
    yield inside[0] if inside else (where, value, hint)


def _mistakes_inside(where: str, value: Any, option: Any) -> Iterator[tuple[str, object, Any]]:
    container, items = typing.get_origin(option), typing.get_args(option)
    if container is Mapping or container is dict:
        for key, each in value.items():
            yield from _mistakes(f"{where}[{key!r}]", each, items[1])
    elif container is Sequence or container is list or (container is tuple and items[1:] == (...,)):
        for place, each in enumerate(value):
            yield from _mistakes(f"{where}[{place}]", each, items[0])


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _fits(value: object, option: Any) -> bool:
    """Whether a value is of a type, whatever it contains."""
    kind = typing.get_origin(option) or option
    if option is None or kind is type(None):
        return value is None
    if kind is Path:
        return isinstance(value, PathLike)
    if kind is int or kind is float:
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind is Sequence and isinstance(value, str | bytes):
        return False  # not a list of letters
    try:
        return isinstance(value, kind)
    except TypeError:  # `Any`, or a protocol that is only for type checkers
        return True


def _shown(value: object, hint: Any) -> str:
    if value is None or (isinstance(value, PLAIN) and any(option in PLAIN for option in _options(hint))):
        return f"is {shown(value)}"
    reason = getattr(value, "sentence", None)  # of an `Unreachable`
    return f"has type {type(value).__name__}" + (f" ({reason})" if isinstance(reason, str) else "")


def _described(hint: Any) -> str:
    """What is allowed, in words."""
    text = " or ".join(_alternatives(hint))
    for name, source in SOURCES.items():  # said once
        first, _, rest = text.partition(name + source)
        text = first + name + source + rest.replace(name + source, name) if source in text else text
    return text


def _alternatives(hint: Any) -> list[str]:
    """Each that is allowed: text is a path where paths are, and a word of an enumeration where it is."""
    options = _options(hint)
    implied = any(each is Path or _is_enumeration(each) for each in options)
    return list(dict.fromkeys(_described_one(each) for each in options if each is not str or not implied))


def _described_one(option: Any) -> str:
    container, items = typing.get_origin(option), typing.get_args(option)
    if container is Mapping or container is dict:
        return "a dict" + ("" if items[1] is Any else f" of {_described(items[1])}")
    if container in (Sequence, list, tuple):
        inside = "paths" if Path in _options(items[0]) else _described(items[0])
        return "a list" + ("" if items[0] is Any else f" of {inside}")
    if container is Iterable:
        return "an iterable"
    if container is Callable or option is Callable:
        return "a function"
    if _is_enumeration(option):
        return " or ".join(repr(str(each)) for each in option)
    name = getattr(container or option, "__name__", str(option))
    name = "Predictions" if name in ("HasOutcomes", "Ranked") else name
    return str(WORDS.get(option, name + SOURCES.get(name, "")))


def _is_enumeration(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, StrEnum)
