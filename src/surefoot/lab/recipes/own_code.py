"""A user's own network: where its source is, and the digests that a recipe has of it; none of it is run."""

import ast
import hashlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe, Teachers

LIBRARIES = ("timm", "torchvision")  # their networks are built by name; any other name is a user's own code
DYNAMIC = {"importlib", "pkgutil", "runpy"}  # modules that import by a name in a text
OMITTED = ("kind", "type_comment", "type_ignores")  # of a syntax tree: u"...", and comments
INSTALLED = ("site-packages", "dist-packages")
NOT_OURS = {*sys.stdlib_module_names, "surefoot"}  # never a user's
MOST_ENTRIES = 50  # of a recipe's code; of more files, one digest of all
NAMED = 5  # files that a message names


def is_own_code(recipe: Recipe) -> bool:
    """Whether the network is a user's own function, not one of ours or of a library."""
    source, colon, _ = recipe.network.partition(":")
    return bool(colon) and source not in LIBRARIES


@dataclass(frozen=True)
class Source:
    """Where the modules of a user are found: files by name, with forward slashes, below one folder."""

    has: Callable[[str], bool]  # whether a top-level name is among them
    read: Callable[[str], bytes | None]  # a file; None where there is none
    package: Callable[[str], Iterable[str]]  # all files of a package, by its top-level name


@dataclass(frozen=True)
class Found:
    """A top-level module or package of this Python: below a folder, or in an installed distribution."""

    top: str
    root: Path
    origin: Path | None  # its first file

    @cached_property
    def distribution(self) -> str:
        """The installed distribution that has it; empty: it is in a folder of the user's."""
        names = packages_distributions().get(self.top, []) if self.root.name in INSTALLED else []
        return names[0] if names else ""

    @property
    def source(self) -> Source:
        """Its files, and those of modules in the same folder; in site-packages its own only."""
        return Source(self._has, self._read, self._package)

    def _has(self, top: str) -> bool:
        if top == self.top or self.root.name in INSTALLED:
            return top == self.top
        other = found(top)
        return other is not None and other.root == self.root

    def _read(self, name: str) -> bytes | None:
        path = self.root / name
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError:
            return None

    def _package(self, top: str) -> Iterator[str]:
        names = (path.relative_to(self.root) for path in (self.root / top).rglob("*.py"))
        return (name.as_posix() for name in names if not _is_hidden(name))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def top_level(network: str) -> str:
    """The name of the module, or of the outermost package, that has the function."""
    return network.partition(":")[0].partition(".")[0]


def found(top: str) -> Found | None:
    """Where this Python has a module or a package of that name; None for Python's own and ours."""
    if top in NOT_OURS or not top.isidentifier():
        return None
    finders = (finder.find_spec(top, None) for finder in sys.meta_path)  # what was imported may be outdated
    spec = next((spec for spec in finders if spec is not None), None)
    if spec is None:
        return None
    origin = Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    if spec.submodule_search_locations:
        return Found(top, Path(next(iter(spec.submodule_search_locations))).parent, origin)
    return Found(top, origin.parent, origin) if origin else None


def code_of(network: str) -> tuple[str, ...]:
    """What identifies the source of `package.module:function` in this Python; empty where it is not found.

    Each file with its digest; of an installed package its version, with the digest of its list of files.
    """
    importlib.invalidate_caches()  # or files that were written a moment ago would be missed
    place = found(top_level(network))
    if place is None:
        return ()
    if name := place.distribution:
        own = distribution(name)
        record = [line for line in (own.read_text("RECORD") or "").splitlines() if ".py,sha256=" in line]
        return (f"{name}=={own.version} {_digest(repr(sorted(record)).encode())}",)
    digests = source_digests(network, place.source)
    if not digests and place.origin is not None:  # a compiled module
        return (f"{place.origin.name} {_digest(place.origin.read_bytes())}",)
    return digests


