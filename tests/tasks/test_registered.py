"""A task that a plugin registers: by name, in the commands and in worker processes."""

import sys

import pytest

from surefoot import InputError, registry
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import TASKS, TaskEntry, task_named
from surefoot.lab.workers.local import execute
from surefoot.registry import Registry, load_plugins, loaded_plugins
from tests.cli.command import in_a_process, surefoot
from tests.workers.orders import order, specs

MODULE = """
from dataclasses import replace
from surefoot import register
from surefoot.lab.tasks import TaskEntry
from surefoot.lab.tasks.toy import load_toy

def load(root, variant):
    return replace(load_toy("rings", seed=int(variant)), name=f"outside/{variant}")

register(TaskEntry("outside", "From outside", "rings, from a module of another package", load, ("7", "8")))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The path of a module that registers a task; what loading it changes is undone afterwards."""
    monkeypatch.delenv("SUREFOOT_PLUGINS", raising=False)
    monkeypatch.setattr(TASKS, "_entries", list(TASKS))
    monkeypatch.setattr(registry, "_loaded", {})
    file = tmp_path / "outside_task.py"
    file.write_text(MODULE)
    yield str(file)
    sys.modules.pop("outside_task", None)


def test_by_name(plugin):
    with pytest.raises(InputError, match="unknown task 'outside'"):
        task_named("outside")
    load_plugins([plugin])
    assert (task_named("outside").name, task_named("outside/8").name) == ("outside/7", "outside/8")
    with pytest.raises(InputError, match="task 'outside' has no variant '9'; have: 7, 8"):
        task_named("outside/9")


def test_in_the_commands(plugin):
    checked = surefoot("--plugin", plugin, "data", "check", "outside").stdout
    assert f"split {task_named('outside').identity}" in checked
    assert "outside/7, outside/8" in surefoot("--plugin", plugin, "data", "show", "outside").stdout
    assert "From outside" in surefoot("--plugin", plugin, "ls", "tasks").stdout


def test_in_a_process_that_gets_it_by_option_or_environment(plugin, monkeypatch):
    load_plugins([plugin])
    line = f"split {task_named('outside/8').identity}"
    assert line in in_a_process("--plugin", plugin, "data", "check", "outside/8").stdout
    assert "unknown task 'outside'" in in_a_process("data", "check", "outside/8", check=2).stderr
    monkeypatch.setenv("SUREFOOT_PLUGINS", plugin)
    assert line in in_a_process("data", "check", "outside/8").stdout


def test_a_module_named_in_the_environment_that_cannot_be_imported(plugin, monkeypatch):
    monkeypatch.setenv("SUREFOOT_PLUGINS", "no_such_module")
    error = surefoot("ls", "tasks", check=2).stderr
    assert "cannot load the plugin 'no_such_module' (ModuleNotFoundError: No module" in error
    assert loaded_plugins() == ()


def test_in_worker_processes(plugin, tmp_path):
    load_plugins([plugin])
    assert loaded_plugins() == (plugin,)
    work = order(tmp_path / "store", task="outside/8")
    assert work.plugins == (plugin,)
    execute(work, workers=1, on_event=lambda _: None)
    assert [Store(tmp_path / "store").is_done(spec) for spec in specs(work)] == [True]


def test_an_entry_is_added_once_and_another_of_its_name_is_refused():
    entry = TaskEntry("mine", "Mine", "one", lambda *_: task_named("toy"))
    registry = Registry("task", [entry])
    registry.add(entry)
    assert list(registry) == [entry]
    with pytest.raises(InputError, match="there is a task 'mine' already; needed: another name"):
        registry.add(TaskEntry("mine", "Mine", "another", lambda *_: task_named("toy")))
    with pytest.raises(InputError, match="unknown task 'yours'; have: mine"):
        registry.named("yours")
