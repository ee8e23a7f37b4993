"""Views that students share: teachers get the same views as students, once, whichever student comes first."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import expit, softmax

from surefoot.errors import InputError
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.recipes.recipe import Recipe, Spec, Teachers
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.lab.training import data as batches
from surefoot.lab.training import teachers as module
from surefoot.lab.training.data import images_from, joined, task_inputs
from surefoot.lab.training.loop import StoppedError, Unlabelled, epoch_batches, train
from surefoot.lab.training.losses import Classification
from surefoot.lab.training.teachers import SharedViews, TeacherCache, TeacherEnsemble
from surefoot.lab.variants import Distilled
from surefoot.lab.variants.build import Build, Listener, TaskContext
from surefoot.lab.workers.produce import produce
from surefoot.predictions.labels import IGNORE, LabelKind

ONE, MANY = LabelKind.ONE_LABEL, LabelKind.MANY_LABELS
CPU = torch.device("cpu")
VIEW = 6
RECIPE = Recipe(
    network="mlp", width=8, epochs=3, learning_rate=0.05, batch=16, view=VIEW, resize=8, protocol="holdout"
)
COUNTS = {
    Split.TRAIN: 40,
    Split.VAL: 20,
    Split.TEST_FAMILIAR: 10,
    Split.TEST_UNFAMILIAR: 10,
    Split.UNLABELLED: 25,
}


def pictures(count, side, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, side, side + 3, 3), dtype=np.uint8)
    return images_from(pixels, view=VIEW, resize=8, augmentation="inception")


def teachers(classes=3):
    return [
        build_network(
            "mlp", classes, generator=torch.Generator().manual_seed(seed), inputs=3 * VIEW**2, hidden=(16,)
        ).eval()
        for seed in range(3)
    ]


def cache_of(folder, kind, *, seed=5, side=9, count=37):
    return TeacherCache(pictures(count, side, seed), folder, seed, TeacherEnsemble(teachers, kind, 3, CPU))


def expected_targets(views, kind):
    """The log of the mean probability, or its log odds, in float64."""
    with torch.no_grad():
        logits = np.stack([teacher(views).double().numpy() for teacher in teachers()])
    if kind is ONE:
        return np.log(softmax(logits, axis=2).mean(axis=0))
    mean = expit(logits).mean(axis=0)
    return np.log(mean / (1 - mean))


@pytest.mark.parametrize("kind", [ONE, MANY])
@pytest.mark.parametrize("at_once", [512, 16])
def test_a_view_set_holds_the_teachers_mean_for_its_views(kind, at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    cache = cache_of(tmp_path / "new", kind)
    for view_set in (0, 3):
        rows = torch.arange(len(cache.inputs))
        views = cache.inputs.training_views(cache.inputs.pixels, rows, cache.draws(view_set))
        made = cache.targets(view_set)
        assert made.dtype == torch.float32
        np.testing.assert_allclose(made.numpy(), expected_targets(views, kind), atol=2e-5)
        assert torch.equal(cache.targets(view_set), made), "read from its file, it is the same"
    assert not torch.allclose(cache.targets(0), cache.targets(3), atol=1e-3), "other views, other targets"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["0.npy", "3.npy"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Watched(Classification):
    """A loss that records the student's views and the targets at that time."""

    targets: torch.Tensor
    recorded: list
    views: SharedViews

    def __call__(self, outputs, views, rows, labels):
        self.recorded.append((rows.clone(), views.clone(), self.targets[rows].clone()))
        return super().__call__(outputs, views, rows, labels)


@pytest.mark.parametrize("kind", [ONE, MANY])
def test_the_targets_are_those_of_the_student_s_views(kind, tmp_path):
    """Labelled and unlabelled samples, of unequal shapes, through the training loop itself."""
    parts = [cache_of(tmp_path / "f", kind), cache_of(tmp_path / "g", kind, seed=6, side=13, count=11)]
    targets, recorded = torch.zeros(48, 3), []
    labels = torch.zeros(48, dtype=torch.int64) if kind is ONE else torch.zeros(48, 3, dtype=torch.int64)
    train(
        build_network("mlp", 3, generator=torch.Generator().manual_seed(9), inputs=3 * VIEW**2, hidden=(16,)),
        joined([each.inputs for each in parts]),
        labels,
        Watched(
            kind,
            targets=targets,
            recorded=recorded,
            views=SharedViews(parts, RECIPE.epochs, 1, targets),
        ),
        RECIPE,
        seed=1,
        device=CPU,
        unlabelled=Unlabelled(11, 0.25),
    )
    assert len(recorded) == RECIPE.epochs * 3
    for _, views, used in recorded:
        np.testing.assert_allclose(used.numpy(), expected_targets(views, kind), atol=2e-5)
    assert {int(row) for rows, _, _ in recorded for row in rows} == set(range(48))


