"""Heads: logits from the features of a backbone, and samples of the logits from one backbone pass."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from surefoot.registry import Registry

LEAST_VARIANCE = 1e-6  # keeps the gradient of the square root finite where the softplus underflows
LARGEST_CHUNK = 2**25  # numbers in memory at once while sampling: 128 MiB of float32


class LinearHead(nn.Linear):
    """z = W d + b, where d are the features after dropout (none unless a rate is given)."""

    def __init__(self, width: int, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n, classes); features are dropped in training mode only."""
        return super().forward(self.dropout(features))

    def sample_logits(self, features: Tensor, samples: int, generator: Generator) -> Tensor:
        """Logits (samples, n, classes) that differ by dropout and by noise, in any mode.

        d_s = m_s * f / (1 - p), m_s ~ Bernoulli(1 - p): Monte Carlo dropout at the head alone, so the
        backbone runs once (Gal & Ghahramani, ICML 2016). A sample drops the same features of every row, which
        is a layer with masked weights: (m_s * f) W = f (m_s * W). The generator is on the features' device.
        """
        per_sample = max(1, self.weight.numel(), len(features) * len(self.bias))
        chunk = max(1, LARGEST_CHUNK // per_sample)
        counts = [min(chunk, samples - start) for start in range(0, samples, chunk)]
        return torch.cat([self._sample(features, count, generator) for count in counts])

    def _sample(self, features: Tensor, samples: int, generator: Generator) -> Tensor:
        masks = dropout_masks(features, self.dropout.p, samples, generator)
        return masked_linear(self, features, masks).float().expand(samples, -1, -1)


class GaussianHead(LinearHead):
    """z ~ N(W d + b, softplus(V d + c)): a second head gives each logit's variance.

    Kendall & Gal, "What uncertainties do we need in Bayesian deep learning for computer vision?",
    NeurIPS 2017. They predict log variance; softplus is as positive and cannot overflow.
    """

    def __init__(self, width: int, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, classes, dropout=dropout)
        self.variance = nn.Linear(width, classes)

    def mean_and_variance(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The logits' mean and variance, (n, classes) each; in training mode both see the same dropout."""
        dropped = self.dropout(features)
        mean = F.linear(dropped, self.weight, self.bias).float()
        # float32 also under autocast: a sum of many samples' softmax is made of these
        return mean, positive(self.variance(dropped).float())

    def _sample(self, features: Tensor, samples: int, generator: Generator) -> Tensor:
        masks = dropout_masks(features, self.dropout.p, samples, generator)
        mean = masked_linear(self, features, masks).float()
        variance = positive(masked_linear(self.variance, features, masks).float())
        return add_noise(mean.expand(samples, -1, -1), variance, generator)


def positive(raw: Tensor) -> Tensor:
    """softplus, but at least LEAST_VARIANCE."""
    return F.softplus(raw) + LEAST_VARIANCE


def add_noise(mean: Tensor, variance: Tensor, generator: Generator | None) -> Tensor:
    """mean + sqrt(variance) * e, e ~ N(0, 1) drawn for each element of `mean`.

    For the training loss, expand the mean first: `add_noise(mean.expand(samples, -1, -1), variance, g)`.
    Without a generator torch's own is used, which a captured graph needs.
    """
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + variance.sqrt() * noise


def dropout_masks(features: Tensor, rate: float, samples: int, generator: Generator) -> Tensor:
    """(samples, width) of 0 and 1 / (1 - rate); (1, width) of 1 at a rate of 0."""
    width = features.shape[1]
    if rate == 0:
        return torch.ones(1, width, device=features.device, dtype=features.dtype)
    masks = torch.empty(samples, width, device=features.device, dtype=features.dtype)
    return masks.bernoulli_(1 - rate, generator=generator).div_(1 - rate)


def masked_linear(layer: nn.Linear, features: Tensor, masks: Tensor) -> Tensor:
    """(samples, n, classes): the layer's outputs where each sample masks some of the features."""
    weights = (masks.unsqueeze(1) * layer.weight).flatten(0, 1)  # (samples * classes, width)
    # shape[0] and not len(), which would make the number of rows a constant of an exported graph
    outputs = F.linear(features, weights).reshape(features.shape[0], masks.shape[0], layer.out_features)
    return outputs.transpose(0, 1) + layer.bias


@dataclass(frozen=True)
class HeadKind:
    """A kind of head: built from the width of the features."""

    name: str
    title: str
    formula: str
    reference: str
    build: Callable[..., LinearHead]


HEADS: Registry[HeadKind] = Registry("head", (
    HeadKind("linear", "Linear", "z = W d + b", "Glorot & Bengio, AISTATS 2010", LinearHead),
    HeadKind("gaussian", "Linear with logit variance", "z ~ N(W d + b, softplus(V d + c))",
             "Kendall & Gal, NeurIPS 2017", GaussianHead),
))  # fmt: skip
