"""Experiments as frozen values, to and from TOML; and the built-in ones."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from surefoot.calibrators.budget import BUDGET
from surefoot.errors import InputError, did_you_mean, refuse_unknown, require, require_number
from surefoot.evaluation import MOST_RESAMPLES
from surefoot.io import digest_of, read_toml, write_toml
from surefoot.lab.experiments.methods import (
    FOLDS,
    METHODS,
    calibrated_rows,
    sharpness_aware_changes,
    sharpness_aware_recipe,
)
from surefoot.lab.recipes.recipe import Protocol, Recipe
from surefoot.lab.variants import recipe_from
from surefoot.metrics import METRICS
from surefoot.registry import load_plugins, plugin_path, search_in

PAPERS = tuple(method.name for method in METHODS if not method.not_in_paper and not method.oracle)
OURS = tuple(method.name for method in METHODS if not method.oracle)
HEADLINES = ("nll", "brier", "label_error", "ece", "e99")
NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,59}")  # of an experiment, and of its folder


@dataclass(frozen=True, kw_only=True)
class Part:
    """A task and how its networks are trained."""

    task: str  # a name, or the path of a task's TOML
    recipe: Recipe
    root: str | None = None  # the folder of the task's published files
    weights: str | None = None  # the pretrained weights' file
    paper: str | None = None  # the paper's task whose numbers are listed for comparison
    # What the sharpness-aware recipe changes in the other; None: the default changes
    sharpness_aware: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise InputError(f"task is {self.task!r}; allowed: a name or a .toml file")
        for name in ("root", "weights", "paper"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InputError(f"{name} is {value!r}; allowed: text")
        if self.sharpness_aware is not None and not isinstance(self.sharpness_aware, Mapping):
            raise InputError(
                f"sharpness_aware is {self.sharpness_aware!r}; allowed: a table of recipe values"
            )
        sharpness_aware_recipe(self.recipe, self.sharpness_aware)
        if self.recipe.protocol is Protocol.SEARCH:
            raise InputError("protocol is 'search', which predicts no test data; allowed: paper, holdout")

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the changes of the sharpness-aware recipe only where there are any."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changes = values.pop("sharpness_aware")
        plain = {**values, "recipe": self.recipe.as_dict()}
        return plain if changes is None else {**plain, "sharpness_aware": dict(changes)}


NUMBERS = (("members", 1), ("runs", 1), ("ensembles", 1), ("folds", 2), ("resamples", 0))  # and the least


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is compared: methods over runs on one task or several."""

    name: str
    parts: tuple[Part, ...]
    methods: tuple[str, ...] = OURS
    members: int = 10
    runs: int = 10
    ensembles: int = 1  # at least, that share no network
    folds: int = FOLDS
    metrics: tuple[str, ...] = HEADLINES
    resamples: int = 1000
    budget: float | str | None = None  # of every risk-budget T; None: each method's own
    about: str = ""
    plugins: tuple[str, ...] = ()  # modules, or paths of .py files, that register what the experiment uses

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InputError(
                f"the experiment's name is {self.name!r}; allowed: a word that can be a folder's name"
            )
        if not isinstance(self.about, str):
            raise InputError(f"about is {self.about!r}; allowed: text")
        if not self.parts:
            raise InputError(f"experiment {self.name!r} has no task; needed: one or more")
        _check_names("methods", self.methods, METHODS.named)
        _check_names("metrics", self.metrics, METRICS.named)
        for name, least in NUMBERS:
            is_whole = partial(_is_at_least, least)
            require_number(name, getattr(self, name), is_whole, f"a whole number of at least {least}")
        within = self.resamples <= MOST_RESAMPLES
        require(within, "resamples", self.resamples, f"at most {MOST_RESAMPLES:,}")
        if self.budget is not None:
            BUDGET.check(self.budget)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        if not self.plugins:
            del plain["plugins"]
        if self.budget is None:
            del plain["budget"]
        return {**plain, "parts": [part.as_dict() for part in self.parts]}

    @property
    def digest(self) -> str:
        """A short hash of all values."""
        return digest_of(self.as_dict())[:6]


