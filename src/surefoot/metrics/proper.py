"""Proper scores: how well the probabilities predict the labels."""

import numpy as np

from surefoot.predictions.outcomes import HasOutcomes

CLIP = (0.001, 0.999)  # the paper's bounds on p(true), so that one confident mistake is not everything


def nll(predictions: HasOutcomes) -> float:
    """Mean of -log p(true), p(true) clipped to [0.001, 0.999] and not renormalised, as in the paper.

    >>> from surefoot import Predictions
    >>> round(nll(Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0])), 4)  # (log 1000 + log 2) / 2
    3.8005
    """
    outcomes = predictions.outcomes
    return outcomes.mean(-np.clip(outcomes.log_p_true, *np.log(CLIP)))


def nll_unclipped(predictions: HasOutcomes) -> float:
    """Mean of -log p(true)."""
    outcomes = predictions.outcomes
    return outcomes.mean(-outcomes.log_p_true)


def brier(predictions: HasOutcomes) -> float:
    """Root of the mean over samples and classes of (p - onehot)^2: what the paper's tables hold.

    >>> from surefoot import Predictions
    >>> round(brier(Predictions.from_probs([[0.8, 0.2], [0.6, 0.4]], [0, 0])), 4)  # sqrt((0.04 + 0.16) / 2)
    0.3162
    """
    outcomes = predictions.outcomes
    return float(np.sqrt(outcomes.mean(outcomes.squared_error)))


def brier_true_class(predictions: HasOutcomes) -> float:
    """Root of the mean of (1 - p(true))^2: the paper's formula. Equal to `brier` for two classes."""
    outcomes = predictions.outcomes
    return float(np.sqrt(outcomes.mean(np.expm1(outcomes.log_p_true) ** 2)))


def entropy(predictions: HasOutcomes) -> float:
    """Mean entropy of the predicted distribution, in nats: the NLL the model itself expects."""
    outcomes = predictions.outcomes
    return outcomes.mean(outcomes.entropy)


def nll_minus_entropy(predictions: HasOutcomes) -> float:
    """NLL less entropy: positive when the model is surer than it should be."""
    return nll(predictions) - entropy(predictions)
