"""Columns that look like identifiers of persons or sources, whose rows belong into one split."""

import re
from collections import Counter

from surefoot.errors import is_number

PERSONS = (
    "author|client|customer|donor|employee|family|household|identity|individual|mrn|owner|participant|patient|"
    "person|pid|player|proband|pupil|respondent|speaker|student|subject|uid|user|volunteer|who|worker|writer"
)
SOURCES = (
    "account|article|batch|case|centre|center|clinic|clip|cluster|company|device|document|email|file|filename|"
    "firm|group|hospital|machine|plate|recording|school|sensor|sequence|session|site|slide|source|station|study|"
    "thread|track|trip|url|uuid|vehicle|video"
)
NUMBERS = "code|hash|ids?|idx|index|key|name|nr|no|num|number"
CODE = re.compile(r"[a-z][a-z_-]*[0-9][\w-]*", re.IGNORECASE)
FEWEST = 3  # persons
MOST_CATEGORIES = 12  # with more values, a column may be more than a category
MOST_ROWS_OF_A_SOURCE = 100  # for each value
MOST_ROWS_OF_A_CODE = 20


def is_named_like_identifier(name: str, counts: Counter[object]) -> bool:
    """Whether a column's name is that of persons, or that of sources of which there are many.

    `counts` are the rows of each value, without missing ones.

    >>> rows = Counter({"a": 2, "b": 2, "c": 1})
    >>> is_named_like_identifier("PatientID", rows), is_named_like_identifier("patient_age", rows)
    (True, False)
    """
    if len(counts) < FEWEST or not all(map(_may_identify, counts)):
        return False
    words = " ".join(re.findall("[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower()))
    if re.search(rf"(^| )({PERSONS})( ?({NUMBERS}))?$|^ids?$", words):
        return True
    is_source = re.search(rf"(^| )({SOURCES})( ?({NUMBERS}))?$|^(groups|name)$| ids?$", words)
    return is_source is not None and _repeats(counts, MOST_ROWS_OF_A_SOURCE)


def has_codes(counts: Counter[object]) -> bool:
    """Whether the values are many texts of letters and a number, such as p17.

    >>> has_codes(Counter({f"p{i}": 3 for i in range(20)})), has_codes(Counter({i: 3 for i in range(20)}))
    (True, False)
    """
    are_codes = all(isinstance(value, str) and CODE.fullmatch(value) for value in counts)
    return are_codes and _repeats(counts, MOST_ROWS_OF_A_CODE)


def _repeats(counts: Counter[object], most: int) -> bool:
    return len(counts) > MOST_CATEGORIES and len(counts) < counts.total() <= most * len(counts)


def _may_identify(value: object) -> bool:
    """Text or a whole number."""
    return isinstance(value, str) or (is_number(value) and float(str(value)).is_integer())
