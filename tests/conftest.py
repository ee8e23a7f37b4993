"""Predictions to test with: drawn, not loaded, and the same every time.

Nothing heavy is imported here: the process that starts xdist's workers runs no test, and they wait for it.
"""

import gc
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.browser import ARGUMENTS, CHROMIUM


def pytest_configure(config):
    """Set up the process, unless it only starts others."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import matplotlib
    from hypothesis import settings

    matplotlib.use("agg")
    subprocess.Popen = warm.Popen
    settings.register_profile("same", derandomize=True, deadline=None)  # so that a green commit stays green
    settings.register_profile("explore", deadline=None, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def draw_one_label(n=300, classes=4, *, sharpness=1.0, seed=0, members=1, dtype=float, **optional):
    """Logits whose own softmax gave the labels, then multiplied: the right temperature is `sharpness`."""
    import numpy as np

    from surefoot import Predictions

    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((members, n, classes))
    labels = (logits[0] + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return Predictions.from_logits((sharpness * logits).astype(dtype), labels, **optional)


def draw_many_labels(n=200, classes=5, *, sharpness=1.0, seed=0, members=1, ignored=0.1, **optional):
    """The same for sigmoids, some labels ignored."""
    import numpy as np

    from surefoot import IGNORE, Predictions

    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((members, n, classes))
    labels = (logits[0] + rng.logistic(size=(n, classes)) > 0).astype(np.int64)
    labels[rng.random((n, classes)) < ignored] = IGNORE
    return Predictions.from_logits(sharpness * logits, labels, **optional)


@pytest.fixture
def one_label():
    return draw_one_label()


@pytest.fixture
def many_labels():
    return draw_many_labels()


@pytest.fixture(scope="module")
def browser():
    """A Chromium for all tests of a file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


# The files that take longest, the longest first: xdist gives each worker a file at a time, so that the last ones
# should be short.
LONGEST = (
    "workers/test_ray.py",
    "test_extending.py",
    "cli/test_run.py",
    "deploy/test_export.py",
    "deploy/test_bundle.py",
    "experiments/test_methods.py",
    "report/test_study_page.py",
    "cli/test_watch.py",
    "fuzz/test_fuzz.py",
    "workers/test_kill.py",
    "deploy/test_monitor.py",
    "test_frozen.py",
    "cli/test_fast.py",
    "calibrators/test_sklearn.py",
    "networks/test_backbones.py",
    "cli/test_deploy.py",
    "test_tutorials.py",
    "cli/test_nothing_lost.py",
    "serve/test_server.py",
    "serve/test_patience.py",
    "deploy/test_rows.py",
    "report/test_html.py",
    "test_structure.py",
    "report/test_comparison_figures.py",
    "streaming/test_evaluate.py",
    "cli/test_train.py",
    "test_examples.py",
    "training/test_teachers.py",
    "experiments/test_search.py",
    "workers/test_local.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays, so the garbage collector need not go through it, which takes 0.4 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    place = {Path(__file__).parent / name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
