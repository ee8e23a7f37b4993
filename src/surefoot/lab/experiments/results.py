"""Each method's runs, read from the networks in the store; calibrations are fitted anew each time."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.calibrators.before_averaging import TemperatureBeforeAveraging
from surefoot.calibrators.temperature import MemberTemperatures
from surefoot.errors import InputError
from surefoot.lab.comparison.comparison import TEST_SPLITS, MethodRun, MethodRuns
from surefoot.lab.experiments.methods import KNN, ODIN, FitData, Method
from surefoot.lab.experiments.plan import MethodPlan, Plan
from surefoot.lab.experiments.run import REPEAT
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.files import SCALED_SAMPLES
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants import variant_of
from surefoot.lab.variants.held_out import HELD_OUT
from surefoot.predictions.labels import short
from surefoot.predictions.novelty import Scale, auroc
from surefoot.predictions.predictions import Predictions, concatenated
from surefoot.runtime import NUMBERS_TO_DIVIDE, in_parallel, one_thread

SCORED_APART = (ODIN, KNN)  # novelty scores that do not come from the prediction's own pass
TESTED = tuple(TEST_SPLITS.values())
HOW_TO_SCALE = (
    "which 'surefoot run' computes from its weights (networks stored before T was inside have none; "
    "'t-of-bayesian' has T after averaging)"
)


@dataclass(eq=False)
class Reader:
    """Reads a store, each file and each method once."""

    store: Store
    cache: dict[tuple[Spec, str], Predictions] = field(default_factory=dict)
    results: dict[MethodPlan, MethodRuns] = field(default_factory=dict)
    facts: dict[Spec, dict[str, Any]] = field(default_factory=dict)

    def predictions(self, spec: Spec, split: str) -> Predictions:
        """A network's predictions of a split."""
        if (spec, split) not in self.cache:
            self.cache[spec, split] = self.store.predictions(spec, split)
        return self.cache[spec, split]

    def fitting_threads(self, plan: Plan) -> AbstractContextManager[None]:
        """One thread for predictions that are so few that dividing the work takes longer than doing it."""
        for spec in (spec for planned in plan.methods for spec in planned.specs()):
            if self.store.is_done(spec) and self.store.has_predictions(spec, Split.VAL):
                is_small = self.predictions(spec, Split.VAL).logits.size < NUMBERS_TO_DIVIDE
                return one_thread() if is_small else nullcontext()
        return nullcontext()

    def result(self, planned: MethodPlan) -> MethodRuns:
        """All runs of a method whose networks are in the store, with their cost."""
        if planned not in self.results:
            self.results[planned] = self._result(planned)
        return self.results[planned]

    def _result(self, planned: MethodPlan) -> MethodRuns:
        runs: list[MethodRun] = []
        missing: dict[str, None] = {}
        for number, specs in enumerate(planned.runs):
            lacking = self._missing(planned, specs)
            missing |= dict.fromkeys(lacking)
            if not lacking:
                runs.append(self._run(planned, number, specs))
        result = replace(described(planned.method), runs=tuple(runs), missing=tuple(missing))
        if not runs:
            return result
        training, per_sample = self._cost(planned, [run.specs for run in runs])
        counts = [self.store.parameters(spec) for spec in runs[0].specs]
        known = [count for count in counts if count is not None]
        return replace(
            result,
            seconds_training=training,
            seconds_per_sample=per_sample,
            parameters=float(sum(known)) if len(known) == len(counts) else None,
        )

    def _missing(self, planned: MethodPlan, specs: Sequence[Spec]) -> list[str]:
        """The networks, or else the scores, that a run needs and the store does not have."""
        networks = [described_spec(s) for s in _read_by(planned, specs) if not self.store.is_done(s)]
        if networks:
            return networks
        if planned.method.oracle:
            untested = [split for split in TESTED if not self.store.has_predictions(specs[0], split)]
            if untested:
                return [f"{split} of {described_spec(specs[0])}" for split in untested]
        if planned.method.scales_samples:
            return [
                f"T inside the samples of {described_spec(spec)}, {HOW_TO_SCALE}"
                for spec in specs
                if not self.store.has_scaled_samples(spec)
            ]
        novelty = planned.method.novelty
        return [
            f"{novelty} scores of {described_spec(spec)}"
            for spec in specs
            if novelty is not None and stored_novelty(spec, self.store, novelty, Split.VAL) is None
        ]

    def _run(self, planned: MethodPlan, number: int, specs: tuple[Spec, ...]) -> MethodRun:
        """A run; of an ensemble also without each of its networks, calibrated anew."""
        whole, without = self._calibrated(planned, number, specs), []
        for place in range(len(specs)) if len(specs) > 1 else ():
            rest, known = specs[:place] + specs[place + 1 :], None
            if isinstance(whole.calibration, MemberTemperatures):  # each T is that of its own network
                members = whole.calibration.members
                known = replace(whole.calibration, members=members[:place] + members[place + 1 :])
            without.append(self._calibrated(planned, number, rest, known))
        return replace(whole, without=tuple(without))

    def _calibrated(
        self, planned: MethodPlan, number: int, specs: tuple[Spec, ...], known: Calibration | None = None
    ) -> MethodRun:
        method = planned.method
        tested = [split for split in TESTED if self.store.has_predictions(specs[0], split)]
        before = {split: self._joined(method, specs, split) for split in tested}
        if method.scales_samples:
            stored = {split: stored_scaled_samples(specs[0], self.store, split) for split in tested}
            (_, fitted), *_ = stored.values()
            scaled = {split: predictions for split, (predictions, _) in stored.items()}
            return MethodRun(number, before, fitted, specs, scaled=scaled)
        calibration = known or method.calibration(self._fit_data(planned, specs, before))
        novelty_auroc = None
        if method.novelty is not None and len(tested) == len(TESTED):
            scores = [stored_novelty(specs[0], self.store, method.novelty, split) for split in TESTED]
            novelty_auroc = auroc(*(stored[0] for stored in scores if stored is not None))
        return MethodRun(number, before, calibration, specs, novelty_auroc)

    def _fit_data(
        self, planned: MethodPlan, specs: tuple[Spec, ...], tested: Mapping[Split, Predictions]
    ) -> FitData:
        """The only place that gives data to a fit: validation data, or for an oracle the test sets."""
        if planned.method.oracle:
            return FitData(concatenated(list(tested.values())))
        held_out = None
        if planned.held_out:
            held_out = concatenated([self.predictions(spec, HELD_OUT) for spec in planned.held_out])
        reference = planned.reference(specs)
        return FitData(
            self._joined(planned.method, specs, Split.VAL),
            held_out,
            None if reference is None else self.predictions(reference, Split.VAL),
        )

    def outputs(self, method: Method, specs: Sequence[Spec], split: Split) -> Predictions:
        """The predictions of a run's networks as members, with T where it is inside their samples."""
        if method.scales_samples:
            return stored_scaled_samples(specs[0], self.store, split)[0]
        return self._joined(method, specs, split)

    def _joined(self, method: Method, specs: Sequence[Spec], split: Split) -> Predictions:
        """The predictions of all networks of a run as members, with the novelty that the method needs."""
        parts = [self.predictions(spec, split) for spec in specs]
        joined = parts[0].with_logits(np.concatenate([part.logits for part in parts]))
        if method.novelty is None:
            return joined
        stored = stored_novelty(specs[0], self.store, method.novelty, split)
        if stored is None:
            raise InputError(f"{method.novelty} scores of {described_spec(specs[0])} are missing for {split}")
        scores, scale = stored
        return replace(joined, novelty=scale(scores))

    def _facts(self, spec: Spec) -> dict[str, Any]:
        if spec not in self.facts:
            self.facts[spec] = self.store.facts(spec)
        return self.facts[spec]

    def _cost(self, planned: MethodPlan, runs: Sequence[Sequence[Spec]]) -> tuple[float, float | None]:
        """Seconds of training for a run with all that it needs, and seconds a sample for its networks.

        The median over runs: the first run of a process includes the compiler's time.
        """
        training, per_sample = [], []
        for specs in runs:
            needed = {each for spec in _read_by(planned, specs) for each in (spec, *spec.needs())}
            training.append(sum(float(self._facts(spec).get("seconds", 0.0)) for spec in needed))
            each = [float(self._facts(spec).get("seconds_per_sample", 0.0)) for spec in specs]
            per_sample += [sum(each)] if all(each) else []
        # What a novelty score of its own pass takes is not measured.
        is_known = per_sample and planned.method.novelty not in SCORED_APART
        return float(np.median(training)), float(np.median(per_sample)) if is_known else None