def test_every_view_set_is_used_once_in_an_order_of_the_student_s_own(tmp_path):
    cache, targets = cache_of(tmp_path, ONE), torch.zeros(37, 3)
    orders = []
    for seed in (1, 2):
        views = SharedViews([cache], 8, seed, targets)
        shares = epoch_batches(37, 16, torch.Generator().manual_seed(0))
        drawn = []
        for epoch in range(8):
            draws = views.begin(epoch, shares)
            assert draws.shape == (3, len(cache.draws(0)), 13)
            (view_set,) = (view_set for view_set in range(8) if torch.equal(targets, cache.targets(view_set)))
            assert torch.equal(draws[1], cache.draws(view_set)[:, shares[1]])
            drawn.append(view_set)
        assert sorted(drawn) == list(range(8))
        orders.append(drawn)
    assert orders[0] != orders[1]
    assert len(list(tmp_path.iterdir())) == 8


DAMAGES = {
    "empty": b"",
    "cut short": None,
    "no array": b"what is this",
    "a pickle": b"\x80\x04K\x01.",
    "of other samples": np.zeros((36, 3), dtype=np.float32),
    "of other numbers": np.zeros((37, 3)),
    "of one row alone": np.zeros(3, dtype=np.float32),
    "of other classes": np.zeros((37, 1), dtype=np.float32),
    "of no number": np.full((37, 3), np.nan, dtype=np.float32),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_a_sentence(damage, tmp_path):
    cache, content = cache_of(tmp_path, ONE), DAMAGES[damage]
    right, path = cache.targets(0), tmp_path / "0.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    with pytest.raises(InputError, match=r"^cannot read .*0\.npy: .*; remove it, and it is computed again$"):
        cache.targets(0)
    path.unlink()
    assert torch.equal(cache.targets(0), right)


def small_task(kind=ONE):
    rng = np.random.default_rng(0)
    splits = {}
    for split, count in COUNTS.items():
        labels = rng.integers(0, 2, (count, 3))
        labels = labels.argmax(axis=1) if kind is ONE else labels
        splits[split] = Samples(
            np.asarray([f"{split}-{row}" for row in range(count)]),
            np.full_like(labels, IGNORE) if split is Split.UNLABELLED else labels,
            rng.integers(0, 256, (count, 8, 10, 3), dtype=np.uint8),
        )
    return Task("tiny", kind, ("a", "b", "c"), splits)


class Students:
    """A store with two pairs of teachers, in which students are trained."""

    def __init__(self, folder, kind=ONE, recipe=RECIPE):
        self.store, self.recipe, self.task = Store(folder), recipe, small_task(kind)
        for seed in range(4):
            self.make(recipe, seed)

    def context(self, recipe=None, task=None):
        task = task or self.task
        inputs = task_inputs(task, recipe or self.recipe, cache=self.store.root / "cache")
        return TaskContext(task, inputs, CPU)

    def make(self, recipe, seed, *, task=None, listener=None):
        context = self.context(recipe, task)
        spec = Spec(context.task.name, context.task.identity, recipe, seed)
        produce(spec, context, self.store, listener=listener or Listener())
        return spec

    def student(self, *taught_by, **values):
        changes = {name: values.pop(name) for name in ("resize", "epochs") if name in values}
        of = Distilled(teachers=Teachers(self.recipe, taught_by or (0, 1)), **values)
        return replace(self.recipe, variant=of, **changes)

    def results(self, spec):
        files = sorted(self.store.folder(spec).glob("weights*.safetensors"))
        weights = {(file.name, name): value for file in files for name, value in load_file(file).items()}
        logits = {split: self.store.predictions(spec, split).logits for split in list(COUNTS)[1:4]}
        return weights | {split: torch.tensor(each) for split, each in logits.items()}

    def cached(self):
        return {
            path.relative_to(self.store.root): path.stat().st_mtime_ns
            for path in self.store.root.glob("lessons/*/*.npy")
        }


@pytest.fixture
def students(tmp_path):
    return Students(tmp_path)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_second_student_of_the_same_teachers_evaluates_none(students, monkeypatch):
    first = students.make(students.student(), 0)
    made = students.cached()
    assert len(made) == RECIPE.epochs
    monkeypatch.setattr(Build, "teachers", lambda *_: pytest.fail("the teachers were loaded again"))
    second = students.make(students.student(), 1)
    assert students.cached() == made
    assert not same(students.results(first), students.results(second))
    students.make(students.student(epochs=2), 0)
    with pytest.raises(pytest.fail.Exception, match="loaded again"):
        students.make(students.student(epochs=4), 0)  # one view set more


def test_with_g_its_view_sets_are_added_and_those_of_f_are_shared(students):
    students.make(students.student(), 0)
    before = students.cached()
    students.make(students.student(unlabelled=0.25), 0)
    after = students.cached()
    assert before.items() < after.items()
    assert len(after) == 2 * RECIPE.epochs


def test_a_student_is_the_same_whether_the_targets_were_stored_or_not(students, tmp_path):
    students.make(students.student(), 0)
    found = students.make(students.student(), 1)
    alone = Students(tmp_path / "alone")
    asked = alone.make(alone.student(), 1)
    assert same(students.results(found), alone.results(asked))


def other_views(students):
    students.make(students.student(resize=7), 0)


def other_teachers(students):
    students.make(students.student(2, 3), 0)


def the_same_teachers_trained_again(students):
    teacher = Spec(students.task.name, students.task.identity, students.recipe, 0)
    facts = students.store.folder(teacher) / "done.json"
    facts.write_text(facts.read_text().replace('"torch": "', '"torch": "0'))
    students.make(students.student(), 1)


def samples_in_another_order(students):
    """The task's identity is the same; but targets are stored by row."""
    turned = students.task.splits[Split.TRAIN].take(np.arange(COUNTS[Split.TRAIN])[::-1])
    task = replace(students.task, splits={**students.task.splits, Split.TRAIN: turned})
    assert task.identity == students.task.identity
    students.make(students.student(), 1, task=task)


@pytest.mark.parametrize(
    "change",
    [other_views, other_teachers, the_same_teachers_trained_again, samples_in_another_order],
    ids=lambda change: change.__name__,
)
def test_other_targets_are_stored_elsewhere(students, change):
    students.make(students.student(), 0)
    before = students.cached()
    change(students)
    after = students.cached()
    assert before.items() < after.items()
    assert len({path.parent for path in after}) == 2
    assert len(after) == 2 * RECIPE.epochs


@pytest.mark.parametrize("kind", [ONE, MANY])
def test_stopped_in_every_epoch_it_ends_the_same_to_the_bit(tmp_path, kind):
    """After the last step of an epoch and within one, under both trainings of the paper, with G."""
    recipe = replace(RECIPE, protocol="paper")
    whole, halting = Students(tmp_path / "whole", kind, recipe), Students(tmp_path / "halting", kind, recipe)
    expected = whole.results(whole.make(whole.student(unlabelled=0.25), 7))
    student, stops, steps = halting.student(unlabelled=0.25), 0, iter(range(1, 1000))
    while True:
        try:
            spec = halting.make(student, 7, listener=Listener(must_stop=lambda: next(steps) % 2 == 0))
            break
        except StoppedError:
            stops += 1
    assert stops >= 2 * RECIPE.epochs
    assert same(halting.results(spec), expected)


@pytest.mark.parametrize(
    "largest", [batches.LARGEST_FIXED_VIEWS, 0], ids=["small", "too large to be made before"]
)
def test_without_random_views_nothing_is_stored(tmp_path, monkeypatch, largest):
    monkeypatch.setattr(batches, "LARGEST_FIXED_VIEWS", largest)
    still = Students(tmp_path, recipe=replace(RECIPE, augmentation="none"))
    still.make(still.student(), 0)
    assert not still.cached()
