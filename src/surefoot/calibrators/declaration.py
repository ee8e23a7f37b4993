"""What a calibrator declares, once for Python, the command line, the estimator, experiments and docs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.calibrators.calibration import Calibration, for_any_data
from surefoot.errors import InputError, is_number, is_numeric, refuse_unknown, require
from surefoot.predictions.arguments import checked

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

OF_ROWS = (object, Path)  # types of options that the fit checks, and that are never read from a text


@dataclass(frozen=True)
class Option:
    """A keyword argument of a calibrator's fit.

    >>> Option("strength", float, 1.0, "how much it does", low=0).read("2.5")
    2.5
    """

    name: str
    type: type  # int, float or str; Path: predictions, in a file; object: of the rows, or their column
    default: Any  # None: chosen by the fit
    help: str
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()  # that are allowed instead of a number
    shown_default: str = ""  # where that is not its value

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
        allowed = "" if self.type in OF_ROWS else f" ({self.allowed})"
        default = self.default_text
        return f"{self.help}{allowed}" + (f"; {default} by default" if default else "")

    @property
    def default_text(self) -> str:
        """The default in words; empty where there is none."""
        return self.shown_default or ("" if self.default is None else str(self.default))

    def check(self, value: Any) -> None:
        """Refuse a value of another type or out of bounds; None stands for the default."""
        if self.type in OF_ROWS or (value is None and self.default is None):
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
        if self.type in OF_ROWS:
            elsewhere = f"--{self.name} of 'surefoot calibrate', or a keyword argument in Python"
            raise InputError(f"{self.name} is not one of the options as NAME=VALUE; allowed: {elsewhere}")
        value: Any = text.strip()
        if self.type is not str and is_numeric(value.removesuffix("%")):
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
            value = int(number) if number.is_integer() and self.type is int else number
        self.check(value)
        return value


@dataclass(frozen=True)
class Share(Option):
    """A number as a share; as a text 0.05 or 5%.

    >>> Share("budget", float, 0.02, "how far the NLL may rise").read("5%")
    0.05
    """

    def read(self, text: str) -> Any:
        """The share; a number above 1 more likely means a percentage, and is refused."""
        if text in self.words:
            return text
        number = text.removesuffix("%")
        share = float(number) / (1 if number == text else 100) if is_numeric(number) else math.nan
        allowed = ", or ".join(["a percentage such as 5%, a share from 0 to 1 such as 0.05", *self.words])
        require(0 <= share < math.inf and (share <= 1 or number != text), self.name, text, allowed)
        return share


def read_options(what: str, texts: Mapping[str, str], options: tuple[Option, ...]) -> dict[str, Any]:
    """The values of options given as text, by name."""
    by_name = {option.name: option for option in options}
    refuse_unknown(what, texts, by_name)
    return {name: by_name[name].read(text) for name, text in texts.items()}


@checked
@dataclass(frozen=True)
class Calibrator:
    """A way to fit a calibration, and to read what was saved."""

    name: str
    title: str
    formula: str
    reference: str
    _: KW_ONLY
    kind: str  # of its calibrations, in files
    fit: Callable[..., Calibration]  # of Predictions, and of `options` by name
    read: Callable[[dict[str, Any]], Calibration]  # `from_dict` of its class
    options: tuple[Option, ...] = ()  # the keyword arguments that `fit` takes
    one_label_only: bool = False  # whether it needs classes that exclude each other
    one_model: bool = True  # whether the logits of one model are enough: no novelty, no members

    @property
    def option_names(self) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(option.name for option in self.options)

    def fitted(self, val: "Predictions", **options: Any) -> Calibration:
        """`fit`, where probabilities may be exactly 0; the calibration knows the names of the classes."""
        refuse_unknown(f"option of method {self.name}:", options, self.option_names)
        for option in self.options:
            options.setdefault(option.name, option.default)
            option.check(options[option.name])
        return for_any_data(self.fit)(val, **options)
