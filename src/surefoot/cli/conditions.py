"""Conditions for use in continuous integration: `unfamiliar.e99>0.02`."""

import math
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.scoring import Evaluation

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
PARTS = ("familiar", "unfamiliar", "gap")
ENDS = ("value", "low", "high")
FORM = re.compile(r"\s*(?P<part>\w+)\.(?P<name>[^<>=\s]+)\s*(?P<comparison>>=|<=|>|<)\s*(?P<limit>\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """A side (or the gap), a metric, optionally the interval's low or high end, and a limit."""

    text: str
    part: str
    metric: str
    end: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str) -> "Condition":
        """Read a condition.

        >>> Condition.parse("unfamiliar.error_above_0.9.low > 0.02").metric
        'error_above_0.9'
        """
        found = FORM.fullmatch(text)
        if found is None:
            allowed = "SIDE.METRIC>NUMBER, such as 'unfamiliar.e99>0.02'"
            raise InputError(f"condition {text!r} cannot be read; allowed: {allowed}")
        if found["part"] not in PARTS:
            raise InputError(f"condition {text!r}: unknown side {found['part']!r}; have: {', '.join(PARTS)}")
        metric, _, end = found["name"].rpartition(".")
        if end not in ENDS:
            metric, end = found["name"], "value"
        return Condition(text, found["part"], metric, end, found["comparison"], _limit(text, found["limit"]))

    def require(self, sides: Collection[str]) -> None:
        """Refuse a condition on a side that is not there."""
        if self.part != "familiar" and "unfamiliar" not in sides:
            raise InputError(f"condition {self.text!r} needs an UNFAMILIAR file, and none was given")

    def value(self, evaluation: "Evaluation") -> float:
        """What the evaluation found."""
        scores = evaluation.gap if self.part == "gap" else evaluation.sides[self.part].metrics
        return float(getattr(scores[self.metric], self.end))

    def holds(self, evaluation: "Evaluation") -> bool:
        """Whether it is true; an undefined number is neither above nor below anything."""
        return COMPARISONS[self.comparison](self.value(evaluation), self.limit)


def _limit(text: str, number: str) -> float:
    try:
        limit = float(number)
    except ValueError as error:
        raise InputError(f"condition {text!r}: {number!r} is not a number") from error
    if math.isnan(limit):
        raise InputError(f"condition {text!r}: nothing is above or below {number!r}; allowed: a number")
    return limit
