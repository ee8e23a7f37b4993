"""What an engine is asked to make, as plain data that crosses to another process as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.decoding import default_cache
from surefoot.recipes import Recipe, Spec, recipe_from

STOPPED = 3  # the exit code of a worker that was asked to stop

Event = dict[str, Any]  # what an engine tells of: an "event" and its facts


@dataclass(frozen=True)
class Job:
    """One network, and the novelty scores that are wanted of it."""

    recipe: Recipe
    seed: int
    novelty: tuple[str, ...] = ()

    def needs(self, other: "Job") -> bool:
        """Whether the other must be there first."""
        teachers = None if self.recipe.variant is None else self.recipe.variant.needs
        return teachers is not None and other.seed in teachers.seeds and other.recipe == teachers.recipe

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"recipe": self.recipe.as_dict(), "seed": self.seed, "novelty": list(self.novelty)}


@dataclass(frozen=True, kw_only=True)
class Order:
    """Networks of one task: where the data are, what is wanted, where the results go."""

    task: str  # a name, or the path of a task's TOML
    root: str | None  # where the task's data lie, if it needs any
    jobs: tuple[Job, ...]
    store: str
    cache: str | None = None  # of decoded images; None: where each machine keeps its own
    weights: str | None = None
    device: str = "cpu"
    remote: str | None = None  # a URL that the store is a copy of; each machine has a copy of its own

    def as_json(self) -> str:
        """One line."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**values, "jobs": [job.as_dict() for job in self.jobs]})

    @staticmethod
    def from_json(text: str) -> "Order":
        """The order that a line says."""
        document = json.loads(text)
        jobs = [
            Job(recipe_from(job["recipe"]), job["seed"], tuple(job["novelty"])) for job in document["jobs"]
        ]
        return Order(**{**document, "jobs": tuple(jobs)})

    def specs(self, name: str, identity: str) -> list[Spec]:
        """A spec per job, once the task is known."""
        return [Spec(name, identity, job.recipe, job.seed) for job in self.jobs]

    @property
    def cache_path(self) -> Path:
        """The cache, on the machine that asks."""
        return default_cache() if self.cache is None else Path(self.cache)

    @property
    def weights_path(self) -> Path | None:
        """The pretrained weights' file."""
        return None if self.weights is None else Path(self.weights)


def jobs_of(recipe: Recipe, seeds: Sequence[int]) -> tuple[Job, ...]:
    """Networks that differ by their seeds."""
    return tuple(Job(recipe, seed) for seed in seeds)
