"""Novelty scores of samples by their networks; a higher score is more novel."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import InputError, refuse_unknown
from surefoot.lab.networks.network import Network
from surefoot.lab.training.augment import channel_spread
from surefoot.lab.training.data import Images, Inputs
from surefoot.lab.training.predict import ROWS_AT_ONCE, evaluating, test_batches
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.novelty import NEIGHBOURS, QUERIES_AT_ONCE, REFERENCES_AT_ONCE
from surefoot.registry import Registry

Array = NDArray[np.float64]
Key = TypeVar("Key", bound=str)

TEMPERATURE = 1000.0
STEP = 0.0014  # of images: in units of the pixel values from 0 to 1; of points: in their own units
ROWS_WITH_GRADIENTS = 64  # a backward pass needs every layer's output


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
    # A sum over the other classes, not a difference from 1: the most confident samples must not tie.
    probs = logits.softmax(dim=1)
    return probs.scatter(1, probs.argmax(dim=1, keepdim=True), 0.0).sum(dim=1)


def neighbour_distances(features: Tensor, reference: Tensor, *, device: torch.device) -> Tensor:
    """Each row's distance to its k-th nearest row of the reference, all scaled to length 1, in float64.

    |a / |a| - r / |r||, k = 50, or all but one of a smaller reference. Sun et al., "Out-of-distribution
    detection with deep nearest neighbors", ICML 2022.
    """
    return _distances(features, reference, None, device)


def distances_within(reference: Tensor, *, device: torch.device) -> Tensor:
    """The same for the reference's own rows; a row is not its own neighbour."""
    return _distances(reference, reference, torch.arange(len(reference)), device)


