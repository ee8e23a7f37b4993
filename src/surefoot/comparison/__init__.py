"""Methods side by side over runs: means, the paper's test, and the sounder paired bootstrap over images."""

from surefoot.comparison.changes import Change, changes
from surefoot.comparison.compared import BASELINE, DECIDING, HEADLINE, compare
from surefoot.comparison.scores import (
    comparison_from_scores,
    read_scores,
    scores_text,
    write_scores,
)
from surefoot.comparison.values import (
    Cell,
    Comparison,
    Difference,
    Mark,
    MethodRuns,
    MethodScores,
    RunScore,
    Said,
)

__all__ = [
    "BASELINE",
    "DECIDING",
    "HEADLINE",
    "Cell",
    "Change",
    "Comparison",
    "Difference",
    "Mark",
    "MethodRuns",
    "MethodScores",
    "RunScore",
    "Said",
    "changes",
    "compare",
    "comparison_from_scores",
    "read_scores",
    "scores_text",
    "write_scores",
]
