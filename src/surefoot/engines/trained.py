"""Networks that are trained: on labels alone, taught by others, or with noise in their logits."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from surefoot.combine import average_sigmoid, average_softmax
from surefoot.engines.making import Making, predictions_of, restored
from surefoot.engines.phases import Phase, phases
from surefoot.errors import InputError
from surefoot.kinds import LabelKind
from surefoot.networks import Network
from surefoot.recipes import Bayesian, Distilled, digest_of
from surefoot.seeds import derive_seed, generator
from surefoot.tasks.base import Split
from surefoot.training.batches import Inputs, Points, joined
from surefoot.training.lessons import Classroom, Lessons, SharedViews
from surefoot.training.loop import Hooks, Progress, Unlabelled, Views, train
from surefoot.training.objectives import Classification, Distillation, NoisyClassification, Objective
from surefoot.training.predict import Answer, Sampled, plainly, predict
from surefoot.training.start import initial_network


def train_and_predict(making: Making) -> None:
    """Every phase that is not there yet."""
    for phase in phases(making.spec.recipe.protocol, making.workshop.task):
        if not all(making.draft.has(part) for part in phase.parts):
            _carry_out(phase, making)


def _carry_out(phase: Phase, making: Making) -> None:
    workshop, draft = making.workshop, making.draft
    splits = _learnt_from(phase, making)
    inputs = joined([workshop.inputs[split] for split in splits])
    labels = np.concatenate([workshop.task.splits[split].labels for split in splits])
    began = time.time()
    objective, views = _objective(phase, making, inputs)
    network = trained_on(inputs, labels, phase.name, making, objective=objective, views=views)
    weights = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    draft.save_weights(phase.weights, weights)
    for split in phase.predicted:
        samples, start = workshop.task.splits[split], time.perf_counter()
        logits = predict([network], workshop.inputs[split], workshop.device, answer=answer(making, split))
        draft.log({"predicted": len(samples), "prediction_seconds": time.perf_counter() - start})
        draft.save_predictions(split, predictions_of(logits, samples, workshop.task))
    draft.log({"phase": phase.name, "trained_and_predicted": time.time() - began})


def trained_on(
    inputs: Inputs,
    labels: np.typing.NDArray[np.int64],
    phase: str,
    making: Making,
    *,
    objective: Objective,
    views: Views | None = None,
) -> Network:
    """A network from its start to its last epoch, or from its checkpoint."""
    spec, workshop, draft = making.spec, making.workshop, making.draft
    network = initial_network(
        spec.recipe,
        workshop.task,
        workshop.inputs,
        seed=spec.seed,
        weights=workshop.weights,
        heard=lambda report: making.listener.weights(report.sentence()),
    )

    def tell(progress: Progress) -> None:
        draft.log({"phase": phase, **vars(progress), "at": time.time()})
        making.listener.progress(phase, progress)

    train(
        network,
        inputs,
        torch.from_numpy(labels),
        objective,
        spec.recipe,
        seed=_seed(making, phase),
        device=workshop.device,
        hooks=Hooks(tell, partial(draft.save_checkpoint, phase), making.listener.must_stop),
        checkpoint=draft.checkpoint(phase),
        unlabelled=_unlabelled(making),
        views=views,
    )
    return network


def _seed(making: Making, phase: str) -> int:
    spec = making.spec
    return derive_seed(making.workshop.task.training_identity, spec.recipe.digest, spec.seed, phase)


def _learnt_from(phase: Phase, making: Making) -> tuple[Split, ...]:
    if _unlabelled(making) is None:
        return phase.trained
    return (*phase.trained, Split.UNLABELLED)


def _unlabelled(making: Making) -> Unlabelled | None:
    variant, task = making.spec.recipe.variant, making.workshop.task
    if not isinstance(variant, Distilled) or not variant.unlabelled:
        return None
    if Split.UNLABELLED not in task.splits:
        raise InputError(f"task {task.name!r} has no unlabelled samples; needed for G-distillation")
    return Unlabelled(len(task.splits[Split.UNLABELLED]), variant.unlabelled)


def _objective(phase: Phase, making: Making, inputs: Inputs) -> tuple[Objective, Views | None]:
    kind, variant = making.workshop.task.kind, making.spec.recipe.variant
    if isinstance(variant, Bayesian):
        return NoisyClassification(kind, variant.training_samples), None
    if not isinstance(variant, Distilled):
        return Classification(kind), None
    never_changes = isinstance(inputs, Points) or inputs.augmentation == "none"
    if variant.views == "fixed" or never_changes:
        return _taught(variant, making, seen=_seen(_teachers(phase, making), inputs, making)), None
    if variant.views == "same":
        return _taught(variant, making, teachers=_teachers(phase, making)), None
    device, classes = making.workshop.device, len(making.workshop.task.class_names)
    seen = torch.zeros(len(inputs), classes, device=device)
    room = Classroom(partial(_teachers, phase, making), kind, classes, device)
    lessons = [_lessons(split, phase, making, room) for split in _learnt_from(phase, making)]
    views = SharedViews(lessons, making.spec.recipe.epochs, _seed(making, phase.name), seen)
    return _taught(variant, making, seen=seen), views


def _taught(
    variant: Distilled, making: Making, *, teachers: Sequence[Network] = (), seen: Tensor | None = None
) -> Distillation:
    kind = making.workshop.task.kind
    return Distillation(kind, teachers, variant.temperature, variant.label_weight, seen)


def _teachers(phase: Phase, making: Making) -> list[Network]:
    return [
        restored(teacher, making.store.weights(teacher, phase.weights), making.workshop)
        for teacher in making.spec.needs()
    ]


def _lessons(split: Split, phase: Phase, making: Making, room: Classroom) -> Lessons:
    """What the teachers say of a split, kept under a name of both: other teachers or views, other lessons."""
    workshop, recipe = making.workshop, making.spec.recipe
    asked = {
        "task": workshop.task.identity,
        "split": str(split),
        "rows": workshop.task.splits[split].ids.tolist(),  # in their order, which the identity leaves out
        "views": [recipe.view, recipe.resize, recipe.augmentation],
        "weights": phase.weights,
        "teachers": [making.store.facts(teacher) for teacher in making.spec.needs()],
    }
    seed = derive_seed(workshop.task.training_identity, "lessons", split)
    return Lessons(workshop.inputs[split], making.store.lessons_folder(digest_of(asked)), seed, room)


def _seen(teachers: list[Network], inputs: Inputs, making: Making) -> Tensor:
    """What the teachers say of the centre crops, once and for all."""
    average = average_softmax if making.workshop.task.kind is LabelKind.ONE_LABEL else average_sigmoid
    return average(predict(teachers, inputs, making.workshop.device))


def answer(making: Making, purpose: str) -> Answer:
    """How the network is asked: plainly, or by sampling."""
    variant, workshop = making.spec.recipe.variant, making.workshop
    if not isinstance(variant, Bayesian):
        return plainly
    identity = (workshop.task.training_identity, making.spec.recipe.digest, making.spec.seed)
    random = generator(*identity, "samples", purpose, device=workshop.device)
    return Sampled(workshop.task.kind, variant.samples, random, variant.sampled == "network")
