"""The choice of a recipe among candidates, by validation NLL on familiar data alone, with successive halving.

All candidates are trained for a quarter of their epochs, the better half for a half, the better half of those
to the end. A trial is a network of the store that predicts nothing but validation data, so a search resumes
like any training, and unfamiliar data cannot decide anything.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.errors import InputError, refuse_unknown
from surefoot.io import read_toml
from surefoot.lab.experiments.methods import CHANGEABLE
from surefoot.lab.recipes.recipe import Protocol, Recipe, Spec
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import ImageFiles, Split, Task
from surefoot.lab.variants import recipe_from
from surefoot.lab.workers.jobs import Event, Job, WorkOrder
from surefoot.lab.workers.local import execute
from surefoot.metrics.intervals import NORMAL, few_samples_factor
from surefoot.predictions.outcomes import Array, Index
from surefoot.text import count_of, csv_text, exact_text

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

RUNS = 2  # networks per candidate that is trained to the end
SHARES = (0.25, 0.5, 1.0)  # of a candidate's epochs, rung by rung
AUGMENTATIONS = ("inception", "strong")
SHARPNESS = (0.0, 0.05, 0.1, 0.2)
LENGTHS = (1, 2)  # times the epochs of the base recipe
COMMON: dict[str, Any] = {  # of all candidates but the base
    "schedule": "cosine",
    "weight_decay": 0.0005,
    "weight_average": 0.99,
}
PLAIN = "plain"
DIVERGED = ("training diverged", "logits hold")  # how the messages of a training that failed begin

Watch = Callable[[WorkOrder, str, int], AbstractContextManager[Callable[[Event], None]]]


@dataclass(frozen=True)
class Candidate:
    """A recipe with a name."""

    name: str
    recipe: Recipe

    def shortened(self, share: float) -> Recipe:
        """Its recipe for a trial of a share of its epochs, with the schedule compressed to them."""
        return replace(self.recipe, epochs=math.ceil(share * self.recipe.epochs), protocol=Protocol.SEARCH)

    def changes(self, base: Recipe) -> dict[str, Any]:
        """The values that differ from those of another recipe."""
        ours, theirs = self.recipe.as_dict(), base.as_dict()
        return {name: value for name, value in ours.items() if value != theirs[name]}


def candidates(base: Recipe, task: Task) -> list[Candidate]:
    """The base recipe, named plain, and every combination of augmentation, sharpness and length.

    Vectors, and recipes without augmentation, have no choice of one.
    """
    augmented = _has_images(task) and base.augmentation != "none"
    augmentations = AUGMENTATIONS if augmented else (base.augmentation,)
    found = [Candidate(PLAIN, base)]
    for augmentation, rho, length in product(augmentations, SHARPNESS, LENGTHS):
        recipe = replace(
            base, **COMMON, augmentation=augmentation, sharpness=rho, epochs=length * base.epochs
        )
        parts = [augmentation] if augmented else []
        parts += [f"rho {rho:g}", recipe.schedule, count_of(recipe.epochs, "epoch")]
        if recipe not in [each.recipe for each in found]:
            found.append(Candidate(", ".join(parts), recipe))
    return found


def read_candidates(path: Path, base: Recipe) -> list[Candidate]:
    """Candidates from a TOML file: a table per name, with recipe values over the base; may be empty."""
    found: list[Candidate] = []
    for name, values in read_toml(path).items():
        if not isinstance(values, dict):
            raise InputError(f"{path}: {name} is {values!r}; allowed: a table of recipe values, [{name}]")
        try:
            refuse_unknown("value of a candidate", values, CHANGEABLE)
            candidate = Candidate(name, recipe_from(values, base=base))
        except InputError as error:
            raise InputError(f"{path}, candidate {name!r}: {error}") from error
        for other in found:
            if other.recipe == candidate.recipe:
                raise InputError(f"{path}: {other.name!r} and {name!r} are the same recipe; allowed: one")
        found.append(candidate)
    if not found:
        raise InputError(f"{path} has no candidates; needed: at least one table, such as [strong]")
    return found


@dataclass(frozen=True, eq=False)
class Trial:
    """One network: its NLL on validation with its own best T, and what it is computed from."""

    spec: Spec
    temperature: float = math.nan
    nll: float = math.nan  # unclipped, at that T
    plain_nll: float = math.nan  # at T = 1
    error: float = math.nan
    losses: Array | None = None  # per decision, at that T; None: it diverged

    @staticmethod
    def of(spec: Spec, predictions: "Predictions") -> "Trial":
        """A trained network's."""
        from surefoot.calibrators.temperature import fit_temperature
        from surefoot.metrics import label_error, nll_unclipped
        from surefoot.predictions.outcomes import loss

        fitted = fit_temperature(predictions)
        scaled = fitted(predictions)
        return Trial(
            spec,
            fitted.temperature,
            nll_unclipped(scaled),
            nll_unclipped(predictions),
            label_error(predictions),
            loss(scaled.outcomes),
        )


