"""Import modules of torch-uncertainty without its `__init__`."""

import importlib.util
import sys
import types


def without_init(*packages):
    """Allow importing single modules of torch-uncertainty: its `__init__` needs torchvision.

    The modules are unchanged; only the other imports of the packages' `__init__` are skipped.
    """
    for name in packages:
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
            sys.modules[name] = package
