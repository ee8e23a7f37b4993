"""A store at a URL that fsspec supports (s3://, gs://, file://, ...). Each machine works in a local copy.

Files are uploaded under hidden names and then renamed, done.json last: as in a local store, a network that
has one is complete.
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

from surefoot.errors import InputError
from surefoot.io import make_folder, replacing
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.files import DONE, verify_folder
from surefoot.lab.store.store import Store

# Names of files in a network's folder: not hidden, and no path that leaves the folder.
NAME = re.compile(r"\w[\w.-]*", re.ASCII)


def is_url(location: str) -> bool:
    """Whether a store is given as a URL, not as a folder."""
    return "://" in location


@dataclass(frozen=True)
class Remote:
    """A store behind fsspec: a URL, or the path of a folder."""

    location: str

    def local_copy(self, cache: Path) -> Store:
        """The copy on this machine."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", self.location).strip("-")[:60]
        return Store(cache / "stores" / f"{plain}-{sha256(self.location.encode()).hexdigest()[:8]}")

    def is_done(self, spec: Spec, copy: Store) -> bool:
        """Whether the network is there: it is then complete."""
        return DONE in self._sizes(self._folder(spec, copy))

    def fetch(self, spec: Spec, copy: Store) -> bool:
        """Download a network, or files added to it since, into the copy; False where it is not there."""
        target, source = copy.folder(spec), self._folder(spec, copy)
        sizes = self._sizes(source)
        if DONE not in sizes:
            return False
        if copy.is_done(spec):
            for name in sizes.keys() - {path.name for path in target.iterdir()}:
                with replacing(target / name) as temporary:
                    self._get(f"{source}/{name}", temporary, sizes[name])
            return True
        make_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=copy.root, prefix=".fetched-") as folder:
            downloaded = Path(folder) / target.name
            downloaded.mkdir()
            for name, size in sizes.items():
                self._get(f"{source}/{name}", downloaded / name, size)
            self._verify(downloaded, source)
            try:
                downloaded.rename(target)
            except OSError as error:
                if not copy.is_done(spec):  # another process may have downloaded it meanwhile
                    raise InputError(f"cannot write {target}: {error.strerror}") from error
        return True

    def send(self, spec: Spec, copy: Store) -> None:
        """Upload a finished network, or files added to it since; existing files are left unchanged."""
        target = self._folder(spec, copy)
        files = {path.name: path for path in copy.folder(spec).iterdir() if NAME.fullmatch(path.name)}
        in_order = sorted(self._missing(target, files), key=lambda name: name == DONE)
        hidden = {name: f"{target}/.{name}-{uuid.uuid4().hex}" for name in in_order}
        try:
            for name, path in hidden.items():
                self._put(files[name], path)
            still_missing = self._missing(target, files)  # another process may have uploaded it meanwhile
            for name in in_order:
                if name in still_missing:
                    with self._describing_errors("write"):
                        self._system.mv(hidden[name], f"{target}/{name}")
                    del hidden[name]
        finally:
            for path in hidden.values():
                with suppress(InputError), self._describing_errors("write"):
                    self._system.rm_file(path)

    def sync(self, specs: Iterable[Spec], copy: Store) -> None:
        """Copy these networks both ways, so that both sides have what either has."""
        for spec in specs:
            self.fetch(spec, copy)
            if copy.is_done(spec):
                self.send(spec, copy)

    def send_folder(self, folder: Path, copy: Store) -> None:
        """Upload everything below a folder of the copy and overwrite what was there."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._put(path, self._at(path.relative_to(copy.root).as_posix()))

    @contextmanager
    def marked(self) -> Iterator[str]:
        """Create a temporary marker file: a machine that sees it can read the store."""
        marker = f".mark-{uuid.uuid4().hex}"
        path = self._at(marker)
        with self._describing_errors("write"):
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, b"here\n")
        try:
            yield marker
        finally:
            with self._describing_errors("write"):
                self._system.rm_file(path)

    def has_marker(self, marker: str) -> bool:
        """Whether the marker file that another machine created is visible from this one."""
        with self._describing_errors("read"):
            self._system.invalidate_cache()
            return bool(self._system.exists(self._at(marker)))

    def _folder(self, spec: Spec, copy: Store) -> str:
        return self._at(copy.folder(spec).relative_to(copy.root).as_posix())

    def _at(self, below: str) -> str:
        return f"{self._connection[1].rstrip('/')}/{below}"

    def _sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the files in a remote folder, by name."""
        with self._describing_errors("read"):
            self._system.invalidate_cache()
            try:
                entries = self._system.ls(folder, detail=True)
            except FileNotFoundError:
                return {}
        sizes = {each["name"].rpartition("/")[2]: each["size"] for each in entries if each["type"] == "file"}
        return {name: size for name, size in sizes.items() if NAME.fullmatch(name)}

    def _missing(self, folder: str, files: Iterable[str]) -> set[str]:
        """The files to upload: all of them, or those that a complete network lacks."""
        present = self._sizes(folder)
        return set(files) - present.keys() if DONE in present else set(files)

    def _get(self, path: str, to: Path, size: int) -> None:
        with self._describing_errors("read"):
            self._system.get_file(path, str(to))
            if to.stat().st_size != size:
                raise OSError(f"{path} has {size} bytes, but {to.stat().st_size} were downloaded")

    def _verify(self, downloaded: Path, source: str) -> None:
        try:
            verify_folder(downloaded)
        except InputError as error:
            reason = str(error).partition(";")[0].replace(f"{downloaded}/", "")
            raise InputError(
                f"in the store at {self.location}, in {source}: {reason}; remove that folder from the store "
                "and repeat 'surefoot run', which trains this network again"
            ) from error

    def _put(self, path: Path, to: str) -> None:
        with self._describing_errors("write"):
            self._system.makedirs(to.rpartition("/")[0], exist_ok=True)
            self._system.put_file(str(path), to)

    @contextmanager
    def _describing_errors(self, doing: str) -> Iterator[None]:
        """Turn any error of a file system's code into one sentence."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"cannot {doing} the store at {self.location}: {reason}") from error

    @property
    def _system(self) -> Any:
        return self._connection[0]

    @cached_property
    def _connection(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # only a store at a URL needs it

        with self._describing_errors("reach"):
            system, path = url_to_fs(self.location)
            return system, str(path)
