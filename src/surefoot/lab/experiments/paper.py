"""The paper's numbers and its six questions."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from surefoot.lab.experiments.methods import METHODS

REFERENCE = "ensemble-of-t"  # the paper's strongest method; methods not in the paper are compared with it


@dataclass(frozen=True)
class Question:
    """Does the first method do better than the second?"""

    text: str
    method: str
    other: str
    better: str = "yes"  # the answer where the interval is below 0
    same: str = "no: negligible difference"  # where the difference is too small to matter
    worse: str = "no: worse"  # where the interval is above 0


QUESTIONS = (
    Question("Does T from familiar data help?", "single-t", "single"),
    Question("Does novelty scaling beat T?", "novelty", "single-t"),
    Question("Do ensembles help?", "ensemble-of-t", "single-t"),
    Question(
        "Does distillation keep it?",
        "distill-t",
        "ensemble-of-t",
        better="yes, and more",
        same="yes",
        worse="not all of it",
    ),
    Question("Do unlabelled images help distillation?", "g-distill-t", "distill-t"),
    Question("Does the Bayesian model help?", "bayesian-t", "single-t"),
)

ENSEMBLES = (REFERENCE, "t-of-ensemble")  # T before averaging, and after it
# Both ensembles with each other and with one network; students with both ensembles.
ENSEMBLE_PAIRS = (
    ENSEMBLES[::-1],
    *((ensemble, "single-t") for ensemble in ENSEMBLES),
    *(
        (f"{student}{t}", each)
        for student in ("distill", "g-distill")
        for t in ("", "-t")
        for each in ENSEMBLES
    ),
)
NOT_IN_PAPER = tuple((method.name, REFERENCE) for method in METHODS if method.not_in_paper)
PAIRS = tuple(
    dict.fromkeys(
        [*((question.method, question.other) for question in QUESTIONS), *ENSEMBLE_PAIRS, *NOT_IN_PAPER]
    )
)

PAPER = Path(__file__).parent / "paper_tables"
ENTROPY_ROWS = {  # the complete table's name of a row -> the entropy table's
    "Single Model": "Single",
    "Single + T-scaling": "Sin. T-scale",
    "Ensemble of T-scaled models": "Ens. T-scale",
}
STUDENTS = {"Distill + T-scaling": "Distill", "G-distill + T-scaling": "G-distill"}
ENTROPY_BACKBONE = "resnet18"
PAPER_TASKS = ("gender", "cat-dog", "animals", "objects")


def paper_value(backbone: str, task: str, method: str | None, metric: str, side: str) -> float | None:
    """The number in the complete tables, by the row's name there; None where there is none.

    >>> paper_value("resnet18", "gender", "Single + T-scaling", "nll", "unfamiliar")
    0.39971
    """
    return _complete().get((backbone, task, method or "", metric, side))


def paper_choice(backbone: str, task: str, method: str | None, metric: str, side: str) -> float | None:
    """The number that the paper compares by (its Table 1): T scales students only where T is at least 1.

    The complete tables scale them everywhere and do not give T. It is inferred: T below 1 sharpens, which
    raises the unfamiliar NLL.

    >>> paper_choice("resnet18", "gender", "Distill + T-scaling", "nll", "unfamiliar")
    0.36426
    """
    plain = STUDENTS.get(method or "")
    before, after = (paper_value(backbone, task, row, "nll", "unfamiliar") for row in (plain, method))
    sharpened = before is not None and after is not None and before < after
    return paper_value(backbone, task, plain if sharpened else method, metric, side)


def paper_entropy(backbone: str, task: str, method: str | None, metric: str, side: str) -> float | None:
    """The number in the table of entropies (nll, entropy, nll_minus_entropy), by the complete table's rows.

    >>> paper_entropy("resnet18", "cat-dog", "Ensemble of T-scaled models", "nll_minus_entropy", "familiar")
    -0.007
    """
    if backbone != ENTROPY_BACKBONE:
        return None
    return _entropies().get((task, ENTROPY_ROWS.get(method or "", ""), metric, side))


@cache
def _complete() -> Mapping[tuple[str, ...], float]:
    return _read("results.csv", ("backbone", "task", "method", "metric", "split"))


@cache
def _entropies() -> Mapping[tuple[str, ...], float]:
    return _read("entropy.csv", ("task", "method", "metric", "split"))


def _read(name: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    with (PAPER / name).open(encoding="utf-8", newline="") as lines:
        return {tuple(row[key] for key in keys): float(row["value"]) for row in csv.DictReader(lines)}
