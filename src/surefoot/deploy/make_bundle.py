"""From an experiment that was run to a bundle: one method, one run, calibration and model card."""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from surefoot import __version__
from surefoot.calibrators import NoveltyScaling, calibration_document
from surefoot.calibrators.files import DEFINITIONS
from surefoot.calibrators.files import FORMAT as CALIBRATION_FORMAT
from surefoot.deploy import bundle as parts
from surefoot.deploy.assemble import Novelty
from surefoot.deploy.bundle import Preprocessing
from surefoot.deploy.decision import Familiar, familiar_from, fit_familiar
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.comparison import MethodRun
from surefoot.evaluation.evaluate import Tick, evaluate, silently
from surefoot.evaluation.scores import Evaluation, Score, evaluation_document
from surefoot.experiments.changes import Opened
from surefoot.experiments.experiment import Part
from surefoot.experiments.methods import ENERGY, KNN, MAX_PROBABILITY, METHODS, ODIN, Method
from surefoot.experiments.plan import MethodPlan, Plan, replanned
from surefoot.experiments.results import Reader
from surefoot.io import new_folder
from surefoot.novelty import Scale
from surefoot.predictions.predictions import Predictions
from surefoot.recipes.recipe import Spec
from surefoot.store.store import Store
from surefoot.tasks import TASKS
from surefoot.tasks.task import Split
from surefoot.text import count_of
from surefoot.variants import variant_of
from surefoot.workers.produce import stored_novelty

SHOWN = ("nll", "brier", "label_error", "ece", "e99")


def model_card(
    about: Mapping[str, Any],
    calibration: Mapping[str, Any],
    evaluation: Evaluation,
    thresholds: Mapping[str, Any] | None,
    method: Method,
) -> str:
    """Markdown; what came from users' files is escaped, and what is ours is written to need no escape."""
    return "\n".join(
        [
            f"# {_plain(about['task']['name'])}: {method.title}",
            "",
            f"Written by Surefoot {about['surefoot']} from run {about['run']} of experiment "
            f"{_plain(about['experiment'])}.",
            "",
            "## What it is",
            "",
            *_facts(about, calibration, method),
            "",
            "## How well it did",
            "",
            *_scores(evaluation, method, about),
            "",
            "## What it decides",
            "",
            *_decisions(thresholds),
            "",
            "## How to use it",
            "",
            *_use(about),
            "",
        ]
    )


def _facts(about: Mapping[str, Any], calibration: Mapping[str, Any], method: Method) -> list[str]:
    recipe = about["networks"][0]["recipe"]
    count = count_of(len(about["networks"]), "network")
    classes = count_of(len(about["class_names"]), "class", "classes")
    names = ", ".join(_plain(name) for name in about["class_names"])
    labels = "one of" if about["kind"] == "one_label" else "any of"
    return [
        f"- **Answers** with {labels} {classes}: {names}.",
        f"- **Method**: `{method.name}`, `{method.formula}` ({method.reference}); {method.origin}.",
        f"- **Networks**: {count} ({_plain(recipe['network'])}), protocol `{recipe['protocol']}`, "
        f"seeds {', '.join(str(each['seed']) for each in about['networks'])}.",
        f"- **Calibration**: {_fitted(calibration)}; fitted on {method.fitted_on}.",
        f"- **Novelty**: `{calibration['novelty']['score']}`; {calibration['novelty']['meaning']}. "
        + " ".join(familiar_from(calibration["novelty"]["familiar"]).sentences()),
        f"- **Input**: {_input(about)}.",
    ]


def _fitted(calibration: Mapping[str, Any]) -> str:
    kind = calibration["kind"]
    if kind == "none":
        return "none"
    if kind == "member-temperatures":
        values = ", ".join(f"{each['temperature']:.4g}" for each in calibration["members"])
        return f"a temperature for each member: {values}"
    if kind == "novelty":
        return f"T = {calibration['t0']:.4g} + {calibration['t1']:.4g} novelty"
    return f"T = {calibration['temperature']:.4g}"


def _input(about: Mapping[str, Any]) -> str:
    shape = " x ".join(str(side) for side in about["input"]["shape"])
    prepared = about["preprocessing"]
    if prepared is None:
        return f"points, {shape} numbers each, as they are"
    values = ", ".join(f"{name} {prepared[name] or 'not given'}" for name in ("short_side", "resize", "view"))
    return f"images, seen as {shape}: {prepared['definition']}, with {values}"


