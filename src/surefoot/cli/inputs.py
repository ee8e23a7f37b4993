"""Options and functions that commands share: prediction files, streaming, existing runs, devices."""

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.terminal import busy, echo
from surefoot.errors import InputError
from surefoot.evaluation import MOST_RESAMPLES
from surefoot.io import real_path, refuse_same_file, refuse_special, refuse_unwritable

if TYPE_CHECKING:
    from surefoot.predictions.labels import LabelKind
    from surefoot.predictions.predictions import Predictions
    from surefoot.predictions.scanned import ScannedPredictions

IN_MEMORY = 64 * 2**20  # bytes of files that `read_or_chunk` reads at once
HeldOut = Annotated[
    Path, typer.Argument(help="Predictions on held-out familiar data: .npz, .parquet or .csv.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Networks trained in parallel; one core each on a CPU.")
]
Root = Annotated[Path | None, typer.Option(help="Folder with the task's published files.")]
Resamples = Annotated[
    int, typer.Option(min=0, max=MOST_RESAMPLES, help="Bootstrap resamples; 0 for no intervals.")
]
StoreFolder = Annotated[Path, typer.Option(help="The folder of trained networks.")]
GroupBy = Annotated[
    str | None,
    typer.Option(help="Column of groups, such as persons: rows of one group are not independent."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


class EngineName(StrEnum):
    """What streams files or trains networks."""

    LOCAL = "local"
    RAY = "ray"


Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Read in batches; the default for several files, or one above 256 MiB.",
        show_default=False,
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="What streams files or trains networks: this machine, or a Ray cluster: that at $RAY_ADDRESS, "
        "or a new one (docs/ray.md)."
    ),
]


def refuse_missing(*paths: Path | None) -> None:
    """Fail at once, before slow imports, where an input file does not exist; patterns are checked later."""
    for path in paths:
        if path is None or glob.has_magic(str(path)):
            continue
        try:
            if not path.is_dir():
                refuse_special(path)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error


def input_files(*names: Path | None) -> list[Path]:
    """The files of predictions that these names stand for: files, folders and patterns."""
    from surefoot.predictions.paths import files_named

    refuse_missing(*names)
    return [file for name in names if name is not None for file in files_named(name)]


def refuse_missing_bundle(folder: Path) -> None:
    """Fail at once, before slow imports, where a folder is not a bundle."""
    if not (folder / "bundle.json").is_file():
        raise InputError(f"{folder} is not a bundle: it has no bundle.json; 'surefoot bundle' writes one")


def refuse_wrong_outputs(inputs: Sequence[Path | None], outputs: Sequence[Path | None]) -> None:
    """Fail where an output cannot be written, is also an input, or is given twice; None is not given."""
    written = [output for output in outputs if output is not None]
    for output in written:
        refuse_unwritable(output)
        for given in inputs:
            if given is not None:
                refuse_same_file(given, output)
    for one, other in combinations(written, 2):
        if real_path(one) == real_path(other):
            raise InputError(f"two outputs are the same file, {one}; allowed: different files")


def refuse_predictions_name(output: Path | None, what: str) -> None:
    """Fail where JSON would be written to a file that is named like predictions."""
    from surefoot.predictions.paths import SUFFIXES

    if output is not None and output.suffix.lower() in SUFFIXES:
        raise InputError(
            f"{what} are JSON, and {output} is a file name for predictions; allowed: another ending"
        )


def refuse_ending(output: Path | None, *allowed: str) -> None:
    """Fail before the work where the ending of an output's name is not one of those allowed."""
    if output is not None and output.suffix.lower() not in allowed:
        raise InputError(f"{output}: unknown file type {output.suffix!r}; have: {', '.join(allowed)}")


def refuse_unknown_task(name: str) -> None:
    """Fail at once, before slow imports, where no task has this name, or an experiment has it."""
    from surefoot.lab.experiments.experiment import EXPERIMENTS
    from surefoot.lab.tasks import TASKS

    base = name.partition("/")[0]
    experiment = next((each for each in EXPERIMENTS if each.name == name), None)
    if experiment is not None and base not in [entry.name for entry in TASKS]:
        tasks = ", ".join(dict.fromkeys(part.task for part in experiment.parts))
        use = f"'surefoot run {name}' runs it; its tasks: {tasks}"
        raise InputError(f"{name!r} is an experiment, and a task is needed; {use}")
    TASKS.named(base)


