"""Networks that are the mean of others' weights."""

import time
from typing import Any

from surefoot.engines.making import Making, predictions_of, restored
from surefoot.engines.phases import Phase, phases
from surefoot.metrics import nll_unclipped
from surefoot.networks import Network
from surefoot.predictions import Predictions
from surefoot.tasks.base import Split
from surefoot.training.average import Weights, averaged, mixed, refresh_statistics
from surefoot.training.batches import joined
from surefoot.training.predict import predict

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the first network to the second


def average_and_predict(making: Making) -> dict[str, Any]:
    """The mean of the teachers' weights, for each phase; and how high the loss rises between two of them."""
    facts: dict[str, Any] = {}
    for phase in phases(making.spec.recipe.protocol, making.workshop.task):
        states = [making.store.weights(teacher, phase.weights) for teacher in making.spec.needs()]
        if Split.VAL in phase.predicted and len(states) > 1:
            facts["interpolation"] = interpolation(states[:2], phase, making)
        network = _network(averaged(states), phase, making)
        making.draft.save_weights(
            phase.weights, {name: value.detach().cpu() for name, value in network.state_dict().items()}
        )
        for split in phase.predicted:
            start = time.perf_counter()
            said = _said(network, split, making)
            making.draft.log({"predicted": said.n, "prediction_seconds": time.perf_counter() - start})
            making.draft.save_predictions(split, said)
    return facts


def interpolation(states: list[Weights], phase: Phase, making: Making) -> dict[str, Any]:
    """Validation NLL on the line between two networks; the barrier is its height above the ends' own line.

    Frankle et al., ICML 2020.
    """
    losses = []
    for step in STEPS:
        network = _network(mixed(states, [1 - step, step]), phase, making)
        losses.append(nll_unclipped(_said(network, Split.VAL, making)))
    first, last = losses[0], losses[-1]
    above = [loss - ((1 - t) * first + t * last) for loss, t in zip(losses, STEPS, strict=True)]
    return {"at": list(STEPS), "val_nll": losses, "barrier": max(above)}


def _network(weights: Weights, phase: Phase, making: Making) -> Network:
    network = restored(making.spec, weights, making.workshop)
    inputs = joined([making.workshop.inputs[split] for split in phase.trained])
    refresh_statistics(network, inputs, making.workshop.device)
    return network


def _said(network: Network, split: Split, making: Making) -> Predictions:
    logits = predict([network], making.workshop.inputs[split], making.workshop.device)
    return predictions_of(logits, making.workshop.task.splits[split], making.workshop.task)
