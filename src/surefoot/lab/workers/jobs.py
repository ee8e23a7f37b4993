"""Work orders as plain data, and the queue of their jobs: teachers before students."""

import dataclasses
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.lab.images.cache import default_cache
from surefoot.lab.recipes.recipe import Recipe, Spec
from surefoot.lab.variants import recipe_from
from surefoot.registry import load_plugins, loaded_plugins, search_in, searched_folders

STOPPED = 3  # the exit code of a worker that was stopped

Event = dict[str, Any]  # reported by an engine: an "event" and its facts


@dataclass(frozen=True)
class Job:
    """One network to train, and what to compute from it: novelty scores, T inside its samples."""

    recipe: Recipe
    seed: int
    novelty: tuple[str, ...] = ()
    scaled_samples: bool = False

    def needs(self, other: "Job") -> bool:
        """Whether the other must be done first."""
        teachers = None if self.recipe.variant is None else self.recipe.variant.needs
        return teachers is not None and other.seed in teachers.seeds and other.recipe == teachers.recipe

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "recipe": self.recipe.as_dict(), "novelty": list(self.novelty)}


@dataclass(frozen=True, kw_only=True)
class WorkOrder:
    """Networks to train on one task: where the data are, the jobs, where the results go."""

    task: str  # a name, or the path of a task's TOML
    root: str | None  # the folder of the task's data, if it needs any
    jobs: tuple[Job, ...]
    store: str
    cache: str | None = None  # of decoded images; None: the default of each machine
    weights: str | None = None
    device: str = "cpu"
    remote: str | None = None  # a URL that the store is a copy of; each machine has its own copy
    plugins: tuple[str, ...] = field(default_factory=loaded_plugins)  # to be loaded before the rest is read
    folders: tuple[str, ...] = field(default_factory=searched_folders)  # with the user's own modules

    def as_json(self) -> str:
        """One line."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**values, "jobs": [job.as_dict() for job in self.jobs]})

    @staticmethod
    def from_json(text: str) -> "WorkOrder":
        """The order that `as_json` wrote."""
        document = json.loads(text)
        for folder in document["folders"]:
            search_in(Path(folder))
        load_plugins(document["plugins"])
        jobs = [
            Job(**{**job, "recipe": recipe_from(job["recipe"]), "novelty": tuple(job["novelty"])})
            for job in document["jobs"]
        ]
        lists = {name: tuple(document[name]) for name in ("plugins", "folders")}
        return WorkOrder(**{**document, "jobs": tuple(jobs), **lists})

    def specs(self, name: str, identity: str) -> list[Spec]:
        """The spec of each job, once the task is known."""
        return [Spec(name, identity, job.recipe, job.seed) for job in self.jobs]

    @property
    def cache_path(self) -> Path:
        """The cache on this machine."""
        return default_cache() if self.cache is None else Path(self.cache)

    @property
    def root_path(self) -> Path | None:
        """The folder of the task's data."""
        return None if self.root is None else Path(self.root)

    @property
    def weights_path(self) -> Path | None:
        """The pretrained weights' file."""
        return None if self.weights is None else Path(self.weights)


def jobs_of(recipe: Recipe, seeds: Sequence[int]) -> tuple[Job, ...]:
    """Networks that differ by their seeds."""
    return tuple(Job(recipe, seed) for seed in seeds)


SECONDS_UNTIL_RETRY = 1.0  # of a network that another process is training


class Queue:
    """The jobs not started; each becomes available when all that it needs is done."""

    def __init__(self, order: WorkOrder) -> None:
        jobs = order.jobs
        self.changed = threading.Condition()
        self.waiting = list(range(len(jobs)))
        self.needs = [{i for i, other in enumerate(jobs) if job.needs(other)} for job in jobs]
        self.done: set[int] = set()
        self.not_before: dict[int, float] = {}
        self.closed = False

    def take(self) -> int | None:
        """The next available job, waiting for it; None when no job is left to start."""
        with self.changed:
            while self.waiting and not self.closed:
                if (job := self.take_now()) is not None:
                    return job
                self.changed.wait(SECONDS_UNTIL_RETRY)
            return None

    def take_now(self) -> int | None:
        """The next job that is available now; None if there is none."""
        with self.changed:
            now = time.monotonic()
            for job in self.waiting:
                if self.needs[job] <= self.done and self.not_before.get(job, 0.0) <= now:
                    self.waiting.remove(job)
                    return job
            return None

    def finish(self, job: int) -> None:
        """Mark a job as done, which may make others available."""
        with self.changed:
            self.done.add(job)
            self.changed.notify_all()

    def put_back(self, job: int) -> bool:
        """Return a job to be tried again later; True the first time."""
        with self.changed:
            first = job not in self.not_before
            self.not_before[job] = time.monotonic() + SECONDS_UNTIL_RETRY
            self.waiting.append(job)
            return first

    def close(self) -> None:
        """Hand out no more jobs."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
