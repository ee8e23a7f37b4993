"""Novelty scores of samples: higher is more novel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import InputError
from surefoot.networks.network import Network
from surefoot.predictions.labels import LabelKind
from surefoot.training.data import Inputs
from surefoot.training.predict import ROWS_AT_ONCE, evaluating, test_batches


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


NEIGHBOURS = 50
QUERIES_AT_ONCE = 1024
REFERENCES_AT_ONCE = 16_384  # with the above, 128 MiB of distances in float64


def neighbour_distances(features: Tensor, reference: Tensor, *, device: torch.device) -> Tensor:
    """Each row's distance to its k-th nearest row of the reference, all scaled to length 1, in float64.

    |a / |a| - r / |r||, k = 50, or all but one of a smaller reference. Sun et al., "Out-of-distribution
    detection with deep nearest neighbors", ICML 2022.
    """
    return _distances(features, reference, None, device)


def distances_within(reference: Tensor, *, device: torch.device) -> Tensor:
    """The same for the reference's own rows: none is its own neighbour."""
    return _distances(reference, reference, torch.arange(len(reference)), device)


def _distances(features: Tensor, reference: Tensor, own: Tensor | None, device: torch.device) -> Tensor:
    if len(reference) < 2:
        raise InputError(f"{len(reference)} reference samples; allowed: two or more to be neighbours")
    k = min(NEIGHBOURS, len(reference) - 1)
    parts = []
    for start in range(0, len(features), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        queries = _of_length_one(features[part], device)
        nearest = _nearest(queries, reference, None if own is None else own[part].to(device), k)
        parts.append(nearest.cpu())
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def _nearest(queries: Tensor, reference: Tensor, own: Tensor | None, k: int) -> Tensor:
    """The k-th smallest distance, over the reference some rows at a time."""
    best = torch.empty(len(queries), 0, dtype=torch.float64, device=queries.device)
    for start in range(0, len(reference), REFERENCES_AT_ONCE):
        rows = _of_length_one(reference[start : start + REFERENCES_AT_ONCE], queries.device)
        squares = torch.addmm(rows.new_full((1, 1), 2.0), queries, rows.T, alpha=-2.0)
        if own is not None:
            here = torch.arange(start, start + len(rows), device=queries.device)
            squares.masked_fill_(own.unsqueeze(1) == here, torch.inf)
        best = torch.cat([best, squares.topk(min(k, len(rows)), largest=False).values], dim=1)
        best = best.topk(min(k, best.shape[1]), largest=False).values
    return best.amax(dim=1).clamp(min=0).sqrt()


def _of_length_one(features: Tensor, device: torch.device) -> Tensor:
    return F.normalize(features.to(device, torch.float64), dim=1)


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
            for views in test_batches(inputs, device, ROWS_AT_ONCE)
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


Array = NDArray[np.float64]
PERCENTILES = (5, 95)


@dataclass(frozen=True)
class Scale:
    """A line from `low` at 0 to `high` at 1, clipped to these; all 0 where the two are equal.

    >>> Scale(2.0, 4.0)([1, 2, 3, 9])
    array([0. , 0. , 0.5, 1. ])
    """

    low: float
    high: float

    def __call__(self, scores: ArrayLike) -> Array:
        """The scores between 0 and 1."""
        values = np.asarray(scores, dtype=np.float64)
        if self.high == self.low:
            return np.zeros_like(values)
        return (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)


def fit_scale(reference_scores: ArrayLike) -> Scale:
    """The 5th percentile of the training samples' novelty at 0, the 95th at 1 (Li & Hoiem, CVPR 2020)."""
    scores = np.asarray(reference_scores, dtype=np.float64)
    if scores.size == 0 or not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).sum())
        raise InputError(
            f"{scores.size} reference scores, {wrong} not finite; allowed: one or more finite numbers"
        )
    low, high = np.percentile(scores, PERCENTILES)
    return Scale(float(low), float(high))


def auroc(familiar_scores: ArrayLike, unfamiliar_scores: ArrayLike) -> float:
    """P(novelty of an unfamiliar sample > of a familiar one), ties count half; NaN where a side is empty.

    (sum of the unfamiliar's ranks - m (m + 1) / 2) / (n m). Mann & Whitney 1947.

    >>> auroc([0.1, 0.2], [0.2, 0.9])
    0.875
    """
    familiar, unfamiliar = (np.asarray(s, dtype=np.float64) for s in (familiar_scores, unfamiliar_scores))
    n, m = len(familiar), len(unfamiliar)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([familiar, unfamiliar]))
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))


