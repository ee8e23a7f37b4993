"""Plugins: modules outside the package that call `surefoot.register` when they are imported."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from surefoot.errors import InputError, described

GROUP = "surefoot.plugins"  # the entry-point group of installed packages

_loaded: dict[str, None] = {}  # names and paths in the order of loading; worker processes load them again

_folders: dict[str, None] = {}  # where users' modules are searched after Python's own path


def search_in(folder: Path) -> None:
    """Search a folder for the modules of users' networks and plugins, after Python's own path.

    Not a bundle's folder: none of its files may be imported by its plain name.
    """
    real = folder.resolve()
    if any(
        (each / "bundle.json").is_file() and (each / "metrics.json").is_file()
        for each in (real, *real.parents)
    ):
        return
    path = str(real)
    _folders[path] = None
    if path not in sys.path:
        sys.path.append(path)


def searched_folders() -> tuple[str, ...]:
    """These folders, for a process that must search them too, and for an error."""
    return tuple(_folders)


def load_plugins(names: Iterable[str] = ()) -> None:
    """Import installed plugins and the named ones: each the name of a module or the path of a .py file."""
    for name in [*_installed(), *names]:
        if name in _loaded:
            continue
        try:
            if name.endswith(".py"):
                _import_file(Path(name))
            else:
                importlib.import_module(name)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise InputError(
                f"cannot load the plugin {name!r} ({described(error)}); needed: a module that imports; "
                "SUREFOOT_TRACEBACK=1 prints its traceback"
            ) from error
        _loaded[name] = None


@cache
def _installed() -> tuple[str, ...]:
    """The modules of installed plugins; looking through all installed packages takes some 10 ms."""
    return tuple(entry.value.partition(":")[0] for entry in entry_points(group=GROUP))


def loaded_plugins() -> tuple[str, ...]:
    """The plugins that were loaded, for a process that must load them too."""
    return tuple(_loaded)


def plugin_path(name: Any, folder: Path) -> Any:
    """The absolute path of a plugin that is a file in a folder; else its name, as a module to import."""
    if not isinstance(name, str):
        return name
    file = folder / (name if name.endswith(".py") else name.replace(".", "/") + ".py")
    return str(file.resolve()) if file.is_file() else name


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"the plugin {path} does not exist; needed: the same file on every machine")
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    taken = path.stem in sys.modules
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