@dataclass(frozen=True, eq=False)
class Entry:
    """A candidate in a rung: its trials, and how its NLL differs from that of the rung's best candidate."""

    rung: int  # from 1
    candidate: Candidate
    trials: tuple[Trial, ...]
    difference: float = 0.0  # of the mean NLL
    margin: float = 0.0  # half of the difference's 95% interval
    is_best: bool = False

    @property
    def diverged(self) -> bool:
        """Whether the training of any of its networks diverged."""
        return any(trial.losses is None for trial in self.trials)

    @cached_property
    def losses(self) -> Array:
        """Per decision, averaged over the networks."""
        losses = [trial.losses for trial in self.trials if trial.losses is not None]
        return np.asarray(np.mean(losses, axis=0))

    def mean(self, name: str) -> float:
        """A number of the trials, averaged."""
        return float(np.mean([getattr(trial, name) for trial in self.trials]))

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The lower the better: the NLL at the best T, then the plain one; those that diverged come last."""
        return (True, 0.0, 0.0) if self.diverged else (False, self.mean("nll"), self.mean("plain_nll"))

    @property
    def is_worse(self) -> bool:
        """Whether it is significantly worse than the best."""
        return self.diverged or self.difference > self.margin

    @property
    def verdict(self) -> str:
        """How it compares with the best of its rung."""
        if self.diverged:
            return "diverged"
        if self.is_best:
            return "best"
        return "worse" if self.is_worse else "not significantly worse"


@dataclass(frozen=True, eq=False)
class RecipeSearch:
    """A search: the task, the candidates, how many runs to end with, and a work order without jobs."""

    task: Task
    candidates: Sequence[Candidate]
    order: WorkOrder
    runs: int = RUNS

    def __post_init__(self) -> None:
        if Split.VAL not in self.task.splits:
            raise InputError(f"task {self.task.name!r} has no val split; needed: one, to search on")
        for candidate in self.candidates:
            if candidate.recipe.variant is not None:
                raise InputError(
                    f"the recipe has the variant {candidate.recipe.variant.name!r}; "
                    "allowed: plain training, to search a recipe"
                )

    def run(self, *, workers: int, watch: Watch) -> list[list[Entry]]:
        """The entries of each rung, best first; those trained before are read from the store.

        A rung with one candidate is left out, except for the last one.
        """
        left, rungs = list(self.candidates), list[list[Entry]]()
        for number, share in enumerate(SHARES, 1):
            if len(left) == 1 and share < 1:
                continue
            seeds = range(self.runs if share == 1 else 1)
            specs = {each.name: self._specs(each.shortened(share), seeds) for each in left}
            title = f"{self.task.name}, rung {number} of {len(SHARES)}"
            needed = dict.fromkeys(spec for of_candidate in specs.values() for spec in of_candidate)
            diverged = self._train(list(needed), title, workers, watch)
            trials = {spec: self._trial(spec, diverged) for spec in needed}
            entries = [Entry(number, each, tuple(trials[s] for s in specs[each.name])) for each in left]
            rungs.append(self._compared(sorted(entries, key=lambda entry: entry.rank)))
            survivors = [entry.candidate for entry in rungs[-1] if not entry.diverged]
            if not survivors:
                raise InputError(self._all_diverged(left))
            left = survivors[: math.ceil(len(left) / 2)]
        return rungs

    def _specs(self, recipe: Recipe, seeds: Iterable[int]) -> list[Spec]:
        return [Spec(self.task.name, self.task.identity, recipe, seed) for seed in seeds]

    @property
    def _store(self) -> Store:
        return Store(Path(self.order.store))

    def _train(self, specs: Sequence[Spec], title: str, workers: int, watch: Watch) -> set[Spec]:
        """Train what is not done, the longest first; returns the specs whose training diverged.

        One that diverges stops the workers, which save their checkpoints; the others are then resumed.
        """
        diverged: set[Spec] = set()
        while True:
            undone = [spec for spec in specs if not self._store.is_done(spec) and spec not in diverged]
            if not undone:
                return diverged
            undone.sort(key=lambda spec: -spec.recipe.epochs)
            order = replace(self.order, jobs=tuple(Job(spec.recipe, spec.seed) for spec in undone))
            failed: dict[int, str] = {}
            with watch(order, title, len(specs) - len(undone)) as on_event:

                def listen(event: Event, on_event: Callable[[Event], None] = on_event) -> None:
                    if event["event"] == "failed":
                        failed[event["job"]] = event["message"]  # noqa: B023  called inside of this loop
                    on_event(event)

                try:
                    execute(order, workers=workers, on_event=listen)
                except InputError:
                    if not failed or not all(text.startswith(DIVERGED) for text in failed.values()):
                        raise
            diverged |= {undone[job] for job in failed}

    def _trial(self, spec: Spec, diverged: set[Spec]) -> Trial:
        return Trial(spec) if spec in diverged else Trial.of(spec, self._store.predictions(spec, Split.VAL))

    def _compared(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with their differences to the first."""
        best = entries[0]
        if best.diverged:
            return list(entries)
        predictions = self._store.predictions(best.trials[0].spec, Split.VAL)
        unit = _units(predictions)
        compared = [replace(best, is_best=True)]
        for entry in entries[1:]:
            if not entry.diverged:
                difference, margin = paired_difference(entry.losses, best.losses, unit)
                entry = replace(entry, difference=difference, margin=margin)
            compared.append(entry)
        return compared

    def _all_diverged(self, left: Sequence[Candidate]) -> str:
        lowest = min(candidate.recipe.learning_rate for candidate in left)
        names = "; ".join(candidate.name for candidate in left)
        return f"training diverged with every candidate ({names}); try --set learning_rate={lowest / 10:g}"


