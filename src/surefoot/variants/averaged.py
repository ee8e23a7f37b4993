"""Averaged networks: the mean of several networks' weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.recipes.recipe import Teachers
from surefoot.tasks.task import Split
from surefoot.variants.base import Variant

if TYPE_CHECKING:
    from surefoot.networks.network import Network
    from surefoot.variants.build import Build

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

    def produce(self, build: "Build") -> dict[str, Any]:
        """The mean for each phase; and how high the loss is between two of the networks."""
        from surefoot.training.initial import mixed, refresh_statistics

        facts: dict[str, Any] = {}
        for phase in build.phases:
            states = [build.store.weights(teacher, phase.weights) for teacher in build.spec.needs()]
            inputs = build.context.joined(phase.trained)

            def mixture(shares: list[float], states: Any = states, inputs: Any = inputs) -> "Network":
                network = build.context.restored(build.spec, mixed(states[: len(shares)], shares))
                refresh_statistics(network, inputs, build.context.device)
                return network

            if Split.VAL in phase.predicted and len(states) > 1:
                facts["interpolation"] = _interpolation(build, mixture)
            build.save(phase, mixture([1 / len(states)] * len(states)))
        return facts


def _interpolation(build: "Build", mixture: Callable[[list[float]], "Network"]) -> dict[str, Any]:
    """Validation NLL on the line between two networks; the barrier is its height above the ends' own line.

    Frankle et al., ICML 2020.
    """
    from surefoot.metrics import nll_unclipped

    losses = [nll_unclipped(build.predictions(mixture([1 - step, step]), Split.VAL)) for step in STEPS]
    first, last = losses[0], losses[-1]
    above = [loss - ((1 - t) * first + t * last) for loss, t in zip(losses, STEPS, strict=True)]
    return {"at": list(STEPS), "val_nll": losses, "barrier": max(above)}
