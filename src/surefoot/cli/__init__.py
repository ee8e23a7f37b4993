"""The command line: parse, one call, print. Heavy imports wait until a command runs."""

import sys

from surefoot.cli.app import app
from surefoot.errors import InputError


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        sys.stderr.write(f"surefoot: {error}\n")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; say nothing
        sys.exit(1)


__all__ = ["main"]