def experiment_from(values: Mapping[str, Any], *, name: str) -> Experiment:
    """An experiment from plain values; `task` and `recipe` at the top are the one part."""
    given = {"name": name, **values}
    _load_plugins(given.get("plugins", []))
    own = {field.name for field in dataclasses.fields(Part)}
    known = {field.name for field in dataclasses.fields(Experiment)}
    if "calibrators" in given:
        given["methods"] = _with_calibrators(given.get("methods", OURS), given.pop("calibrators"))
    parts = given.pop("parts", None)
    if parts is None:
        refuse_unknown("experiment value", given, known | own)
        parts = [{key: given.pop(key) for key in list(given) if key in own}]
    elif not isinstance(parts, list):
        raise InputError(f"parts is {parts!r}; allowed: tables under [[parts]]")
    refuse_unknown("experiment value next to its parts", given, known)
    lists: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    return Experiment(**{**lists, "parts": tuple(_part(part) for part in parts)})


def _with_calibrators(methods: Any, calibrators: Any) -> Any:
    """Also a row for a single network and for the ensemble with each of these calibrators."""
    if not isinstance(calibrators, list | tuple) or not all(isinstance(each, str) for each in calibrators):
        raise InputError(f"calibrators is {calibrators!r}; allowed: a list of names, as 'vector'")
    if not calibrators or not isinstance(methods, list | tuple):
        return methods
    return tuple(dict.fromkeys([*methods, *(row for each in calibrators for row in calibrated_rows(each))]))


def read_experiment(path: Path) -> Experiment:
    """An experiment from a TOML file; its paths are relative to the file's folder."""
    try:
        values = read_toml(path)
        if isinstance(values.get("task"), dict):
            use = f"an experiment's file with task = {path.name!r}, or 'surefoot train'"
            raise InputError(f"{path} describes a task, and an experiment is needed: {use}")
        search_in(path.parent)
        if isinstance(plugins := values.get("plugins"), list):
            values["plugins"] = [plugin_path(plugin, path.parent) for plugin in plugins]
        experiment = experiment_from(values, name=path.stem)
    except InputError as error:
        raise InputError(error if str(path) in str(error) else f"{path}: {error}") from error
    parts = tuple(placed(part, path.parent) for part in experiment.parts)
    for part in parts:
        if part.task.lower().endswith(".toml"):
            search_in(Path(part.task).parent)  # a finished run's file: the user's own network is there
    return replace(experiment, parts=parts)


def placed(part: Part, folder: Path) -> Part:
    """The part with paths relative to a folder turned into paths from here."""
    task = str(folder / part.task) if part.task.lower().endswith(".toml") else part.task
    root, weights = (None if each is None else str(folder / each) for each in (part.root, part.weights))
    return replace(part, task=task, root=root, weights=weights)


def write_experiment(experiment: Experiment, path: Path) -> None:
    """An experiment as a TOML file that runs again to the same numbers; paths are written in full."""
    write_toml(
        replace(experiment, parts=tuple(placed(p, Path.cwd()) for p in experiment.parts)).as_dict(), path
    )


