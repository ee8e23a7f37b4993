"""Packages of the extra `recipes`, which `make test` does without and `make test-recipes` requires."""

import importlib
import os
from types import ModuleType

import pytest


def optional(package: str) -> ModuleType:
    """The package; where it is missing, the test is skipped, or fails if all packages are required."""
    if os.environ.get("SUREFOOT_ALL_PACKAGES"):
        return importlib.import_module(package)
    return pytest.importorskip(package, reason=f"needs the package {package}: make test-recipes")
