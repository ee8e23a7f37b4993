"""The command line: parse, one call, print. Slow imports happen inside the commands."""

import gc
import sys
from io import TextIOWrapper
from typing import Any, NoReturn

from surefoot.cli.app import app
from surefoot.errors import InputError
from surefoot.text import sentence

OBJECTS = 50_000  # before garbage is collected: with Python's 700, imports take a tenth longer


def main() -> None:
    """Run the command line; bad input prints one sentence and ends with exit code 2."""
    gc.set_threshold(OBJECTS)
    if isinstance(sys.stdout, TextIOWrapper):  # with another encoding than UTF-8: shown as escapes, no error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="surefoot")
    except InputError as error:
        _refuse(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has ended: print no error
        sys.exit(1)
    except OSError as error:  # a name too long, a disk that is full: nothing that a traceback would explain
        if error.strerror is None:
            raise
        named = f"{error.filename}: " if error.filename else ""
        _refuse(f"{named}{error.strerror}")
    except MemoryError:
        _refuse("not enough memory for this input; allowed: less data")


def _refuse(reason: str) -> NoReturn:
    """End with exit code 2, also where standard error is closed or cannot be written to."""
    errors: Any = sys.stderr
    try:
        errors.write(f"surefoot: {sentence(reason)}\n")
    except (AttributeError, OSError, ValueError):
        sys.stderr = None  # so that it is not written again at the end
    sys.exit(2)
