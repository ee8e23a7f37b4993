"""A user's own network in a bundle: its source files, or the package that has it; and importing it."""

import builtins
import importlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from types import ModuleType

from surefoot.lab.recipes.own_code import (
    NOT_OURS,
    Found,
    Source,
    code_of,
    found,
    imported,
    source_digests,
    top_level,
)

SOURCE = "source"  # the folder in a bundle
MOST_FILES = 500  # of the user's that a bundle carries
NOT_REPLACED = NOT_OURS | {"torch", "numpy"}  # whatever a bundle's source has
_NUMBERS = itertools.count(1)  # of the bundles whose source was imported in this process


@dataclass(frozen=True)
class OwnCode:
    """Where the function comes from: files below `root`, or a package to install; or not known."""

    network: str  # package.module:function
    root: Path | None = None
    files: tuple[str, ...] = ()  # below root, with forward slashes
    requirement: str = ""  # for pip

    @property
    def sentence(self) -> str:
        """What to know to use the bundle, in Markdown."""
        module, _, function = self.network.partition(":")
        what = f"The network is built by the function `{function}` of the module `{module}`"
        run = "It is run only with `--allow-code`, or `allow_code=True`."
        if self.files:
            return f"{what}, whose source is in `{SOURCE}/`. {run}"
        if self.requirement:
            return f"{what}. Install it first: `pip install '{self.requirement}'`. {run}"
        return (
            f"{what}, which is not in this bundle. Put its source into a folder, and name the folder in the "
            "environment variable `PYTHONPATH`; or run `surefoot bundle` again in the folder of the "
            f"module, to include its source. {run}"
        )


def own_code_of(network: str) -> OwnCode:
    """Find the source of `package.module:function`; nothing of it is run.

    The source is the module, or all of its package, and what it imports from the same folder.
    """
    importlib.invalidate_caches()
    place = found(top_level(network))
    if place is None:
        return OwnCode(network)
    if name := place.distribution:
        return OwnCode(network, requirement=f"{name}=={version(name)}")
    files = _files_with_imports(place)
    return OwnCode(network, place.root, files) if len(files) <= MOST_FILES else OwnCode(network)


def _files_with_imports(place: Found) -> tuple[str, ...]:
    """The files of a module or package, and of everything next to it that these import."""
    source, files = place.source, set[str]()
    seen, waiting = {place.top}, [place.top]
    while waiting and len(files) <= MOST_FILES:
        top = waiting.pop()
        for name in (*source.package(top), f"{top}.py"):
            if (text := source.read(name)) is not None:
                files.add(name)
                new = {each.partition(".")[0] for each in imported(name, text, source)} - seen
                seen |= new
                waiting += [each for each in new if source.has(each)]
    return tuple(sorted(files))


def copy_source(code: OwnCode, bundle: Path) -> None:
    """Copy the files, if there are any, into the bundle."""
    for name in code.files:
        assert code.root is not None
        target = bundle / SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((code.root / name).read_bytes())


def is_source(name: str) -> bool:
    """Whether a file that a bundle names may be a part of its source.

    >>> [is_source(name) for name in ("source/a.py", "source/b/c.py", "source/../a.py", "a.py", "source/a.c")]
    [True, True, False, False, False]
    """
    path = PurePosixPath(name)
    return path.parts[:1] == (SOURCE,) and path.suffix == ".py" and ".." not in path.parts


@contextmanager
def not_searched(folder: Path) -> Iterator[None]:
    """Import nothing by its plain name from the folder: it is often the current one, and searched first."""
    real = folder.resolve()
    places = [
        (place, entry)
        for place, entry in enumerate(sys.path)
        if (path := Path(entry).resolve()) == real or path.is_relative_to(real / SOURCE)
    ]
    for place, _ in reversed(places):
        del sys.path[place]
    try:
        yield
    finally:
        for place, entry in places:
            sys.path.insert(place, entry)


class BundledSource(MetaPathFinder, Loader):
    """Imports the source of one bundle from memory, as modules of a package that no other code can name.

    The files import each other by plain names, as where they were written: names of `files` come from there,
    all others from this Python. Nothing is added to `sys.path`, and no name outside the package changes.
    """

    def __init__(self, files: Mapping[str, bytes], folder: Path) -> None:
        self.package = f"_surefoot_bundle_{next(_NUMBERS)}"
        self.files = {
            PurePosixPath(name).relative_to(SOURCE).as_posix(): text for name, text in files.items()
        }
        self.folder = folder.resolve() / SOURCE
        self.own = {name.partition("/")[0].removesuffix(".py") for name in self.files} - NOT_REPLACED

    def code_of(self, network: str) -> tuple[str, ...]:
        """What identifies the source of a network: the bundle's, or that of this Python."""
        if top_level(network) not in self.own:
            return code_of(network)
        source = Source(
            self.own.__contains__,
            self.files.get,
            lambda top: [name for name in self.files if name.startswith(f"{top}/")],
        )
        return source_digests(network, source)

    def import_module(self, name: str) -> ModuleType:
        """The bundle's module of that name; of a name that it does not have, this Python's."""
        if name.partition(".")[0] not in self.own:
            return import_module(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # to stay: functions may import when they are called
        return import_module(f"{self.package}.{name}")

    def find_spec(self, fullname: str, *_given: object) -> ModuleSpec | None:
        """Of a module of this package."""
        top, _, name = fullname.partition(".")
        if top != self.package:
            return None
        stem = name.replace(".", "/")
        found = [file for file in (f"{stem}/__init__.py", f"{stem}.py") if file in self.files]
        is_folder = not name or any(file.startswith(f"{stem}/") for file in self.files)
        if not found and not is_folder:
            return None
        is_package = not found or found[0].endswith("/__init__.py")
        return ModuleSpec(fullname, self, origin=found[0] if found else None, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Run the file, with an import statement that looks into this package first."""
        assert module.__spec__ is not None
        name = module.__spec__.origin
        if name is None:  # a folder without __init__.py
            return
        module.__file__ = str(self.folder / name)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        exec(compile(self.files[name], module.__file__, "exec", dont_inherit=True), vars(module))

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  (the names of Python's own)
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What `import name` calls in these files."""
        top = name.partition(".")[0]
        if level or top not in self.own:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{self.package}.{name}", globals, locals, fromlist)
        import_module(f"{self.package}.{name}")
        return import_module(f"{self.package}.{top}")
