"""Predictions of each method from the networks in the store; calibrations are fitted anew each time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from surefoot.calibrators import Calibration
from surefoot.errors import InputError
from surefoot.evaluation.comparison import MethodRuns, Said
from surefoot.experiments.methods import KNN, ODIN, FitData, Method
from surefoot.experiments.plan import Planned
from surefoot.metrics import Metric
from surefoot.novelty import auroc
from surefoot.predictions.predictions import Predictions, concatenated
from surefoot.recipes.recipe import Spec
from surefoot.store.store import Store
from surefoot.tasks.task import Split
from surefoot.variants import variant_of
from surefoot.variants.held_out import HELD_OUT
from surefoot.workers.produce import stored_novelty

SCORED_APART = (ODIN, KNN)  # not from the prediction's own pass
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a method: what was fitted, and what it says before and after."""

    run: int
    specs: tuple[Spec, ...]
    calibration: Calibration | None
    before: dict[Split, Predictions]
    after: dict[Split, Predictions]
    novelty_auroc: float | None = None  # of the novelty score: familiar against unfamiliar


@dataclass(frozen=True, eq=False)
class Result:
    """A method's runs, what they cost, and the networks that were not there."""

    method: Method
    runs: tuple[Run, ...]
    missing: tuple[str, ...] = ()
    seconds_training: float | None = None  # of one run, teachers and all
    seconds_per_sample: float | None = None
    parameters: float | None = None  # of all networks that answer
    interpolation: dict[str, Any] | None = None  # of averaged networks: the loss between two of them


@dataclass(eq=False)
class Reader:
    """Reads a store, each file once."""

    store: Store
    kept: dict[tuple[Spec, str], Predictions] = field(default_factory=dict)

    def predictions(self, spec: Spec, split: str) -> Predictions:
        """What a network said of a split."""
        if (spec, split) not in self.kept:
            self.kept[spec, split] = self.store.predictions(spec, split)
        return self.kept[spec, split]

    def result(self, planned: Planned) -> Result:
        """All runs that the store has the networks for."""
        runs, missing = [], []
        for run, specs in enumerate(planned.runs):
            lacking = self._lacking(planned, specs)
            if lacking:
                missing += [name for name in lacking if name not in missing]
            else:
                runs.append(self._run(planned, run, specs))
        if not runs:
            return Result(planned.method, (), tuple(missing))
        training, per_sample = self._cost(planned, [run.specs for run in runs])
        parameters = self._parameters(runs[0].specs)
        barrier = self.store.facts(runs[0].specs[0]).get("interpolation")
        return Result(planned.method, tuple(runs), tuple(missing), training, per_sample, parameters, barrier)

    def _lacking(self, planned: Planned, specs: Sequence[Spec]) -> list[str]:
        lacking = [called(spec) for spec in (*specs, *planned.held_out) if not self.store.is_done(spec)]
        if planned.method.oracle and not lacking:
            lacking = [
                f"{s} of {called(specs[0])}" for s in TESTED if not self.store.has_predictions(specs[0], s)
            ]
        novelty = planned.method.novelty
        if novelty is not None and not lacking:
            lacking = [
                f"{novelty} scores of {called(spec)}"
                for spec in specs
                if stored_novelty(spec, self.store, novelty, Split.VAL) is None
            ]
        return lacking

    def _run(self, planned: Planned, run: int, specs: tuple[Spec, ...]) -> Run:
        method = planned.method
        tested = [split for split in TESTED if self.store.has_predictions(specs[0], split)]
        before = {split: self._said(method, specs, split) for split in tested}
        calibration = method.calibration(self._shown(planned, specs, before))
        after = before if calibration is None else {s: calibration(said) for s, said in before.items()}
        return Run(run, specs, calibration, before, after, self._auroc(method, specs[0], before))

    def _shown(self, planned: Planned, specs: tuple[Spec, ...], tested: dict[Split, Predictions]) -> FitData:
        """The one place that hands data to a fit: validation, unless the row is there to cheat."""
        if planned.method.oracle:
            return FitData(concatenated(list(tested.values())))
        held_out = None
        if planned.held_out:
            held_out = concatenated([self.predictions(spec, HELD_OUT) for spec in planned.held_out])
        return FitData(self._said(planned.method, specs, Split.VAL), held_out)

    def _said(self, method: Method, specs: Sequence[Spec], split: Split) -> Predictions:
        parts = [self.predictions(spec, split) for spec in specs]
        said = parts[0].with_logits(torch.cat([part.logits for part in parts]))
        if method.novelty is None:
            return said
        found = stored_novelty(specs[0], self.store, method.novelty, split)
        if found is None:
            raise InputError(f"{method.novelty} scores of {called(specs[0])} are missing for {split}")
        scores, scale = found
        return replace(said, novelty=torch.from_numpy(scale(scores)))

    def _auroc(self, method: Method, spec: Spec, tested: dict[Split, Predictions]) -> float | None:
        if method.novelty is None or len(tested) < 2:
            return None
        scores = [stored_novelty(spec, self.store, method.novelty, split) for split in TESTED]
        familiar, unfamiliar = (found[0] for found in scores if found is not None)
        return auroc(familiar, unfamiliar)

    def _cost(self, planned: Planned, runs: Sequence[Sequence[Spec]]) -> tuple[float, float | None]:
        """Seconds of training for a run with all that it needs, and seconds a sample for its networks.

        The median over runs: the first of a process has a compiler's time in it.
        """
        training, per_sample = [], []
        for specs in runs:
            needed = {each for spec in (*specs, *planned.held_out) for each in (spec, *spec.needs())}
            training.append(sum(float(self.store.facts(spec).get("seconds", 0.0)) for spec in needed))
            each = [float(self.store.facts(spec).get("seconds_per_sample", 0.0)) for spec in specs]
            per_sample += [sum(each)] if all(each) else []
        scored_apart = planned.method.novelty in SCORED_APART  # and what that takes is not measured
        known = per_sample and not scored_apart
        return float(np.median(training)), float(np.median(per_sample)) if known else None

    def _parameters(self, specs: Sequence[Spec]) -> float | None:
        found = [self.store.parameters(spec) for spec in specs]
        known = [count for count in found if count is not None]
        return float(sum(known)) if len(known) == len(found) else None


