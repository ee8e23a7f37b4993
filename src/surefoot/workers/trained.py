"""Networks that are trained: on labels alone, taught by others, or with noise in their logits."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import InputError
from surefoot.io import digest_of
from surefoot.networks.network import Network
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import average_sigmoid, average_softmax
from surefoot.recipes.variants import Bayesian, Distilled
from surefoot.runtime import derive_seed, generator
from surefoot.tasks.task import Split
from surefoot.training.data import Inputs, Points, joined
from surefoot.training.initial import initial_network
from surefoot.training.loop import Hooks, Progress, Unlabelled, Views, train
from surefoot.training.losses import Classification, Distillation, NoisyClassification, Objective
from surefoot.training.predict import Answer, Sampled, plainly, predict
from surefoot.training.teachers import SharedViews, TeacherCache, TeacherEnsemble
from surefoot.workers.build import Build, Phase, phases, predictions_of, restored


def train_and_predict(build: Build) -> None:
    """Every phase that is not there yet."""
    for phase in phases(build.spec.recipe.protocol, build.context.task):
        if not all(build.draft.has(part) for part in phase.parts):
            _execute(phase, build)


def _execute(phase: Phase, build: Build) -> None:
    context, draft = build.context, build.draft
    splits = _learnt_from(phase, build)
    inputs = joined([context.inputs[split] for split in splits])
    labels = np.concatenate([context.task.splits[split].labels for split in splits])
    began = time.time()
    objective, views = _objective(phase, build, inputs)
    network = trained_on(inputs, labels, phase.name, build, objective=objective, views=views)
    weights = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    draft.save_weights(phase.weights, weights)
    for split in phase.predicted:
        samples, start = context.task.splits[split], time.perf_counter()
        logits = predict([network], context.inputs[split], context.device, answer=answer(build, split))
        draft.log({"predicted": len(samples), "prediction_seconds": time.perf_counter() - start})
        draft.save_predictions(split, predictions_of(logits, samples, context.task))
    draft.log({"phase": phase.name, "trained_and_predicted": time.time() - began})


def trained_on(
    inputs: Inputs,
    labels: np.typing.NDArray[np.int64],
    phase: str,
    build: Build,
    *,
    objective: Objective,
    views: Views | None = None,
) -> Network:
    """A network from its start to its last epoch, or from its checkpoint."""
    spec, context, draft = build.spec, build.context, build.draft
    network = initial_network(
        spec.recipe,
        context.task,
        context.inputs,
        seed=spec.seed,
        weights=context.weights,
        on_weights=lambda report: build.listener.weights(report.sentence()),
    )

    def on_event(progress: Progress) -> None:
        draft.log({"phase": phase, **vars(progress), "at": time.time()})
        build.listener.progress(phase, progress)

    train(
        network,
        inputs,
        torch.from_numpy(labels),
        objective,
        spec.recipe,
        seed=_seed(build, phase),
        device=context.device,
        hooks=Hooks(on_event, partial(draft.save_checkpoint, phase), build.listener.must_stop),
        checkpoint=draft.checkpoint(phase),
        unlabelled=_unlabelled(build),
        views=views,
    )
    return network


def _seed(build: Build, phase: str) -> int:
    spec = build.spec
    return derive_seed(build.context.task.training_identity, spec.recipe.digest, spec.seed, phase)


def _learnt_from(phase: Phase, build: Build) -> tuple[Split, ...]:
    if _unlabelled(build) is None:
        return phase.trained
    return (*phase.trained, Split.UNLABELLED)


def _unlabelled(build: Build) -> Unlabelled | None:
    variant, task = build.spec.recipe.variant, build.context.task
    if not isinstance(variant, Distilled) or not variant.unlabelled:
        return None
    if Split.UNLABELLED not in task.splits:
        raise InputError(f"task {task.name!r} has no unlabelled samples; needed for G-distillation")
    return Unlabelled(len(task.splits[Split.UNLABELLED]), variant.unlabelled)


def _objective(phase: Phase, build: Build, inputs: Inputs) -> tuple[Objective, Views | None]:
    kind, variant = build.context.task.kind, build.spec.recipe.variant
    if isinstance(variant, Bayesian):
        return NoisyClassification(kind, variant.training_samples), None
    if not isinstance(variant, Distilled):
        return Classification(kind), None
    never_changes = isinstance(inputs, Points) or inputs.augmentation == "none"
    if variant.views == "fixed" or never_changes:
        return _taught(variant, build, seen=_seen(_teachers(phase, build), inputs, build)), None
    if variant.views == "same":
        return _taught(variant, build, teachers=_teachers(phase, build)), None
    device, classes = build.context.device, len(build.context.task.class_names)
    seen = torch.zeros(len(inputs), classes, device=device)
    room = TeacherEnsemble(partial(_teachers, phase, build), kind, classes, device)
    lessons = [_lessons(split, phase, build, room) for split in _learnt_from(phase, build)]
    views = SharedViews(lessons, build.spec.recipe.epochs, _seed(build, phase.name), seen)
    return _taught(variant, build, seen=seen), views


def _taught(
    variant: Distilled, build: Build, *, teachers: Sequence[Network] = (), seen: Tensor | None = None
) -> Distillation:
    kind = build.context.task.kind
    return Distillation(kind, teachers, variant.temperature, variant.label_weight, seen)


def _teachers(phase: Phase, build: Build) -> list[Network]:
    return [
        restored(teacher, build.store.weights(teacher, phase.weights), build.context)
        for teacher in build.spec.needs()
    ]


def _lessons(split: Split, phase: Phase, build: Build, room: TeacherEnsemble) -> TeacherCache:
    """What the teachers say of a split, kept under a name of both: other teachers or views, other lessons."""
    context, recipe = build.context, build.spec.recipe
    asked = {
        "task": context.task.identity,
        "split": str(split),
        "rows": context.task.splits[split].ids.tolist(),  # in their order, which the identity leaves out
        "views": [recipe.view, recipe.resize, recipe.augmentation],
        "weights": phase.weights,
        "teachers": [build.store.facts(teacher) for teacher in build.spec.needs()],
    }
    seed = derive_seed(context.task.training_identity, "lessons", split)
    return TeacherCache(context.inputs[split], build.store.teacher_folder(digest_of(asked)), seed, room)


def _seen(teachers: list[Network], inputs: Inputs, build: Build) -> Tensor:
    """What the teachers say of the centre crops, once and for all."""
    average = average_softmax if build.context.task.kind is LabelKind.ONE_LABEL else average_sigmoid
    return average(predict(teachers, inputs, build.context.device))


def answer(build: Build, purpose: str) -> Answer:
    """How the network is asked: plainly, or by sampling."""
    variant, context = build.spec.recipe.variant, build.context
    if not isinstance(variant, Bayesian):
        return plainly
    identity = (context.task.training_identity, build.spec.recipe.digest, build.spec.seed)
    random = generator(*identity, "samples", purpose, device=context.device)
    return Sampled(context.task.kind, variant.samples, random, variant.sampled == "network")
