"""The command line: parse, one call, print. Slow imports happen inside the commands."""

import gc
import os
import sys
from io import TextIOWrapper

from surefoot.cli.app import app
from surefoot.cli.ending import ended

OBJECTS = 50_000  # before garbage is collected: with Python's 700, imports take a tenth longer


def main() -> None:
    """Run the command line and end the process; exit codes: docs/commands/README.md."""
    gc.set_threshold(OBJECTS)
    # Read when numpy is imported. Matrix products here are small: more threads spend their time waiting.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if isinstance(sys.stdout, TextIOWrapper):  # with another encoding than UTF-8: shown as escapes, no error
        sys.stdout.reconfigure(errors="backslashreplace")
    ended(lambda: app(prog_name="surefoot"))