def _scores(evaluation: Evaluation, method: Method, about: Mapping[str, Any]) -> list[str]:
    sides = list(evaluation.sides.items())
    header = " | ".join(f"{side} (n = {scores.n:,})" for side, scores in sides)
    metrics = [metric for metric in evaluation.metrics if metric.name in SHOWN]
    rows = [
        f"| {metric.title} | {' | '.join(_score(s.metrics[metric.name]) for _, s in sides)} |"
        for metric in metrics
    ]
    lines = [f"| lower is better | {header} |", f"|---|{'---|' * len(sides)}", *rows, ""]
    if len(sides) == 1:
        lines.append("There were no unfamiliar samples to test on: how it does on them is not known.")
    if any("bayesian" in str(each["recipe"].get("variant")) for each in about["networks"]):
        lines.append(
            "These are of predictions with noise drawn anew for each sample; a bundle draws it once, and "
            "its own numbers differ by as much as the draw does."
        )
    lines.append(
        f"With 95% intervals from {count_of(evaluation.resamples, 'resample')}, and exact ones of "
        f"proportions; `metrics.json` has every metric. {method.title} was judged on the task's own test "
        "sets, and other unfamiliar data may be harder."
    )
    return lines


def _score(score: Score) -> str:
    if score.value != score.value:
        return "undefined (n = 0)"
    ends = "" if score.low != score.low else f" ({score.low:.4f} to {score.high:.4f})"
    count = "" if score.n is None else f", {score.k} of {score.n:,}"
    return f"{score.value:.4f}{ends}{count}"


def _decisions(thresholds: Mapping[str, Any] | None) -> list[str]:
    if thresholds is None:
        return ["No thresholds were given: `surefoot predict` writes no decision."]
    accept, reject = (thresholds[name] for name in ("accept", "reject"))
    above = "nothing is accepted" if accept is None else f"accepted from a confidence of {accept:g} on"
    below = "nothing is rejected" if not reject else f"rejected below {reject:g}"
    return [f"Predictions are: {above}, {below}, reviewed otherwise. `thresholds.json` says where from."]


def _use(about: Mapping[str, Any]) -> list[str]:
    code = [
        "```python",
        "import surefoot",
        "",
        'bundle = surefoot.load_bundle("DIR")',
    ]
    if about["preprocessing"] is None:
        code += ["probabilities = bundle.probabilities(points)  # (n, classes)", "```"]
        return code
    code += [
        'image = bundle.preprocess("image.jpg")',
        "probabilities = bundle.probabilities(image[None])  # (1, classes)",
        "```",
    ]
    return ["```sh", "surefoot predict DIR images/ -o out.parquet", "```", "", *code]


def _plain(text: object) -> str:
    """Text that is neither Markdown nor HTML any more, in one line."""
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", html.escape(" ".join(str(text).split())))


CHANNELS = 3  # images are decoded to red, green and blue


@dataclass(frozen=True, eq=False)
class Chosen:
    """A task of an experiment and a method on it."""

    opened: Opened
    part: Part
    plan: Plan
    planned: MethodPlan


def chosen_method(opened: Opened, method: str, *, task: str | None, network: str | None) -> Chosen:
    """The one task that fits, and the method's networks on it; a method that cannot be bundled says why."""
    row = METHODS.named(method)
    part, plan = _chosen_task(opened, task, network)
    found, without = replanned(plan, [row])
    if without:
        have = ", ".join(planned.method.name for planned in plan.methods)
        raise InputError(
            f"{opened.experiment.name!r} has no networks for {method!r}; it was run with: {have}"
        )
    (planned,) = found.methods
    reason = why_not(row, [spec for run in planned.runs for spec in run])
    if reason is not None:
        raise InputError(reason)
    return Chosen(opened, part, plan, planned)


def _chosen_task(opened: Opened, task: str | None, network: str | None) -> tuple[Part, Plan]:
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
    raise InputError(f"experiment {opened.experiment.name!r} has {got}; say which by {option}: {have}")


def why_not(method: Method, specs: Sequence[Spec] = ()) -> str | None:
    """Why a method cannot be bundled, in a sentence; None where it can."""
    if method.oracle:
        return (
            f"{method.name!r} is tuned on the test sets, so its numbers would hold nowhere else; not bundled"
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
    tick: Tick = silently,
) -> dict[str, Any]:
    """One run's final networks with what was fitted for them, scored anew; returns the calibration."""
    with new_folder(folder) as new:
        found = _run(chosen, run)
        weights = [chosen.opened.store.weights(spec) for spec in found.specs]
        about = _about(chosen, found, _shape(chosen.plan, weights[0]), run)
        evaluation = evaluate(
            found.before[Split.TEST_FAMILIAR],
            found.before.get(Split.TEST_UNFAMILIAR),
            calibration=found.calibration,
            resamples=resamples,
            tick=tick,
        )
        documents = {
            parts.CALIBRATION: _calibration(chosen, found),
            parts.METRICS: evaluation_document(evaluation),
            **({} if thresholds is None else {parts.THRESHOLDS: thresholds}),
        }
        tensors = {f"members.{i}.{name}": t for i, each in enumerate(weights) for name, t in each.items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new / parts.WEIGHTS)
        for name, document in documents.items():
            _write_json(document, new / name)
        card = model_card(about, documents[parts.CALIBRATION], evaluation, thresholds, chosen.planned.method)
        (new / parts.CARD).write_text(card, encoding="utf-8")
        digests = {file.name: parts.sha256_of(file) for file in sorted(new.iterdir())}
        _write_json({**about, "files": digests}, new / parts.BUNDLE)
    return documents[parts.CALIBRATION]


