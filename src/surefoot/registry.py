"""Registries: entries in display order, looked up by name; `surefoot.register` adds to them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, overload

from surefoot.errors import InputError, did_you_mean


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
