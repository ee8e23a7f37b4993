"""What methods say, from what lies in the store: fitted anew each time, in seconds, without training."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from surefoot.calibrators import Calibration
from surefoot.comparison import MethodRuns, Said
from surefoot.engines.held_out import HELD_OUT
from surefoot.engines.novelty import stored_novelty
from surefoot.errors import InputError
from surefoot.methods import Method, Setup, Shown, held_out_networks
from surefoot.predictions import Predictions, concatenated
from surefoot.recipes import Spec
from surefoot.store import Store
from surefoot.tasks.base import Split


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a method: what it was fitted to, and what it says before and after."""

    run: int
    specs: tuple[Spec, ...]
    calibration: Calibration | None
    before: dict[Split, Predictions]
    after: dict[Split, Predictions]


@dataclass(frozen=True, eq=False)
class Result:
    """A method's runs, and the networks that were not there."""

    method: Method
    runs: tuple[Run, ...]
    missing: tuple[str, ...] = ()


@dataclass(eq=False)
class Reader:
    """Reads a store, each file once."""

    setup: Setup
    store: Store
    kept: dict[tuple[Spec, str], Predictions] = field(default_factory=dict)

    def predictions(self, spec: Spec, split: str) -> Predictions:
        """What a network said of a split."""
        if (spec, split) not in self.kept:
            self.kept[spec, split] = self.store.predictions(spec, split)
        return self.kept[spec, split]

    def result(self, method: Method) -> Result:
        """All runs that the store has the networks for."""
        runs, missing = [], []
        for run in range(method.count(self.setup)):
            specs = tuple(self.setup.spec(*each) for each in method.networks(self.setup, run))
            lacking = self._lacking(method, specs)
            if lacking:
                missing += [name for name in lacking if name not in missing]
            else:
                runs.append(self._run(method, run, specs))
        return Result(method, tuple(runs), tuple(missing))

    def _lacking(self, method: Method, specs: Sequence[Spec]) -> list[str]:
        held_out = [self.setup.spec(*each) for each in held_out_networks(self.setup)] if method.held_out else []
        lacking = [_called(spec) for spec in (*specs, *held_out) if not self.store.is_done(spec)]
        if method.novelty is not None and not lacking:
            lacking = [
                f"{method.novelty} scores of {_called(spec)}"
                for spec in specs
                if stored_novelty(spec, self.store, method.novelty, Split.VAL) is None
            ]
        return lacking

    def _run(self, method: Method, run: int, specs: tuple[Spec, ...]) -> Run:
        tested = [s for s in (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR) if s in self.setup.task.splits]
        before = {split: self._said(method, specs, split) for split in tested}
        calibration = fitted(method, self._shown(method, specs, before))
        after = before if calibration is None else {s: calibration(said) for s, said in before.items()}
        return Run(run, specs, calibration, before, after)

    def _shown(self, method: Method, specs: tuple[Spec, ...], tested: dict[Split, Predictions]) -> Shown:
        """The one place that hands data to a fit: validation, unless the row is there to cheat."""
        if method.cheating:
            return Shown(concatenated(list(tested.values())))
        held_out = None
        if method.held_out:
            folds = [self.setup.spec(*each) for each in held_out_networks(self.setup)]
            held_out = concatenated([self.predictions(spec, HELD_OUT) for spec in folds])
        return Shown(self._said(method, specs, Split.VAL), held_out)

    def _said(self, method: Method, specs: Sequence[Spec], split: Split) -> Predictions:
        parts = [self.predictions(spec, split) for spec in specs]
        said = parts[0].with_logits(torch.cat([part.logits for part in parts]))
        if method.novelty is None:
            return said
        found = stored_novelty(specs[0], self.store, method.novelty, split)
        if found is None:
            raise InputError(f"{method.novelty} scores of {_called(specs[0])} are missing for {split}")
        scores, scale = found
        return replace(said, novelty=torch.from_numpy(scale(scores)))


def fitted(method: Method, shown: Shown) -> Calibration | None:
    """What a method fits on what it is shown."""
    return None if method.fit is None else method.fit(shown)


def as_runs(result: Result) -> MethodRuns:
    """A method's runs as the comparison takes them."""
    method = result.method
    return MethodRuns(
        name=method.name,
        title=method.title,
        runs=tuple(
            Said(run.run, run.after[Split.TEST_FAMILIAR], run.after.get(Split.TEST_UNFAMILIAR))
            for run in result.runs
        ),
        paper=method.paper,
        spread_of=method.spread_of,
        cheating=method.cheating,
        beyond=method.beyond,
        missing=result.missing,
    )


def _called(spec: Spec) -> str:
    """A network's name for people."""
    variant = spec.recipe.variant
    kind = "plain" if variant is None else variant.kind
    fold = f" fold {variant.fold}" if variant is not None and hasattr(variant, "fold") else ""
    return f"{kind}{fold} network of {spec.task}, seed {spec.seed}"
