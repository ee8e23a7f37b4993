"""How strange each sample looks to a network of the store; kept beside it."""

import numpy as np
from numpy.typing import NDArray

from surefoot.engines.making import Workshop, restored
from surefoot.engines.phases import phases
from surefoot.novelty import Scale, fit_scale, novelty_scores
from surefoot.recipes import Spec
from surefoot.store import Store
from surefoot.tasks.base import Split


def score_novelty(spec: Spec, workshop: Workshop, store: Store, names: tuple[str, ...]) -> None:
    """Compute what is missing of the named scores, over all that the network predicts.

    The scale is that of the samples that the very weights were trained on.
    """
    missing = tuple(name for name in names if not has_novelty(spec, store, name))
    if not missing:
        return
    found: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in missing}
    for phase in phases(spec.recipe.protocol, workshop.task):
        network = restored(spec, store.weights(spec, phase.weights), workshop)
        splits = (*phase.trained, *phase.predicted)
        scores = novelty_scores(
            network,
            {str(split): workshop.inputs[split] for split in splits},
            reference=[str(split) for split in phase.trained],
            kind=workshop.task.kind,
            device=workshop.device,
            names=missing,
        )
        for name, by_split in scores.items():
            scale = fit_scale(np.concatenate([by_split[split] for split in phase.trained]))
            for split in phase.predicted:
                found[name][split] = by_split[split]
                found[name][f"{split}_scale"] = np.array([scale.low, scale.high])
    for name, arrays in found.items():
        store.save_beside(spec, _file(name), arrays)


def has_novelty(spec: Spec, store: Store, name: str) -> bool:
    """Whether a network is done and that score of it was kept."""
    return store.has_beside(spec, _file(name))


def stored_novelty(
    spec: Spec, store: Store, name: str, split: Split
) -> tuple[NDArray[np.float64], Scale] | None:
    """A score as computed, and the scale that makes it novelty from 0 to 1; None where it is missing."""
    arrays = store.beside(spec, _file(name))
    if arrays is None or split not in arrays:
        return None
    low, high = arrays[f"{split}_scale"]
    return arrays[split], Scale(float(low), float(high))


def _file(name: str) -> str:
    return f"novelty-{name}"
