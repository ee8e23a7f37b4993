"""Conditions for use in continuous integration: `unfamiliar.e99>0.02`."""

import operator
import re
from collections.abc import Callable
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
FORM = re.compile(
    r"\s*(?P<part>\w+)\.(?P<metric>[a-z]\w*)(\.(?P<end>\w+))?\s*(?P<comparison>>=|<=|>|<)\s*(?P<limit>\S+)\s*"
)


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

        >>> Condition.parse("unfamiliar.e99.low > 0.02").limit
        0.02
        """
        found = FORM.fullmatch(text)
        allowed = "SIDE.METRIC>NUMBER, such as 'unfamiliar.e99>0.02'"
        if found is None:
            raise InputError(f"condition {text!r} cannot be read; allowed: {allowed}")
        if found["part"] not in PARTS:
            raise InputError(f"condition {text!r}: unknown side {found['part']!r}; have: {', '.join(PARTS)}")
        end = found["end"] or "value"
        if end not in ("value", "low", "high"):
            raise InputError(f"condition {text!r}: unknown end {end!r}; have: value, low, high")
        try:
            limit = float(found["limit"])
        except ValueError as error:
            raise InputError(f"condition {text!r}: {found['limit']!r} is not a number") from error
        return Condition(text, found["part"], found["metric"], end, found["comparison"], limit)

    def value(self, evaluation: "Evaluation") -> float:
        """What the evaluation found."""
        if self.part == "gap":
            scores = evaluation.gap
        else:
            scores = evaluation.sides[self.part].metrics if self.part in evaluation.sides else {}
        if not scores:
            raise InputError(f"condition {self.text!r} needs an UNFAMILIAR file, and none was given")
        return float(getattr(scores[self.metric], self.end))

    def holds(self, evaluation: "Evaluation") -> bool:
        """Whether it is true; an undefined number is neither above nor below anything."""
        return COMPARISONS[self.comparison](self.value(evaluation), self.limit)
