"""What training minimises, for one label (softmax) and for many (sigmoid; ignored labels left out)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.combine import average_sigmoid, average_softmax
from surefoot.kinds import IGNORE, LabelKind
from surefoot.networks import GaussianHead, Network, add_noise


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
        layout: Any = {"device": device, "memory_format": torch.channels_last}
        teachers = [teacher.to(**layout) for teacher in self.teachers]
        return replace(self, teachers=teachers, seen=None if self.seen is None else self.seen.to(device))

    def __call__(self, said: Tensor, views: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """The two losses of a batch."""
        with torch.no_grad():
            target = self._ensemble(views) if self.seen is None else self.seen[rows]
        taught = distillation_loss(said, target, self.temperature, self.kind)
        return taught + self.label_weight * classification_loss(said, labels, self.kind)

    def _ensemble(self, views: Tensor) -> Tensor:
        average = average_softmax if self.kind is LabelKind.ONE_LABEL else average_sigmoid
        return average(torch.stack([teacher(views).float() for teacher in self.teachers]))


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
