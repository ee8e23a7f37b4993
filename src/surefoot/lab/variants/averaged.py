"""Averaged networks: the mean of several networks' weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants.base import Variant

if TYPE_CHECKING:
    from surefoot.lab.networks.network import Network
    from surefoot.lab.training.initial import Weights
    from surefoot.lab.variants.build import Build, Phase

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the first network to the second


@dataclass(frozen=True, kw_only=True)
class Averaged(Variant):
    """The mean of several networks' weights: not trained, only its BatchNorm statistics are computed again.

    Wortsman et al., ICML 2022.
    """

    name: ClassVar[str] = "averaged"

    teachers: Teachers

    @property
    def needs(self) -> Teachers:
        """The networks that are averaged."""
        return self.teachers

    def trainings(self, _recipe: Recipe) -> int:
        """Zero: its weights are averaged, not trained."""
        return 0

    def produce(self, build: "Build") -> dict[str, Any]:
        """The mean for each phase; and how high the loss is between two of the networks."""
        facts: dict[str, Any] = {}
        for phase in build.phases:
            states = [build.store.weights(teacher, phase.weights) for teacher in build.spec.needs()]
            if Split.VAL in phase.predicted and len(states) > 1:
                facts["interpolation"] = _interpolation(build, phase, states[:2])
            build.save(phase, _mixture(build, phase, states, [1 / len(states)] * len(states)))
        return facts


def _mixture(build: "Build", phase: "Phase", states: Sequence["Weights"], shares: list[float]) -> "Network":
    """The network with sum_m share_m * w_m for weights, and its own BatchNorm statistics."""
    from surefoot.lab.training.initial import mixed, refresh_statistics

    network = build.context.restored(build.spec, mixed(states, shares))
    refresh_statistics(network, build.context.joined(phase.trained), build.context.device)
    return network


def _interpolation(build: "Build", phase: "Phase", states: Sequence["Weights"]) -> dict[str, Any]:
    """Validation NLL on the line between two networks; the barrier is its height above the ends' own line.

    Frankle et al., ICML 2020.
    """
    from surefoot.metrics import nll_unclipped

    networks = (_mixture(build, phase, states, [1 - step, step]) for step in STEPS)
    losses = [nll_unclipped(build.predictions(network, Split.VAL)) for network in networks]
    first, last = losses[0], losses[-1]
    above = [loss - ((1 - t) * first + t * last) for loss, t in zip(losses, STEPS, strict=True)]
    return {"at": list(STEPS), "val_nll": losses, "barrier": max(above)}
