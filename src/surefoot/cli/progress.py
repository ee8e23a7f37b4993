"""Progress of training on the terminal."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from surefoot.cli.notebook import Log
from surefoot.cli.terminal import echo, is_animated, notes
from surefoot.report.tables import Table
from surefoot.text import count_of, number_text, visible

if TYPE_CHECKING:
    from surefoot.lab.experiments.search import Entry
    from surefoot.lab.training.tune import EpochResult, Trial
    from surefoot.lab.workers.jobs import Job, WorkOrder

FEWEST_SECONDS, FEWEST_EPOCHS = 10, 4  # after the first epoch, before a time left is shown


@contextmanager
def watch(
    order: "WorkOrder", *, title: str, done_before: int = 0, log: "Log | None" = None
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the networks done, the current epoch and loss, a bar in epochs, and the time left.

    Without a terminal: a line per minute.
    """
    from surefoot.lab.variants import variant_of

    epochs = [variant_of(job.recipe).trainings(job.recipe) * job.recipe.epochs for job in order.jobs]
    text = _Text(order, title, done_before)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), TimeLeft())
    console = notes()
    with _TwoLines(*columns, console=console, transient=True, disable=not is_animated(console)) as bar:
        total = sum(epochs) + len(epochs)  # predicting counts as one epoch
        task = bar.add_task(text.count(), total=total)
        done: dict[int, int] = {}
        earlier: dict[int, int] = {}  # epochs that do not count: of an earlier session, and the first
        reports: set[str] = set()
        lines = Log() if log is None else log

        def on_event(event: dict[str, Any]) -> None:
            job = event.get("job", -1)
            if event["event"] == "epoch":
                first_phase = order.jobs[job].recipe.epochs if event["phase"] == "final" else 0
                done[job] = first_phase + event["epoch"]
                if not earlier:
                    bar.reset(task)  # the first epoch takes longer, and so does starting: neither counts
                earlier.setdefault(job, done[job] - bool(earlier))
                bar.below = text.epoch(event)
            elif event["event"] == "done":
                done[job] = epochs[job] + 1
                text.finished += 1
            elif event["event"] == "elsewhere":
                echo(f"waiting for another process: {_name(order.jobs[job])}", err=True)
            elif event["event"] == "note":
                echo(*event["text"].split("\n"), err=True)
            elif event["event"] == "weights" and event["report"] not in reports:
                reports.add(event["report"])
                echo(*event["report"].split("\n"), err=True)
            before = sum(earlier.values())
            completed = sum(done.values()) - before
            bar.update(task, description=visible(text.count()), completed=completed, total=total - before)
            parts = (text.count(), bar.below, TimeLeft().render(bar.tasks[0]).plain)
            lines.write("; ".join(filter(None, parts)))

        yield on_event


@dataclass
class _Text:
    """The text of the progress lines."""

    order: "WorkOrder"
    title: str
    finished: int  # networks

    def __post_init__(self) -> None:
        self.networks = self.finished + len(self.order.jobs)

    def count(self) -> str:
        """Such as `toy: 3 of 12 networks`."""
        return f"{self.title}: {self.finished} of {count_of(self.networks, 'network')}"

    def epoch(self, event: dict[str, Any]) -> str:
        """Such as `distilled, seed 1, final training: epoch 7 of 40, loss 0.1234`."""
        final = ", final training" if event["phase"] == "final" else ""
        name = _name(self.order.jobs[event["job"]])
        return f"{name}{final}: epoch {event['epoch']} of {event['epochs']}, loss {event['loss']:.4f}"


class _TwoLines(Progress):
    """A bar, and a line of text below it."""

    below = "starting"

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, then the line, cut to the width of the terminal."""
        yield self.make_tasks_table(self.tasks)
        yield Text(f"  {visible(self.below)}", style="dim", overflow="ellipsis", no_wrap=True)


class TimeLeft(ProgressColumn):
    """The time left at the mean speed so far: networks differ too much for the current speed."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Such as `1:05 left`; nothing until some epochs were measured."""
        elapsed, share = task.elapsed or 0.0, task.completed / task.total if task.total else 0.0
        if elapsed < FEWEST_SECONDS or task.completed < FEWEST_EPOCHS:
            return Text("")
        seconds = math.ceil(elapsed * (1 - share) / share)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"{clock} left")


def _name(job: "Job") -> str:
    kind = "" if job.recipe.variant is None else f"{job.recipe.variant.name}, "
    return f"{kind}seed {job.seed}"


@contextmanager
def watch_trials() -> Iterator[Callable[["EpochResult"], None]]:
    """Show the current trial: learning rate, epoch, validation error and NLL."""
    columns = (TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = notes()
    with Progress(*columns, console=console, transient=True, disable=not is_animated(console)) as bar:
        task, log = bar.add_task("trying learning rates", total=None), Log()

        def on_event(result: "EpochResult") -> None:
            scores = f"error {result.error:.4f}, NLL {result.nll:.4f}"
            line = f"rate {result.learning_rate:g}, epoch {result.epoch}: {scores}"
            bar.update(task, description=visible(line))
            log.write(line)

        yield on_event


def describe_trials(task: str, trials: "list[Trial]") -> str:
    """The results of the search, for the terminal and the recipe file."""
    lines = [f"found by 'surefoot tune {task}' on validation:"]
    for trial in trials:
        if trial.diverged:
            lines.append(f"learning rate {trial.learning_rate:g}: diverged")
        else:
            facts = f"{count_of(trial.epochs, 'epoch')}, error {trial.error:.4f}, NLL {trial.nll:.4f}"
            lines.append(f"learning rate {trial.learning_rate:g}: {facts}")
    return "\n".join(lines)


def describe_equivalent(trials: "list[Trial]", samples: int) -> str | None:
    """Which rates are within one standard error of the best."""
    from surefoot.lab.training.tune import within_one_standard_error

    error, others = within_one_standard_error(trials, samples)
    if not others:
        return None
    rates = ", ".join(f"{trial.learning_rate:g}" for trial in others)
    of_error = f"{error:.4f} of error on {count_of(samples, 'validation sample')}"
    return f"within one standard error of the best ({of_error}): learning rate {rates}"


def search_table(task: str, rungs: "Sequence[Sequence[Entry]]") -> Table:
    """Every candidate of every rung, the best first."""
    from surefoot.lab.experiments.search import SCORES

    rows = []
    for entry in (entry for entries in rungs for entry in entries):
        numbers = [number_text(entry.mean(name)) for name in SCORES]
        epochs = str(entry.trials[0].spec.recipe.epochs)
        count = str(len(entry.trials))
        rows.append((str(entry.rung), entry.candidate.name, epochs, count, *numbers, entry.verdict))
    header = (
        "rung",
        "candidate",
        "epochs",
        "runs",
        "NLL with T",
        "T",
        "NLL",
        "error",
        "compared with the best",
    )
    return Table.of_text(f"Found by 'surefoot tune {task} --search recipe' on validation", header, rows)


def describe_not_worse(rungs: "Sequence[Sequence[Entry]]") -> list[str]:
    """Which candidates are not significantly worse than the best, at the end and where they were dropped."""
    lines = []
    for entries, following in zip(rungs, [*rungs[1:], ()], strict=True):
        still = {entry.candidate.name for entry in following}
        names = [e.candidate.name for e in entries[1:] if not e.is_worse and e.candidate.name not in still]
        if names:
            where = f"dropped in rung {entries[0].rung}, but " if following else ""
            lines.append(f"{where}not significantly worse: {'; '.join(names)}")
    return lines