Key = TypeVar("Key", bound=str)


@dataclass(frozen=True)
class NoveltyScore:
    """A number for how strange a sample is to a network; higher is stranger."""

    name: str
    title: str
    formula: str
    reference: str


NOVELTY_SCORES: tuple[NoveltyScore, ...] = (
    NoveltyScore("odin", "ODIN", "-S(x - eps sign(-grad log S(x))), S = max softmax(f / 1000)",
                 "Liang et al., ICLR 2018"),
    NoveltyScore("energy", "Energy", "-logsumexp(z); many labels: -sum softplus(z)",
                 "Liu et al., NeurIPS 2020"),
    NoveltyScore("knn", "Nearest neighbours", "distance to the 50th nearest training feature, all length 1",
                 "Sun et al., ICML 2022"),
    NoveltyScore("max-probability", "Maximum probability", "1 - max p; many labels: mean 1 - max(p, 1 - p)",
                 "Hendrycks & Gimpel, ICLR 2017"),
)  # fmt: skip
NAMES = tuple(score.name for score in NOVELTY_SCORES)
FROM_LOGITS = {"energy": energy, "max-probability": max_probability}


def novelty_scores(
    network: Network,
    inputs: Mapping[Key, Inputs],
    *,
    reference: Sequence[Key],
    kind: LabelKind,
    device: torch.device,
    names: Sequence[str] = NAMES,
    eps: float = STEP,
) -> dict[str, dict[Key, Array]]:
    """The named scores of every set of samples; `reference` names the sets the network was trained on.

    The network is on the device already, and is left exactly as it was found.
    """
    _check(names, NAMES, "novelty score")
    _check(reference, tuple(inputs), "reference set")
    reference = tuple(dict.fromkeys(reference))
    if "knn" in names and not reference:
        raise InputError("no reference set for 'knn'; needed: the sets the network was trained on")
    heard = {key: _Collector.of(network, samples, device, names) for key, samples in inputs.items()}
    found: dict[str, dict[Key, Array]] = {}
    for name in names:
        if name == "odin":
            values = {key: odin(network, inputs[key], kind=kind, device=device, eps=eps) for key in inputs}
        elif name == "knn":
            values = _neighbours({key: each.features for key, each in heard.items()}, reference, device)
        else:
            values = {key: FROM_LOGITS[name](each.logits, kind) for key, each in heard.items()}
        found[name] = {key: value.numpy() for key, value in values.items()}
    return found


@dataclass(frozen=True, eq=False)
class _Collector:
    """What a network said of some samples, on the host: empty where no score asks for it."""

    logits: Tensor
    features: Tensor

    @staticmethod
    def of(network: Network, inputs: Inputs, device: torch.device, names: Sequence[str]) -> "_Collector":
        wants_features, wants_logits = "knn" in names, bool(FROM_LOGITS.keys() & set(names))
        features, logits = [torch.empty(0)], [torch.empty(0)]
        with torch.inference_mode(), evaluating([network]):
            batches = test_batches(inputs, device, ROWS_AT_ONCE) if wants_features or wants_logits else ()
            for views in batches:
                seen = network.features(views) if wants_features else None
                if seen is not None:
                    features.append(seen.flatten(1).float().cpu())
                if wants_logits:
                    logits.append(_logits(network, views, seen).float().cpu())
        return _Collector(_joined(logits), _joined(features))


def _logits(network: Network, views: Tensor, features: Tensor | None) -> Tensor:
    """From the features where they are there and the network's head is known, else from the views."""
    if features is None or not network.head_name:
        return network(views)  # type: ignore[no-any-return]
    return network.head(features)  # type: ignore[no-any-return]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts[1:]) if len(parts) > 1 else parts[0]


def _neighbours(
    features: Mapping[Key, Tensor], reference: Sequence[Key], device: torch.device
) -> dict[Key, Tensor]:
    """Distances of every set; the reference sets' own are taken together, each sample without itself."""
    together = torch.cat([features[key] for key in reference])
    within = distances_within(together, device=device)
    own = dict(zip(reference, torch.split(within, [len(features[key]) for key in reference]), strict=True))
    return {
        key: own[key] if key in own else neighbour_distances(rows, together, device=device)
        for key, rows in features.items()
    }


def _check(names: Sequence[str], have: Sequence[str], what: str) -> None:
    for name in names:
        if name not in have:
            raise InputError(f"unknown {what} {str(name)!r}; have: {', '.join(map(str, have))}")
