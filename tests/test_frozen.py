"""What the commands say today, they say tomorrow: numbers, keys and structure against golden files.

Where a change is wanted, `python -m tests.frozen.make` writes them anew, and git shows what it was.
"""

import pytest

from tests.frozen.cases import CASES
from tests.frozen.files import GOLDEN, differences, load, path_of
from tests.frozen.inputs import write_inputs

SHOWN = 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_nothing_has_changed(case, inputs, tmp_path):
    found = list(differences(load(case), case(inputs, tmp_path)))
    assert not found, "\n".join([f"{len(found)} differences", *found[:SHOWN]])


def test_every_golden_file_has_its_case_and_they_are_small():
    files = sorted(GOLDEN.iterdir())
    assert files == sorted(path_of(case) for case in CASES)
    assert sum(file.stat().st_size for file in files) < 400_000


def test_differences_are_found():
    golden = {"a": 1.0, "b": [1, 2], "c": "x", "d": None, "e": True}
    assert not list(differences(golden, {**golden, "a": 1 + 1e-8}))
    for changed in ({"a": 1.00001}, {"b": [1]}, {"b": [1, 3]}, {"c": "y"}, {"d": 0}, {"e": 1}, {"f": 1}):
        assert list(differences(golden, {**golden, **changed})), changed
    assert list(differences(golden, dict(reversed(golden.items()))))
