"""Building one network: its trainings, its weights and its predictions, each written once."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.errors import InputError
from surefoot.lab.networks.network import Network
from surefoot.lab.recipes.recipe import Protocol, Recipe, Spec
from surefoot.lab.store.draft import Draft
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.lab.training.data import Inputs, joined
from surefoot.lab.training.initial import drawn_network, initial_network
from surefoot.lab.training.loop import Hooks, Progress, Unlabelled, train
from surefoot.lab.training.predict import predict
from surefoot.lab.variants.base import Variant, variant_of
from surefoot.predictions.predictions import Predictions
from surefoot.runtime import derive_seed

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@dataclass(frozen=True)
class Phase:
    """Train on some splits, then predict others."""

    name: str
    trained: tuple[Split, ...]
    predicted: tuple[Split, ...]
    weights: str = "weights"  # the name of its weights file

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it writes."""
        return (f"{self.weights}.safetensors", *(f"{split}.npz" for split in self.predicted))


def phases(protocol: Protocol, task: Task) -> tuple[Phase, ...]:
    """The paper's two trainings, or one that never sees val."""
    if Split.VAL not in task.splits:
        raise InputError(f"task {task.name!r} has no val split; needed: one, to calibrate on")
    tested = tuple(split for split in TESTED if split in task.splits)
    if protocol is not Protocol.PAPER:
        predicted = (Split.VAL,) if protocol is Protocol.SEARCH else (Split.VAL, *tested)
        return (Phase("train", (Split.TRAIN,), predicted),)
    return (
        Phase("train", (Split.TRAIN,), (Split.VAL,), "weights_train"),
        Phase("final", (Split.TRAIN, Split.VAL), tested),
    )


@dataclass(frozen=True, eq=False)
class TaskContext:
    """The task, its samples, a device, pretrained weights."""

    task: Task
    inputs: Mapping[Split, Inputs]
    device: torch.device
    weights: Path | None = None

    def joined(self, splits: Sequence[Split]) -> Inputs:
        """The samples of several splits, in this order."""
        return joined([self.inputs[split] for split in splits])

    def for_recipe(self, recipe: Recipe) -> "TaskContext":
        """With the recipe's own augmentation and unlabelled samples: networks of one order may differ."""
        inputs = {split: each.for_recipe(recipe) for split, each in self.inputs.items()}
        if (rows := variant_of(recipe).unlabelled_rows(self.task)) is None or not rows.any():
            return replace(self, inputs=inputs)
        unlabelled = self.task.splits[Split.UNLABELLED].take(rows)
        inputs[Split.UNLABELLED] = inputs[Split.UNLABELLED].take(torch.from_numpy(np.flatnonzero(rows)))
        task = replace(self.task, splits={**self.task.splits, Split.UNLABELLED: unlabelled})
        return replace(self, task=task, inputs=inputs)

    def restored(self, spec: Spec, weights: dict[str, Tensor]) -> Network:
        """A network with these weights, on the device, in evaluation mode, without gradients."""
        network = drawn_network(spec.recipe, self.task, self.inputs, seed=spec.seed)
        network.load_state_dict(weights)
        for parameter in network.parameters():
            parameter.requires_grad = False
        return network.to(self.device).eval()


