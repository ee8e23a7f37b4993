"""Mergeable tallies: the same metrics over what does not fit in memory. Numpy alone."""

from surefoot.tally.cells import Grid, Histogram
from surefoot.tally.counting import Question, Shape, Tally, tally
from surefoot.tally.finish import evaluation_of, thresholds_of
from surefoot.tally.judge import Batch, Scaling
from surefoot.tally.view import View, worst_bound

__all__ = [
    "Batch",
    "Grid",
    "Histogram",
    "Question",
    "Scaling",
    "Shape",
    "Tally",
    "View",
    "evaluation_of",
    "tally",
    "thresholds_of",
    "worst_bound",
]
