import pytest

from tests.serve.made import THRESHOLDS, bundled


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run of coloured pictures and a bundle of it, for every server that needs no other."""
    return bundled(tmp_path_factory.mktemp("served"), thresholds=THRESHOLDS)
