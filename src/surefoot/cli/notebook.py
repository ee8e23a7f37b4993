"""Progress for the user: bars in a terminal; in a notebook, which has none, a line below the cell."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from surefoot.cli.terminal import busy, echo, is_animated, notes, progress
from surefoot.progress import OnEvent, Progress, Tick
from surefoot.text import visible

SECONDS = 0.5  # between two states of a line
SECONDS_BETWEEN_LINES = 60  # without a terminal


def progress_shown() -> Progress:
    """Notes, spinners and bars on standard error, or in the notebook that runs this."""
    if _in_notebook():
        line = Line()
        return Progress(echo, line.busy, line.bar, line.watch)
    return Progress(lambda text: echo(text, err=True), busy, progress, Log().watch)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal is a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


class Log:
    """A line per minute where there is no terminal; one log for all tasks of a command."""

    def __init__(self) -> None:
        self.console = notes()
        self.last = time.monotonic()

    def write(self, line: str) -> None:
        """Print the line unless there is a terminal or the last line is less than a minute old."""
        if not is_animated(self.console) and time.monotonic() - self.last >= SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            self.console.print(visible(line))

    @contextmanager
    def watch(self, *order: Any, **about: Any) -> Iterator[OnEvent]:
        """The networks done, the current epoch and loss, and the time left."""
        from surefoot.cli.progress import watch  # only for training: it is slow to import

        with watch(*order, **about, log=self) as on_event:
            yield on_event


class Line(Log):
    """A line of text below the cell, replaced by the next one."""

    def __init__(self) -> None:
        super().__init__()
        display = import_module("IPython.display").display  # not among the packages that we need
        self.handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self.last = 0.0

    def write(self, line: str) -> None:
        """Show the line unless the last one was shown just now."""
        if time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            self.show(line)

    def show(self, line: str) -> None:
        """Show the line."""
        self.handle.update({"text/plain": visible(line)}, raw=True)

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Something of unknown duration."""
        with self.emptied():
            self.show(f"{doing} ...")
            yield

    @contextmanager
    def bar(self, doing: str, total: int | None) -> Iterator[Tick]:
        """The share that is done."""
        done = 0

        def tick(steps: int) -> None:
            nonlocal done
            done += steps
            self.write(f"{doing}: {done / total:.0%}" if total else f"{doing}: {done:,}")

        with self.emptied():
            yield tick

    @contextmanager
    def watch(self, *order: Any, **about: Any) -> Iterator[OnEvent]:
        """The networks done, the current epoch and loss, and the time left."""
        with self.emptied(), super().watch(*order, **about) as on_event:
            yield on_event

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """The line is empty in the end."""
        try:
            yield
        finally:
            self.show("")
