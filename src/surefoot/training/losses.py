"""What training minimises, for one label (softmax) and for many (sigmoid; ignored labels left out)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.networks.heads import GaussianHead, add_noise
from surefoot.networks.network import Network
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.logits import average_sigmoid, average_softmax


class Objective(Protocol):
    """A loss, and the part of the network that it looks at."""

    def part(self, network: nn.Module, /) -> nn.Module:
        """What is called on the views; on a GPU it is compiled."""
        ...

    def on(self, device: torch.device, /) -> "Objective":
        """The same, with what it holds on the device that trains."""
        ...

    def __call__(self, said: Any, views: Tensor, rows: Tensor, labels: Tensor, /) -> Tensor:
        """The loss of a batch, from what that part said."""
        ...


@dataclass(frozen=True, eq=False)
class Classification:
    """Cross-entropy with the labels."""

    kind: LabelKind

    def part(self, network: nn.Module) -> nn.Module:
        """The whole network."""
        return network

    def on(self, _device: torch.device) -> "Classification":
        """Holds nothing."""
        return self

    def __call__(self, said: Tensor, _views: Tensor, _rows: Tensor, labels: Tensor) -> Tensor:
        """The mean over labels that are known."""
        return classification_loss(said, labels, self.kind)


@dataclass(frozen=True, eq=False)
class Distillation:
    """tau^2 * CE(q_tau, p_tau) over all rows + w * CE(labels, p) over the labelled ones.

    p is the student, q the teachers' mean probability, both softened: softmax(log q / tau), or for many
    labels the sigmoid of q's log odds / tau. Hinton et al., 2015. The teachers see the very views that the
    student sees, unless their log probabilities for the rows were `seen` before.
    """

    kind: LabelKind
    teachers: Sequence[nn.Module]
    temperature: float
    label_weight: float
    seen: Tensor | None = None  # (rows, classes)

    def part(self, network: nn.Module) -> nn.Module:
        """The whole network."""
        return network

    def on(self, device: torch.device) -> "Distillation":
        """Teachers where the student is."""
        seen = None if self.seen is None else self.seen.to(device)
        return replace(self, teachers=placed(self.teachers, device), seen=seen)

    def __call__(self, said: Tensor, views: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """The two losses of a batch."""
        with torch.no_grad():
            target = taught(self.teachers, views, self.kind) if self.seen is None else self.seen[rows]
        value = distillation_loss(said, target, self.temperature, self.kind)
        return value + self.label_weight * classification_loss(said, labels, self.kind)


@dataclass(frozen=True, eq=False)
class NoisyClassification:
    """-log of the mean probability over samples of the logits, z ~ N(mean, variance).

    Kendall & Gal, NeurIPS 2017, with dropout as the network has it.
    """

    kind: LabelKind
    samples: int

    def part(self, network: nn.Module) -> nn.Module:
        """Features, then the logits' mean and variance."""
        assert isinstance(network, Network)
        return _MeanAndVariance(network)

    def on(self, _device: torch.device) -> "NoisyClassification":
        """Holds nothing."""
        return self

    def __call__(self, said: tuple[Tensor, Tensor], _views: Tensor, _rows: Tensor, labels: Tensor) -> Tensor:
        """The mean over labels that are known; the noise is drawn from torch's own generator."""
        mean, variance = said
        logits = add_noise(mean.expand(self.samples, -1, -1), variance, None)
        return sampled_loss(logits, labels, self.kind)


class _MeanAndVariance(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        head = self.network.head
        assert isinstance(head, GaussianHead)
        return head.mean_and_variance(self.network.features(views))


def placed(teachers: Sequence[nn.Module], device: torch.device) -> list[nn.Module]:
    """Teachers on a device; on a GPU in the layout and the precision that they compute in there."""
    layout: Any = {"device": device, "memory_format": torch.channels_last}
    there = [teacher.to(**layout) for teacher in teachers]
    if device.type == "cuda":
        for teacher in there:
            _halve_products(teacher)
    return there


def taught(teachers: Sequence[nn.Module], views: Tensor, kind: LabelKind) -> Tensor:
    """The log of the teachers' mean probability; for many labels its log odds."""
    average = average_softmax if kind is LabelKind.ONE_LABEL else average_sigmoid
    return average(_ask(teachers, views))


def _ask(teachers: Sequence[nn.Module], views: Tensor) -> Tensor:
    answer = _compiled() if views.is_cuda else _answer
    return torch.stack([answer(teacher, views) for teacher in teachers])


def _answer(teacher: nn.Module, views: Tensor) -> Tensor:
    logits: Tensor = teacher(views)
    return logits.float()


@cache
def _compiled() -> Callable[[nn.Module, Tensor], Tensor]:
    """The same code for every teacher: their weights are what it is given."""
    return cast(Callable[[nn.Module, Tensor], Tensor], torch.compile(_answer, dynamic=False))


def _halve_products(network: nn.Module) -> None:
    """Weights of convolutions and linear layers in bfloat16, to which autocast brings them every step."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.to(torch.bfloat16)


def classification_loss(logits: Tensor, labels: Tensor, kind: LabelKind) -> Tensor:
    """Cross-entropy, or binary cross-entropy per label, averaged over the labels that are not ignored."""
    if kind is LabelKind.ONE_LABEL:
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE)
    return _mean_over_known(_log_likelihood(logits.float(), labels, kind), labels)


def sampled_loss(logits: Tensor, labels: Tensor, kind: LabelKind) -> Tensor:
    """-log mean_s p(label | z_s) for logits (samples, n, classes), taken in log space: sound up to 1e4.

    >>> huge = torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    >>> sampled_loss(huge, torch.tensor([0]), LabelKind.ONE_LABEL)
    tensor(0.6931)
    """
    each = _log_likelihood(logits.float(), labels.expand(len(logits), *labels.shape), kind)
    return _mean_over_known(torch.logsumexp(each, dim=0) - math.log(len(logits)), labels)


def distillation_loss(logits: Tensor, target: Tensor, temperature: float, kind: LabelKind) -> Tensor:
    """tau^2 times the cross-entropy of softened probabilities; `target` are log probabilities or odds."""
    student, teacher = logits.float() / temperature, target.float() / temperature
    if kind is LabelKind.ONE_LABEL:
        value = F.cross_entropy(student, teacher.softmax(dim=1))
    else:
        value = F.binary_cross_entropy_with_logits(student, teacher.sigmoid())
    return temperature**2 * value


def _log_likelihood(logits: Tensor, labels: Tensor, kind: LabelKind) -> Tensor:
    """log p of each label, of the labels' shape; 0 where it is ignored."""
    known = labels >= 0
    if kind is LabelKind.ONE_LABEL:
        each = logits.log_softmax(dim=-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    else:
        each = -F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
    return torch.where(known, each, 0.0)


def _mean_over_known(log_likelihood: Tensor, labels: Tensor) -> Tensor:
    return -log_likelihood.sum() / (labels >= 0).sum().clamp(min=1)
