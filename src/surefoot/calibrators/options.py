"""Options of calibrators, each declared once for the command line, Python, experiments and docs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.errors import InputError, is_number, is_numeric, refuse_unknown, require

SURPLUS = "surplus"  # a budget: what a network gained on a plain one


@dataclass(frozen=True)
class Option:
    """A keyword argument of a calibrator's fit.

    >>> Option("strength", float, 1.0, "how much it does", low=0).read("2.5")
    2.5
    """

    name: str
    type: type  # int, float or str; object: anything, checked by the fit and never read from text
    default: Any  # None: chosen by the fit
    help: str
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()  # that are allowed instead of a number

    @property
    def allowed(self) -> str:
        """The values it may have."""
        if self.type is str:
            return "text" if not self.words else ", ".join(self.words)
        whole = self.type is int
        low, high = ("of at least", "and at most") if whole else ("from", "to")
        ends = [
            f"{word} {end:,}" for word, end in ((low, self.low), (high, self.high)) if abs(end) < math.inf
        ]
        number = " ".join(["a whole number" if whole else "a number", *ends])
        return " or ".join([number, *(repr(word) for word in self.words)])

    @property
    def description(self) -> str:
        """What it does, its values and its default."""
        allowed = "" if self.type is object else f" ({self.allowed})"
        default = "" if self.default is None else f"; {self.default} by default"
        return f"{self.help}{allowed}{default}"

    def check(self, value: Any) -> None:
        """Refuse a value of another type or out of bounds; None stands for the default."""
        if self.type is object or (value is None and self.default is None):
            return
        if isinstance(value, str):
            is_valid = value in self.words or (self.type is str and not self.words)
        else:
            is_kind = is_number(value) and (self.type is float or isinstance(value, int))
            is_valid = self.type is not str and is_kind and self.low <= value <= self.high
            is_valid = is_valid and math.isfinite(value)
        require(is_valid, self.name, value, self.allowed)

    def read(self, text: str) -> Any:
        """The value that a text stands for; `5%` is 0.05."""
        if self.type is object:
            elsewhere = f"--{self.name} of 'surefoot calibrate', or a keyword argument in Python"
            raise InputError(f"{self.name} is not one of the options as NAME=VALUE; allowed: {elsewhere}")
        value: Any = text.strip()
        if self.type is not str and is_numeric(value.removesuffix("%")):
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
            value = int(number) if number.is_integer() and self.type is int else number
        self.check(value)
        return value


def read_options(what: str, texts: Mapping[str, str], options: tuple[Option, ...]) -> dict[str, Any]:
    """The values of options given as text, by name."""
    by_name = {option.name: option for option in options}
    refuse_unknown(what, texts, by_name)
    return {name: by_name[name].read(text) for name, text in texts.items()}


WEIGHTS = Option("weights", object, None, "sample weights: how much each row counts")
REGULARISATION = Option(
    "regularisation",
    float,
    None,
    "strength of the regularisation; by default chosen by cross-validation",
    low=0,
)
BINS = Option("bins", int, 10, "number of bins", low=1, high=1_000_000)
BUDGET = Option("budget", float, 0.02, "how far the NLL may rise above its minimum", low=0, words=(SURPLUS,))
REFERENCE = Option("reference", object, None, "the plain model's predictions of the same rows, for a surplus")