def method_predictions(chosen: Chosen, *, run: int = 0) -> dict[Split, Predictions]:
    """What a method said of the test sets: calibrated, with the novelty that its bundle reports."""
    found = _run(chosen, run)
    novelty = _novelty(chosen.planned.method, found, chosen.opened.store)
    return {
        split: replace(said, novelty=novelty.of(found.before[split].logits, chosen.plan.kind))
        for split, said in found.after.items()
    }


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
        raise InputError(f"not all of {planned.method.name!r} is in the store; missing: {result.missing[0]}")
    return result.runs[0]


def _about(chosen: Chosen, found: MethodRun, shape: tuple[int, ...], run: int) -> dict[str, Any]:
    plan, method = chosen.plan, chosen.planned.method
    return {
        "surefoot": __version__,
        "format": parts.FORMAT,
        "experiment": chosen.opened.experiment.name,
        "task": {"name": plan.task, "identity": plan.task_identity},
        "method": {"name": method.name, "title": method.title, "formula": method.formula},
        "run": run,
        "kind": str(plan.kind),
        "class_names": list(plan.class_names),
        "input": {"name": "images" if len(shape) == 3 else "points", "shape": list(shape)},
        "preprocessing": _preprocessing(chosen) if len(shape) == 3 else None,
        "networks": [
            {"recipe": spec.recipe.as_dict(), "seed": spec.seed, "key": spec.key} for spec in found.specs
        ],
        "trained": [chosen.opened.store.facts(spec) for spec in found.specs],
    }


def _preprocessing(chosen: Chosen) -> dict[str, Any]:
    """As in testing: files are decoded to the recipe's size first; built-in images were never files."""
    recipe, name = chosen.plan.recipe, chosen.part.task.partition("/")[0]
    in_memory = any(entry.layout is None and entry.name == name for entry in TASKS)
    return Preprocessing(recipe.view, recipe.resize, None if in_memory else recipe.resize).as_dict()


def _shape(plan: Plan, weights: dict[str, Tensor]) -> tuple[int, ...]:
    """Of what the networks see; only a perceptron sees anything but images, and its first layer says what."""
    image = (CHANNELS, plan.recipe.view, plan.recipe.view)
    first = weights.get("hidden.0.linear.weight") if plan.recipe.network == "mlp" else None
    return image if first is None or first.shape[1] == math.prod(image) else (int(first.shape[1]),)


def _calibration(chosen: Chosen, found: MethodRun) -> dict[str, Any]:
    document = {
        "surefoot": __version__,
        "format": CALIBRATION_FORMAT,
        "kind": "none",
        "definitions": DEFINITIONS,
    }
    if found.calibration is not None:
        document = calibration_document(found.calibration)
    novelty = _novelty(chosen.planned.method, found, chosen.opened.store)
    scale = None if novelty.scale is None else {"low": novelty.scale.low, "high": novelty.scale.high}
    meaning = "higher is stranger; from the networks' own logits, uncalibrated; the mean over members"
    familiar = _familiar(novelty, found, chosen).as_dict()
    return {
        **document,
        "novelty": {"score": novelty.score, "scale": scale, "meaning": meaning, "familiar": familiar},
    }


def _familiar(novelty: Novelty, found: MethodRun, chosen: Chosen) -> Familiar:
    """Up to which novelty samples are called familiar: from the validation split, tried on the test sets."""
    reader = Reader(chosen.opened.store)
    said = {Split.VAL: torch.cat([reader.predictions(spec, Split.VAL).logits for spec in found.specs])}
    said |= {split: before.logits for split, before in found.before.items()}
    scores = {split: novelty.of(logits, chosen.plan.kind).numpy() for split, logits in said.items()}
    return fit_familiar(scores[Split.VAL], scores[Split.TEST_FAMILIAR], scores.get(Split.TEST_UNFAMILIAR))


def _novelty(method: Method, found: MethodRun, store: Store) -> Novelty:
    """The score that the method was fitted with, on the final networks' scale; else the variant's own."""
    (spec, *_) = found.specs
    if isinstance(found.calibration, NoveltyScaling):
        assert method.novelty in (ENERGY, MAX_PROBABILITY)
        return Novelty(method.novelty, _scale(spec, store, method.novelty))
    return Novelty(variant_of(spec.recipe).bundled_novelty)


def _scale(spec: Spec, store: Store, score: str) -> Scale:
    stored = stored_novelty(spec, store, score, Split.TEST_FAMILIAR)
    if stored is None:
        raise InputError(f"{score} scores of the familiar test set are missing; needed: their scale")
    return stored[1]


def _write_json(document: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
