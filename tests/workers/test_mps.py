"""Workers side by side on a GPU: what is started is ended, and where it cannot be had all is as before.

The daemon is a stand-in, a script that is really run and writes down how it was called; there is no GPU here.
"""

import ctypes
import os
from pathlib import Path

import pytest

from surefoot.lab.workers import local
from surefoot.lab.workers.local import MPS_CONTROL, MPS_FOLDER, default_workers, mps_is_available, shared_gpu

SCRIPT = """#!/bin/sh
read said
echo "$* $said in $CUDA_MPS_PIPE_DIRECTORY, log in $CUDA_MPS_LOG_DIRECTORY" >> "{calls}"
exit {code}
"""
LOGS = "CUDA_MPS_LOG_DIRECTORY"


class Daemon:
    """The stand-in, first on the path."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.calls_file = folder, folder / "calls"
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv(MPS_FOLDER, raising=False)
        self.answers(0)

    def answers(self, code):
        script = self.folder / MPS_CONTROL
        script.write_text(SCRIPT.format(calls=self.calls_file, code=code))
        script.chmod(0o755)

    def calls(self):
        """What it was told, and the folder that it was told of, which is also that of its logs."""
        found = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        folders = {line.split(" in ")[1].removesuffix(", log") for line in found}
        assert {line.split(" log in ")[1] for line in found} == folders
        return [line.split(" in ")[0].strip() for line in found], folders


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    return Daemon(tmp_path, monkeypatch)


@pytest.fixture
def works(monkeypatch):
    """A trial that ends well, as it would where there is a GPU: it is run all the same, and sees the daemon's folder."""
    monkeypatch.setattr(local, "MPS_TRIAL", f"import os; os.listdir(os.environ[{MPS_FOLDER!r}])")


def test_workers_get_the_daemon_s_folder_and_it_is_told_to_quit(daemon, works):
    with shared_gpu("cuda", 4) as environment:
        folder = environment[MPS_FOLDER]
        assert Path(folder).is_dir()
        assert daemon.calls() == (["-d"], {folder})
        assert environment == {**os.environ, MPS_FOLDER: folder, LOGS: folder}
        assert MPS_FOLDER not in os.environ, "our own process stays as it is"
    assert daemon.calls() == (["-d", "quit"], {folder})
    assert not Path(folder).exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_quits_also_when_the_work_fails(daemon, works, error):
    def work():
        with shared_gpu("cuda:0", 2):
            raise error

    with pytest.raises(error):
        work()
    told, folders = daemon.calls()
    assert told == ["-d", "quit"]
    assert not Path(folders.pop()).exists()


def _has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(_has_driver(), reason="here is a driver, and the trial may succeed")
def test_without_a_driver_the_trial_fails_and_workers_take_turns(daemon):
    with shared_gpu("cuda", 2) as environment:
        assert environment == dict(os.environ)
        assert daemon.calls()[0] == ["-d"]
    assert daemon.calls()[0] == ["-d", "quit"], "nobody needs it, so it is not left behind"


def test_a_daemon_that_does_not_start_is_no_use(daemon, works):
    daemon.answers(1)
    with shared_gpu("cuda", 2) as environment:
        assert environment == dict(os.environ)


def test_a_daemon_that_does_not_answer_is_given_up(daemon, works, monkeypatch):
    monkeypatch.setattr(local, "MPS_SECONDS", 0.2)
    (daemon.folder / MPS_CONTROL).write_text("#!/bin/sh\nexec sleep 30\n")
    with shared_gpu("cuda", 2) as environment:
        assert environment == dict(os.environ)


@pytest.mark.parametrize(("device", "processes"), [("cpu", 4), ("cuda", 1)])
def test_where_nothing_is_to_be_shared_nothing_is_started(daemon, works, device, processes):
    with shared_gpu(device, processes) as environment:
        assert environment == dict(os.environ)
    assert daemon.calls() == ([], set())


def test_somebody_else_s_daemon_is_used_and_left_alone(daemon, works, monkeypatch):
    monkeypatch.setenv(MPS_FOLDER, "/somebody/else")
    with shared_gpu("cuda", 2) as environment:
        assert environment == dict(os.environ)
    assert daemon.calls() == ([], set())


def test_without_a_daemon_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(MPS_FOLDER, raising=False)
    assert not mps_is_available()
    with shared_gpu("cuda", 2) as environment:
        assert environment == dict(os.environ)


def test_how_many_workers_there_are_by_default(daemon, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert (default_workers("cpu"), default_workers("cuda")) == (16, 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert default_workers("cuda") == 3
    (daemon.folder / MPS_CONTROL).unlink()
    monkeypatch.setenv("PATH", str(daemon.folder))
    assert default_workers("cuda") == 2
    monkeypatch.setenv(MPS_FOLDER, "/somebody/else")
    assert default_workers("cuda") == 3
