"""How modules of torch-uncertainty are imported past its `__init__`."""

import importlib.util
import sys
import types


def without_init(*packages):
    """Let modules of torch-uncertainty be imported one by one: its `__init__` wants torchvision.

    The modules are its own, unchanged; only what the packages' `__init__` would import besides is left out.
    """
    for name in packages:
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
            sys.modules[name] = package
