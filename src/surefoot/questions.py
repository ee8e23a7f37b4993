"""The paper's six questions, each as two methods to be set against each other on unfamiliar data."""

from dataclasses import dataclass

from surefoot.methods import METHODS

REFERENCE = "ensemble-of-t"  # the paper's strongest row, which those beyond the paper are set against


@dataclass(frozen=True)
class Question:
    """Does the first method do better than the second?"""

    text: str
    method: str
    other: str
    better: str = "yes"  # the answer where all that is likely is below 0
    same: str = "no: the same"  # where the difference is too small to matter
    level: str = "cannot be told"
    worse: str = "no: worse"


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
        level="a loss cannot be told",
        worse="not all of it",
    ),
    Question("Do unlabelled images help distillation?", "g-distill-t", "distill-t"),
    Question("Does the Bayesian model help?", "bayesian-t", "single-t"),
)

BEYOND = tuple((method.name, REFERENCE) for method in METHODS if method.beyond)
PAIRS = (*((question.method, question.other) for question in QUESTIONS), *BEYOND)
