"""A training variant and a method defined outside the package: planned, trained, fitted, compared and bundled."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from torch.nn import functional as F

from surefoot import load_bundle
from surefoot.errors import InputError
from surefoot.lab.experiments.experiment import Experiment, Part
from surefoot.lab.experiments.methods import METHODS, Method
from surefoot.lab.experiments.run import open_folder, order_for, plans_for, read_folder, study
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.losses import Objective
from surefoot.lab.variants import VARIANTS, Variant, recipe_from
from surefoot.lab.workers.jobs import WorkOrder
from surefoot.lab.workers.produce import open_context, produce
from tests.cli.command import surefoot

RECIPE = Recipe(network="mlp", width=8, epochs=2, learning_rate=0.05)


@dataclass(frozen=True, eq=False)
class SmoothedClassification(Objective):
    """Cross-entropy with (1 - s) * label + s / classes (Szegedy et al., CVPR 2016)."""

    smoothing: float

    def __call__(self, outputs, _views, _rows, labels):
        return F.cross_entropy(outputs.float(), labels, label_smoothing=self.smoothing)


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(Variant):
    """A network trained on smoothed labels."""

    name: ClassVar[str] = "label-smoothing"

    smoothing: float = 0.1

    def objective(self, _training):
        return SmoothedClassification(self.smoothing)


def method(name, **values):
    about = {"reference": "Szegedy et al., CVPR 2016", "page": "", "formula": "softmax(z)"}
    return Method(name=name, title=name, training="1", inference="1", **about, **values)


def smoothed(_setup, run):
    return LabelSmoothing(smoothing=0.5 if run else 0.0)


@pytest.fixture
def registered(monkeypatch):
    for registry in (VARIANTS, METHODS):
        monkeypatch.setattr(registry, "_entries", list(registry))
    VARIANTS.add(LabelSmoothing)
    METHODS.add(method("smoothed", variant=smoothed))
    METHODS.add(method("smoothed-t", variant=smoothed, fit="temperature"))


def executed(experiment, store):
    """The experiment's folder, after its orders went through JSON as a worker gets them."""
    plans = plans_for(experiment)
    for part, plan in zip(experiment.parts, plans, strict=True):
        order = order_for(part, plan, store=store, cache=store.root / "cache", device="cpu")
        order = WorkOrder.from_json(order.as_json())
        context = open_context(order)
        for spec in order.specs(context.task.name, context.task.identity):
            produce(spec, context, store)
    return open_folder(experiment, plans, store)


def test_it_runs_like_the_package_s_own(registered, tmp_path):
    experiment = Experiment(
        name="own",
        parts=(Part(task="toy", recipe=RECIPE),),
        members=2,
        runs=2,
        resamples=20,
        methods=("single", "smoothed", "smoothed-t"),
    )
    store = Store(tmp_path)
    experiment, plans = read_folder(executed(experiment, store))
    (part,) = study(experiment, plans, store).parts
    single, plain, fitted = part.comparison.methods
    assert [len(result.runs) for result in part.comparison.methods] == [2, 2, 2]
    assert {each.name for each in part.comparison.methods} == {"single", "smoothed", "smoothed-t"}
    assert fitted.runs[1].specs == plain.runs[1].specs, "one network serves both methods"
    assert fitted.runs[1].calibration.temperature != 1
    variant = plain.runs[1].specs[0].recipe.variant
    assert variant == LabelSmoothing(smoothing=0.5)
    confidence = [run.after[Split.TEST_FAMILIAR].probs().max(axis=1).mean() for run in plain.runs]
    assert confidence[1] < confidence[0] - 0.05, "it was trained with its own loss"
    assert not np.array_equal(*(each.runs[0].after[Split.TEST_FAMILIAR].logits for each in (single, plain)))


def test_it_is_bundled_like_the_package_s_own(registered, tmp_path):
    part = Part(task="toy", recipe=RECIPE)
    experiment = Experiment(name="own", parts=(part,), members=2, runs=1, methods=("smoothed-t",))
    store = Store(tmp_path / "store")
    executed(experiment, store)
    options = ("--resamples", 0, "--store", store.root)
    surefoot("bundle", "own", "smoothed-t", "-o", tmp_path / "bundle", *options)
    bundle = load_bundle(tmp_path / "bundle")
    (network,) = bundle.about["networks"]
    assert network["recipe"]["variant"] == {"kind": "label-smoothing", "smoothing": 0.0}
    assert bundle.probabilities(task_named("toy").splits[Split.VAL].inputs[:5]).shape == (5, 2)


def test_its_values_are_read_checked_and_part_of_the_hash(registered):
    values = {**RECIPE.as_dict(), "variant": {"kind": "label-smoothing", "smoothing": 0.3}}
    recipe = recipe_from(values)
    assert recipe.variant == LabelSmoothing(smoothing=0.3)
    assert recipe.as_dict() == values
    assert (
        len({recipe.digest, RECIPE.digest, recipe_from(values | {"variant": {"kind": "bayesian"}}).digest})
        == 3
    )
    with pytest.raises(
        InputError, match="unknown value of a label-smoothing network 'much'; have: smoothing"
    ):
        recipe_from({"variant": {"kind": "label-smoothing", "much": 1}})


def test_without_it_a_recipe_is_refused_by_name():
    have = "distilled, bayesian, averaged, held-out"
    with pytest.raises(InputError, match=f"unknown training variant 'label-smoothing'; have: {have}"):
        recipe_from({"variant": {"kind": "label-smoothing"}})


def test_another_of_the_same_name_is_refused(registered):
    class Other(LabelSmoothing):
        pass

    VARIANTS.add(LabelSmoothing)  # again, which is allowed
    with pytest.raises(InputError, match="there is a training variant 'label-smoothing' already"):
        VARIANTS.add(Other)
