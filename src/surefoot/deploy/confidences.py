"""How sure a classifier is of each row, with labels or without; about a thousand rows at a time."""

import numpy as np
import torch

from surefoot.combine import average_sigmoid, average_softmax
from surefoot.judging import chunks
from surefoot.kinds import LabelKind
from surefoot.novelty.logits import energy, max_probability
from surefoot.outcomes import DECIMALS, Array
from surefoot.predictions import Predictions

SPREAD = 1e-6  # an energy that varies by less says nothing: the logits were made from probabilities


def confidences(predictions: Predictions) -> Array:
    """The highest probability of each row; for many labels the mean over classes of max(p, 1 - p).

    >>> confidences(Predictions.from_probs([[0.9, 0.1]], labels=[1]))
    array([0.9])
    """
    average = average_softmax if predictions.kind is LabelKind.ONE_LABEL else average_sigmoid
    unsure = torch.empty(predictions.n, dtype=torch.float64)
    for part, logits in chunks(predictions.logits, average):
        unsure[part] = max_probability(logits, predictions.kind)
    sure: Array = (1 - unsure.numpy()).round(DECIMALS)
    return sure


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged members have lost theirs."""
    total = torch.zeros(predictions.n, dtype=torch.float64)
    for member in predictions.logits:
        for part, logits in chunks(member.unsqueeze(0), lambda one: one[0]):
            total[part] += energy(logits, predictions.kind)
    mean: Array = total.numpy() / predictions.members
    return mean


def tells(score: Array) -> bool:
    """Whether a score varies at all."""
    return bool(np.ptp(score) > SPREAD)
