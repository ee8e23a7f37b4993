"""Progress of training on the terminal."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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

from surefoot.cli.terminal import notes
from surefoot.report.tables import Table
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.recipes.recipe import Recipe
    from surefoot.store.files import StoredNetwork
    from surefoot.training.tune import EpochResult, Trial
    from surefoot.workers.jobs import Job, WorkOrder

SECONDS_BETWEEN_LINES = 60  # in a log


@contextmanager
def watch(
    order: "WorkOrder", *, title: str, done_before: int = 0, log: "Log | None" = None
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The task, networks done of all, the last one's epoch and loss; a bar in epochs, and the time left.

    In a log instead of a terminal: a line a minute.
    """
    epochs = [_phases(job.recipe) * job.recipe.epochs for job in order.jobs]
    view = _View(order, title, done_before)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), TimeLeft())
    console = notes()
    with _TwoLines(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        total = sum(epochs) + len(epochs)  # an epoch's worth to predict
        task = bar.add_task(view.counted(), total=total)
        done: dict[int, int] = {}
        earlier: dict[int, int] = {}  # epochs of another sitting
        reports: set[str] = set()
        lines = Log() if log is None else log

        def on_event(event: dict[str, Any]) -> None:
            job = event.get("job", -1)
            if event["event"] == "ready" and not done:
                bar.reset(task)  # so that the time to start is not taken for an epoch's
            elif event["event"] == "epoch":
                before = order.jobs[job].recipe.epochs if event["phase"] == "final" else 0
                done[job] = before + event["epoch"]
                earlier.setdefault(job, done[job] - 1)
                bar.below = view.at(event)
            elif event["event"] == "done":
                done[job] = epochs[job] + 1
                view.finished += 1
            elif event["event"] == "elsewhere":
                notes().print(f"waiting for another process: {_called(order.jobs[job])}")
            elif event["event"] == "note":
                notes().print(event["text"], markup=False)
            elif event["event"] == "weights" and event["report"] not in reports:
                reports.add(event["report"])
                notes().print(event["report"], markup=False)
            known = sum(earlier.values())
            completed = sum(done.values()) - known
            bar.update(task, description=view.counted(), completed=completed, total=total - known)
            said = (view.counted(), bar.below, TimeLeft().render(bar.tasks[0]).plain)
            lines.say("; ".join(filter(None, said)))

        yield on_event


@dataclass
class _View:
    """What the lines say."""

    order: "WorkOrder"
    title: str
    finished: int  # networks

    def __post_init__(self) -> None:
        self.networks = self.finished + len(self.order.jobs)

    def counted(self) -> str:
        """Such as `toy: 3 of 12 networks`."""
        return f"{self.title}: {self.finished} of {count_of(self.networks, 'network')}"

    def at(self, epoch: dict[str, Any]) -> str:
        """Such as `distilled, seed 1, final training: epoch 7 of 40, loss 0.1234`."""
        final = ", final training" if epoch["phase"] == "final" else ""
        called = _called(self.order.jobs[epoch["job"]])
        return f"{called}{final}: epoch {epoch['epoch']} of {epoch['epochs']}, loss {epoch['loss']:.4f}"


class Log:
    """Lines now and then where nobody watches a bar; one for all tasks of a command."""

    def __init__(self) -> None:
        self.console = notes()
        self.last = time.monotonic()

    def say(self, line: str) -> None:
        """Where there is no terminal, and the last line is some time ago."""
        if not self.console.is_terminal and time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            self.console.print(line, markup=False)


class _TwoLines(Progress):
    """A bar, and a line of text below it."""

    below = "starting"

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, then the line, cut where the terminal ends."""
        yield self.make_tasks_table(self.tasks)
        yield Text(f"  {self.below}", style="dim", overflow="ellipsis", no_wrap=True)


class TimeLeft(ProgressColumn):
    """The time left by the mean speed so far: networks differ too much for the speed of the last seconds."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Such as `1:05 left`."""
        elapsed, share = task.elapsed or 0.0, task.completed / task.total if task.total else 0.0
        if not share:
            return Text("")
        seconds = math.ceil(elapsed * (1 - share) / share)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"{clock} left")


def _phases(recipe: "Recipe") -> int:
    """How often it is trained."""
    kind = "" if recipe.variant is None else recipe.variant.name
    if kind == "averaged":
        return 0
    return 2 if recipe.protocol == "paper" and kind != "held-out" else 1


def _called(job: "Job") -> str:
    kind = "" if job.recipe.variant is None else f"{job.recipe.variant.name}, "
    return f"{kind}seed {job.seed}"


def _bar(*columns: ProgressColumn) -> Progress:
    """Gone when done, and silent where no person watches."""
    console = notes()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def watch_trials() -> Iterator[Callable[["EpochResult"], None]]:
    """The trial at work: learning rate, epoch, validation error and NLL."""
    with _bar(TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task, log = bar.add_task("trying learning rates", total=None), Log()

        def on_event(seen: "EpochResult") -> None:
            found = f"error {seen.error:.4f}, NLL {seen.nll:.4f}"
            line = f"rate {seen.learning_rate:g}, epoch {seen.epoch}: {found}"
            bar.update(task, description=line)
            log.say(line)

        yield on_event


def describe_trials(task: str, trials: "list[Trial]") -> str:
    """What the search found, for people and for the recipe's file."""
    lines = [f"found by 'surefoot tune {task}' on validation:"]
    for trial in trials:
        if trial.diverged:
            lines.append(f"learning rate {trial.learning_rate:g}: diverged")
        else:
            facts = f"{count_of(trial.epochs, 'epoch')}, error {trial.error:.4f}, NLL {trial.nll:.4f}"
            lines.append(f"learning rate {trial.learning_rate:g}: {facts}")
    return "\n".join(lines)


def describe_rivals(trials: "list[Trial]", samples: int) -> str | None:
    """Which rates are within one standard error of the best."""
    from surefoot.training.tune import within_one_standard_error

    error, others = within_one_standard_error(trials, samples)
    if not others:
        return None
    rates = ", ".join(f"{trial.learning_rate:g}" for trial in others)
    of_error = f"{error:.4f} of error on {count_of(samples, 'validation sample')}"
    return f"within one standard error of the best ({of_error}): learning rate {rates}"


def status_table(root: Path, networks: "list[StoredNetwork]") -> Table:
    """A row per network."""
    rows = tuple(_row(found) for found in networks)
    return Table.of_text(
        f"Networks in {root}", ("task", "recipe", "seed", "state", "epoch", "loss", "seconds"), rows
    )


def status_line(networks: "list[StoredNetwork]") -> str:
    """How many there are in each state, such as '12 networks: 7 done, 2 running, 3 missing'."""
    from surefoot.store.files import State

    states = [found.state for found in networks]
    counts = [f"{states.count(state)} {state}" for state in State if state in states]
    return f"{count_of(len(states), 'network')}{': ' if counts else ''}{', '.join(counts)}"


def _row(found: "StoredNetwork") -> tuple[str, ...]:
    from surefoot.store.files import State

    epochs = [entry for entry in found.log if "epoch" in entry]
    last = epochs[-1] if epochs else {}
    at = f"{last['phase']} {last['epoch']}/{last['epochs']}" if last else ""
    spent = sum(float(entry["seconds"]) for entry in epochs)
    loss = f"{last['loss']:.4f}" if last else ""
    seconds = "" if found.state is State.MISSING else f"{spent:.1f}"
    return (found.task, found.recipe, str(found.seed), str(found.state), at, loss, seconds)