def paired_difference(ours: Array, theirs: Array, unit: Index) -> tuple[float, float]:
    """The mean difference of two losses per decision, and half of its 95% interval, clustered by unit.

    The variance is that of the units' sums about the mean (a ratio: units may have different numbers of
    decisions), with Student's t for few units. Infinite for one unit.
    """
    differences = ours - theirs
    sums, counts = np.bincount(unit, differences), np.bincount(unit)
    mean = float(differences.mean())
    independent = int((counts > 0).sum())
    if independent < 2:
        return mean, math.inf
    residuals = sums - mean * counts
    error = float(np.sqrt(residuals @ residuals)) / len(differences)
    return mean, NORMAL * few_samples_factor(independent) * error


def _units(predictions: "Predictions") -> Index:
    """The group of each decision, or its row where there are no groups."""
    from surefoot.evaluation.bootstrap import units_of

    return units_of(predictions.n, predictions.groups)[predictions.outcomes.row]


def _has_images(task: Task) -> bool:
    inputs = task.splits[Split.TRAIN].inputs
    return isinstance(inputs, ImageFiles) or inputs.ndim > 2


SCORES = ("nll", "temperature", "plain_nll", "error")
COLUMNS = ("rung", "candidate", "epochs", "seed", *SCORES, "verdict", "difference", "margin", "network")


def trials_csv(rungs: Iterable[Sequence[Entry]]) -> str:
    """A line per trial. Verdict, difference and margin are those of its candidate in the rung."""
    lines = []
    for entry in (entry for entries in rungs for entry in entries):
        compared = [math.nan] * 2 if entry.diverged else [entry.difference, entry.margin]
        for trial in entry.trials:
            numbers = [getattr(trial, name) for name in SCORES]
            lines.append(
                (
                    entry.rung,
                    entry.candidate.name,
                    trial.spec.recipe.epochs,
                    trial.spec.seed,
                    *map(exact_text, numbers),
                    entry.verdict,
                    *map(exact_text, compared),
                    trial.spec.key,
                )
            )
    return csv_text(COLUMNS, lines)


def recipe_document(winner: Candidate, base: Recipe) -> dict[str, Any]:
    """The tables of the file that a search writes: the winning recipe, and its changes to the base."""
    recipe = replace(winner.recipe, code=())  # the source may change: what was chosen is the rest
    return {"recipe": recipe.as_dict(), "sharpness_aware": winner.changes(base)}
