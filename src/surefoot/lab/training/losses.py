"""What training minimises, for one label (softmax) and for many (sigmoid; ignored labels left out)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from surefoot.lab.networks.heads import GaussianHead, add_noise
from surefoot.lab.networks.network import Network
from surefoot.predictions.labels import IGNORE, LabelKind


class Views(Protocol):
    """Where the random numbers of an epoch's views come from."""

    def begin(self, epoch: int, batches: Sequence[Tensor], /) -> Tensor:
        """Those of each batch: (steps, numbers, batch)."""
        ...


class Objective(ABC):
    """A loss, and the part of the network whose outputs it takes."""

    views: Views | None = None  # each epoch's; None: drawn independently

    def part(self, network: nn.Module) -> nn.Module:
        """What is called on the views, by default the whole network; on a GPU it is compiled."""
        return network

    def on(self, _device: torch.device) -> "Objective":
        """The same, its tensors on the device that trains."""
        return self

    @abstractmethod
    def __call__(self, outputs: Any, views: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, from the outputs of that part; `rows` are the samples' positions."""


@dataclass(frozen=True, eq=False)
class Classification(Objective):
    """Cross-entropy with the labels, averaged over those that are known."""

    kind: LabelKind
    smoothing: float = 0.0

    def __call__(self, outputs: Tensor, _views: Tensor, _rows: Tensor, labels: Tensor) -> Tensor:
        """From logits."""
        return classification_loss(outputs, labels, self.kind, self.smoothing)


@dataclass(frozen=True, eq=False)
class Distillation(Objective):
    """tau^2 * CE(q_tau, p_tau) over all rows + w * CE(labels, p) over the labelled ones.

    p is the student, q the teachers' mean probability, both at temperature tau: softmax(log q / tau), or for
    many labels the sigmoid of q's log odds / tau. Hinton et al., 2015.
    """

    kind: LabelKind
    temperature: float
    label_weight: float
    targets: Tensor  # (samples, classes): log q, or its log odds, for this epoch's views
    views: Views | None = None  # sets the targets of each epoch
    smoothing: float = 0.0  # of the labels
    labelled: int | None = None  # the first rows of a batch, a BatchNorm batch of their own; None: all rows

    def part(self, network: nn.Module) -> nn.Module:
        """The network, called once for all rows, or once for the labelled ones and once for the others."""
        return network if self.labelled is None else _InTwoBatches(network, self.labelled)

    def on(self, device: torch.device) -> "Distillation":
        """The targets where the student is."""
        return replace(self, targets=self.targets.to(device))

    def __call__(self, outputs: Tensor, _views: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        """The sum of the two losses, from logits."""
        value = distillation_loss(outputs, self.targets[rows], self.temperature, self.kind)
        return value + self.label_weight * classification_loss(outputs, labels, self.kind, self.smoothing)


class _InTwoBatches(nn.Module):
    """Two passes, so that BatchNorm normalises each batch by its own statistics.

    Only those of the first batch, the labelled samples, are recorded for testing: the second pass updates
    copies of the buffers.
    """

    def __init__(self, network: nn.Module, first: int) -> None:
        super().__init__()
        self.network, self.first = network, first

    def forward(self, views: Tensor) -> Tensor:
        outputs = self.network(views[: self.first])
        copies = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        others = functional_call(self.network, copies, (views[self.first :],))
        return torch.cat([outputs, others])


@dataclass(frozen=True, eq=False)
class NoisyClassification(Objective):
    """-log of the mean probability over samples of the logits, z ~ N(mean, variance).

    Kendall & Gal, NeurIPS 2017, with dropout as the network has it.
    """

    kind: LabelKind
    samples: int
    smoothing: float = 0.0

    def part(self, network: nn.Module) -> nn.Module:
        """Features, then the logits' mean and variance."""
        assert isinstance(network, Network)
        return _MeanAndVariance(network)

    def __call__(
        self, outputs: tuple[Tensor, Tensor], _views: Tensor, _rows: Tensor, labels: Tensor
    ) -> Tensor:
        """From the logits' mean and variance; the noise is drawn from torch's own generator."""
        mean, variance = outputs
        logits = add_noise(mean.expand(self.samples, -1, -1), variance, None)
        return sampled_loss(logits, labels, self.kind, self.smoothing)


class _MeanAndVariance(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        head = self.network.head
        assert isinstance(head, GaussianHead)
        return head.mean_and_variance(self.network.features(views))


def classification_loss(logits: Tensor, labels: Tensor, kind: LabelKind, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy, or binary cross-entropy per label, averaged over the labels that are not ignored.

    Smoothing spreads that share of a label evenly over its values: the classes, or present and absent.
    """
    if kind is LabelKind.ONE_LABEL:
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, label_smoothing=smoothing)
    return sampled_loss(logits.unsqueeze(0), labels, kind, smoothing)


def sampled_loss(logits: Tensor, labels: Tensor, kind: LabelKind, smoothing: float = 0.0) -> Tensor:
    """-log mean_s p(label | z_s) for logits (samples, n, classes), computed in log space.

    >>> huge = torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    >>> sampled_loss(huge, torch.tensor([0]), LabelKind.ONE_LABEL)
    tensor(0.6931)
    """
    logits = logits.float()

    def averaged(labels: Tensor) -> Tensor:
        each = _log_likelihood(logits, labels.expand(len(logits), *labels.shape), kind)
        return torch.logsumexp(each, dim=0) - math.log(len(logits))

    value = averaged(labels)
    if smoothing:
        values = 2 if kind is LabelKind.MANY_LABELS else logits.shape[-1]
        all_values = torch.stack([averaged(torch.full_like(labels, each)) for each in range(values)])
        value = torch.lerp(value, all_values.mean(dim=0), smoothing)
    known = labels >= 0
    return -torch.where(known, value, 0.0).sum() / known.sum().clamp(min=1)


def distillation_loss(logits: Tensor, target: Tensor, temperature: float, kind: LabelKind) -> Tensor:
    """tau^2 times the cross-entropy at temperature tau; `target` are log probabilities or log odds."""
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
