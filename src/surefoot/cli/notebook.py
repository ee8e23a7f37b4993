"""Progress for the user: bars in a terminal; in a notebook, which has none, a line below the cell."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from surefoot.cli.progress import Log, watch
from surefoot.cli.terminal import busy, echo, reading
from surefoot.progress import OnEvent, Progress, Tick
from surefoot.text import visible

SECONDS = 0.5  # between two states of a line


def progress_shown() -> Progress:
    """Notes, spinners and bars on standard error, or in the notebook that runs this."""
    if _in_notebook():
        line = Line()
        return Progress(echo, line.busy, line.bar, line.watch)
    return Progress(lambda text: echo(text, err=True), busy, reading, partial(watch, log=Log()))


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal is a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


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
        with self.emptied(), watch(*order, **about, log=self) as on_event:
            yield on_event

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """The line is empty in the end."""
        try:
            yield
        finally:
            self.show("")
