"""The error for a user's mistake, and the small checks that raise it."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Set
from typing import Any

SHORTEST, LONGEST = 3, 100  # letters of a name that known ones are compared with
SHOWN = 100  # characters of a value
REASON = 500  # characters of another library's error
SENTENCE = 1000  # characters of a message, of which a user's text can be millions
TORCH = ("torch", "safetensors", "h5py", "fsspec")  # what the extra `torch` brings


class InputError(ValueError):
    """Something given to Surefoot cannot be used; the message says what, got and allowed.

    The command line prints it as one sentence and exits with 2. The middle of a very long one is left out.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message), SENTENCE))


def missing_torch(error: BaseException) -> InputError | None:
    """What to install, where the error is that a library of the extra `torch` is not there.

    >>> missing_torch(ModuleNotFoundError("No module named 'torch'", name="torch"))
    InputError("this needs torch, which is not installed: pip install 'surefoot[torch]'")
    """
    if not isinstance(error, ModuleNotFoundError) or error.name not in TORCH:
        return None
    return InputError(f"this needs {error.name}, which is not installed: pip install 'surefoot[torch]'")


def shortened(text: str, most: int) -> str:
    """Text with its middle left out where it is longer.

    >>> shortened("a name of many letters", 16)
    'a n ...  letters'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 5]} ... {text[-half:]}"


class Remark(UserWarning):
    """What a user should know about a result; the command line prints it as a note."""


def remark(sentence: str) -> None:
    """Warn where a user's code called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "surefoot":
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, Remark, stacklevel=level)


def require(holds: bool, what: str, value: object, allowed: str) -> None:
    """Raise unless a condition on a value holds.

    >>> require(0 < 1.5 < 1, "rate", 1.5, "between 0 and 1")
    Traceback (most recent call last):
    surefoot.errors.InputError: rate is 1.5; allowed: between 0 and 1
    """
    if not holds:
        raise InputError(f"{what} is {shown(value)}; allowed: {allowed}")


def shown(value: object) -> str:
    """A value as Python writes it, in one line of limited length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def require_number(what: str, value: Any, is_valid: Callable[[Any], bool], allowed: str) -> None:
    """Raise unless the value is a number (True and False are none) and valid."""
    require(is_number(value) and is_valid(value), what, value, allowed)


def require_whole(what: str, value: Any, least: int, most: float = math.inf) -> None:
    """Raise unless the value is a whole number of at least `least` and at most `most`."""
    allowed = f"a whole number of at least {least}" + ("" if most == math.inf else f" and at most {most:,}")
    require(is_whole(value, least=least) and value <= most, what, value, allowed)


def one_of(what: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless the value is one of those allowed."""
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise InputError(f"{what} is {shown(value)}{near}; allowed: {', '.join(choices)}")


def refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first name that is not known; the known ones are listed in their order, a set sorted.

    >>> refuse_unknown("option", ["color"], ["size", "colour"])
    Traceback (most recent call last):
    surefoot.errors.InputError: unknown option 'color' (did you mean 'colour'?); have: size, colour
    """
    have = sorted(known) if isinstance(known, Set) else list(known)
    among = set(have)
    for name in names:
        if name not in among:
            near = did_you_mean(name, have)
            raise InputError(f"unknown {what} {name!r}{near}; have: {', '.join(have) or 'none'}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question to add to an unknown name where a known one is almost the same, or begins with it.

    >>> did_you_mean("Single_T", ["single", "single-t"]), did_you_mean("x", ["single"])
    (" (did you mean 'single-t'?)", '')
    """
    from difflib import get_close_matches  # here, because most commands need no such help

    plain = {each.casefold().replace("_", "-"): each for each in known}
    given = str(name).casefold().replace("_", "-")[:LONGEST]
    near = get_close_matches(given, plain, n=1, cutoff=0.7)
    near += [each for each in plain if len(given) >= SHORTEST and each.startswith(given)]
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""


def is_number(value: object) -> bool:
    """Whether it is an int or a float; True and False are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numeric(text: str | None) -> bool:
    """Whether a text reads as a number."""
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def is_whole(value: object, *, least: int) -> bool:
    """Whether it is an int of at least that size; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def one_line(error: BaseException) -> str:
    """The reason of another library's error, in one line of limited length."""
    return getattr(error, "strerror", None) or shortened(str(error).strip().split("\n")[0], REASON)


def described(error: BaseException) -> str:
    """The type and the reason of an unexpected error, in one line.

    >>> described(KeyError("a"))
    "KeyError: 'a'"
    """
    try:
        reason = one_line(error)
    except Exception:  # noqa: BLE001 of an error's own text
        reason = ""
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def failed_elsewhere(what: str, traceback: str) -> RuntimeError:
    """The error for an unexpected one in another process, whose traceback goes with it."""
    error = RuntimeError(what)
    error.add_note(traceback)
    return error
