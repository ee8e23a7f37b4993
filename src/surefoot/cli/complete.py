"""Names that the shell completes: of what is registered, and of files where an argument can be one."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

REGISTRIES = {
    "experiments": "surefoot.lab.experiments.experiment",
    "methods": "surefoot.lab.experiments.methods",
    "tasks": "surefoot.lab.tasks",
    "metrics": "surefoot.metrics",
}


def names_of(*registries: str, or_file: str | None = None) -> Callable[[str], list[str]]:
    """A function for the shell that gives the names beginning with what was typed.

    >>> names_of("metrics")("nl")
    ['nll', 'nll_unclipped', 'nll_minus_entropy']
    """

    def complete(incomplete: str) -> list[str]:
        names = [
            entry.name
            for registry in registries
            for entry in getattr(import_module(REGISTRIES[registry]), registry.upper())
        ]
        if or_file is not None:
            folder = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
            names += sorted(str(path) for path in folder.glob("*") if path.is_dir() or path.suffix == or_file)
        return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))

    return complete
