"""Reading a command's inputs: prediction files, the store, streamed files and the engine."""

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.train import device_named
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions
    from surefoot.streaming.engines import Engine
    from surefoot.workers.jobs import WorkOrder

ONE_HOT = (
    "note: {}: every row has exactly one label, and each class is scored by itself (sigmoid); "
    "if the classes exclude each other, give the labels as class indices (softmax)"
)


def refuse_missing(*paths: Path | None) -> None:
    """Predictions that are not there, before seconds go by with loading; patterns are looked at later."""
    for path in paths:
        if path is None or glob.has_magic(str(path)):
            continue
        try:
            path.stat()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error


def read(path: Path, group_by: str | None) -> "Predictions":
    """Predictions from a file, grouped by one of its columns if asked for."""
    from surefoot.cli.terminal import busy, notes
    from surefoot.predictions.files import read_predictions

    with busy(f"reading {path}"):
        predictions = read_predictions(path)
    if predictions.always_one_label():
        notes().print(ONE_HOT.format(path))
    try:
        return predictions if group_by is None else predictions.grouped_by(group_by)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_all(paths: Sequence[Path], group_by: str | None) -> "Predictions":
    """The rows of one or more files, all of them in memory."""
    from surefoot.predictions.predictions import concatenated

    parts = [read(path, group_by) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        for what in ("kind", "classes", "members", "class_names"):
            ours, first = getattr(part, what), getattr(parts[0], what)
            if ours != first:
                name = what.replace("_", " ")
                raise InputError(f"{path}: {name} are {ours}, in {paths[0]} {first}; must be equal")
    return parts[0] if len(parts) == 1 else concatenated(parts)


STREAM = typer.Option(
    "--stream/--no-stream",
    help="Read a batch at a time; by default for several files, or one above 256 MiB.",
    show_default=False,
)
ENGINE = typer.Option(help="What reads streamed files: this machine's cores, or a Ray cluster.")
ADDRESS = typer.Option(help="With --engine ray: a running cluster; else one is started here.")
WORKERS = typer.Option(min=1, help="Threads that read streamed files; by default as many as cores.")


class EngineName(StrEnum):
    """What reads streamed files."""

    LOCAL = "local"
    RAY = "ray"


def is_streamed(
    files: Mapping[str, Sequence[Path]], stream: bool | None, engine: EngineName, unable: Mapping[str, object]
) -> bool:
    """Whether to stream; `unable` holds the options that cannot be had then, with their values."""
    from surefoot.predictions.paths import is_large

    if stream is False and engine is EngineName.RAY:
        raise InputError("--engine ray streams; allowed: without --no-stream")
    wanted = stream or engine is EngineName.RAY or (stream is None and any(map(is_large, files.values())))
    given = [option for option, value in unable.items() if value is not None]
    if wanted and given:
        raise InputError(f"{given[0]} needs all rows in memory, and these are streamed; allowed: --no-stream")
    return wanted


@contextmanager
def engine_named(name: EngineName, address: str | None, workers: int | None) -> "Iterator[Engine]":
    """The engine, for as long as it is needed."""
    from surefoot.streaming.engines import Threads, usable_cores

    if name is EngineName.LOCAL:
        if address is not None:
            raise InputError("--address is of a Ray cluster; allowed: with --engine ray")
        yield Threads(workers or usable_cores())
        return
    from surefoot.cli.terminal import busy
    from surefoot.streaming.engines import RayTasks, connect, disconnect

    with busy("starting Ray"):
        connect(address)
    try:
        yield RayTasks()
    finally:
        disconnect()


ENGINES = ("local", "ray")

TrainingEngine = Annotated[str, typer.Option(help="What makes the networks: local, or ray (docs/ray.md).")]
Address = Annotated[
    str | None,
    typer.Option(help="Of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; else one is started here."),
]
CpusPerNetwork = Annotated[
    float | None, typer.Option(help="With ray: CPUs that a network takes; 1 unless given.")
]
GpusPerNetwork = Annotated[
    float | None,
    typer.Option(help="With ray: GPUs that a network takes, e.g. 0.25; half of one unless given."),
]


@dataclass(frozen=True)
class Made:
    """How networks are made: on which device, and by what."""

    device: str
    execute: Callable[["WorkOrder", Callable[[dict[str, Any]], None]], None]


def chosen_engine(
    name: str,
    device: str,
    workers: int | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
) -> AbstractContextManager[Made]:
    """The engine of that name; a cluster is connected to when there is something to make."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; have: {', '.join(ENGINES)}")
    if name == "ray":
        from surefoot.workers.cluster import Cluster, load_ray

        given = {} if cpus is None else {"cpus": cpus}
        cluster = Cluster(address=address, gpus=gpus, most=workers, **given)
        load_ray(cluster)  # whether it is there is said before anything is planned
        return _ray(cluster, device)
    options = {"--address": address, "--cpus-per-network": cpus, "--gpus-per-network": gpus}
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is {value!r} and the engine is 'local'; needed: --engine ray")
    return _local(device_named(device), workers)


@contextmanager
def _local(device: str, workers: int | None) -> Iterator[Made]:
    from surefoot.workers.local import execute, sensible_workers

    yield Made(
        device,
        lambda order, on_event: execute(
            order, workers=workers or sensible_workers(device), on_event=on_event
        ),
    )


@contextmanager
def _ray(cluster: Any, device: str) -> Iterator[Made]:
    from surefoot.workers.ray import engine

    if device not in ("auto", "cpu", "cuda"):  # whether there is one is the nodes' to say
        raise InputError(f"device is {device!r}; allowed: auto, cpu, cuda")
    with engine(cluster) as execute:
        yield Made(device, execute)
