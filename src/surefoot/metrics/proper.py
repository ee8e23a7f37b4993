"""Proper scores: how well the probabilities predict the labels."""

import numpy as np

from surefoot.predictions.arguments import checked
from surefoot.predictions.outcomes import (
    Array,
    HasOutcomes,
    Outcomes,
    clipped_loss,
    entropy_of,
    loss,
    squared_error,
)


@checked
def nll(predictions: HasOutcomes) -> float:
    """Mean of -log p(true), p(true) clipped to [0.001, 0.999] and not renormalised, as in the paper.

    >>> from surefoot import Predictions
    >>> round(nll(Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0])), 4)  # (log 1000 + log 2) / 2
    3.8005
    """
    return predictions.outcomes.mean_of(clipped_loss)


@checked
def nll_unclipped(predictions: HasOutcomes) -> float:
    """Mean of -log p(true)."""
    return predictions.outcomes.mean_of(loss)


@checked
def brier(predictions: HasOutcomes) -> float:
    """Root of the mean over samples and classes of (p - onehot)^2: as in the paper's tables.

    >>> from surefoot import Predictions
    >>> round(brier(Predictions.from_probs([[0.8, 0.2], [0.6, 0.4]], [0, 0])), 4)  # sqrt((0.04 + 0.16) / 2)
    0.3162
    """
    return float(np.sqrt(predictions.outcomes.mean_of(squared_error)))


@checked
def brier_true_class(predictions: HasOutcomes) -> float:
    """Root of the mean of (1 - p(true))^2: the paper's formula. Equal to `brier` for two classes."""
    return float(np.sqrt(predictions.outcomes.mean_of(true_class_error)))


def true_class_error(decisions: Outcomes) -> Array:
    """(1 - p(true))^2."""
    return np.square(np.expm1(decisions.log_p_true))


@checked
def entropy(predictions: HasOutcomes) -> float:
    """Mean entropy of the predicted distribution, in nats: the NLL the model itself expects."""
    return predictions.outcomes.mean_of(entropy_of)


@checked
def nll_minus_entropy(predictions: HasOutcomes) -> float:
    """NLL less entropy: positive when the model is more confident than it should be."""
    return predictions.outcomes.mean_of(loss_minus_entropy)


def loss_minus_entropy(decisions: Outcomes) -> Array:
    """Clipped -log p(true), less the entropy."""
    return clipped_loss(decisions) - decisions.entropy
