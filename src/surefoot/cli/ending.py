"""How a command ends: its exit code, and one sentence where it fails."""

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from typer.core import TyperGroup

from surefoot import __version__
from surefoot.cli.terminal import remarks_as_notes
from surefoot.errors import InputError, described, missing_torch
from surefoot.text import sentence

REFUSED, UNEXPECTED, INTERRUPTED, UNREAD = 2, 3, 130, 141  # the last two are a shell's for such ends
QUIET = ("--quiet", "-q")
TRACEBACK = "SUREFOOT_TRACEBACK"  # a variable of the environment
EXIT_CODES = (
    "Exit codes: 0 done, 1 an alarm or a failed check, 2 refused input, 3 an unexpected error, "
    f"{INTERRUPTED} Ctrl-C, {UNREAD} output that nobody reads. {TRACEBACK}=1 prints every error's traceback."
)


class _PassedError(Exception):
    """Its cause is an error on its way past Typer, which would end with 1 or say nothing."""


class Commands(TyperGroup):
    """The commands; whatever stops one reaches `ended`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--quiet` may follow a command, too."""
        end = args.index("--") if "--" in args else len(args)
        quiet = [word for word in args[:end] if word in QUIET]
        others = [word for word in args[:end] if word not in QUIET]
        return super().parse_args(ctx, [*quiet[:1], *others, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            with remarks_as_notes():
                return super().invoke(ctx)
        except (EOFError, KeyboardInterrupt, OSError, SystemExit) as error:
            raise _PassedError from error


def ended(command: Callable[[], object]) -> NoReturn:
    """Run the command line and end the process; with 1 only where a command decides so."""
    _open_missing_streams()
    code: Any = 0
    try:
        command()
    except SystemExit as end:  # Typer's: an error of the user's code is passed
        code = end.code
    except BaseException as error:  # noqa: BLE001 whatever it is, Python would end with 1
        code = _failed(error.__cause__ or error if isinstance(error, _PassedError) else error)
    sys.exit(_with_output(code))


def _open_missing_streams() -> None:
    """A stream that was closed is discarded; otherwise the first file that is opened would get its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123


def _with_output(code: Any) -> Any:
    """The exit code when all output is written: later, Python would end with 120 and lines of its own."""
    try:
        sys.stdout.flush()
        return code
    except (OSError, ValueError) as error:  # the latter: it was closed
        sys.stdout = None  # or it would be written again
        return code or _failed(error)


def _failed(error: BaseException) -> int:
    """Say in one sentence what happened; the exit code."""
    if os.environ.get(TRACEBACK):
        _write("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return UNREAD
    reason = _refusal(error)
    _write(f"surefoot: {sentence(_unexpected(error) if reason is None else reason)}\n")
    return UNEXPECTED if reason is None else REFUSED


def _refusal(error: BaseException) -> str | None:
    """What is wrong with the input or the machine; None for an error that only a traceback explains."""
    error = missing_torch(error) or error
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory for this input; allowed: less data"
    if isinstance(error, OSError) and error.strerror is not None:  # a name too long, a full disk
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


def _unexpected(error: BaseException) -> str:
    where = f"{TRACEBACK}=1 prints its traceback"
    if not os.environ.get(TRACEBACK):
        with suppress(Exception):  # such as a disk that is full
            where = f"its traceback is in {_saved(error)}"
    own = "unless it is from your own code or a plugin, please report it with the traceback"
    return f"unexpected {described(error)}; {where}; {own}"


def _saved(error: BaseException) -> str:
    """The path of a new file with the traceback."""
    about = f"surefoot {__version__}, Python {platform.python_version()}, {platform.platform()}\n\n"
    with tempfile.NamedTemporaryFile(
        "w", prefix="surefoot-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(about + "".join(traceback.format_exception(error)))
    return file.name


def _write(text: str) -> None:
    """Write to standard error, which may be closed or full."""
    errors: Any = sys.stderr
    try:
        errors.write(text)
        errors.flush()
    except (AttributeError, OSError, ValueError):
        sys.stderr = None  # so that it is not written again at the end
