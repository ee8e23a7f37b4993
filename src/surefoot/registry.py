"""Registries: entries in display order, looked up by name; other packages can add to them.

Worker processes are new interpreters. They import the modules in $SUREFOOT_PLUGINS, to which `Registry.add`
adds the module that calls it; on the command line it can be set by hand.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, overload

from surefoot.errors import InputError

PLUGINS = "SUREFOOT_PLUGINS"  # environment variable: names of modules, with commas between them


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Sequence[Entry]):
    """A sequence of named entries to which others can be added.

    >>> from surefoot.metrics import METRICS
    >>> METRICS.named("nll").title
    'NLL'
    """

    def __init__(self, what: str, entries: Iterable[Entry], *, or_else: str = "") -> None:
        self.what, self.or_else = what, or_else  # for the error about an unknown name
        self._entries = list(entries)

    def named(self, name: str) -> Entry:
        """The entry of that name; plugins are imported before an unknown name is refused."""
        for entry in self._entries:
            if entry.name == name:
                return entry
        if import_plugins():
            return self.named(name)
        have = ", ".join(entry.name for entry in self._entries)
        raise InputError(f"unknown {self.what} {name!r}; have: {have}{self.or_else}")

    def add(self, entry: Entry) -> None:
        """Append an entry; the same entry twice is one, another of the same name is refused."""
        if any(entry == each for each in self._entries):
            return
        if any(entry.name == each.name for each in self._entries):
            raise InputError(f"there is a {self.what} {entry.name!r} already; needed: another name")
        self._entries.append(entry)
        module = str(sys._getframe(1).f_globals["__name__"])
        if module != "__main__" and module not in _plugins():  # a worker cannot import the main script
            os.environ[PLUGINS] = ",".join([*_plugins(), module])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._entries[index]


def import_plugins() -> bool:
    """Import the modules in $SUREFOOT_PLUGINS, which then add their entries; whether any was new."""
    new = [module for module in _plugins() if module not in sys.modules]
    for module in new:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot import {module!r}, named in ${PLUGINS}: {error}") from error
    return bool(new)


def _plugins() -> list[str]:
    return [module.strip() for module in os.environ.get(PLUGINS, "").split(",") if module.strip()]
