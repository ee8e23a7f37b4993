"""A user's own network in a bundle: its source files, or the package that has it; and importing it."""

import ast
import builtins
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import ModuleType

from surefoot.recipes.recipe import Recipe

LIBRARIES = ("timm", "torchvision")  # their networks are built by name; any other name is a user's own code
SOURCE = "source"  # the folder in a bundle
MOST_FILES = 500  # of the user's that a bundle carries
INSTALLED = ("site-packages", "dist-packages")
NOT_OURS = {*sys.stdlib_module_names, "surefoot"}  # never copied
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


def is_own_code(recipe: Recipe) -> bool:
    """Whether the network is a user's own function, not one of ours or of a library."""
    source, colon, _ = recipe.network.partition(":")
    return bool(colon) and source not in LIBRARIES


def own_code_of(network: str) -> OwnCode:
    """Find the source of `package.module:function`; nothing of it is run.

    The source is the module, or all of its package, and what it imports from the same folder.
    """
    top = network.partition(":")[0].partition(".")[0]
    root = None if top in NOT_OURS else _folder_of(top)
    if root is None:
        return OwnCode(network)
    if root.name in INSTALLED:
        names = packages_distributions().get(top, [])
        return OwnCode(network, requirement=f"{names[0]}=={version(names[0])}" if names else "")
    files = _files_with_imports(root, top)
    return OwnCode(network, root, files) if len(files) <= MOST_FILES else OwnCode(network)


def _folder_of(top: str) -> Path | None:
    """The folder that has a module or a package of that name."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin else None


def _files_with_imports(root: Path, first: str) -> tuple[str, ...]:
    """The files of a module or package, and of everything next to it that these import."""
    files: set[str] = set()
    seen, waiting = {first} | NOT_OURS, [first]
    while waiting and len(files) <= MOST_FILES:
        name = waiting.pop()
        of_package = [path for path in (root / name).rglob("*.py") if not _is_hidden(path.relative_to(root))]
        for path in filter(Path.is_file, [*of_package, root / f"{name}.py"]):
            files.add(path.relative_to(root).as_posix())
            new = _imported(path) - seen
            seen |= new
            waiting += sorted(new)
    return tuple(sorted(files))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _imported(path: Path) -> set[str]:
    """The top-level names that a file imports; relative imports stay in its own package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


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
