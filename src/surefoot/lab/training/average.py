"""The average over members as torch operations, for training and for deployed graphs."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.predictions.labels import LabelKind


def average_softmax(logits: Tensor) -> Tensor:
    """Log of the members' mean softmax probability.

    log p(k) = logsumexp_m(log softmax(z_m)_k) - log M, for logits of shape (members, n, classes).

    >>> average_softmax(torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    if len(logits) == 1:
        return logits[0]
    return torch.logsumexp(F.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


def average_sigmoid(logits: Tensor) -> Tensor:
    """Log odds of the members' mean sigmoid probability.

    >>> average_sigmoid(torch.tensor([[[3.0]], [[-3.0]]]))
    tensor([[0.]])
    """
    if len(logits) == 1:
        return logits[0]
    log_p = torch.logsumexp(F.logsigmoid(logits), dim=0)
    log_not_p = torch.logsumexp(F.logsigmoid(-logits), dim=0)
    return log_p - log_not_p


def average_members(logits: Tensor, kind: LabelKind) -> Tensor:
    """The average of that kind: log probabilities for one label, log odds for many."""
    return (average_softmax if kind is LabelKind.ONE_LABEL else average_sigmoid)(logits)
