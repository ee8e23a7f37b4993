"""Training as a person watches it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from surefoot.cli.terminal import notes
from surefoot.report.tables import Table

if TYPE_CHECKING:
    from surefoot.engines.orders import Job, Order
    from surefoot.recipes import Recipe
    from surefoot.store import Found
    from surefoot.training.tune import Glimpse, Trial


@contextmanager
def watch(order: "Order") -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar for the whole order in epochs, and the last network's epoch and loss beside it."""
    total = [_phases(job.recipe) * job.recipe.epochs for job in order.jobs]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with _bar(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(f"training {len(order.jobs)} networks", total=sum(total))
        done: dict[int, int] = {}
        reports: set[str] = set()

        def tell(event: dict[str, Any]) -> None:
            job = event.get("job", -1)
            if event["event"] == "epoch":
                before = order.jobs[job].recipe.epochs if event["phase"] == "final" else 0
                done[job] = before + event["epoch"]
                where = (
                    f"{_called(order.jobs[job])}, {event['phase']}, epoch {event['epoch']}/{event['epochs']}"
                )
                bar.update(task, description=f"{where}, loss {event['loss']:.4f}")
            elif event["event"] == "done":
                done[job] = total[job]
            elif event["event"] == "elsewhere":
                notes().print(f"waiting for another process: {_called(order.jobs[job])}")
            elif event["event"] == "weights" and event["report"] not in reports:
                reports.add(event["report"])
                notes().print(event["report"], markup=False)
            bar.update(task, completed=sum(done.values()))

        yield tell


def _phases(recipe: "Recipe") -> int:
    """How often it is trained."""
    kind = "" if recipe.variant is None else recipe.variant.kind
    if kind == "averaged":
        return 0
    return 2 if recipe.protocol == "paper" and kind != "held-out" else 1


def _called(job: "Job") -> str:
    kind = "" if job.recipe.variant is None else f"{job.recipe.variant.kind}, "
    return f"{kind}seed {job.seed}"


def _bar(*columns: ProgressColumn) -> Progress:
    """Gone when done, and silent where no person watches."""
    console = notes()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def watch_trials(rates: tuple[float, ...]) -> Iterator[Callable[["Glimpse"], None]]:
    """The trial at work: learning rate, epoch, validation error and NLL."""
    with _bar(TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task(f"trying {len(rates)} learning rates", total=None)

        def tell(seen: "Glimpse") -> None:
            where = f"rate {seen.learning_rate:g} ({rates.index(seen.learning_rate) + 1} of {len(rates)})"
            bar.update(
                task, description=f"{where}, epoch {seen.epoch}: error {seen.error:.4f}, NLL {seen.nll:.4f}"
            )

        yield tell


def describe_trials(task: str, trials: "list[Trial]") -> str:
    """What the search found, for people and for the recipe's file."""
    lines = [f"found by 'surefoot tune {task}' on validation:"]
    for trial in trials:
        if trial.diverged:
            lines.append(f"learning rate {trial.learning_rate:g}: diverged")
        else:
            facts = f"{trial.epochs} epochs, error {trial.error:.4f}, NLL {trial.nll:.4f}"
            lines.append(f"learning rate {trial.learning_rate:g}: {facts}")
    return "\n".join(lines)


def status_table(root: Path, networks: "list[Found]") -> Table:
    """A row per network."""
    rows = tuple(_row(found) for found in networks)
    return Table(f"Networks in {root}", ("task", "recipe", "seed", "state", "epoch", "loss", "seconds"), rows)


def status_line(networks: "list[Found]") -> str:
    """How many there are in each state, such as '12 networks: 7 done, 2 running, 3 missing'."""
    from surefoot.store import State

    states = [found.state for found in networks]
    counts = [f"{states.count(state)} {state}" for state in State if state in states]
    return f"{count_networks(len(states))}{': ' if counts else ''}{', '.join(counts)}"


def count_networks(count: int) -> str:
    """A number of networks, in words that fit it."""
    return "1 network" if count == 1 else f"{count} networks"


def _row(found: "Found") -> tuple[str, ...]:
    from surefoot.store import State

    epochs = [entry for entry in found.log if "epoch" in entry]
    last = epochs[-1] if epochs else {}
    at = f"{last['phase']} {last['epoch']}/{last['epochs']}" if last else ""
    spent = sum(float(entry["seconds"]) for entry in epochs)
    loss = f"{last['loss']:.4f}" if last else ""
    seconds = "" if found.state is State.MISSING else f"{spent:.1f}"
    return (found.task, found.recipe, str(found.seed), str(found.state), at, loss, seconds)
