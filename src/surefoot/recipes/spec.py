"""One network, by everything that decides its weights."""

from dataclasses import dataclass
from typing import Any

from surefoot.recipes.recipe import Recipe, digest_of


@dataclass(frozen=True)
class Spec:
    """One network to be trained: which task, which recipe, which seed."""

    task: str  # the task's name, for people
    task_identity: str  # the hash of its resolved split
    recipe: Recipe
    seed: int

    @property
    def key(self) -> str:
        """A hash of everything that decides the weights."""
        return digest_of({"task": self.task_identity, "recipe": self.recipe.as_dict(), "seed": self.seed})

    def needs(self) -> tuple["Spec", ...]:
        """The networks that must be there first: its teachers."""
        teachers = None if self.recipe.variant is None else self.recipe.variant.needs
        if teachers is None:
            return ()
        return tuple(Spec(self.task, self.task_identity, teachers.recipe, seed) for seed in teachers.seeds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        recipe = self.recipe.as_dict()
        return {
            "task": self.task,
            "task_identity": self.task_identity,
            "recipe": recipe,
            "seed": self.seed,
            "key": self.key,
        }
