"""Penultimate features, from the networks to the monitor: the commands' files against the networks themselves."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import surefoot
from surefoot import read_predictions
from surefoot.deploy.features import projected
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.data import task_inputs
from surefoot.lab.training.predict import network_features, predict
from surefoot.lab.variants.build import TaskContext
from surefoot.serve.limits import Watch
from surefoot.serve.window import ShiftWindow
from tests.cli.command import surefoot as command
from tests.deploy.made import RECIPE
from tests.serve.made import METHOD

CLOSE = 1e-5


def by_hand(made, split, folder):
    """Of both networks, one after the other: 16 numbers, which need no projection."""
    run, _ = made
    task = task_named(str(run.images.parent / "task.toml"))
    context = TaskContext(task, task_inputs(task, RECIPE, cache=folder), torch.device("cpu"), None)
    specs = run.stored(METHODS.named(METHOD)).specs
    networks = [context.restored(spec, run.store.weights(spec)) for spec in specs]
    inputs = context.inputs[split]
    return torch.cat(list(predict(networks, inputs, context.device, predictor=network_features)), dim=1)


def test_from_the_networks_to_the_monitor(made, tmp_path):
    run, _ = made
    where = [run.folder, METHOD, "--store", run.store.root, "--features"]
    command("predictions", *where, "-o", tmp_path / "npz")
    command("predictions", *where, "--type", "parquet", "-o", tmp_path / "parquet")
    for split, name in ((Split.TEST_FAMILIAR, "familiar"), (Split.TEST_UNFAMILIAR, "unfamiliar")):
        right = by_hand(made, split, tmp_path / "cache")
        for kind in ("npz", "parquet"):
            found = read_predictions(tmp_path / kind / f"{name}.{kind}")
            assert found.features.shape == (found.n, 16)
            np.testing.assert_allclose(found.features, right, atol=CLOSE)
            np.testing.assert_array_equal(
                found.labels, run.stored(METHODS.named(METHOD)).before[split].labels
            )

    command("bundle", *where, "-o", tmp_path / "bundle", "--resamples", 0)
    bundle = surefoot.load_bundle(tmp_path / "bundle")
    np.testing.assert_allclose(
        bundle.reference.features, by_hand(made, Split.TEST_FAMILIAR, tmp_path / "cache"), atol=CLOSE
    )
    images = [
        run.images / each for each in run.stored(METHODS.named(METHOD)).before[Split.TEST_UNFAMILIAR].ids
    ]
    today = tmp_path / "today.parquet"
    command(
        "predict",
        tmp_path / "bundle",
        *images,
        Path(__file__),
        "--probabilities",
        "--features",
        "--skip-unreadable",
        "-o",
        today,
    )
    for reference in ("npz", "parquet"):
        said = command(
            "monitor",
            tmp_path / reference / f"familiar.{reference}",
            today,
            "--format",
            "json",
            "--bound",
            1e-9,
        )
        found = json.loads(said.stdout)
        assert "features" in [each["name"] for each in found["findings"]]
        assert found["n"]["current"] == len(images)
        assert found["unfamiliar"]["by"] == "distance of features"
    views = torch.stack([bundle.preprocess(each) for each in images])
    plain, featured = bundle.predict(views), bundle.predict(views, features=True)
    assert np.array_equal(plain.logits, featured.logits)
    np.testing.assert_allclose(
        featured.features, by_hand(made, Split.TEST_UNFAMILIAR, tmp_path / "cache"), atol=CLOSE
    )
    window = ShiftWindow(bundle, Watch(rows=25))
    window.add(featured)
    window.check()
    assert "features" in [each.name for each in window.state.check.findings]
    assert (
        "a .csv holds no features"
        in command(
            "predict", tmp_path / "bundle", images[0], "--features", "-o", tmp_path / "x.csv", check=2
        ).stderr
    )


def test_a_projection_preserves_distances():
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 512))).float()
    found = projected([rows[:, :100], rows[:, 100:]])
    assert found.shape == (40, 64)
    assert torch.equal(found, projected([rows]))
    ratio = torch.pdist(found) / torch.pdist(rows)
    assert ratio.mean() == pytest.approx(1, abs=0.02)
    assert ratio.std() < 0.12