def described(method: Method) -> MethodRuns:
    """A method as the comparison takes it, without its runs."""
    return MethodRuns(
        name=method.name,
        title=method.title,
        paper=method.paper,
        variance_from=method.variance_from,
        oracle=method.oracle,
        not_in_paper=method.not_in_paper,
        is_ensemble=method.is_ensemble,
    )


def as_runs(result: Result) -> MethodRuns:
    """A method's runs as the comparison takes them."""
    return replace(
        described(result.method),
        runs=tuple(
            Said(run.run, run.after[Split.TEST_FAMILIAR], run.after.get(Split.TEST_UNFAMILIAR))
            for run in result.runs
        ),
        seconds_training=result.seconds_training,
        seconds_per_sample=result.seconds_per_sample,
        parameters=result.parameters,
        missing=result.missing,
    )


def called(spec: Spec) -> str:
    """A network's name for people."""
    return f"{variant_of(spec.recipe).label} network of {spec.task}, seed {spec.seed}"


@dataclass(frozen=True)
class SizeScores:
    """An ensemble of the first so many members: each metric's value on each side."""

    members: int
    values: dict[tuple[str, str], float]  # by side and metric


def by_size(run: Run, metrics: Sequence[Metric]) -> list[SizeScores]:
    """One run of an ensemble whose members are calibrated each by itself, or not at all; by growing size."""
    sides = {str(split).removeprefix("test_"): said for split, said in run.after.items()}
    largest = next(iter(sides.values())).members
    return [
        SizeScores(
            size,
            {
                (side, metric.name): metric.function(_first(said, size))
                for side, said in sides.items()
                for metric in metrics
            },
        )
        for size in range(1, largest + 1)
    ]


def _first(predictions: Predictions, members: int) -> Predictions:
    return predictions.with_logits(predictions.logits[:members])