def task_files(task: str) -> list[Path]:
    """The files that describe a task given as a TOML file: this file, its manifest and its vectors.

    Refuses a name that is no task's, and a file that describes an experiment.
    """
    if not task.lower().endswith(".toml"):
        refuse_unknown_task(task)
        return []
    from surefoot.lab.tasks.description import read_description

    return [Path(task), *read_description(Path(task)).files()]


def read(path: Path, group_by: str | None = None) -> "Predictions":
    """Predictions from a file, a folder or a pattern, grouped by one of their columns if given."""
    from surefoot.predictions.files import read_predictions

    with busy(f"reading {path}"):
        predictions = read_predictions(path)
    note_one_hot(predictions, path)
    return grouped(predictions, path, group_by)


def note_one_hot(predictions: "Predictions", path: Path) -> None:
    """Say where labels of the many-label kind are all one-hot."""
    from surefoot.predictions.labels import ONE_HOT

    if predictions.always_one_label():
        echo(ONE_HOT.format(path), err=True)


def grouped(predictions: "Predictions", path: Path, group_by: str | None) -> "Predictions":
    """Grouped by a column, if one is given."""
    try:
        return predictions if group_by is None else predictions.grouped_by(group_by)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_or_chunk(
    path: Path, group_by: str | None, unlabelled: "LabelKind | None" = None, *, most: float = IN_MEMORY
) -> "Predictions | ScannedPredictions":
    """Predictions in memory; files of more bytes are to be read in chunks. Without labels only of a kind."""
    from surefoot.predictions.files import read_predictions
    from surefoot.predictions.paths import STREAMED, files_named
    from surefoot.predictions.scanned import scan_predictions

    files = files_named(path)
    can_be_chunked = all(file.suffix.lower() in STREAMED and file.is_file() for file in files)
    if can_be_chunked and sum(file.stat().st_size for file in files) > most:
        scanned = scan_predictions(path, unlabelled=unlabelled)
        return scanned if group_by is None else scanned.grouped_by(group_by)
    with busy(f"reading {path}"):
        predictions = read_predictions(path, unlabelled=unlabelled)
    return grouped(predictions, path, group_by)


def is_streamed(
    files: Mapping[str, Sequence[Path]],
    stream: bool | None,
    engine: EngineName,
    in_memory_options: Mapping[str, object],
) -> bool:
    """Whether to stream; `in_memory_options` are the values of options that do not work with streaming."""
    from surefoot.predictions.paths import is_large

    if stream is False and engine is EngineName.RAY:
        raise InputError("--engine ray streams; allowed: without --no-stream")
    streamed = stream or engine is EngineName.RAY or (stream is None and any(map(is_large, files.values())))
    given = [option for option, value in in_memory_options.items() if value is not None]
    if streamed and given:
        raise InputError(f"{given[0]} needs all rows in memory, and these are streamed; allowed: --no-stream")
    return streamed


def read_or_scan(
    path: Path, group_by: str | None, streamed: bool, engine: EngineName
) -> "Predictions | ScannedPredictions":
    """The rows of files in memory, or the files to be streamed."""
    from surefoot.predictions.scanned import scan_predictions

    if streamed:
        return scan_predictions(path, engine=engine)
    return read(path, group_by)


def value_of(text: str) -> tuple[str, Any]:
    """`epochs=12` as a name and a value, parsed as TOML."""
    import tomllib

    from surefoot.io import parse_toml

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no '='; allowed: NAME=VALUE, such as epochs=12")
    try:
        return name.strip(), parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), _word(value.strip())
    except (ValueError, RecursionError) as error:
        raise InputError(f"--set {name.strip()}: {error}; allowed: NAME=VALUE, such as epochs=12") from error


def _word(text: str) -> str | float:
    """A word without quotes; a percentage as a number."""
    share = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", text)
    return text if share is None else float(Decimal(share[1]) / 100)


@contextmanager
def stoppable(sentence: str = "stopped; the same command resumes") -> Iterator[None]:
    """Ctrl-C at any time prints one sentence and ends with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        echo(sentence, err=True)
        raise typer.Exit(130) from None
