"""A store on a real disk."""

import pytest

from surefoot.lab.store.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")
