"""Predictions of any size for `evaluate` and `calibrate`: what is streamed, and by what."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.streaming.local import Engine

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
    from surefoot.streaming.files import is_large

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
    from surefoot.streaming.local import Threads, usable_cores

    if name is EngineName.LOCAL:
        if address is not None:
            raise InputError("--address is of a Ray cluster; allowed: with --engine ray")
        yield Threads(workers or usable_cores())
        return
    from surefoot.cli.terminal import busy
    from surefoot.streaming.on_ray import RayTasks, connect, disconnect

    with busy("starting Ray"):
        connect(address)
    try:
        yield RayTasks()
    finally:
        disconnect()
