"""The command line: here, where everything heavy is loaded already, or in a process of its own."""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

import pytest
import typer

from surefoot import cli
from tests import warm

STRICT = {"PYTHONWARNINGS": "error", "COLUMNS": "100"}


@dataclass(frozen=True)
class Said:
    """What a command wrote."""

    stdout: str
    stderr: str


@cache
def _built():
    """The command line, built once: that takes longer than a short command."""
    return typer.main.get_command(cli.app)


def surefoot(*arguments, check=0):
    """Run the command here; what it wrote, and its exit code as expected."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["surefoot", *map(str, arguments)])
        patch.setattr(cli, "app", _built())
        patch.setenv("COLUMNS", "100")
        to = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with to[0], to[1], pytest.raises(SystemExit) as ended:
            cli.main()
    printed = Said(*(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert (ended.value.code or 0) == check, printed.stderr
    return printed


def started(*arguments):
    """The command in a process that goes on; it hears Ctrl-C also where a shell's `&` has us ignore it."""
    return warm.Process(warm.SUREFOOT, arguments)


def in_a_process(*arguments, check=0, **options):
    """Run the command in a process of its own, where a warning is an error; a fork of one that is warm."""
    done = warm.run(warm.SUREFOOT, *arguments, environment=STRICT, **options)
    return _said(done, check)


def in_a_new_process(*arguments, check=0, cwd=None):
    """The same, started from nothing."""
    command = [sys.executable, "-c", warm.SUREFOOT, *map(str, arguments)]
    environment = {**os.environ, **STRICT}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    return _said(done, check)


def _said(done, check):
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    return Said(done.stdout, done.stderr)


def rows_of(text):
    """The rows of the tables in plain text, without notes: each the cells under the columns' rules."""
    rows, columns = [], []
    for line in text.splitlines():
        if re.fullmatch("-+(  -+)*", line):
            columns = [each.span() for each in re.finditer("-+", line)]
        elif not line:
            columns = []
        elif columns:
            cells = [line[start:end].strip() for start, end in columns]
            if cells[0] and not line.startswith(" "):
                rows.append(cells)
            else:  # text that was wrapped
                rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    return rows
