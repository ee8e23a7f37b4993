"""Tallies and outcomes to test with."""

import numpy as np

from surefoot.predictions.outcomes import Outcomes
from surefoot.streaming.accumulate import Request, Shape, accumulate
from surefoot.streaming.cells import ONE, Grid, Histogram
from surefoot.streaming.evaluate import thresholds_of
from surefoot.streaming.outcomes import Batch


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
    return Batch(predictions.logits.numpy()[:, rows], predictions.labels.numpy()[rows])


def tally_of(predictions, metrics=(), versions=(None,), parts=1):
    """The predictions in so many parts, tallied apart and merged."""
    question = Request.of(shape_of(predictions), thresholds_of(metrics), versions)
    found = None
    for rows in np.array_split(np.arange(predictions.n), parts):
        part = accumulate([batch_of(predictions, rows)], question)
        found = part if found is None else found.merged(part)
    return found