def _distances(features: Tensor, reference: Tensor, own: Tensor | None, device: torch.device) -> Tensor:
    if len(reference) < 2:
        raise InputError(f"{len(reference)} reference samples; allowed: two or more to be neighbours")
    k = min(NEIGHBOURS, len(reference) - 1)
    parts = []
    for start in range(0, len(features), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        queries = F.normalize(features[part].to(device, torch.float64), dim=1)
        parts.append(_nearest(queries, reference, None if own is None else own[part].to(device), k).cpu())
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def _nearest(queries: Tensor, reference: Tensor, own: Tensor | None, k: int) -> Tensor:
    """The k-th smallest distance, computed over blocks of the reference."""
    best = torch.empty(len(queries), 0, dtype=torch.float64, device=queries.device)
    for start in range(0, len(reference), REFERENCES_AT_ONCE):
        block = reference[start : start + REFERENCES_AT_ONCE]
        rows = F.normalize(block.to(queries.device, torch.float64), dim=1)
        squares = torch.addmm(rows.new_full((1, 1), 2.0), queries, rows.T, alpha=-2.0)
        if own is not None:
            here = torch.arange(start, start + len(rows), device=queries.device)
            squares.masked_fill_(own.unsqueeze(1) == here, torch.inf)
        best = torch.cat([best, squares.topk(min(k, len(rows)), largest=False).values], dim=1)
        best = best.topk(min(k, best.shape[1]), largest=False).values
    return best.amax(dim=1).clamp(min=0).sqrt()


def odin(
    network: nn.Module, inputs: Inputs, *, kind: LabelKind, device: torch.device, eps: float = STEP
) -> Tensor:
    """Minus the ODIN score of each sample, (n,) in float64 on the CPU; the network is not changed.

    S(x) = max softmax(f(x) / 1000); x~ = x - eps / s sign(-grad_x log S(x)); novelty = -S(x~), where s is the
    deviation that each channel of a normalised image was divided by, as in the authors' code, and 1 for
    points. For many labels log S(x) is the mean over labels of log max(p, 1 - p), p = sigmoid(f(x) / 1000),
    and novelty = -log S(x~).

    Liang et al., "Enhancing the reliability of out-of-distribution image detection in neural networks",
    ICLR 2018; for many labels an extension of this package.
    """
    if not (math.isfinite(eps) and eps >= 0):
        raise InputError(f"eps is {eps}; allowed: a number from 0")
    parts = []
    with evaluating([network]), torch.inference_mode(False):
        for batch in test_batches(inputs, device, ROWS_AT_ONCE):
            step = eps / channel_spread(batch) if isinstance(inputs, Images) else eps
            for views in torch.split(batch, ROWS_WITH_GRADIENTS):
                moved = stepped(network, views, kind, step)
                with torch.no_grad():
                    score = log_score(network(moved), kind)
                parts.append((-score.exp() if kind is LabelKind.ONE_LABEL else -score).cpu())
    return torch.cat(parts)


def stepped(network: nn.Module, views: Tensor, kind: LabelKind, step: float | Tensor) -> Tensor:
    """The views with each number moved by `step`, in the direction of higher confidence."""
    with torch.enable_grad():
        leaf = views.detach().clone().requires_grad_()
        # Multiplied by the temperature: the sign is the same, and small gradients do not become 0.
        total = TEMPERATURE * log_score(network(leaf), kind).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    return views.detach() + step * gradient.sign()


def log_score(logits: Tensor, kind: LabelKind) -> Tensor:
    """Log of the score, (n,), in float64: at this temperature scores differ in the fourth digit only."""
    scaled = logits.to(torch.float64) / TEMPERATURE
    if kind is LabelKind.ONE_LABEL:
        return scaled.log_softmax(dim=1).amax(dim=1)
    return F.logsigmoid(scaled.abs()).mean(dim=1)


@dataclass(frozen=True)
class NoveltyScore:
    """A number for how novel a sample is to a network; a higher one is more novel."""

    name: str
    title: str
    formula: str
    reference: str
    from_logits: Callable[[Tensor, LabelKind], Tensor] | None = None  # None: it needs more than the logits


NOVELTY_SCORES: Registry[NoveltyScore] = Registry("novelty score", (
    NoveltyScore("odin", "ODIN", "-S(x - eps/s sign(-grad log S(x))), S = max softmax(f / 1000)",
                 "Liang et al., ICLR 2018"),
    NoveltyScore("energy", "Energy", "-logsumexp(z); many labels: -sum softplus(z)",
                 "Liu et al., NeurIPS 2020", energy),
    NoveltyScore("knn", "Nearest neighbours", "distance to the 50th nearest training feature, all length 1",
                 "Sun et al., ICML 2022"),
    NoveltyScore("max-probability", "Maximum probability", "1 - max p; many labels: mean 1 - max(p, 1 - p)",
                 "Hendrycks & Gimpel, ICLR 2017", max_probability),
))  # fmt: skip


def logits_score(name: str) -> Callable[[Tensor, LabelKind], Tensor]:
    """The function of a score that needs only logits (n, classes)."""
    functions = {each.name: each.from_logits for each in NOVELTY_SCORES if each.from_logits is not None}
    refuse_unknown("novelty score", [name], functions)
    return functions[name]


def novelty_scores(
    network: Network,
    inputs: Mapping[Key, Inputs],
    *,
    reference: Sequence[Key],
    kind: LabelKind,
    device: torch.device,
    names: Sequence[str] | None = None,
    eps: float = STEP,
) -> dict[str, dict[Key, Array]]:
    """The named scores (without names: all) of every set of samples; `reference` names the training sets.

    The network is on the device already, and is not changed.
    """
    scores = [NOVELTY_SCORES.named(name) for name in names] if names is not None else list(NOVELTY_SCORES)
    for name in reference:
        if name not in inputs:
            have = ", ".join(map(str, inputs))
            raise InputError(f"unknown reference set {str(name)!r}; have: {have}")
    needs_features = any(score.name == "knn" for score in scores)
    needs_logits = any(score.from_logits is not None for score in scores)
    if needs_features and not reference:
        raise InputError("no reference set for 'knn'; needed: the sets the network was trained on")
    outputs = {
        key: _outputs(network, samples, device, features=needs_features, logits=needs_logits)
        for key, samples in inputs.items()
    }
    results: dict[str, dict[Key, Array]] = {}
    for score in scores:
        if score.name == "odin":
            values = {key: odin(network, inputs[key], kind=kind, device=device, eps=eps) for key in inputs}
        elif score.name == "knn":
            features = {key: of_set for key, (of_set, _) in outputs.items()}
            values = _set_distances(features, tuple(dict.fromkeys(reference)), device)
        else:
            values = {key: logits_score(score.name)(logits, kind) for key, (_, logits) in outputs.items()}
        results[score.name] = {key: value.numpy() for key, value in values.items()}
    return results


def _outputs(
    network: Network, inputs: Inputs, device: torch.device, *, features: bool, logits: bool
) -> tuple[Tensor, Tensor]:
    """The network's features and logits on the CPU; empty if not needed."""
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    with torch.inference_mode(), evaluating([network]):
        for views in test_batches(inputs, device, ROWS_AT_ONCE) if features or logits else ():
            of_batch = network.features(views) if features else None
            if of_batch is not None:
                parts[0].append(of_batch.flatten(1).float().cpu())
            if logits:
                head = of_batch is not None and network.head_name  # else the logits need a pass of their own
                parts[1].append((network.head(of_batch) if head else network(views)).float().cpu())
    all_features, all_logits = (torch.cat(each) if each else torch.empty(0) for each in parts)
    return all_features, all_logits


def _set_distances(
    features: Mapping[Key, Tensor], reference: Sequence[Key], device: torch.device
) -> dict[Key, Tensor]:
    """Distances of every set to all reference sets together; a sample is not its own neighbour."""
    reference_features = torch.cat([features[key] for key in reference])
    within = distances_within(reference_features, device=device)
    own = dict(zip(reference, torch.split(within, [len(features[key]) for key in reference]), strict=True))
    return {
        key: own[key] if key in own else neighbour_distances(rows, reference_features, device=device)
        for key, rows in features.items()
    }
