"""The options of distilled networks: T-scaled teachers, separate batches, and a part of the unlabelled set."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn
from torch.nn import functional as F

from surefoot.calibrators.temperature import fit_temperature
from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe, Spec, Teachers
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.data import Points, generator
from surefoot.lab.training.loop import StoppedError, Unlabelled, batch_sizes, epoch_batches, train
from surefoot.lab.training.losses import Distillation
from surefoot.lab.training.teachers import teacher_targets
from surefoot.lab.variants import Distilled
from surefoot.lab.variants.build import Listener
from surefoot.predictions.labels import IGNORE, LabelKind
from tests.training.test_teachers import COUNTS, RECIPE, Students, same

ONE = LabelKind.ONE_LABEL
CPU = torch.device("cpu")
SEED, F_ROWS, G_ROWS = 5, 40, 25
PLAIN = Recipe(network="mlp", learning_rate=0.1, epochs=3, batch=16)


def made():
    """A small network with BatchNorm, inputs F then G, labels of F, and a teacher's log probabilities."""
    random = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    inputs = torch.randn(F_ROWS + G_ROWS, 3, generator=random)
    inputs[F_ROWS:] = 3 * inputs[F_ROWS:] + 2  # other statistics
    labels = torch.randint(0, 4, (F_ROWS + G_ROWS,), generator=random)
    labels[F_ROWS:] = IGNORE
    targets = torch.randn(F_ROWS + G_ROWS, 4, generator=random).log_softmax(dim=1)
    return network, inputs, labels, targets


def by_hand(recipe, share, *, separate):
    """SGD with momentum, or its sharpness-aware version, on one batch or on two, as a plain loop."""
    network, inputs, labels, targets = made()
    velocity = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    network.train()
    for epoch in range(recipe.epochs):
        order = generator(SEED, "order", epoch)
        for rows in epoch_batches(F_ROWS, recipe.batch, order, unlabelled=Unlabelled(G_ROWS, share)):
            f, g = rows[rows < F_ROWS], rows[rows >= F_ROWS]

            def value(f=f, g=g):
                if separate:
                    z_f = network(inputs[f])
                    statistics = copy.deepcopy(dict(network.named_buffers()))
                    z_g = network(inputs[g])
                    for name, buffer in network.named_buffers():
                        buffer.data.copy_(statistics[name])
                    z = torch.cat([z_f, z_g])
                else:
                    z = network(inputs[torch.cat([f, g])])
                q = (targets[torch.cat([f, g])] / 2).softmax(dim=1)
                soft = -(q * (z / 2).log_softmax(dim=1)).sum(dim=1).mean()
                return 4 * soft + 0.5 * F.cross_entropy(z[: len(f)], labels[f])

            slopes = torch.autograd.grad(value(), list(network.parameters()))
            if recipe.sharpness:
                after = copy.deepcopy(network.state_dict())
                norm = math.sqrt(sum(float(each.double().square().sum()) for each in slopes))
                with torch.no_grad():
                    for parameter, slope in zip(network.parameters(), slopes, strict=True):
                        parameter += recipe.sharpness * slope / norm
                slopes = torch.autograd.grad(value(), list(network.parameters()))
                network.load_state_dict(after)
            with torch.no_grad():
                for (name, parameter), slope in zip(network.named_parameters(), slopes, strict=True):
                    velocity[name] = 0.9 * velocity[name] + slope
                    parameter -= recipe.rate(epoch) * velocity[name]
    return network


@pytest.mark.parametrize("separate", [False, True], ids=["one batch", "separate"])
@pytest.mark.parametrize(("share", "sharpness"), [(0.25, 0.0), (1.0, 0.0), (1.0, 0.1)])
def test_training_is_the_same_as_a_loop_by_hand(separate, share, sharpness):
    recipe = replace(PLAIN, sharpness=sharpness)
    network, inputs, labels, targets = made()
    unlabelled = Unlabelled(G_ROWS, share)
    first, _ = batch_sizes(F_ROWS, recipe.batch, unlabelled=unlabelled)
    objective = Distillation(ONE, 2.0, 0.5, targets, labelled=first if separate else None)
    train(network, Points(inputs), labels, objective, recipe, seed=SEED, device=CPU, unlabelled=unlabelled)
    expected = by_hand(recipe, share, separate=separate).state_dict()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=2e-5, rtol=1e-4, msg=name)
    if separate:  # the oracle itself tells the two apart
        joint = by_hand(recipe, share, separate=False).state_dict()
        assert not torch.allclose(joint["1.running_var"], expected["1.running_var"], rtol=0.05)


