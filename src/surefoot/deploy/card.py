"""The model card: what a bundle is, how well it did and how to use it, for people."""

import html
import re
from collections.abc import Mapping
from typing import Any

from surefoot.deploy.familiar import familiar_from
from surefoot.methods import Method
from surefoot.plurals import count_of
from surefoot.scoring import Evaluation, Score

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