def overridden(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Some values replaced; one of the recipe or of the part is replaced in every part.

    One of the recipe holds for the sharpness-aware recipe too.
    """
    of_recipe = {field.name for field in dataclasses.fields(Recipe)}
    of_part = {field.name for field in dataclasses.fields(Part)} - {"recipe"}
    of_experiment = {field.name for field in dataclasses.fields(Experiment)} - {"parts"}
    refuse_unknown("experiment value", dict(values), of_recipe | of_part | of_experiment)
    recipe = {key: value for key, value in values.items() if key in of_recipe}
    part = {key: value for key, value in values.items() if key in of_part}
    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
        if key in of_experiment
    }
    for name in ("methods", "metrics", "plugins"):
        if isinstance(own.get(name), str):
            own[name] = tuple(each.strip() for each in own[name].split(","))
    if "plugins" in own:
        own["plugins"] = tuple(plugin_path(plugin, Path.cwd()) for plugin in own["plugins"])
        _load_plugins(own["plugins"])
    parts = tuple(_with_recipe_values(replace(each, **part), recipe) for each in experiment.parts)
    return replace(experiment, parts=parts, **own)


def _with_recipe_values(part: Part, values: dict[str, Any]) -> Part:
    """With values of both recipes replaced: the sharpness-aware one no longer changes them."""
    recipe, changes = recipe_from(values, base=part.recipe), part.sharpness_aware
    before = sharpness_aware_changes(part.recipe) if changes is None else changes
    after = {name: value for name, value in before.items() if name not in values}
    if changes is None and after == sharpness_aware_changes(recipe):
        return replace(part, recipe=recipe)
    return replace(part, recipe=recipe, sharpness_aware=after)


def experiment_named(name: str) -> Experiment:
    """A built-in experiment, or a TOML file."""
    if name.lower().endswith(".toml"):
        return read_experiment(Path(name))
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    from surefoot.lab.tasks import TASKS

    have = [experiment.name for experiment in EXPERIMENTS]
    if name.partition("/")[0] in [task.name for task in TASKS]:
        use = f"an experiment's .toml file with task = {name!r}, or 'surefoot train {name}'"
        raise InputError(f"{name!r} is a task, and an experiment is needed: {use}; have: {', '.join(have)}")
    near = did_you_mean(name, have)
    raise InputError(f"unknown experiment {name!r}{near}; have: {', '.join(have)}, or a .toml file")


def _part(values: Any) -> Part:
    if not isinstance(values, dict) or not isinstance(values.get("task"), str):
        raise InputError("an experiment's part has no task; needed: task = NAME or a .toml file")
    refuse_unknown("value of a part", values, {field.name for field in dataclasses.fields(Part)})
    recipe = values.get("recipe", {})
    if not isinstance(recipe, dict):
        raise InputError(f"recipe is {recipe!r}; allowed: a table under [recipe]")
    return Part(**{**values, "recipe": recipe_from(recipe)})


def _load_plugins(plugins: Any) -> None:
    """Before anything else is read, because the names in the experiment may be theirs."""
    if not isinstance(plugins, list | tuple) or not all(isinstance(each, str) and each for each in plugins):
        raise InputError(f"plugins is {plugins!r}; allowed: a list of modules or .py files")
    load_plugins(plugins)


def _is_at_least(least: int, value: Any) -> bool:
    return isinstance(value, int) and value >= least


def _check_names(what: str, names: Any, named: Callable[[str], object]) -> None:
    """Each known, none twice, at least one."""
    if not isinstance(names, tuple) or not names:
        raise InputError(f"{what} is {names!r}; needed: a list of one or more names")
    for name in names:
        named(name)
        if names.count(name) > 1:
            raise InputError(f"{what} has {name!r} twice; allowed: once")


# The settings that the paper's authors chose on validation data.
_GENDER = Recipe(learning_rate=0.008, epochs=24)
_CAT_DOG = Recipe(learning_rate=0.06, epochs=128)
_ANIMALS = Recipe(learning_rate=0.003, epochs=64)
_OBJECTS = Recipe(learning_rate=0.03, epochs=32)
_DENSE_GENDER = Recipe(network="densenet161", learning_rate=0.004, epochs=96, batch=32)
_TOY = Recipe(network="mlp", learning_rate=0.05, epochs=60, dropout=0.2)
_LETTERS = Recipe(
    network="mlp", width=128, learning_rate=0.05, epochs=16, view=16, resize=16, augmentation="none"
)
# Found by 'surefoot tune pets --set network=mlp --set width=128' on validation data.
_PETS = Recipe(network="mlp", width=128, learning_rate=0.1, epochs=19)

PAPER_PARTS = (
    Part(task="gender", recipe=_GENDER, paper="gender"),
    Part(task="cat-dog", recipe=_CAT_DOG, paper="cat-dog"),
    Part(task="animals", recipe=_ANIMALS, paper="animals"),
    Part(task="objects", recipe=_OBJECTS, paper="objects"),
)
TOYS = ("toy/wave", "toy/rings", "toy/spiral", "toy/checkers")

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="quickstart",
        parts=(Part(task="pets", recipe=_PETS),),
        methods=(*PAPERS, "budget-t", *(each.name for each in METHODS if each.sharpness_aware)),
        about="the paper's methods and two of ours on photographs of cats and dogs",
    ),
    Experiment(
        name="toy",
        parts=tuple(Part(task=name, recipe=_TOY) for name in TOYS),
        about="the four data sets in the plane at the paper's size",
    ),
    Experiment(
        name="letters", parts=(Part(task="letters", recipe=_LETTERS),), about="letters in unseen fonts"
    ),
    *(
        Experiment(
            name=part.task, parts=(part,), about=f"the paper's {part.task} task; needs its data: --root"
        )
        for part in PAPER_PARTS
    ),
    Experiment(
        name="paper",
        parts=(*PAPER_PARTS, Part(task="gender", recipe=_DENSE_GENDER, paper="gender")),
        methods=PAPERS,
        about="all four tasks, and gender with DenseNet-161",
    ),
)
