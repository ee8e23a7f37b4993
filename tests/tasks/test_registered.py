"""A task that another package adds to TASKS: by name, on the command line and in worker processes."""

import importlib
import os
import sys

import pytest

from surefoot import InputError
from surefoot.registry import PLUGINS, Registry
from surefoot.store.store import Store
from surefoot.tasks import TASKS, TaskEntry, task_named
from surefoot.workers.local import execute
from tests.cli.command import in_a_process, surefoot
from tests.workers.orders import order, specs

MODULE = """
from dataclasses import replace
from surefoot.tasks import TASKS, TaskEntry
from surefoot.tasks.toy import load_toy

def load(root, variant):
    return replace(load_toy("rings", seed=int(variant)), name=f"outside/{variant}")

TASKS.add(TaskEntry("outside", "From outside", "rings, from a module of another package", load, ("7", "8")))
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """The name of a module that adds a task and can be imported in any process; all is undone afterwards."""
    (tmp_path / "outside_task.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(TASKS, "_entries", list(TASKS))
    yield "outside_task"
    sys.modules.pop("outside_task", None)


def test_by_name_and_in_the_commands(outside):
    importlib.import_module(outside)
    assert (task_named("outside").name, task_named("outside/8").name) == ("outside/7", "outside/8")
    with pytest.raises(InputError, match="task 'outside' has no variant '9'; have: 7, 8"):
        task_named("outside/9")
    assert f"split {task_named('outside').identity}" in surefoot("data", "check", "outside").stdout
    assert "outside/7, outside/8" in surefoot("data", "show", "outside").stdout
    assert "From outside" in surefoot("ls", "tasks").stdout


def test_in_worker_processes(outside, tmp_path):
    importlib.import_module(outside)
    assert os.environ[PLUGINS] == outside
    wanted = order(tmp_path / "store", task="outside/8")
    execute(wanted, workers=1, on_event=lambda _: None)
    assert [Store(tmp_path / "store").is_done(spec) for spec in specs(wanted)] == [True]


def test_a_module_named_in_the_environment_is_imported(outside, monkeypatch):
    monkeypatch.setenv(PLUGINS, outside)
    identity = task_named("outside/8").identity
    assert f"split {identity}" in in_a_process("data", "check", "outside/8").stdout
    monkeypatch.setenv(PLUGINS, "no_such_module")
    with pytest.raises(
        InputError, match="cannot import 'no_such_module', named in \\$SUREFOOT_PLUGINS: No module"
    ):
        task_named("nowhere")


def test_an_entry_is_added_once_and_another_of_its_name_is_refused(monkeypatch):
    monkeypatch.setenv(PLUGINS, "")
    entry = TaskEntry("mine", "Mine", "one", lambda *_: task_named("toy"))
    registry = Registry("task", [entry])
    registry.add(entry)
    assert list(registry) == [entry]
    with pytest.raises(InputError, match="there is a task 'mine' already; needed: another name"):
        registry.add(TaskEntry("mine", "Mine", "another", lambda *_: task_named("toy")))
    with pytest.raises(InputError, match="unknown task 'yours'; have: mine"):
        registry.named("yours")
