"""What is shown while something takes long: nothing, or bars in a terminal and lines in a notebook."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from surefoot.errors import InputError

Tick = Callable[[int], None]
OnEvent = Callable[[dict[str, Any]], None]
Watch = Callable[[str, int | None], AbstractContextManager[Tick]]


def silently(_doing: str, _total: int | None) -> AbstractContextManager[Tick]:
    """Show no bar."""
    return nullcontext(lambda _steps: None)


@contextmanager
def unwatched(_order: Any, **_about: Any) -> Iterator[OnEvent]:
    """Show nothing of the training."""
    yield lambda _event: None


@dataclass(frozen=True)
class Progress:
    """What is shown: nothing by default."""

    note: Callable[[str], None] = lambda _text: None
    busy: Callable[[str], AbstractContextManager[None]] = lambda _doing: nullcontext()
    bar: Watch = silently  # of so many steps, where their number is known
    watch: Callable[..., AbstractContextManager[OnEvent]] = unwatched  # (order, title=.., done_before=..)


SILENT = Progress()


def progress_of(progress: bool | Progress) -> Progress:
    """What True and False stand for; the bars are imported when they are shown, as they need rich."""
    if isinstance(progress, Progress):
        return progress
    if not isinstance(progress, bool):
        raise InputError(f"progress is {progress!r}; allowed: True, False or a surefoot.progress.Progress")
    shown: Progress = import_module("surefoot.cli.notebook").progress_shown() if progress else SILENT
    return shown
