"""The tasks: TASKS lists those that Surefoot knows; a user's own is a TOML file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from surefoot.errors import InputError
from surefoot.registry import Registry
from surefoot.tasks.animals import LAYOUT as ANIMALS_LAYOUT
from surefoot.tasks.animals import load_animals
from surefoot.tasks.cat_dog import LAYOUT as CAT_DOG_LAYOUT
from surefoot.tasks.cat_dog import load_cat_dog
from surefoot.tasks.gender import LAYOUT as GENDER_LAYOUT
from surefoot.tasks.gender import load_gender
from surefoot.tasks.layouts import Layout
from surefoot.tasks.letters import load_letters
from surefoot.tasks.manifest import load_task, write_resolved
from surefoot.tasks.objects import LAYOUT as OBJECTS_LAYOUT
from surefoot.tasks.objects import load_objects
from surefoot.tasks.task import ImageFiles, Samples, Split, Task, refuse_shared_content
from surefoot.tasks.toy import TOYS, load_toy


@dataclass(frozen=True)
class BuiltIn:
    """A task that is made in memory; the name of one with variants is followed by `/` and the variant's."""

    name: str
    title: str
    description: str
    load: Callable[[str], Task]  # takes the variant
    variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Official:
    """A task of the paper, read from its published files below a root folder."""

    name: str
    title: str
    description: str
    load: Callable[[Path], Task]
    layout: Layout


TASKS: Registry[BuiltIn | Official] = Registry("task", (
    BuiltIn("toy", "Toy", "four two-class sets of points in the plane; part of it is familiar", load_toy, tuple(toy.name for toy in TOYS)),
    BuiltIn("letters", "Letters", "A to Z; sans serif faces are familiar, serif and italic ones are not", lambda _: load_letters()),
    Official("gender", "Gender", "LFW+; familiar is age 18 to 59", load_gender, GENDER_LAYOUT),
    Official("cat-dog", "Cat vs. dog", "Oxford-IIIT Pets; familiar are the first 20 dog and 9 cat breeds", load_cat_dog, CAT_DOG_LAYOUT),
    Official("animals", "Animals", "ImageNet; familiar is the first half of each superclass's subclasses", load_animals, ANIMALS_LAYOUT),
    Official("objects", "Objects", "familiar is PASCAL VOC 2012, unfamiliar MS COCO 2014; many labels", load_objects, OBJECTS_LAYOUT),
), or_else=", or a .toml file")  # fmt: skip


def task_named(name: str, *, root: Path | None = None) -> Task:
    """A task by name, or a user's own by the path of its TOML file.

    The paper's four need `root`, the folder with their published files. `toy/rings` is a variant of `toy`;
    `toy` alone is the first of them.
    """
    if name.lower().endswith(".toml"):
        return load_task(name)
    base, _, variant = name.partition("/")
    entry = TASKS.named(base)
    variants = entry.variants if isinstance(entry, BuiltIn) else ()
    if variant and variant not in variants:
        have = ", ".join(variants) or "none"
        raise InputError(f"task {base!r} has no variant {variant!r}; have: {have}")
    if isinstance(entry, Official):
        if root is None:
            raise InputError(f"task {name!r} needs a root folder; see 'surefoot data show {name} --root DIR'")
        return entry.load(root)
    return entry.load(variant or next(iter(variants), ""))


__all__ = [
    "TASKS",
    "BuiltIn",
    "ImageFiles",
    "Layout",
    "Official",
    "Samples",
    "Split",
    "Task",
    "load_task",
    "refuse_shared_content",
    "task_named",
    "write_resolved",
]
