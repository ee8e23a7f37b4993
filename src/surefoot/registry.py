"""Registries: entries in display order, looked up by name, and plugins that add to them."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from surefoot.errors import InputError, described, did_you_mean


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Sequence[Entry]):
    """A sequence of named entries to which others can be added.

    >>> from surefoot.metrics import METRICS
    >>> METRICS["nll"].title
    'NLL'
    """

    def __init__(self, what: str, entries: Iterable[Entry], *, or_else: str = "") -> None:
        self.what, self.or_else = what, or_else  # for the error about an unknown name
        self._entries = list(entries)

    def named(self, name: str) -> Entry:
        """The entry of that name."""
        for entry in self._entries:
            if entry.name == name:
                return entry
        have = [entry.name for entry in self._entries]
        near = did_you_mean(name, have)
        raise InputError(f"unknown {self.what} {name!r}{near}; have: {', '.join(have)}{self.or_else}")

    def add(self, entry: Entry) -> None:
        """Append an entry; the same entry twice is one, another of the same name is refused."""
        if any(entry == each for each in self._entries):
            return
        if any(entry.name == each.name for each in self._entries):
            raise InputError(f"there is a {self.what} {entry.name!r} already; needed: another name")
        self._entries.append(entry)

    def __repr__(self) -> str:
        return f"<{len(self)} entries: {', '.join(entry.name for entry in self)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        """Also of a name."""
        return any(entry in (each, each.name) for each in self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, index: int | str) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | str | slice) -> Entry | list[Entry]:
        """By place or by name."""
        return self.named(index) if isinstance(index, str) else self._entries[index]


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
