"""Make a bundle from an experiment that was run: one method, one run, calibration and model card."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

from surefoot import __version__
from surefoot.calibrators import calibration_document
from surefoot.decisions.decision import Familiar, fit_familiar
from surefoot.deploy import bundle as parts
from surefoot.deploy.bundle import Bundle, Preprocessing
from surefoot.deploy.model import Novelty
from surefoot.deploy.model_card import NOVELTY_MEANING, model_card
from surefoot.deploy.modules import module_of
from surefoot.deploy.own_code import OwnCode, copy_source, own_code_of
from surefoot.deploy.reference import add_to_reference, row_features, write_reference
from surefoot.deploy.self_check import differences, rows_of
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.evaluate import evaluate
from surefoot.evaluation.scores import Evaluation, evaluation_document
from surefoot.io import new_folder, sha256_of
from surefoot.lab.comparison.comparison import MethodRun
from surefoot.lab.experiments.changes import Opened
from surefoot.lab.experiments.experiment import Part
from surefoot.lab.experiments.methods import ENERGY, KNN, MAX_PROBABILITY, METHODS, ODIN, Method
from surefoot.lab.experiments.plan import MethodPlan, Plan, replanned
from surefoot.lab.experiments.results import Reader, check_classes, stored_novelty
from surefoot.lab.recipes.own_code import code_of, is_own_code, refuse_other_code
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.draft import save_tensors
from surefoot.lab.store.files import recovery
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import TASKS, task_named
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.variants import variant_of
from surefoot.predictions.predictions import Predictions
from surefoot.progress import Progress, Tick

FIRST_LAYERS = {
    "mlp": "hidden.0.linear.weight",
    "linear": "output.weight",
    "residual-mlp": "first.weight",
}
CHANNELS = 3  # images are decoded to red, green and blue
NO_REFERENCE = (
    "the bundle of a Bayesian method ({method}) has no reference, because it draws its samples once and so "
    "predicts a little differently from the stored test predictions; make a reference from familiar images "
    "with 'surefoot predict', and compare with 'surefoot monitor'"
)
SEED = 23  # of the half of the test samples that the limit of novelty comes from


@dataclass(frozen=True, eq=False)
class Chosen:
    """A task of an experiment and a method on it."""

    opened: Opened
    part: Part
    plan: Plan
    planned: MethodPlan


def chosen_method(opened: Opened, method: str, *, task: str | None, network: str | None) -> Chosen:
    """The one task that fits, and the method's networks on it; a method that cannot be bundled is refused."""
    entry = METHODS.named(method).with_budget(opened.experiment.budget)
    part, plan = _chosen_part(opened, task, network)
    of_method, without = replanned(plan, [entry])
    if without:
        have = ", ".join(planned.method.name for planned in plan.methods)
        raise InputError(
            f"{opened.experiment.name!r} has no networks for {method!r}; it was run with: {have}"
        )
    (planned,) = of_method.methods
    reason = why_not(entry, [spec for run in planned.runs for spec in run])
    if reason is not None:
        raise InputError(reason)
    return Chosen(opened, part, plan, planned)


def _chosen_part(opened: Opened, task: str | None, network: str | None) -> tuple[Part, Plan]:
    pairs = list(zip(opened.experiment.parts, opened.plans, strict=True))
    of_task = [(part, plan) for part, plan in pairs if task in (None, plan.task, part.task)]
    fitting = [(part, plan) for part, plan in of_task if network in (None, plan.recipe.network)]
    if len(fitting) == 1:
        return fitting[0]
    if not of_task:
        got, option = f"no task {task!r}", "--task"
    elif not fitting:
        got, option = f"no network {network!r}" + ("" if task is None else f" for {task!r}"), "--network"
    elif len({plan.task for _, plan in fitting}) > 1:
        got, option = "several tasks", "--task"
    else:
        got, option = "several networks", "--network"
    have = ", ".join(f"{plan.task} with {plan.recipe.network}" for _, plan in fitting or of_task or pairs)
    raise InputError(f"experiment {opened.experiment.name!r} has {got}; choose one with {option}: {have}")