def source_digests(network: str, source: Source) -> tuple[str, ...]:
    """The digest of the network's module, and of each file that it imports from there, directly or not.

    A digest is that of the syntax tree: it stays the same where comments, formatting or docstrings change.
    """
    digests: dict[str, str] = {}
    waiting = [network.partition(":")[0]]
    seen = set(waiting)
    while waiting:
        for name, text in _files(waiting.pop(), source):
            if name in digests:
                continue
            digests[name] = _digest(_meaning(text))
            new = imported(name, text, source) - seen
            seen |= new
            waiting += new
    entries = tuple(f"{name} {digest}" for name, digest in sorted(digests.items()))
    if len(entries) <= MOST_ENTRIES:
        return entries
    return (f"{len(entries)} files of {top_level(network)} {_digest(repr(entries).encode())}",)


def _files(module: str, source: Source) -> Iterator[tuple[str, bytes]]:
    """The files that run when a module is imported: its own, and those of the packages that it is in."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts) or not source.has(parts[0]):
        return
    for end in range(1, len(parts) + 1):
        stem = "/".join(parts[:end])
        for name in (f"{stem}/__init__.py", f"{stem}.py"):
            if (text := source.read(name)) is not None:
                yield name, text


def imported(name: str, text: bytes, source: Source) -> set[str]:
    """The modules that a file imports, or could import: also those that only a text names."""
    tree = _tree(text)
    if tree is None:
        return set()
    package = name.removesuffix(".py").split("/")[:-1]
    nodes = list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names |= {base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)}
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    is_dynamic = "__import__" in variables or not DYNAMIC.isdisjoint(each.partition(".")[0] for each in names)
    if is_dynamic or (name.endswith("/__init__.py") and "__all__" in variables):
        texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names |= texts | {".".join([*package, text.lstrip(".")]) for text in texts}
    if is_dynamic and package:  # the name may be computed
        names |= {
            file[:-3].removesuffix("/__init__").replace("/", ".") for file in source.package(package[0])
        }
    return names


def _tree(text: bytes) -> ast.AST | None:
    """The syntax tree of a file; None where this Python cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a backslash in a text, say
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _meaning(text: bytes) -> bytes:
    """What decides a file's digest: its tree, or the text where that cannot be read."""
    tree = _tree(text)
    try:
        return text if tree is None else repr(_plain(tree)).encode()
    except RecursionError:
        return text


def _plain(node: Any) -> Any:
    """A tree as lists of texts, the same in all Pythons, without docstrings and comments."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    values = {name: each for name, each in ast.iter_fields(node) if name not in OMITTED}
    match values.get("body"):
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            values["body"] = rest
    return [type(node).__name__, *((name, _plain(v)) for name, v in values.items() if v not in (None, []))]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def with_code(recipe: Recipe) -> Recipe:
    """The recipe with the source of its own network and its teachers'; one of another source is refused."""
    if (variant := recipe.variant) is not None:
        teachers = {
            field.name: replace(value, recipe=with_code(value.recipe))
            for field in fields(variant)
            if isinstance(value := getattr(variant, field.name), Teachers)
        }
        recipe = replace(recipe, variant=replace(variant, **teachers))
    if not is_own_code(recipe):
        return recipe
    code = code_of(recipe.network)
    refuse_other_code(recipe, code, "train new ones with a recipe without 'code'")
    return replace(recipe, code=code)


def refuse_other_code(recipe: Recipe, code: tuple[str, ...], otherwise: str) -> None:
    """Raise if the source is not the one that networks were trained with; older recipes do not say it."""
    if recipe.code and code != recipe.code:
        raise InputError(
            f"the weights do not fit network {recipe.network!r}: since they were trained, its source has "
            f"changed ({changes(recipe.code, code)}); restore it to keep these networks, or {otherwise}"
        )


def retrained(recipe: Recipe, before: tuple[str, ...]) -> str:
    """What to know where networks of another source are in the store."""
    what = changes(before, recipe.code) if before else "an older version of surefoot did not record it"
    return (
        f"the source of network {recipe.network!r} is not the one of the networks in the store ({what}): new "
        "ones are trained; restore it to use those"
    )


def changes(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    """What changed between two sources, in words."""
    old, new = (dict(entry.rpartition(" ")[::2] for entry in code) for code in (before, after))
    found = [f"{name} is another" for name in old if name in new and old[name] != new[name]]
    found += [f"{name} is new" for name in new if name not in old]
    found += [f"{name} is missing" for name in old if name not in new]
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
