"""The command line: parse, one call, print. Slow imports happen inside the commands."""

import sys
from io import TextIOWrapper

from surefoot.cli.app import app
from surefoot.errors import InputError
from surefoot.text import sentence


def main() -> None:
    """Run the command line; bad input prints one sentence and ends with exit code 2."""
    if isinstance(sys.stdout, TextIOWrapper):  # with another encoding than UTF-8: shown as escapes, no error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        sys.stderr.write(f"surefoot: {sentence(str(error))}\n")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has ended: print no error
        sys.exit(1)
    except OSError as error:  # a name too long, a disk that is full: nothing that a traceback would explain
        if error.strerror is None:
            raise
        named = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"surefoot: {sentence(f'{named}{error.strerror}')}\n")
        sys.exit(2)
    except MemoryError:
        sys.stderr.write("surefoot: not enough memory for this input; allowed: less data\n")
        sys.exit(2)