@pytest.mark.parametrize(
    ("n", "batch", "share", "multiple"),
    [(40, 16, 0.25, 1), (40, 16, 1.0, 8), (7, 16, 0.1, 8), (1441, 128, 0.25, 8), (5, 4, 3.0, 1)],
)
def test_the_sizes_are_those_of_the_batches(n, batch, share, multiple):
    unlabelled = Unlabelled(30, share)
    sizes = batch_sizes(n, batch, unlabelled=unlabelled, multiple=multiple)
    batches = epoch_batches(n, batch, torch.Generator(), unlabelled=unlabelled, multiple=multiple)
    assert {(int((rows < n).sum()), int((rows >= n).sum())) for rows in batches} == {sizes}
    assert all((rows[: sizes[0]] < n).all() for rows in batches), "the labelled rows come first"


@pytest.fixture
def students(tmp_path):
    """Teachers of a task whose unlabelled samples are in two folders."""
    made = Students(tmp_path)
    unlabelled = made.task.splits[Split.UNLABELLED]
    ids = [f"unlabelled/{'small' if row < 10 else 'large'}/{row}.jpg" for row in range(len(unlabelled))]
    splits = {**made.task.splits, Split.UNLABELLED: replace(unlabelled, ids=np.asarray(ids))}
    made.task = replace(made.task, splits=splits)
    for seed in range(2):
        made.make(RECIPE, seed)
    return made


def targets_of(students, view_set=0):
    """The stored targets of a view set, by the number of rows."""
    files = students.store.root.glob(f"lessons/*/{view_set}.npy")
    return [np.load(path) for path in files]


def test_scaled_teachers_are_averaged_after_division_by_their_own_temperature(tmp_path):
    """Without random views, so that the teachers' logits are those of their predictions."""
    still = Students(tmp_path, recipe=replace(RECIPE, augmentation="none"))
    specs = [Spec(still.task.name, still.task.identity, still.recipe, seed) for seed in (0, 1)]
    logits = [still.store.predictions(spec, Split.VAL).logits[0] for spec in specs]
    fitted = [fit_temperature(still.store.predictions(spec, Split.VAL)).temperature for spec in specs]
    assert abs(fitted[0] - fitted[1]) > 0.01, "the case tells temperatures apart"
    context = still.context()
    networks = [context.restored(spec, still.store.weights(spec)) for spec in specs]
    targets = teacher_targets(networks, context.inputs[Split.VAL], ONE, CPU, torch.tensor(fitted))
    scaled = [softmax(z.astype(np.float64) / t, axis=1) for z, t in zip(logits, fitted, strict=True)]
    np.testing.assert_allclose(targets.exp().numpy(), np.mean(scaled, axis=0), atol=1e-5)


def test_scaled_teachers_have_a_cache_of_their_own(students):
    students.make(students.student(), 0)
    [plain] = targets_of(students)
    before = students.cached()
    scaled = students.make(students.student(teacher_temperatures=True), 0)
    assert before.items() < students.cached().items()
    assert len(students.cached()) == 2 * RECIPE.epochs
    both = targets_of(students)
    other = next(each for each in both if not np.array_equal(each, plain))
    np.testing.assert_allclose(np.exp(other).sum(axis=1), 1, atol=1e-5)
    again = students.make(students.student(teacher_temperatures=True), 1)
    assert len(students.cached()) == 2 * RECIPE.epochs, "shared by the students of the same teachers"
    assert not same(students.results(scaled), students.results(again))


