"""What all cases share."""

import shutil
from pathlib import Path

import numpy as np

from tests.fuzz.own_code import make_own

OF_MEMBERS = ("member-temperatures", "temperature-before-averaging")
ROOT = Path(__file__).parents[2]


def prepare(base):
    """A run with its store, a bundle, documents of every kind, a task, experiments, scores."""
    from surefoot.calibrators import CALIBRATORS
    from surefoot.deploy.make_bundle import chosen_method, write_bundle
    from surefoot.io import toml_text
    from tests.cli.command import surefoot
    from tests.deploy.made import ran
    from tests.tasks.trees import FACES, faces

    base.mkdir(parents=True)
    made = ran(base / "run", methods=("single", "ensemble-of-t"))
    chosen = chosen_method(made.opened, "ensemble-of-t", task=None, network=None)
    write_bundle(chosen, base / "bundle", resamples=0, thresholds={"accept": 0.4, "reject": 0.35})
    make_own(base / "own")
    documents = base / "documents"
    documents.mkdir()
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((200, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(base / "val.npz", logits=logits, labels=labels, novelty=rng.random(200))
    np.savez(base / "members.npz", logits=np.stack([logits, 2 * logits]), labels=labels)
    for method in (each.name for each in CALIBRATORS):
        val = base / ("members.npz" if method in OF_MEMBERS else "val.npz")
        surefoot("calibrate", val, "--method", method, "-o", documents / f"{method}.json")
    for name, options in (("thresholds", ()), ("thresholds-split", ("--split", 0.5))):
        surefoot(
            "thresholds", base / "val.npz", "--target-error", 0.6, "-o", documents / f"{name}.json", *options
        )
    faces(base / "task", 20, text=FACES)
    (base / "experiments").mkdir()
    for source in (
        *sorted((ROOT / "experiments").glob("*.toml")),
        *sorted((ROOT / "examples").glob("*.toml")),
    ):
        shutil.copy(source, base / "experiments" / source.name)
    from surefoot.lab.experiments.experiment import experiment_named
    from surefoot.lab.experiments.run import resolved

    text = toml_text(resolved(experiment_named("quickstart")).as_dict())
    (base / "experiments" / "quickstart.toml").write_text(text)
    lines = (ROOT / "docs/results/cat-dog-scores.csv").read_text().splitlines()
    (base / "scores.csv").write_text("\n".join([lines[0], *lines[1::40]]) + "\n")
