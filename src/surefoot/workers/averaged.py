"""Networks that are the mean of others' weights."""

import time
from typing import Any

from surefoot.metrics import nll_unclipped
from surefoot.networks.network import Network
from surefoot.predictions.predictions import Predictions
from surefoot.tasks.task import Split
from surefoot.training.data import joined
from surefoot.training.initial import Weights, averaged, mixed, refresh_statistics
from surefoot.training.predict import predict
from surefoot.workers.build import Build, Phase, phases, predictions_of, restored

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the first network to the second


def average_and_predict(build: Build) -> dict[str, Any]:
    """The mean of the teachers' weights, for each phase; and how high the loss rises between two of them."""
    facts: dict[str, Any] = {}
    for phase in phases(build.spec.recipe.protocol, build.context.task):
        states = [build.store.weights(teacher, phase.weights) for teacher in build.spec.needs()]
        if Split.VAL in phase.predicted and len(states) > 1:
            facts["interpolation"] = interpolation(states[:2], phase, build)
        network = _network(averaged(states), phase, build)
        build.draft.save_weights(
            phase.weights, {name: value.detach().cpu() for name, value in network.state_dict().items()}
        )
        for split in phase.predicted:
            start = time.perf_counter()
            said = _said(network, split, build)
            build.draft.log({"predicted": said.n, "prediction_seconds": time.perf_counter() - start})
            build.draft.save_predictions(split, said)
    return facts


def interpolation(states: list[Weights], phase: Phase, build: Build) -> dict[str, Any]:
    """Validation NLL on the line between two networks; the barrier is its height above the ends' own line.

    Frankle et al., ICML 2020.
    """
    losses = []
    for step in STEPS:
        network = _network(mixed(states, [1 - step, step]), phase, build)
        losses.append(nll_unclipped(_said(network, Split.VAL, build)))
    first, last = losses[0], losses[-1]
    above = [loss - ((1 - t) * first + t * last) for loss, t in zip(losses, STEPS, strict=True)]
    return {"at": list(STEPS), "val_nll": losses, "barrier": max(above)}


def _network(weights: Weights, phase: Phase, build: Build) -> Network:
    network = restored(build.spec, weights, build.context)
    inputs = joined([build.context.inputs[split] for split in phase.trained])
    refresh_statistics(network, inputs, build.context.device)
    return network


def _said(network: Network, split: Split, build: Build) -> Predictions:
    logits = predict([network], build.context.inputs[split], build.context.device)
    return predictions_of(logits, build.context.task.splits[split], build.context.task)
