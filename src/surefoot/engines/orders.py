"""What an engine is asked to make, as plain data that crosses to another process as JSON."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from surefoot.recipes import Recipe, Spec, recipe_from

STOPPED = 3  # the exit code of a worker that was asked to stop


@dataclass(frozen=True, kw_only=True)
class Order:
    """Networks of one task and one recipe: where the data are, which seeds, where the results go."""

    task: str  # a name, or the path of a task's TOML
    root: str | None  # where the task's data lie, if it needs any
    recipe: Recipe
    seeds: tuple[int, ...]
    store: str
    cache: str
    weights: str | None = None
    device: str = "cpu"

    def as_json(self) -> str:
        """One line."""
        return json.dumps({**dataclasses.asdict(self), "recipe": self.recipe.as_dict()})

    @staticmethod
    def from_json(text: str) -> "Order":
        """The order that a line says."""
        document = json.loads(text)
        recipe = recipe_from(document.pop("recipe"))
        return Order(**{**document, "recipe": recipe, "seeds": tuple(document["seeds"])})

    def specs(self, name: str, identity: str) -> list[Spec]:
        """A spec per seed, once the task is known."""
        return [Spec(name, identity, self.recipe, seed) for seed in self.seeds]

    @property
    def weights_path(self) -> Path | None:
        """The pretrained weights' file."""
        return None if self.weights is None else Path(self.weights)
