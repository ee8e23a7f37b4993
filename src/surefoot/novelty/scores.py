"""Every novelty score by name, and all of them for a network's samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.errors import InputError
from surefoot.kinds import LabelKind
from surefoot.networks import Network
from surefoot.novelty.knn import distances_within, neighbour_distances
from surefoot.novelty.logits import energy, max_probability
from surefoot.novelty.odin import STEP, odin
from surefoot.training.batches import Inputs
from surefoot.training.predict import ROWS_AT_ONCE, batches_seen, evaluating

Key = TypeVar("Key", bound=str)
Array = NDArray[np.float64]


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
    heard = {key: _Heard.of(network, samples, device, names) for key, samples in inputs.items()}
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
class _Heard:
    """What a network said of some samples, on the host: empty where no score asks for it."""

    logits: Tensor
    features: Tensor

    @staticmethod
    def of(network: Network, inputs: Inputs, device: torch.device, names: Sequence[str]) -> "_Heard":
        wants_features, wants_logits = "knn" in names, bool(FROM_LOGITS.keys() & set(names))
        features, logits = [torch.empty(0)], [torch.empty(0)]
        with torch.inference_mode(), evaluating([network]):
            batches = batches_seen(inputs, device, ROWS_AT_ONCE) if wants_features or wants_logits else ()
            for views in batches:
                seen = network.features(views) if wants_features else None
                if seen is not None:
                    features.append(seen.flatten(1).float().cpu())
                if wants_logits:
                    logits.append(_logits(network, views, seen).float().cpu())
        return _Heard(_joined(logits), _joined(features))


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