def why_not(method: Method, specs: Sequence[Spec] = ()) -> str | None:
    """Why a method cannot be bundled, in a sentence; None where it can."""
    if method.oracle:
        return (
            f"{method.name!r} is tuned on the test sets, so its numbers hold for no other data; not bundled"
        )
    if method.novelty == ODIN:
        return f"{method.name!r} needs a gradient for every prediction, which a bundle does not compute"
    if method.novelty == KNN:
        return f"{method.name!r} needs the features of all training samples, which a bundle does not hold"
    reasons = (variant_of(spec.recipe).bundle_obstacle for spec in specs)
    return next((f"{method.name!r} {reason}" for reason in reasons if reason is not None), None)


def write_bundle(
    chosen: Chosen,
    folder: Path,
    *,
    run: int = 0,
    thresholds: dict[str, Any] | None = None,
    resamples: int = RESAMPLES,
    features: bool = False,
    tick: Tick = lambda _: None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Write one run's final networks with their calibration and metrics; returns the calibration document.

    With `features`, the reference has them, too, computed from the task's data. With `allow_code` a user's
    own network is run, to compare it with the stored predictions.
    """
    if features:
        refuse_without_features(chosen)
    with new_folder(folder) as new:
        selected = _run(chosen, run)
        code = _own_code(selected)
        if selected.calibration is not None:
            module_of(selected.calibration)  # refuses a calibration that cannot be bundled
        _refuse_unscored(chosen, selected)
        weights = [chosen.opened.store.weights(spec) for spec in selected.specs]
        about = _about(chosen, selected, _shape(chosen.plan, weights[0]), run)
        evaluation = _evaluated(selected, resamples, tick)
        novelty = _novelty(chosen.planned.method, selected, chosen.opened.store)
        familiar = _familiar(novelty, selected, chosen)
        about["reference"] = _reference(chosen, selected, novelty, new / parts.REFERENCE)
        fitted = calibration_document(selected.calibration)
        documents = {
            parts.CALIBRATION: {**fitted, "novelty": _novelty_document(novelty, familiar)},
            parts.METRICS: evaluation_document(evaluation),
            **({} if thresholds is None else {parts.THRESHOLDS: thresholds}),
        }
        tensors = {f"members.{i}.{name}": t for i, each in enumerate(weights) for name, t in each.items()}
        save_tensors(tensors, new / parts.WEIGHTS, {})
        if code is not None:
            about["own_code"] = code.sentence
            copy_source(code, new)
        for name, document in documents.items():
            _write_json(document, new / name)
        card = model_card(
            about,
            calibration=selected.calibration,
            novelty=novelty,
            familiar=familiar,
            evaluation=evaluation,
            thresholds=thresholds,
            method=chosen.planned.method,
            code=code,
        )
        (new / parts.CARD).write_text(card, encoding="utf-8")
        _write_about(about, new)
        if features:
            bundle, stored = parts.load_bundle(new), selected.before[Split.TEST_FAMILIAR]
            add_to_reference(bundle, _task(chosen, bundle), stored, new / parts.REFERENCE)
            _write_about(about, new)
        _write_about({**about, **_self_check(chosen, selected, new, allow_code=allow_code)}, new)
    return documents[parts.CALIBRATION]


def _write_about(about: Mapping[str, Any], folder: Path) -> None:
    """Write a bundle's description, with the sha256 of every other file."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    digests = {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}
    digests.pop(parts.BUNDLE, None)
    _write_json({**about, "files": digests}, folder / parts.BUNDLE)


def _evaluated(selected: MethodRun, resamples: int, tick: Tick) -> Evaluation:
    return evaluate(
        selected.outputs[Split.TEST_FAMILIAR],
        selected.outputs.get(Split.TEST_UNFAMILIAR),
        calibration=selected.outer_calibration,
        resamples=resamples,
        progress=Progress(bar=lambda *_: nullcontext(tick)),
    )


def _novelty_document(novelty: Novelty, familiar: Familiar) -> dict[str, Any]:
    return {
        "score": novelty.score,
        "scale": None if novelty.scale is None else asdict(novelty.scale),
        "meaning": NOVELTY_MEANING,
        "familiar": familiar.as_dict(),
    }


def _refuse_unscored(chosen: Chosen, selected: MethodRun) -> None:
    """Raise where the predictions of familiar test data are lost."""
    if Split.TEST_FAMILIAR in selected.outputs:
        return
    lost = chosen.opened.store.folder(selected.specs[0]) / f"{Split.TEST_FAMILIAR}.npz"
    raise InputError(
        f"{lost} is missing, and a bundle is scored on familiar test data; if the task has them, "
        f"{recovery(lost)}"
    )


def _own_code(selected: MethodRun) -> OwnCode | None:
    """Where the source of the networks is; refused if it is another one than theirs. Not found: no matter."""
    recipe = selected.specs[0].recipe  # the networks of one method are built alike
    if not is_own_code(recipe):
        return None
    if code := code_of(recipe.network):
        refuse_other_code(recipe, code, "repeat 'surefoot run', which trains new ones, and bundle those")
    return own_code_of(recipe.network)


def _self_check(chosen: Chosen, selected: MethodRun, folder: Path, *, allow_code: bool) -> dict[str, Any]:
    """What the bundle gives for fixed numbers, and its differences from stored predictions of test rows."""
    if any(is_own_code(spec.recipe) for spec in selected.specs) and not allow_code:
        reason = "the network is your own code, which runs only with --allow-code"
        return {"checked": {"rows": 0, "reason": reason}}
    bundle = parts.load_bundle(folder, allow_code=allow_code)
    fixed = {"fixed_probabilities": bundle.fixed_probabilities().tolist()}
    try:
        if (remark := remark_on_predictions(chosen)) is not None:
            raise InputError(remark)
        rows = rows_of(_task(chosen, bundle), selected, bundle.preprocessing)
    except InputError as error:  # the store is enough to write a bundle; the data may be elsewhere
        return fixed | {"checked": {"rows": 0, "reason": str(error)}}
    return fixed | {"checked": differences(bundle, rows, selected, chosen.opened.store)}


def _task(chosen: Chosen, bundle: Bundle) -> Task:
    """The task with its data; raises where they are not on this machine, or are others."""
    root = chosen.part.root
    task = task_named(chosen.part.task, root=None if root is None else Path(root))
    if task.encoding != bundle.encoding:
        raise InputError("the task's table is not the one that was trained on")
    return task


def method_predictions(chosen: Chosen, *, run: int = 0) -> dict[Split, Predictions]:
    """A method's calibrated predictions of the test sets, with the novelty that its bundle reports."""
    selected = _run(chosen, run)
    novelty = _novelty(chosen.planned.method, selected, chosen.opened.store)
    return {split: _with_novelty(selected, split, novelty) for split in selected.after}


def add_features(
    chosen: Chosen,
    predictions: Mapping[Split, Predictions],
    *,
    run: int = 0,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> dict[Split, Predictions]:
    """The predictions with the projected features that the method's bundle gives of the same rows.

    They are computed from the weights and the task's data; `tick` is called with the rows that are done.
    """
    refuse_without_features(chosen)
    with TemporaryDirectory() as folder:
        write_bundle(chosen, Path(folder) / "bundle", run=run, resamples=0)
        bundle = parts.load_bundle(Path(folder) / "bundle").to(device)
    task = _task(chosen, bundle)
    return {
        split: replace(each, features=row_features(bundle, task, split, each, np.arange(each.n), tick))
        for split, each in predictions.items()
    }


def refuse_without_features(chosen: Chosen) -> None:
    """Raise if a network gives its logits only."""
    for spec in (spec for run in chosen.planned.runs for spec in run):
        if not spec.recipe.gives_features:
            raise InputError(f"network {spec.recipe.network!r} gives logits only; needed: its features")


def _with_novelty(selected: MethodRun, split: Split, novelty: Novelty) -> Predictions:
    outputs = selected.outputs[split]
    return replace(selected.after[split], novelty=novelty.of(outputs.logits, outputs.kind))


def _reference(chosen: Chosen, selected: MethodRun, novelty: Novelty, path: Path) -> dict[str, Any]:
    """Write the reference of `serve`; how many rows it has, or why there is none."""
    if remark_on_predictions(chosen) is not None:
        return {"rows": 0, "reason": NO_REFERENCE.format(method=chosen.planned.method.name)}
    predictions = _with_novelty(selected, Split.TEST_FAMILIAR, novelty)
    return {"rows": write_reference(replace(predictions, class_names=chosen.plan.class_names), path)}


def remark_on_predictions(chosen: Chosen) -> str | None:
    """What to know where a bundle does not quite say what was stored; else None."""
    remarks = (variant_of(spec.recipe).bundle_remark for run in chosen.planned.runs for spec in run)
    return next((remark for remark in remarks if remark is not None), None)


def _run(chosen: Chosen, run: int) -> MethodRun:
    planned = chosen.planned
    if not 0 <= run < len(planned.runs):
        raise InputError(f"run is {run}; allowed: 0 to {len(planned.runs) - 1}")
    result = Reader(chosen.opened.store).result(replace(planned, runs=(planned.runs[run],)))
    if result.missing:
        raise InputError(
            f"not all of {planned.method.name!r} is in the store; missing: {result.missing[0]}; "
            "'surefoot run' with this experiment trains what is missing"
        )
    check_classes(chosen.plan, result)
    return result.runs[0]


def _about(chosen: Chosen, selected: MethodRun, shape: tuple[int, ...], run: int) -> dict[str, Any]:
    plan, method, recipe = chosen.plan, chosen.planned.method, chosen.plan.recipe
    # As in testing: files are decoded to the recipe's size first; the images of built-in tasks are no files.
    name = chosen.part.task.partition("/")[0]
    in_memory = any(entry.layout is None and entry.name == name for entry in TASKS)
    preprocessing = Preprocessing(recipe.view, recipe.resize, None if in_memory else recipe.resize)
    return {
        "surefoot": __version__,
        "format": parts.FORMAT,
        "experiment": chosen.opened.experiment.name,
        "task": {"name": plan.task, "identity": plan.task_identity},
        "method": {"name": method.name, "title": method.title, "formula": method.formula},
        "run": run,
        "kind": str(plan.kind),
        "class_names": list(plan.class_names),
        "input": {"name": _input_name(plan, shape), "shape": list(shape)},
        "preprocessing": preprocessing.as_dict() if len(shape) == 3 else None,
        **({} if plan.encoding is None else {"features": plan.encoding.as_dict()}),
        "networks": [
            {"recipe": spec.recipe.as_dict(), "seed": spec.seed, "key": spec.key} for spec in selected.specs
        ],
        "trained": [chosen.opened.store.facts(spec) for spec in selected.specs],
    }


def _input_name(plan: Plan, shape: tuple[int, ...]) -> str:
    """Of an exported graph."""
    if plan.encoding is not None:
        return "vectors"
    return "images" if len(shape) == 3 else "points"


def _shape(plan: Plan, weights: dict[str, Tensor]) -> tuple[int, ...]:
    """Of the networks' input: images, except where a first layer that takes vectors has another width."""
    if plan.encoding is not None:
        return (plan.encoding.width,)
    image = (CHANNELS, plan.recipe.view, plan.recipe.view)
    first = weights.get(FIRST_LAYERS.get(plan.recipe.network, ""))
    return image if first is None or first.shape[1] == math.prod(image) else (int(first.shape[1]),)


def _familiar(novelty: Novelty, selected: MethodRun, chosen: Chosen) -> Familiar:
    """Up to which novelty samples are familiar: from a random half of the familiar test samples.

    The other half, and the unfamiliar test samples, measure it. The validation samples would not do: the
    paper's protocol trains on them before networks are bundled, after which their novelty is lower.
    """
    kind = chosen.plan.kind
    scores = {split: novelty.of(each.logits, kind) for split, each in selected.outputs.items()}
    familiar = np.random.default_rng(SEED).permutation(scores[Split.TEST_FAMILIAR])
    half = len(familiar) // 2
    return fit_familiar(familiar[half:], familiar[: max(1, half)], scores.get(Split.TEST_UNFAMILIAR))


def _novelty(method: Method, selected: MethodRun, store: Store) -> Novelty:
    """The score that the method was fitted with, on the final networks' scale; else the variant's own."""
    (spec, *_) = selected.specs
    if selected.calibration is not None and selected.calibration.needs_novelty:
        assert method.novelty in (ENERGY, MAX_PROBABILITY)
        stored = stored_novelty(spec, store, method.novelty, Split.TEST_FAMILIAR)
        if stored is None:
            raise InputError(
                f"{method.novelty} scores of the familiar test set are missing; needed: their scale"
            )
        return Novelty(method.novelty, stored[1])
    return Novelty(variant_of(spec.recipe).bundled_novelty)


def _write_json(document: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
