"""Does unlabelled data help distillation? The grid, the final runs and the tables of G-distillation.

    python experiments/distillation.py grid --packs DATA --store RUNS [--dry-run] gender cat-dog animals
    python experiments/distillation.py final --packs DATA --store RUNS gender cat-dog animals
    python experiments/distillation.py options --packs DATA --store RUNS gender cat-dog animals
    python experiments/distillation.py table --store RUNS --out FOLDER

docs/results/distillation-protocol.md says what is trained and how it is evaluated. `grid` trains teachers and
students with and without G; `final` more runs of the setting that is best on familiar validation data;
`options` students of T-scaled teachers and with separate batches. Each trains what is missing in the store;
the same command resumes. `table` needs neither data nor weights, and leaves out what is not done.

A task is a name (experiments/NAME.toml) or the path of an experiment's TOML file. Its folder of unlabelled
images has two folders, `small` and `large`: both are in one task, so all students have the same teachers.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from distillation_evaluation import (
    FINAL_RUNS,
    FOLDERS,
    GRID,
    LENGTHS,
    LISTS,
    RUNS,
    SHARES,
    SMALL,
    WITH_G,
    Setting,
    choice,
    table,
)
from session import WEIGHTS
from sharpness import execute_specs, exit_code, images_trained, parts_of, step_cost

from surefoot.errors import InputError
from surefoot.experiments.methods import Setup
from surefoot.io import make_folder, replacing
from surefoot.recipes.recipe import Protocol, Spec
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split, Task
from surefoot.text import count_of
from surefoot.variants import Distilled, variant_of

MEMBERS = 10
NOT_SCALED = ("gender",)  # tasks without T-scaled teachers

IMAGES_PER_SECOND = 50_000  # of a plain training step at 112 pixels, all processes together
FORWARD_COST = 1 / 3  # of a teacher's output, in training steps
SEPARATE_COST = 1.2  # of a step in two batches
START_SECONDS = 60  # of a call: processes, images and compilation


# Settings, and the networks of each command.


MOST_G = max(WITH_G, key=lambda setting: setting.preference)
SCALED = tuple(
    replace(setting, length=length, teacher_temperatures=True)
    for length in LENGTHS
    for setting in (Setting(), MOST_G)
)
SEPARATE = tuple(
    replace(setting, separate_batches=True)
    for setting in (Setting(SHARES[0], SMALL, 1), *(replace(MOST_G, length=length) for length in LENGTHS))
)


def students(settings: Iterable[Setting], setup: Setup, runs: Iterable[int]) -> list[Spec]:
    """Run by run, long trainings first: of a command cut short, all settings have about as many runs."""
    ordered = sorted(settings, key=lambda setting: -(1 + setting.share) * setting.length)
    return [setting.spec(setup, run) for run in runs for setting in ordered]


def grid_specs(_name: str, setup: Setup, _store: Store) -> list[Spec]:
    """Every share, folder and length, and each length without G."""
    return students(GRID, setup, range(RUNS))


def final_specs(_name: str, setup: Setup, store: Store) -> list[Spec]:
    """All runs of the chosen setting and of the same without G."""
    grid = grid_specs("", setup, store)
    if any(not store.is_done(spec) for spec in grid):
        undone = count_of(sum(not store.is_done(spec) for spec in grid), "network")
        raise InputError(
            f"{setup.task.name}: {undone} of the grid not done; needed: all, to choose a setting; "
            "'distillation.py grid' resumes"
        )
    best = choice([spec for spec in grid if Setting.of(spec).share], store).best
    print(f"{setup.task.name}: chosen on validation data: {best.label}", flush=True)
    return students((best, best.without_g), setup, range(FINAL_RUNS))


def option_specs(name: str, setup: Setup, _store: Store) -> list[Spec]:
    """Students of T-scaled teachers, and with separate batches; the short trainings of all runs first."""
    settings = (*SEPARATE, *(() if name in NOT_SCALED else SCALED))
    short = students([each for each in settings if each.length == 1], setup, range(RUNS))
    return short + students([each for each in settings if each.length > 1], setup, range(RUNS))


SPECS_OF: dict[str, Callable[[str, Setup, Store], list[Spec]]] = {
    "grid": grid_specs,
    "final": final_specs,
    "options": option_specs,
}


def train(kind: str, chosen: argparse.Namespace) -> None:
    """Train the missing networks of each task."""
    from surefoot.cli.inputs import device_named

    store, device = Store(chosen.store), device_named(chosen.device)
    for name in chosen.names:
        for part in parts_of(name, chosen):
            task = task_named(part.task, root=None if part.root is None else Path(part.root))
            recipe = replace(part.recipe, protocol=Protocol.HOLDOUT)
            setup = Setup(task, recipe, members=chosen.members, runs=1)
            refuse_without_folders(setup)
            if chosen.dry_run:
                print(work_table(kind, name, setup, store))
                continue
            specs = SPECS_OF[kind](name, setup, store)
            write_list(kind, specs, store)
            execute_specs(specs, part, store, device, chosen, title=f"{kind} of {task.name}")


def refuse_without_folders(setup: Setup) -> None:
    """Raise unless there are unlabelled images in both folders."""
    for folder in FOLDERS:
        recipe = Setting(SHARES[0], folder).spec(setup, 0).recipe
        if variant_of(recipe).obstacle(recipe, setup.task) is not None:
            raise InputError(
                f"task {setup.task.name!r} has no unlabelled images in a folder {folder!r}; "
                f"needed: {' and '.join(FOLDERS)} in its folder of unlabelled images"
            )


def write_list(kind: str, specs: Sequence[Spec], store: Store) -> None:
    """The students of a task, which replace those of an earlier call."""
    folder = store.root / LISTS
    make_folder(folder)
    with replacing(folder / f"{kind}-{specs[0].task.replace('/', '-')}.json") as temporary:
        temporary.write_text(json.dumps([spec.as_dict() for spec in specs], indent=1), encoding="utf-8")


# About how long it takes.


def work_table(kind: str, name: str, setup: Setup, store: Store) -> str:
    """How many networks are to be trained, and about how long it takes; `final` for the longest setting."""
    from surefoot.report.tables import Table, to_markdown

    specs = (
        students((MOST_G, MOST_G.without_g), setup, range(RUNS, FINAL_RUNS))
        if kind == "final"
        else SPECS_OF[kind](name, setup, store)
    )
    missing = [spec for spec in dict.fromkeys(specs) if not store.is_done(spec)]
    teachers = [
        each for each in dict.fromkeys(t for s in missing for t in s.needs()) if not store.is_done(each)
    ]
    work = [("teachers", len(teachers), sum(seconds_of(spec, setup.task) for spec in teachers))]
    for setting in dict.fromkeys(map(Setting.of, missing)):
        own = [seconds_of(spec, setup.task) for spec in missing if Setting.of(spec) == setting]
        work.append((setting.label, len(own), sum(own)))
    # Those of the grid are stored: the others need only the outputs of T-scaled teachers.
    new = [spec for spec in missing if kind == "grid" or Setting.of(spec).teacher_temperatures]
    work.append(("teachers' outputs", 0, seconds_of_outputs(new, setup.task)))
    work.append(("all", *(sum(numbers) for numbers in list(zip(*work, strict=True))[1:])))
    cells = [(label, str(count or ""), f"{seconds:.0f}") for label, count, seconds in work]
    header = ("students", "networks", "seconds of the whole GPU")
    table = to_markdown([Table.of_text(f"{setup.task.name}: {kind}, to be trained", header, cells)])
    return f"{table}\nand {START_SECONDS} s for the start of each call, shared by tasks that start together\n"


def seconds_of(spec: Spec, task: Task) -> float:
    """Of one training."""
    images = images_trained(spec.recipe, task) * step_cost(spec.recipe)
    if isinstance(spec.recipe.variant, Distilled):
        images *= 1 + spec.recipe.variant.unlabelled
        images *= SEPARATE_COST if spec.recipe.variant.separate_batches else 1
    return images / IMAGES_PER_SECOND


def seconds_of_outputs(specs: Iterable[Spec], task: Task) -> float:
    """Of the teachers' outputs for as many view sets as the longest student needs, once for all."""
    epochs: dict[tuple[str, bool], int] = {}  # by the folder, "" for train, and whether teachers are scaled
    passes: dict[tuple[str, bool], float] = {}  # for a view set, in training steps
    for spec in specs:
        variant = spec.recipe.variant
        assert isinstance(variant, Distilled)
        rows = {"": float(len(task.splits[Split.TRAIN]))}
        if (selected := variant.unlabelled_rows(task)) is not None:
            rows[variant.unlabelled_folder] = float(selected.sum())
        for folder, count in rows.items():
            key = (folder, variant.teacher_temperatures)
            epochs[key] = max(epochs.get(key, 0), spec.recipe.epochs)
            area = step_cost(replace(spec.recipe, sharpness=0.0, regmixup=0.0))
            passes[key] = count * len(variant.teachers.seeds) * FORWARD_COST * area
    return sum(epochs[key] * passes[key] for key in epochs) / IMAGES_PER_SECOND


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for kind in SPECS_OF:
        command = commands.add_parser(kind, help="train the networks that are missing")
        known = ", ".join(name for name in WEIGHTS if name != "objects")
        command.add_argument("names", nargs="+", metavar="NAME", help=f"{known}, or a .toml file")
        command.add_argument("--packs", type=Path, help="the folder of the backbones and the Pets")
        command.add_argument("--store", type=Path, required=True)
        command.add_argument("--cache", type=Path, help="of decoded images")
        command.add_argument("--device", default="auto")
        command.add_argument("--workers", type=int, help="networks at a time")
        command.add_argument("--members", type=int, default=MEMBERS, help="teachers")
        command.add_argument("--minutes", type=float, help="stop after this time; the same command resumes")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        command.add_argument("--dry-run", action="store_true", help="print what is to be trained")
    command = commands.add_parser("table", help="write tables from a store")
    command.add_argument("--store", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--resamples", type=int, default=1000)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    chosen = parsed(words)
    return exit_code(chosen, table if chosen.what == "table" else None, train)


if __name__ == "__main__":
    # A shell starts background processes with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
