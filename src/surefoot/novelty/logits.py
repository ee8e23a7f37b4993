"""Novelty that the logits alone tell. Higher is stranger."""

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.kinds import LabelKind


def energy(logits: Tensor, kind: LabelKind) -> Tensor:
    """-logsumexp(z), for many labels -sum softplus(z), of logits (n, classes), in float64.

    Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020; for many labels Wang et al., "Can
    multi-label classification networks know what they don't know?", NeurIPS 2021.

    >>> energy(torch.tensor([[0.0, 0.0]]), LabelKind.ONE_LABEL)  # -log 2
    tensor([-0.6931], dtype=torch.float64)
    """
    logits = logits.to(torch.float64)
    if kind is LabelKind.ONE_LABEL:
        return -logits.logsumexp(dim=1)
    return -F.softplus(logits).sum(dim=1)


def max_probability(logits: Tensor, kind: LabelKind) -> Tensor:
    """1 - max softmax(z), for many labels the mean of 1 - max(p, 1 - p), in float64.

    Hendrycks & Gimpel, "A baseline for detecting misclassified and out-of-distribution examples in neural
    networks", ICLR 2017.

    >>> max_probability(torch.tensor([[0.0, 0.0]]), LabelKind.ONE_LABEL)
    tensor([0.5000], dtype=torch.float64)
    """
    logits = logits.to(torch.float64)
    if kind is LabelKind.MANY_LABELS:
        return torch.sigmoid(-logits.abs()).mean(dim=1)
    # A sum over the other classes, not a difference from 1: the surest samples must not tie.
    probs = logits.softmax(dim=1)
    return probs.scatter(1, probs.argmax(dim=1, keepdim=True), 0.0).sum(dim=1)
