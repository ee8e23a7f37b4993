"""Accumulators and outcomes to test with."""

import numpy as np

from surefoot.metrics.accumulate import Request, accumulate
from surefoot.metrics.cells import Grid, Histogram
from surefoot.predictions.outcomes import ONE, Outcomes
from surefoot.predictions.readers import Batch, Shape


def outcomes_of(confidence, correct):
    """What the in-memory metrics read, from confidences alone."""
    n = len(confidence)
    nothing = np.zeros(n)
    rounded = np.asarray(confidence, dtype=float).round(12)
    return Outcomes(nothing, nothing, rounded, np.asarray(correct), nothing, np.arange(n), (slice(0, n),))


def histogram_of(confidence, correct, grid=None):
    """The same decisions in cells."""
    found = Histogram.empty(grid or Grid.of(1), 1)
    found.add(0, ONE - np.rint(np.asarray(confidence, dtype=float) * ONE), ~np.asarray(correct))
    return found


def shape_of(predictions):
    return Shape(predictions.kind, predictions.classes, predictions.members)


def batch_of(predictions, rows=slice(None)):
    return Batch(predictions.logits[:, rows], predictions.labels[rows])


def accumulated(predictions, metrics=(), versions=(None,), parts=1):
    """The predictions in so many parts, accumulated apart and merged."""
    request = Request.of(shape_of(predictions), metrics, versions)
    result = None
    for rows in np.array_split(np.arange(predictions.n), parts):
        part = accumulate([batch_of(predictions, rows)], request)
        result = part if result is None else result.merged(part)
    return result
