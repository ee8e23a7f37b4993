"""One small trained study for all tests of reports."""

import pytest

from tests.report.studies import trained


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("store"))
