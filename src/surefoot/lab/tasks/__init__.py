"""The tasks: TASKS lists the registered ones; a user's own can also be a TOML file."""

from pathlib import Path

from surefoot.errors import InputError, did_you_mean
from surefoot.lab.tasks.animals import ANIMALS
from surefoot.lab.tasks.cat_dog import CAT_DOG
from surefoot.lab.tasks.gender import GENDER
from surefoot.lab.tasks.layouts import Layout, TaskEntry
from surefoot.lab.tasks.letters import LETTERS
from surefoot.lab.tasks.manifest import load_task, write_resolved
from surefoot.lab.tasks.objects import OBJECTS
from surefoot.lab.tasks.pets import PETS
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task, refuse_shared_content
from surefoot.lab.tasks.toy import TOY
from surefoot.registry import Registry

TASKS: Registry[TaskEntry] = Registry(
    "task", (TOY, LETTERS, PETS, GENDER, CAT_DOG, ANIMALS, OBJECTS), or_else=", or a .toml file"
)


def task_named(name: str, *, root: Path | None = None) -> Task:
    """A task by name, or a user's own by the path of its TOML file.

    The paper's four need `root`, the folder with their published files. `toy/rings` is a variant of `toy`;
    `toy` alone is the first of them.
    """
    if name.lower().endswith(".toml"):
        return load_task(name)
    base, _, variant = name.partition("/")
    entry = TASKS.named(base)
    if variant and variant not in entry.variants:
        have = ", ".join(entry.variants) or "none"
        near = did_you_mean(variant, entry.variants)
        raise InputError(f"task {base!r} has no variant {variant!r}{near}; have: {have}")
    if entry.layout is not None and root is None:
        raise InputError(f"task {name!r} needs a root folder; see 'surefoot data show {name} --root DIR'")
    return entry.load(root or Path(), variant or next(iter(entry.variants), ""))


__all__ = [
    "TASKS",
    "ImageFiles",
    "Layout",
    "Samples",
    "Split",
    "Task",
    "TaskEntry",
    "load_task",
    "refuse_shared_content",
    "task_named",
    "write_resolved",
]
