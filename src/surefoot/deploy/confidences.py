"""How sure a classifier is of each row, with labels or without."""

import numpy as np
from numpy.typing import NDArray

from surefoot.novelty.logits import energy, max_probability
from surefoot.outcomes import DECIMALS, Array
from surefoot.predictions import Predictions

SPREAD = 1e-6  # an energy that varies by less says nothing: the logits were made from probabilities


def confidences(predictions: Predictions) -> Array:
    """The highest probability of each row; for many labels the mean over classes of max(p, 1 - p).

    >>> confidences(Predictions.from_probs([[0.9, 0.1]], labels=[1]))
    array([0.9])
    """
    unsure = max_probability(predictions.average().logits[0], predictions.kind).numpy()
    sure: Array = (1 - unsure).round(DECIMALS)
    return sure


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged members have lost theirs."""
    each = [energy(logits, predictions.kind).numpy() for logits in predictions.logits]
    return np.mean(each, axis=0)  # type: ignore[no-any-return]


def tells(score: NDArray[np.float64]) -> bool:
    """Whether a score varies at all."""
    return bool(np.ptp(score) > SPREAD)