def _read_by(planned: MethodPlan, specs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Every network that a run reads: its own, those of the folds, the one its surplus is measured from."""
    reference = planned.reference(specs)
    return (*specs, *planned.held_out, *(() if reference is None else (reference,)))


def results_of(plan: Plan, store: Store | Reader) -> tuple[MethodRuns, ...]:
    """What the store has of every method of a plan."""
    reader = store if isinstance(store, Reader) else Reader(store)
    results = tuple(in_parallel(reader.result, plan.methods))
    for result in results:
        check_classes(plan, result)
    return results


def check_classes(plan: Plan, result: MethodRuns) -> None:
    """Raise if a plan has other classes than its networks."""
    named = len(plan.class_names)
    outputs = [outputs for run in result.runs for outputs in run.outputs.values()]
    for classes, names in {(each.classes, each.class_names) for each in outputs}:
        if classes != named:
            raise InputError(f"the plan has {named} class names for networks of {classes} classes; {REPEAT}")
        if names not in (None, plan.class_names):
            in_both = short(plan.class_names), short(names)
            raise InputError(f"the plan has classes {in_both[0]} for networks of {in_both[1]}; {REPEAT}")


def described(method: Method) -> MethodRuns:
    """A method without runs, as the comparison takes it."""
    return MethodRuns(
        name=method.name,
        title=method.title,
        paper=method.paper,
        variance_from=method.variance_from,
        oracle=method.oracle,
        not_in_paper=method.not_in_paper,
        is_ensemble=method.is_ensemble,
    )


def without_absent_lenders(methods: Sequence[MethodRuns]) -> list[MethodRuns]:
    """The methods without a variance that would come from a method that is not among them."""
    names = {method.name for method in methods}
    return [m if m.variance_from in names else replace(m, variance_from=None) for m in methods]


def described_spec(spec: Spec) -> str:
    """A network in words."""
    is_sharpness_aware = spec.recipe.variant is None and spec.recipe.sharpness > 0
    label = "sharpness-aware" if is_sharpness_aware else variant_of(spec.recipe).label
    return f"{label} network of {spec.task}, seed {spec.seed}"


def stored_scaled_samples(
    spec: Spec, store: Store, split: Split
) -> tuple[Predictions, TemperatureBeforeAveraging]:
    """A Bayesian network's predictions with T inside its samples, and that T."""
    arrays = store.scaled_samples(spec)
    try:
        predictions = store.predictions(spec, split).with_logits(arrays[split][None])
        fitted = TemperatureBeforeAveraging.from_dict(json.loads(str(arrays["calibration"])))
        return predictions, replace(fitted, class_names=predictions.class_names)
    except (KeyError, TypeError, ValueError) as error:
        path = store.folder(spec) / SCALED_SAMPLES
        raise InputError(f"{path} is damaged ({error}); remove it to compute it again") from error


def stored_novelty(
    spec: Spec, store: Store, name: str, split: Split
) -> tuple[NDArray[np.float64], Scale] | None:
    """A score as computed, and the scale that makes it novelty from 0 to 1; None where it is missing."""
    arrays = store.novelty(spec, name)
    if arrays is None or split not in arrays:
        return None
    low, high = arrays[f"{split}_scale"]
    return arrays[split], Scale(float(low), float(high))
