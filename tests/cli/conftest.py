"""What the tests of the command line share."""

import sys

import pytest

from surefoot.cli import main
from tests.cli.command import Said


@pytest.fixture
def here(capfd, monkeypatch):
    """The command in this process, with what the processes that it starts write as well."""

    def run(*arguments, check=0):
        monkeypatch.setattr(sys, "argv", ["surefoot", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == check
        return Said(*capfd.readouterr())

    return run
