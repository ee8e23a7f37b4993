import pytest

from surefoot.experiments.paper import (
    STUDENTS,
    _complete,
    _entropies,
    paper_choice,
    paper_entropy,
    paper_value,
)
from surefoot.report.study_tables import percent_reduction

# Read from the paper's pages by hand: its first table, in percent, and its complete table.
TABLE_1 = {
    ("gender", "Single + T-scaling"): (12, 26, 2, 4, 0, 0, 73, 20),
    ("gender", "Ensemble of T-scaled models"): (24, 33, 10, 6, 22, 0, 36, 29),
    ("cat-dog", "Ensemble of T-scaled models"): (40, 46, 17, 12, 22, 8, 79, 46),
    ("animals", "Single + T-scaling"): (13, 23, 3, 5, 0, 0, 75, 37),
}
PLACES = [(m, s) for m in ("nll", "brier", "label_error", "ece") for s in ("familiar", "unfamiliar")]


def test_the_tables_are_whole():
    assert len(_complete()) == 5 * 11 * 5 * 2  # settings, methods, metrics, sides
    assert len(_entropies()) == 3 * 3 * 3 * 2  # tasks, methods, metrics, sides


def test_numbers_read_by_hand():
    assert paper_value("resnet18", "gender", "Single Model", "e99", "unfamiliar") == 0.06021
    assert paper_value("resnet18", "cat-dog", "Single Model", "brier", "familiar") == 0.11158
    assert paper_entropy("resnet18", "animals", "Single + T-scaling", "entropy", "unfamiliar") == 0.451
    assert paper_entropy("resnet18", "gender", "Single Model", "nll_minus_entropy", "familiar") == 0.047


@pytest.mark.parametrize(("task", "method"), TABLE_1)
def test_reductions_are_those_of_the_first_table(task, method):
    for (metric, side), percent in zip(PLACES, TABLE_1[task, method], strict=True):
        pair = [paper_value("resnet18", task, row, metric, side) for row in ("Single Model", method)]
        assert percent_reduction(*pair) == f"{percent}%", (metric, side)


# Its first table, read by hand: students are divided by T only where T is 1 or more.
STUDENTS_OF_TABLE_1 = {
    ("gender", "Distill + T-scaling"): (8, 33, 3, 4, 3, -7, 41, 21),
    ("gender", "G-distill + T-scaling"): (13, 38, 5, 6, 9, -5, 31, 31),
    ("cat-dog", "Distill + T-scaling"): (-13, 22, -9, 1, -18, -4, 55, 26),
    ("cat-dog", "G-distill + T-scaling"): (-18, 27, -14, 1, -33, -8, 41, 31),
    ("animals", "Distill + T-scaling"): (7, 24, 1, 5, -1, 0, 66, 45),
    ("animals", "G-distill + T-scaling"): (14, 26, 5, 7, 7, 2, 56, 49),
    ("objects", "Distill + T-scaling"): (-1, 5, 0, 2, 1, 0, -31, 10),
    ("objects", "G-distill + T-scaling"): (-2, 5, -1, 2, -2, -1, -41, 7),
}


@pytest.mark.parametrize(("task", "method"), STUDENTS_OF_TABLE_1)
def test_what_students_are_compared_by_is_in_the_first_table(task, method):
    for (metric, side), percent in zip(PLACES, STUDENTS_OF_TABLE_1[task, method], strict=True):
        single = paper_value("resnet18", task, "Single Model", metric, side)
        assert (
            percent_reduction(single, paper_choice("resnet18", task, method, metric, side)) == f"{percent}%"
        )


def test_other_rows_are_compared_by_themselves():
    for (backbone, task, method, metric, side), value in _complete().items():
        if method not in STUDENTS:
            assert paper_choice(backbone, task, method, metric, side) == value
    assert paper_choice("resnet18", "gender", "Energy", "nll", "familiar") is None


def test_what_the_paper_does_not_say():
    assert paper_value("resnet18", "gender", "Energy", "nll", "familiar") is None
    assert paper_value("resnet18", "gender", None, "nll", "familiar") is None
    assert paper_value("resnet18", "gender", "Single Model", "aurc", "familiar") is None
    assert paper_value("densenet161", "animals", "Single Model", "nll", "familiar") is None
    assert paper_entropy("densenet161", "gender", "Single Model", "entropy", "familiar") is None
    assert paper_entropy("resnet18", "gender", "Ensemble", "entropy", "familiar") is None
    assert paper_entropy("resnet18", "objects", "Single Model", "entropy", "familiar") is None
