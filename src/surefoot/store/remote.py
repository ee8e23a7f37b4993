"""A store at a URL that fsspec knows (s3://, gs://, file://, ...). Each machine works in a copy of its own.

Files go up under hidden names, and then get their own, done.json last: a network that has one is complete, as
it is in a folder.
"""

import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from surefoot.errors import InputError
from surefoot.io import make_folder, replacing
from surefoot.recipes.recipe import Spec
from surefoot.store.files import DONE
from surefoot.store.store import Store

NAME = re.compile(
    r"\w[\w.-]*", re.ASCII
)  # of a file in a network's folder; none that is hidden, none that leads out


def is_url(place: str) -> bool:
    """Whether a store is named by a URL rather than by a folder."""
    return "://" in place


@dataclass(frozen=True)
class Remote:
    """A place that fsspec reaches: a URL, or a folder's path."""

    place: str

    def copy_in(self, cache: Path) -> Store:
        """This machine's copy."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", self.place).strip("-")[:60]
        return Store(cache / "stores" / f"{plain}-{sha256(self.place.encode()).hexdigest()[:8]}")

    def is_done(self, spec: Spec, copy: Store) -> bool:
        """Whether it is there, and so complete."""
        return DONE in self._names(self._folder(spec, copy))

    def fetch(self, spec: Spec, copy: Store) -> bool:
        """Bring a network, or what was added to it since, into the copy; False where it is not there."""
        target, there = copy.folder(spec), self._folder(spec, copy)
        names = self._names(there)
        if DONE not in names:
            return False
        if copy.is_done(spec):
            for name in names.keys() - {path.name for path in target.iterdir()}:
                with replacing(target / name) as temporary:
                    self._get(f"{there}/{name}", temporary, names[name])
            return True
        make_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=copy.root, prefix=".fetched-") as folder:
            arrived = Path(folder) / target.name
            arrived.mkdir()
            for name, size in names.items():
                self._get(f"{there}/{name}", arrived / name, size)
            try:
                arrived.rename(target)
            except OSError as error:
                if not copy.is_done(spec):  # unless another process has fetched it meanwhile
                    raise InputError(f"cannot write {target}: {error.strerror}") from error
        return True

    def send(self, spec: Spec, copy: Store) -> None:
        """Put a finished network there, or what was added to it since; what is there already stays."""
        source, there = copy.folder(spec), self._folder(spec, copy)
        files = {path.name: path for path in source.iterdir() if NAME.fullmatch(path.name)}
        in_order = sorted(self._lacking(there, files), key=lambda name: name == DONE)
        hidden = {name: f"{there}/.{name}-{uuid.uuid4().hex}" for name in in_order}
        try:
            for name, path in hidden.items():
                self._put(files[name], path)
            still = self._lacking(there, files)  # for another may have sent it meanwhile
            for name in in_order:
                if name in still:
                    with self._reaching("write"):
                        self._system.mv(hidden[name], f"{there}/{name}")
                    del hidden[name]
        finally:
            for path in hidden.values():
                with suppress(InputError), self._reaching("write"):
                    self._system.rm_file(path)

    def sync(self, specs: Iterable[Spec], copy: Store) -> None:
        """Have both sides hold what either has of these networks."""
        for spec in specs:
            self.fetch(spec, copy)
            if copy.is_done(spec):
                self.send(spec, copy)

    def send_folder(self, folder: Path, copy: Store) -> None:
        """Put all that lies below a folder of the copy there, over what was there."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._put(path, self._at(path.relative_to(copy.root).as_posix()))

    @contextmanager
    def marked(self) -> Iterator[str]:
        """Leave a mark there for as long as this lasts: who sees it sees the store."""
        mark = f".mark-{uuid.uuid4().hex}"
        path = self._at(mark)
        with self._reaching("write"):
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, b"here\n")
        try:
            yield mark
        finally:
            with self._reaching("write"):
                self._system.rm_file(path)

    def sees(self, mark: str) -> bool:
        """Whether the mark that another machine left can be seen from this one."""
        with self._reaching("read"):
            self._system.invalidate_cache()
            return bool(self._system.exists(self._at(mark)))

    def _folder(self, spec: Spec, copy: Store) -> str:
        return self._at(copy.folder(spec).relative_to(copy.root).as_posix())

    def _at(self, below: str) -> str:
        return f"{self._reached[1].rstrip('/')}/{below}"

    def _names(self, folder: str) -> dict[str, int]:
        """The files in a folder there, with their sizes."""
        with self._reaching("read"):
            self._system.invalidate_cache()
            try:
                found = self._system.ls(folder, detail=True)
            except FileNotFoundError:
                return {}
        sizes = {each["name"].rpartition("/")[2]: each["size"] for each in found if each["type"] == "file"}
        return {name: size for name, size in sizes.items() if NAME.fullmatch(name)}

    def _lacking(self, folder: str, files: Iterable[str]) -> set[str]:
        """Which files a folder there is to get: of a network that is complete, those it does not have."""
        names = self._names(folder)
        return set(files) - names.keys() if DONE in names else set(files)

    def _get(self, path: str, to: Path, size: int) -> None:
        with self._reaching("read"):
            self._system.get_file(path, str(to))
            if to.stat().st_size != size:
                raise OSError(f"{path} has {size} bytes, and {to.stat().st_size} came")

    def _put(self, path: Path, to: str) -> None:
        with self._reaching("write"):
            self._system.makedirs(to.rpartition("/")[0], exist_ok=True)
            self._system.put_file(str(path), to)

    @contextmanager
    def _reaching(self, doing: str) -> Iterator[None]:
        """What goes wrong on the way may be anything, for it is another's code; it is said in a sentence."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"cannot {doing} the store at {self.place}: {reason}") from error

    @property
    def _system(self) -> Any:
        return self._reached[0]

    @cached_property
    def _reached(self) -> tuple[Any, str]:
        with self._reaching("reach"):
            system, path = url_to_fs(self.place)
            return system, str(path)