@dataclass(frozen=True)
class Listener:
    """Receives progress and the report on pretrained weights, and decides when to stop."""

    progress: Callable[[str, Progress], None] = lambda _phase, _progress: None
    weights: Callable[[str], None] = lambda _: None
    must_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class Build:
    """One network that is being built."""

    spec: Spec
    context: TaskContext
    store: Store
    draft: Draft
    listener: Listener

    @property
    def variant(self) -> Variant:
        """The variant of its recipe."""
        return variant_of(self.spec.recipe)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Its trainings."""
        return phases(self.spec.recipe.protocol, self.context.task)

    def teachers(self, phase: Phase) -> list[Network]:
        """The networks that it needs, with the weights of the same phase."""
        return [
            self.context.restored(teacher, self.store.weights(teacher, phase.weights))
            for teacher in self.spec.needs()
        ]

    def train_and_predict(self) -> None:
        """Every phase that is not complete yet."""
        task, variant = self.context.task, self.variant
        if variant.unlabelled_share and Split.UNLABELLED not in task.splits:
            raise InputError(
                f"task {task.name!r} has no unlabelled samples; needed for this {variant.name} network"
            )
        for phase in self.phases:
            if all(self.draft.has(file) for file in phase.files):
                continue
            started = time.time()
            splits = (*phase.trained, *((Split.UNLABELLED,) if variant.unlabelled_share else ()))
            labels = np.concatenate([task.splits[split].labels for split in splits])
            training = Training(self, phase, self.context.joined(splits), labels, splits)
            _reset_peak_memory(self.context.device)
            network = training.trained_network()
            memory = {"training_memory": _peak_memory(self.context.device)}
            self.save(phase, network)
            self.draft.log({"phase": phase.name, "trained_and_predicted": time.time() - started, **memory})

    def save(self, phase: Phase, network: Network) -> None:
        """The weights and predictions of a phase, to the draft."""
        weights = {name: value.detach().cpu() for name, value in network.state_dict().items()}
        self.draft.save_weights(phase.weights, weights)
        for split in phase.predicted:
            _reset_peak_memory(self.context.device)
            started = time.perf_counter()
            predictions = self.predictions(network, split)
            seconds = time.perf_counter() - started
            memory = _peak_memory(self.context.device)
            self.draft.log(
                {"predicted": predictions.n, "prediction_seconds": seconds, "prediction_memory": memory}
            )
            self.draft.save_predictions(split, predictions)

    def predictions(self, network: Network, split: Split) -> Predictions:
        """A network's predictions for a split."""
        return self.predict(network, split, self.context.inputs[split], self.context.task.splits[split])

    def predict(self, network: Network, purpose: str, inputs: Inputs, samples: Samples) -> Predictions:
        """A network's logits for some samples, with all that is known of these."""
        predictor = self.variant.predictor(self, purpose)
        return Predictions.from_logits(
            predict([network], inputs, self.context.device, predictor=predictor),
            np.asarray(samples.labels),
            class_names=self.context.task.class_names,
            groups=samples.groups,
            ids=samples.ids,
        )


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    """The most bytes allocated on a GPU at once since the reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


@dataclass(frozen=True, eq=False)
class Training:
    """One training of a network that is being built: the samples, and their labels."""

    build: Build
    phase: Phase
    inputs: Inputs
    labels: NDArray[np.int64]
    splits: tuple[Split, ...] = ()  # from which the inputs come, the unlabelled one last

    @property
    def task(self) -> Task:
        """Of the build."""
        return self.build.context.task

    @property
    def recipe(self) -> Recipe:
        """Of the build."""
        return self.build.spec.recipe

    @property
    def device(self) -> torch.device:
        """Of the build."""
        return self.build.context.device

    @cached_property
    def seed(self) -> int:
        """The seed of everything random in this training."""
        seed = self.build.spec.seed
        return derive_seed(self.task.training_identity, self.recipe.digest, seed, self.phase.name)

    def trained_network(self) -> Network:
        """A network from its initial weights to its last epoch, or from its checkpoint."""
        build, context, phase = self.build, self.build.context, self.phase.name
        objective = build.variant.objective(self)
        unlabelled = None
        if Split.UNLABELLED in self.splits:
            rows = len(self.task.splits[Split.UNLABELLED])
            unlabelled = Unlabelled(rows, build.variant.unlabelled_share)
        network = initial_network(
            self.recipe,
            self.task,
            context.inputs,
            seed=build.spec.seed,
            weights=context.weights,
            on_weights=lambda report: build.listener.weights(report.sentence()),
        )

        def on_progress(progress: Progress) -> None:
            build.draft.log({"phase": phase, **vars(progress), "at": time.time()})
            build.listener.progress(phase, progress)

        train(
            network,
            self.inputs,
            torch.from_numpy(self.labels),
            objective,
            self.recipe,
            seed=self.seed,
            device=self.device,
            hooks=Hooks(on_progress, partial(build.draft.save_checkpoint, phase), build.listener.must_stop),
            checkpoint=build.draft.checkpoint(phase),
            unlabelled=unlabelled,
        )
        return network