def test_a_folder_selects_unlabelled_samples_and_the_rest_is_shared(students, monkeypatch):
    seen = []
    original = Distillation.__call__

    def watched(self, outputs, views, rows, labels):
        seen.append((len(self.targets), rows[labels < 0]))
        return original(self, outputs, views, rows, labels)

    monkeypatch.setattr(Distillation, "__call__", watched)
    count = {"small": 10, "large": 15}
    for folder, rows in count.items():
        seen.clear()
        students.make(students.student(unlabelled=1, unlabelled_folder=folder), 0)
        assert {total for total, _ in seen} == {COUNTS[Split.TRAIN] + rows}
        used = torch.cat([rows for _, rows in seen]) - COUNTS[Split.TRAIN]
        assert used.unique().tolist() == list(range(rows))
    sizes = sorted(len(each) for each in targets_of(students))
    assert sizes == [10, 15, COUNTS[Split.TRAIN]], "train once, each folder once"
    whole = students.make(students.student(unlabelled=1), 0)
    parts = students.make(students.student(unlabelled=1, unlabelled_folder="large/"), 0)
    assert students.store.folder(whole) != students.store.folder(parts)
    assert len(list(students.store.folder(parts).parent.glob("*seed*"))) == 1, "large/ and large are one"


def test_with_all_options_it_resumes_to_the_bit(students):
    values = {"unlabelled": 1.0, "unlabelled_folder": "large"}
    values |= {"teacher_temperatures": True, "separate_batches": True}
    recipe = replace(students.student(**values), sharpness=0.05, weight_average=0.9, augmentation="strong")
    expected = students.results(students.make(recipe, 7))
    spec = Spec(students.task.name, students.task.identity, recipe, 7)
    for path in sorted(students.store.folder(spec).rglob("*"), reverse=True):
        path.unlink()
    students.store.folder(spec).rmdir()
    stops, steps = 0, iter(range(1, 1000))
    while True:
        try:
            students.make(recipe, 7, listener=Listener(must_stop=lambda: next(steps) % 2 == 0))
            break
        except StoppedError:
            stops += 1
    assert stops >= RECIPE.epochs
    assert same(students.results(spec), expected)


@pytest.mark.parametrize(
    "changes", [{"mixup": 0.4}, {"regmixup": 10.0}, {"label_smoothing": 0.1, "schedule": "cosine"}], ids=str
)
def test_students_can_have_the_other_options_of_a_recipe(students, changes):
    spec = students.make(replace(students.student(unlabelled=0.5), sharpness=0.05, **changes), 0)
    assert all(torch.isfinite(value).all() for value in students.results(spec).values())


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        ({"unlabelled": 1, "unlabelled_folder": "medium"}, {}, "in the folder 'medium', and there are none"),
        ({"unlabelled": 1, "separate_batches": True}, {"mixup": 0.2}, "mixup and regmixup would mix samples"),
        ({"unlabelled": 1, "separate_batches": True}, {"regmixup": 1}, "would mix samples; allowed: neither"),
        ({"unlabelled": 0.05, "separate_batches": True}, {}, "14 labelled and 1 unlabelled samples; needed"),
        ({}, {"protocol": "paper"}, "has protocol 'paper' and its teachers 'holdout', which train on other"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_in_a_sentence(students, values, changes, message):
    recipe = replace(students.student(**values), **changes)
    with pytest.raises(InputError, match=message) as refused:
        students.make(recipe, 0)
    assert "\n" not in str(refused.value)
    assert not students.store.folder(Spec(students.task.name, students.task.identity, recipe, 0)).exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"separate_batches": True}, "separate_batches is True and unlabelled 0; needed: unlabelled samples"),
        ({"unlabelled_folder": "large"}, "unlabelled_folder is 'large' and unlabelled 0; needed"),
        ({"unlabelled": 1, "unlabelled_folder": 3}, "unlabelled_folder is 3; allowed: a folder's name"),
        ({"teacher_temperatures": "yes"}, "teacher_temperatures is 'yes'; allowed: true or false"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Distilled(teachers=Teachers(Recipe(), (0, 1)), **values)
