"""One network from its spec to its logits and novelty scores in the store; resumes where it was stopped."""

import json
import math
import platform
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot import __version__
from surefoot.calibrators import calibration_document
from surefoot.calibrators.before_averaging import (
    TemperatureBeforeAveraging,
    fit_temperature_before_averaging,
)
from surefoot.errors import InputError
from surefoot.lab.networks.network import Network
from surefoot.lab.novelty import novelty_scores
from surefoot.lab.recipes.own_code import code_of, is_own_code, refuse_other_code, retrained
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.draft import Draft
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Samples, Split
from surefoot.lab.training.data import task_inputs
from surefoot.lab.training.predict import draw_samples, predict
from surefoot.lab.variants import Bayesian, variant_of
from surefoot.lab.variants.build import Build, Listener, Phase, TaskContext, phases
from surefoot.lab.workers.jobs import Job, WorkOrder
from surefoot.predictions.novelty import fit_scale
from surefoot.predictions.predictions import Predictions

LARGEST_DRAW = 2**28  # samples of the logits in memory at once, 1 GiB: with more, T is fitted on fewer rows


def open_context(order: WorkOrder) -> TaskContext:
    """The task of an order, its images decoded or read from the cache."""
    task = task_named(order.task, root=order.root_path)
    inputs = task_inputs(task, order.jobs[0].recipe, cache=order.cache_path)
    return TaskContext(task, inputs, torch.device(order.device), order.weights_path)


def complete(spec: Spec, job: Job, context: TaskContext, store: Store) -> None:
    """Compute what a job needs from a finished network and the store does not have."""
    score_novelty(spec, context, store, job.novelty)
    if job.scaled_samples:
        scale_samples(spec, context, store)


def score_novelty(spec: Spec, context: TaskContext, store: Store, names: tuple[str, ...]) -> None:
    """Compute the named scores that are missing, for all splits that the network predicts.

    The scale is that of the samples on which these weights were trained.
    """
    missing = tuple(name for name in names if not store.has_novelty(spec, name))
    if not missing:
        return
    files: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in missing}
    for phase in phases(spec.recipe.protocol, context.task):
        network = _restored(spec, phase, context, store, "novelty scores")
        splits = (*phase.trained, *phase.predicted)
        scores = novelty_scores(
            network,
            {str(split): context.inputs[split] for split in splits},
            reference=[str(split) for split in phase.trained],
            kind=context.task.kind,
            device=context.device,
            names=missing,
        )
        for name, by_split in scores.items():
            scale = fit_scale(np.concatenate([by_split[split] for split in phase.trained]))
            for split in phase.predicted:
                files[name][split] = by_split[split]
                files[name][f"{split}_scale"] = np.array([scale.low, scale.high])
    for name, arrays in files.items():
        store.save_novelty(spec, name, arrays)


def scale_samples(spec: Spec, context: TaskContext, store: Store) -> None:
    """Fit T inside the samples of a finished Bayesian network, and save it with the predictions at that T.

    p = mean_s softmax(z_s / T); T minimises the NLL of the validation data, of which the samples are in
    memory. They are those of the stored predictions, drawn again. Only averages are saved: all samples would
    be a hundred times larger.
    """
    variant = variant_of(spec.recipe)
    assert isinstance(variant, Bayesian), "only Bayesian networks have samples"
    if store.has_scaled_samples(spec):
        return
    task, device = context.task, context.device
    temperature = 1.0
    arrays: dict[str, NDArray[Any]] = {}
    for phase in phases(spec.recipe.protocol, task):
        network = _restored(spec, phase, context, store, "T inside its samples")
        for split in phase.predicted:  # val is the first
            inputs = context.inputs[split]
            if split is Split.VAL:
                numbers = variant.samples * len(inputs) * len(task.class_names)
                every = math.ceil(numbers / LARGEST_DRAW)
                sampler = variant.sampler(spec, context, split)
                drawn = draw_samples(network, inputs, device, sampler, every=every)
                fitted = _fit_inside(drawn, task.splits[split], every)
                temperature = fitted.temperature
                arrays["calibration"] = np.array(json.dumps(calibration_document(fitted)))
            sampler = replace(variant.sampler(spec, context, split), temperature=temperature)
            arrays[split] = predict([network], inputs, device, predictor=sampler)[0].numpy()
    store.save_scaled_samples(spec, arrays)


def _fit_inside(drawn: Tensor, samples: Samples, every: int) -> TemperatureBeforeAveraging:
    """T from the samples of the logits, of all rows or of every k-th."""
    predictions = Predictions.from_logits(
        drawn,
        np.asarray(samples.labels)[::every],
        groups=None if samples.groups is None else samples.groups[::every],
    )
    return fit_temperature_before_averaging(predictions)


def _restored(spec: Spec, phase: Phase, context: TaskContext, store: Store, what: str) -> Network:
    """A finished network of a phase; its weights may be missing where only results were copied."""
    folder = store.folder(spec)
    if store.is_done(spec) and not (folder / f"{phase.weights}.safetensors").is_file():
        raise InputError(
            f"{folder} has no {phase.weights}.safetensors, from which {what} would be computed; remove the "
            "folder to train this network again"
        )
    return context.restored(spec, store.weights(spec, phase.weights))


def produce(spec: Spec, context: TaskContext, store: Store, *, listener: Listener = Listener()) -> None:  # noqa: B008
    """Build a network, or the rest of it; `ClaimedError` if another process is building it.

    Of a network that is done, the weights are verified.
    """
    if is_own_code(spec.recipe) and (code := code_of(spec.recipe.network)):
        refuse_other_code(spec.recipe, code, "repeat the command, which trains with what is there now")
    if store.is_done(spec):
        store.verify([spec])
        return
    for teacher in spec.needs():
        if not store.is_done(teacher):
            raise InputError(
                f"a network made from others needs the one of {spec.task} with seed {teacher.seed} first; "
                f"it is not in {store.root}"
            )
    if is_own_code(spec.recipe) and (before := store.other_code(spec)) is not None:
        listener.weights(retrained(spec.recipe, before))
    with store.claim(spec) as draft:
        if store.is_done(spec):  # by another process since the first check
            draft.discard()
            return
        build = Build(spec, context.for_recipe(spec.recipe), store, draft, listener)
        facts = build.variant.produce(build)
        draft.finish(_facts(spec, context, draft) | facts)


def _facts(spec: Spec, context: TaskContext, draft: Draft) -> dict[str, Any]:
    device = context.device
    return {
        "surefoot": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "seconds": draft.logged("seconds"),
        "seconds_per_sample": draft.logged("prediction_seconds") / max(1.0, draft.logged("predicted")),
        "seed": spec.seed,
        "key": spec.key,
    }
