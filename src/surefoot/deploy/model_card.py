"""The model card of a bundle: what it is, how well it did, what it decides, how to use it."""

import html
import re
from collections.abc import Mapping
from typing import Any

from surefoot.calibrators import Calibration
from surefoot.decisions.decision import Familiar
from surefoot.deploy.model import Novelty
from surefoot.deploy.own_code import OwnCode
from surefoot.evaluation.scores import Evaluation, Score
from surefoot.lab.experiments.methods import Method
from surefoot.text import count_of, visible

CARD_METRICS = ("nll", "brier", "label_error", "ece", "e99")
NOVELTY_MEANING = (
    "higher is more novel; from the networks' own logits, uncalibrated, except for a T inside their samples; "
    "the mean over members"
)


FEATURES_MEANING = (
    "numbers as (x - mean) / deviation, 0 if missing, with a missing indicator; categories one-hot, the last "
    "for any other value; vectors as they are"
)


def model_card(
    about: Mapping[str, Any],
    *,
    calibration: Calibration | None,
    novelty: Novelty,
    familiar: Familiar,
    evaluation: Evaluation,
    thresholds: Mapping[str, Any] | None,
    method: Method,
    code: OwnCode | None,
) -> str:
    """Markdown; text from users' files is escaped, and no character of it controls a terminal."""
    shape, prepared = " x ".join(str(side) for side in about["input"]["shape"]), about["preprocessing"]
    given = f"points, {shape} numbers each, not preprocessed"
    if about.get("features") is not None:
        columns = ", ".join(_plain(each["column"]) for each in about["features"])
        given = f"rows of a table, as {shape} numbers; {FEATURES_MEANING}; columns: {columns}"
    if prepared is not None:
        sizes = [f"{name} {prepared[name] or 'not given'}" for name in ("short_side", "resize", "view")]
        given = f"images, as {shape}: {prepared['definition']}, with {', '.join(sizes)}"
    return "\n".join(
        visible(line)
        for line in [
            f"# {_plain(about['task']['name'])}: {method.title}",
            "",
            f"Written by Surefoot {about['surefoot']} from run {about['run']} of experiment "
            f"{_plain(about['experiment'])}.",
            "",
            "## What it is",
            "",
            *_facts(about, calibration, method),
            f"- **Novelty**: `{novelty.score}`; {NOVELTY_MEANING}. " + " ".join(familiar.sentences()),
            f"- **Input**: {given}.",
            "",
            "## Performance",
            "",
            *_scores(evaluation, method, about),
            "",
            "## What it decides",
            "",
            *_decisions(thresholds),
            "",
            "## How to use it",
            "",
            *_use(about, code),
            "",
        ]
    )


def _facts(about: Mapping[str, Any], calibration: Calibration | None, method: Method) -> list[str]:
    recipe = about["networks"][0]["recipe"]
    count = count_of(len(about["networks"]), "network")
    classes = count_of(len(about["class_names"]), "class", "classes")
    names = ", ".join(_plain(name) for name in about["class_names"])
    labels = "one of" if about["kind"] == "one_label" else "any of"
    return [
        f"- **Predicts** {labels} {classes}: {names}.",
        f"- **Method**: `{method.name}`, `{method.formula}` ({method.reference}); {method.origin}.",
        f"- **Networks**: {count} ({_plain(recipe['network'])}), protocol `{recipe['protocol']}`, "
        f"seeds {', '.join(str(each['seed']) for each in about['networks'])}.",
        f"- **Calibration**: {'none' if calibration is None else calibration.summary()}; fitted on "
        f"{method.fitted_on}.",
    ]


def _scores(evaluation: Evaluation, method: Method, about: Mapping[str, Any]) -> list[str]:
    sides = list(evaluation.sides.items())
    header = " | ".join(f"{side} (n = {scores.n:,})" for side, scores in sides)
    metrics = [metric for metric in evaluation.metrics if metric.name in CARD_METRICS]
    rows = [
        f"| {metric.title} | {' | '.join(_score(s.metrics[metric.name]) for _, s in sides)} |"
        for metric in metrics
    ]
    lines = [f"| lower is better | {header} |", f"|---|{'---|' * len(sides)}", *rows, ""]
    if len(sides) == 1:
        lines.append("There were no unfamiliar samples to test on: its performance on them is unknown.")
    if any("bayesian" in str(each["recipe"].get("variant")) for each in about["networks"]):
        lines.append(
            "The predictions behind these numbers draw new noise for each sample; a bundle draws it once, so "
            "its own numbers differ a little."
        )
    lines.append(
        f"With 95% intervals from {count_of(evaluation.resamples, 'resample')}, and exact ones for "
        f"proportions; `metrics.json` has every metric. {method.title} was tested on the task's own test "
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
    above = "never accepted" if accept is None else f"accepted at a confidence of {accept:g} or more"
    below = "never rejected" if not reject else f"rejected below {reject:g}"
    return [f"Predictions are {above}, {below}, and reviewed otherwise. `thresholds.json` has the details."]


def _use(about: Mapping[str, Any], code: OwnCode | None) -> list[str]:
    """Commands and Python that work as they are in the bundle's folder."""
    option, argument = ("", "") if code is None else (" --allow-code", ", allow_code=True")
    python = ["import surefoot", "", f'bundle = surefoot.load_bundle("."{argument})']
    command = None
    if about.get("features") is not None:
        command = "surefoot predict . rows.csv -o predictions.csv"
        python += [
            "rows = bundle.preprocess_rows(table)  # a pandas DataFrame, a pyarrow Table, a list of mappings",
            "probabilities = bundle.probabilities(rows)  # (n, classes)",
        ]
    elif about["preprocessing"] is None:
        python.append("probabilities = bundle.probabilities(points)  # (n, classes)")
    else:
        command = "surefoot predict . photo.jpg -o predictions.csv"
        python += [
            'image = bundle.preprocess("photo.jpg")',
            "probabilities = bundle.probabilities(image[None])  # (1, classes)",
        ]
    return [
        "With Surefoot installed, run this in the folder of this file."
        + ("" if code is None else f" {code.sentence}"),
        "",
        *([] if command is None else ["```sh", command + option, "```", ""]),
        "```python",
        *python,
        "```",
    ]


def _plain(text: object) -> str:
    """Text with Markdown and HTML escaped, in one line."""
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", html.escape(" ".join(str(text).split())))
