"""ODIN: a sample is familiar if a small step of the input can make the network surer."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import InputError
from surefoot.kinds import LabelKind
from surefoot.training.batches import Inputs
from surefoot.training.predict import ROWS_AT_ONCE, batches_seen, evaluating

TEMPERATURE = 1000.0
STEP = 0.0014  # in units of the normalised input
ROWS_WITH_SLOPES = 64  # a backward pass holds every layer's output


def odin(
    network: nn.Module, inputs: Inputs, *, kind: LabelKind, device: torch.device, eps: float = STEP
) -> Tensor:
    """Minus the ODIN score of each sample, (n,) in float64 on the host; the network is left as it was found.

    S(x) = max softmax(f(x) / 1000); x~ = x - eps sign(-grad_x log S(x)); novelty = -S(x~). For many labels
    log S(x) is the mean over labels of log max(p, 1 - p), p = sigmoid(f(x) / 1000), and novelty = -log S(x~).

    Liang et al., "Enhancing the reliability of out-of-distribution image detection in neural networks",
    ICLR 2018; for many labels our own extension.
    """
    if not (math.isfinite(eps) and eps >= 0):
        raise InputError(f"eps is {eps}; allowed: a number from 0")
    with evaluating([network]), torch.inference_mode(False):
        parts = [
            _novelty(network, some, kind, eps).cpu()
            for views in batches_seen(inputs, device, ROWS_AT_ONCE)
            for some in torch.split(views, ROWS_WITH_SLOPES)
        ]
    return torch.cat(parts)


def stepped(network: nn.Module, views: Tensor, kind: LabelKind, eps: float) -> Tensor:
    """The views moved by `eps` in each number, to where the network is surer."""
    with torch.enable_grad():
        leaf = views.detach().clone().requires_grad_()
        # Scaled back up by the temperature: the sign is the same, and no small slope is lost.
        total = TEMPERATURE * log_score(network(leaf), kind).sum()
        (slope,) = torch.autograd.grad(total, leaf)
    return views.detach() + eps * slope.sign()


def log_score(logits: Tensor, kind: LabelKind) -> Tensor:
    """Log of the score, (n,), in float64: at this temperature scores differ in the fourth digit only."""
    cooled = logits.to(torch.float64) / TEMPERATURE
    if kind is LabelKind.ONE_LABEL:
        return cooled.log_softmax(dim=1).amax(dim=1)
    return F.logsigmoid(cooled.abs()).mean(dim=1)


def _novelty(network: nn.Module, views: Tensor, kind: LabelKind, eps: float) -> Tensor:
    moved = stepped(network, views, kind, eps)
    with torch.no_grad():
        score = log_score(network(moved), kind)
    return -score.exp() if kind is LabelKind.ONE_LABEL else -score
