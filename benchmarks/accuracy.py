"""The error of accuracy estimated without labels: a part of monitoring.py, see monitoring_protocol.md."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import detectors
import numpy as np
from detectors import TASKS, Network, load, numbers, recipes, windows
from scipy.special import softmax

from surefoot import Predictions, fit_calibration, fit_temperature
from surefoot.deploy.accuracy import (
    DIFFERENCE,
    ESTIMATORS,
    Reference,
    scaled_difference,
    thresholded_confidence,
)
from surefoot.predictions.labels import LabelKind

Array = np.ndarray
SIZES = (25, 100, 500)
KINDS = ("familiar", "other mix", "30%", "100%")
EACH = 5  # windows of a kind and size for each network
CBPE = "CBPE (NannyML)"
AVERAGE = "average confidence"
UNLABELLED = "mean confidence, a fall counted three times"  # for references without labels
BY_CONFIDENCE: dict[str, Callable[[Reference, Array], float]] = {
    **ESTIMATORS,
    f"{DIFFERENCE}, a fall counted twice": partial(scaled_difference, factor=2.0),
    UNLABELLED: lambda reference, confidence: scaled_difference(
        Reference(reference.confidence, reference.confidence), confidence
    ),
}


@dataclass(frozen=True)
class Estimate:
    """One estimate of the accuracy of a network on a window, and the truth."""

    task: str
    network: str  # 'single' or 'ensemble'
    cell: detectors.Cell
    calibration: str
    estimator: str
    value: float
    true: float


@dataclass(frozen=True, eq=False)
class Uncalibrated:
    """What CBPE gets: probabilities and labels of the reference, probabilities of windows, and the truth."""

    task: str
    network: str
    reference: Array
    labels: Array
    cells: list[detectors.Cell]
    windows: list[Array]
    true: list[float]


def accuracy_networks(store: Path, task: str, half: str) -> list[tuple[str, Network]]:
    """Single networks and ensembles of five seeds of a recipe."""
    tens, others = recipes(store, task)
    seeds = slice(0, 5) if half == "choose" else slice(9, 14)
    families = [[load(folder, half) for folder in recipe[seeds]] for recipe in tens]
    found = [("single", network) for family in families for network in family]
    found += [("single", load(recipe[0], half)) for recipe in others] if half == "confirm" else []
    for family in families:
        sides = [
            getattr(family[0], side).with_logits(
                np.concatenate([getattr(each, side).logits for each in family])
            )
            for side in ("familiar", "unfamiliar", "val")
        ]
        found.append(("ensemble", Network(task, *sides)))
    return found


def drawn(network: Network) -> tuple[Array, list[tuple[detectors.Cell, Array]]]:
    """The reference's rows, half of the familiar ones, and EACH window of the cells."""
    rng = np.random.default_rng(0)
    data = numbers(network)
    reference, pool = np.split(rng.permutation(data.familiar), [data.familiar // 2])
    found = windows(network, data, pool, rng, SIZES, EACH, EACH)
    return reference, [(cell, row) for cell, rows in found if cell[1] in KINDS for row in rows]


@dataclass(frozen=True, eq=False)
class Rows:
    """What the estimators see of each row, familiar ones first; for many labels, means over the labels."""

    confidence: Array
    correct: Array
    by_entropy: Array | None
    sampled: Array | None  # how often labels sampled from two members agree
    agreeing: Array | None  # how often two members do (GDE; Jiang et al., ICLR 2022)


def rows_of(sides: list[Predictions], scale: float) -> Rows:
    """Of calibrated predictions; `scale` is their temperature, by which members are divided for GDE."""
    confidence, correct = [], []
    for side in sides:
        outcomes = side.outcomes
        count = np.bincount(outcomes.row, minlength=side.n)
        for into, values in ((confidence, outcomes.confidence), (correct, outcomes.correct)):
            into.append(np.bincount(outcomes.row, values, side.n) / np.maximum(count, 1))
    entropy = sampled = agreeing = None
    if sides[0].kind is LabelKind.ONE_LABEL:
        probs = np.concatenate([np.clip(side.probs().astype(np.float64), 1e-12, 1) for side in sides])
        entropy = (probs * np.log(probs)).sum(axis=1)
        if sides[0].members > 1:
            logits = np.concatenate([side.logits.astype(np.float64) for side in sides], axis=1)
            sampled = _pairs(softmax(logits / scale, axis=2))
            agreeing = _pairs(np.eye(logits.shape[2])[logits.argmax(axis=2)])
    return Rows(np.concatenate(confidence), np.concatenate(correct), entropy, sampled, agreeing)


def _pairs(probs: Array) -> Array:
    """The mean product of two different members' probabilities, summed over classes."""
    members = len(probs)
    pairs = (probs.sum(axis=0) ** 2).sum(axis=1) - (probs**2).sum(axis=(0, 2))
    return pairs / (members * (members - 1))


def estimates(kind: str, network: Network) -> Iterator[Estimate]:
    """All estimators and calibrations, for each window."""
    assert network.val is not None
    reference, cells = drawn(network)
    fits = {"T": fit_temperature(network.val), "budget T": fit_calibration("budget", network.val)}
    plain = [network.familiar, network.unfamiliar]
    for name in ("no T", *fits):
        sides = plain if name == "no T" else [fits[name](side) for side in plain]
        rows = rows_of(sides, 1.0)
        if name != "no T" and kind == "ensemble":
            rows = replace(rows, sampled=rows_of(plain, float(fits[name].temperature)).sampled)
        known = Reference(rows.confidence[reference], rows.correct[reference])
        for cell, chosen in cells:
            found = {key: each(known, rows.confidence[chosen]) for key, each in BY_CONFIDENCE.items()}
            if rows.by_entropy is not None:
                of_reference = Reference(rows.by_entropy[reference], known.correct)
                found["ATC by entropy"] = thresholded_confidence(of_reference, rows.by_entropy[chosen])
            for key, values in (("agreement (GDE)", rows.agreeing), ("agreement, sampled", rows.sampled)):
                if values is not None:
                    found[key] = float(values[chosen].mean())
            true = float(rows.correct[chosen].mean())
            for key, value in found.items():
                yield Estimate(network.name, kind, cell, name, key, value, true)


def uncalibrated(kind: str, network: Network) -> Uncalibrated:
    """The same windows for CBPE."""
    reference, cells = drawn(network)
    sides = [network.familiar, network.unfamiliar]
    probs = np.concatenate([side.probs().astype(np.float64) for side in sides])
    correct = rows_of(sides, 1.0).correct
    return Uncalibrated(
        network.name, kind, probs[reference], network.familiar.labels[reference],
        [cell for cell, _ in cells], [probs[rows] for _, rows in cells],
        [float(correct[rows].mean()) for _, rows in cells],
    )  # fmt: skip


def all_estimates(store: Path, half: str) -> tuple[list[Estimate], list[Uncalibrated]]:
    """Of all networks of a half; and what CBPE needs for the tasks with one label."""
    found, others = [], []
    for task in TASKS:
        for kind, network in accuracy_networks(store, task, half):
            found += estimates(kind, network)
            if network.familiar.kind is LabelKind.ONE_LABEL:
                others.append(uncalibrated(kind, network))
    return found, others


def error(found: list[Estimate]) -> float:
    """The mean absolute error in points; every task and size weighs the same."""
    cells: dict[tuple[str, int], list[float]] = {}
    for each in found:
        cells.setdefault((each.task, each.cell[0]), []).append(abs(each.value - each.true))
    return float(100 * np.mean([np.mean(each) for each in cells.values()]))


def bias(found: list[Estimate]) -> float:
    """The mean of the estimate less the truth, in points."""
    return float(100 * np.mean([each.value - each.true for each in found]))


def of_single(
    found: list[Estimate], estimator: str, calibration: str, kind: str, *, many: bool = False
) -> list[Estimate]:
    """The estimates of single networks on windows of a kind."""
    return [
        e for e in found
        if e.network == "single" and e.estimator == estimator and e.calibration == calibration
        and e.cell[1] == kind and (e.task == "objects96") == many
    ]  # fmt: skip


def falls(found: list[Estimate]) -> dict[str, float]:
    """How many times as much as the mean confidence (T of val) accuracy falls on unfamiliar windows."""
    familiar, strange = (of_single(found, AVERAGE, "T", kind) for kind in ("familiar", "100%"))
    ratios = {}
    for task in dict.fromkeys(each.task for each in familiar):
        sides = [[each for each in side if each.task == task] for side in (familiar, strange)]
        accuracy = [np.mean([each.true for each in side]) for side in sides]
        confidence = [np.mean([each.value for each in side]) for side in sides]
        ratios[task] = float((accuracy[0] - accuracy[1]) / (confidence[0] - confidence[1]))
    return ratios


def errors_by_task(
    found: list[Estimate], estimators: tuple[str, ...]
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Errors with T of val on unfamiliar windows, for one label."""
    groups = [of_single(found, name, "T", "100%") for name in estimators]
    for task in dict.fromkeys(each.task for each in groups[0]):
        yield task, tuple(error([each for each in group if each.task == task]) for group in groups)
