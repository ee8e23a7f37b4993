"""What is familiar, column by column."""

import datetime
import operator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import InputError
from surefoot.lab.tasks.description import parse_conditions, rows_where

TABLE = pa.table(
    {
        "age": pa.array([17, 18, 59, 60, None]),
        "height": pa.array([1.5, 2.0, float("nan"), 1.0, None]),
        "site": pa.array(["x", "y", "x", "z", None]),
        "glasses": pa.array([True, False, None, True, False]),
        "day": pa.array([datetime.date(2020, 1, day) for day in range(1, 5)] + [None]),
        "empty": pa.array([None] * 5),
        "word": pa.array(["NA", " ", "None", "x", "NaN"]),
        "category": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 3]), ["x", "y", None, ""]),
        "instant": pa.array([10**18 + 1, 10**18 + 2, None, 10**9, 1], pa.timestamp("ns")),
        "far": pa.array([2**60] * 5, pa.timestamp("s")),
        "half": pa.array(np.asarray([1, np.nan, 2, 3, 4], np.float16)),
    }
)


@pytest.mark.parametrize(
    ("familiar", "expected"),
    [
        ({"age": {"at_least": 18, "below": 60}}, [0, 1, 1, 0, None]),
        ({"age": {"above": 18, "at_most": 60}}, [0, 0, 1, 1, None]),
        ({"age": {"at_least": 17.5}}, [0, 1, 1, 1, None]),
        ({"age": {"equals": 18.0}}, [0, 1, 0, 0, None]),
        ({"age": {"in": [17, 60]}}, [1, 0, 0, 1, None]),
        ({"age": {"not_in": [17, 60]}}, [0, 1, 1, 0, None]),
        ({"age": {"missing": True}}, [0, 0, 0, 0, 1]),
        ({"age": {"missing": False}}, [1, 1, 1, 1, 0]),
        ({"age": {"missing": False, "at_least": 18}}, [0, 1, 1, 1, 0]),
        ({"height": {"missing": True}}, [0, 0, 1, 0, 1]),
        ({"height": {"at_least": 1}}, [1, 1, None, 1, None]),
        ({"height": {"not_in": [1]}}, [1, 1, None, 0, None]),
        ({"site": {"in": ["x", "z"]}}, [1, 0, 1, 1, None]),
        ({"site": {"not_in": ["x"]}}, [0, 1, 0, 1, None]),
        ({"site": {"equals": "y"}, "age": {"equals": 18}}, [0, 1, 0, 0, None]),
        ({"age": {"missing": False}, "height": {"at_least": 1.5}}, [1, 1, None, 0, None]),
        ({"glasses": {"equals": True}}, [1, 0, None, 1, 0]),
        ({"day": {"above": datetime.date(2020, 1, 2)}}, [0, 0, 1, 1, None]),
        ({"day": {"below": datetime.datetime(2020, 1, 2, 12)}}, [1, 1, 0, 0, None]),
        ({"empty": {"equals": 1}}, [None] * 5),
        ({"empty": {"missing": True}}, [1, 1, 1, 1, 1]),
        ({"word": {"not_in": ["y"]}}, [None, None, None, 1, None]),
        ({"word": {"in": ["NA", "x"]}}, [1, None, None, 1, None]),
        ({"category": {"equals": "x"}}, [1, 0, None, None, None]),
        ({"instant": {"above": datetime.date(2000, 1, 1)}}, [1, 1, None, 0, 0]),
        ({"half": {"above": 1}}, [0, None, 1, 1, 1]),
        ({}, [1, 1, 1, 1, 1]),
    ],
)
def test_conditions_hold_where_they_should(familiar, expected):
    found = rows_where(parse_conditions(familiar), TABLE)
    assert found == [None if each is None else bool(each) for each in expected]


@pytest.mark.parametrize(
    ("familiar", "message"),
    [
        (
            {"age": {"atleast": 18}},
            "familiar.age: unknown operator 'atleast'; have: equals, in, not_in, at_least, at_most, above, below, missing",
        ),
        ({"age": 18}, r"familiar.age is 18; allowed: a table such as { at_least = 18 }"),
        ({"age": {}}, "familiar.age is {}"),
        ({"age": {"in": 18}}, "familiar.age.in is 18; allowed: a list of values"),
        ({"age": {"in": []}}, "allowed: a list of values"),
        ({"age": {"in": [18, "x"]}}, "allowed: values of one type"),
        ({"age": {"at_least": "old"}}, "familiar.age.at_least is 'old'; allowed: a number or a date"),
        ({"age": {"at_least": True}}, "allowed: a number or a date"),
        ({"age": {"at_least": float("nan")}}, "allowed: a number"),
        ({"age": {"missing": "yes"}}, "allowed: true or false"),
        ({"age": {"equals": [1]}}, "allowed: a number, text, a date"),
        (
            {"agee": {"equals": 1}},
            r"familiar.agee: no column 'agee' \(did you mean 'age'\?\); have: age, height, site, glasses, day",
        ),
        (
            {"site": {"at_least": 18}},
            r"familiar.site.at_least is 18, but the column holds text \('x' in row 0\); allowed: numbers, and empty",
        ),
        ({"age": {"equals": "18"}}, r"the column holds numbers \(17 in row 0\)"),
        ({"age": {"equals": True}}, "the column holds numbers"),
        ({"glasses": {"equals": 1}}, "the column holds true or false"),
        ({"day": {"above": 3}}, "the column holds dates"),
        (
            {"far": {"above": datetime.date(2000, 1, 1)}},
            "familiar.far: Casting from timestamp.* out of bounds",
        ),
    ],
)
def test_bad_conditions_are_refused(familiar, message):
    with pytest.raises(InputError, match=message):
        rows_where(parse_conditions(familiar), TABLE)


def test_the_row_that_is_no_number_is_named():
    table = pa.table({"age": ["18", "30", "unknown"]})
    with pytest.raises(InputError, match=r"holds text .'unknown' in row 2."):
        rows_where(parse_conditions({"age": {"at_least": 18}}), table)


ORDER = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
    "equals": operator.eq,
}
numbers = st.integers(-50, 50) | st.floats(-50, 50).map(lambda x: round(x, 1))


@given(st.lists(st.none() | numbers.map(float), min_size=1), st.sampled_from(sorted(ORDER)), numbers)
def test_orderings_are_python_s_and_missing_is_unknown(values, name, limit):
    rows = rows_where(parse_conditions({"x": {name: limit}}), pa.table({"x": pa.array(values, pa.float64())}))
    assert rows == [None if value is None else ORDER[name](value, limit) for value in values]


@given(st.lists(st.none() | st.text(max_size=2), min_size=1), st.lists(st.text(max_size=2), min_size=1))
def test_in_and_not_in_part_what_is_there(values, chosen):
    table = pa.table({"x": pa.array(values, pa.string())})
    inside, outside = (
        rows_where(parse_conditions({"x": {name: chosen}}), table) for name in ("in", "not_in")
    )
    for value, one, other in zip(values, inside, outside, strict=True):
        is_known = value is not None and value.strip() != ""
        assert (one, other) == ((value in chosen, value not in chosen) if is_known else (None, None))
