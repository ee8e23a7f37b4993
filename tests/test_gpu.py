"""What only a GPU shows, compared with the CPU: calibrated models, captured training steps, resuming."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import surefoot  # noqa: E402
from surefoot.lab.networks.backbones import build_network  # noqa: E402
from surefoot.lab.recipes.recipe import Recipe, Teachers  # noqa: E402
from surefoot.lab.training.data import Images  # noqa: E402
from surefoot.lab.training.loop import (  # noqa: E402
    AVERAGE_WARM_UP,
    CapturedStepper,
    Hooks,
    Stepper,
    StoppedError,
    arithmetic,
    train,
    with_mixing_shares,
)
from surefoot.lab.training.losses import Classification, Distillation  # noqa: E402
from surefoot.lab.variants import Distilled  # noqa: E402
from surefoot.predictions.labels import LabelKind  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # torch.compile warns of its own parts, and of precision we keep
]

GPU, CPU = torch.device("cuda"), torch.device("cpu")
STEPS, BATCH, ROWS, SIDE, CLASSES = 4, 64, 256, 80, 5
PLAIN = Recipe(learning_rate=0.02, epochs=2, batch=BATCH, view=64, weight_decay=0.0005)
SHARP = replace(PLAIN, sharpness=0.1, schedule="cosine", weight_average=0.9, augmentation="strong")
SEPARATE = Distilled(teachers=Teachers(PLAIN, (0,)), unlabelled=1 / 3, separate_batches=True)
RECIPES = {
    "plain": PLAIN,
    "sharpness-aware": SHARP,
    "RegMixup": replace(PLAIN, regmixup=10.0, label_smoothing=0.1),
    "separate batches": replace(SHARP, variant=SEPARATE),
}


def made_network():
    return build_network("resnet18", CLASSES, generator=torch.Generator().manual_seed(1))


def apart(a, b):
    return float((a.float().cpu() - b.float().cpu()).abs().max())


def test_a_calibrated_model_is_the_one_of_the_cpu():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, 64, 64, generator=random)
    y = torch.randint(0, CLASSES, (ROWS,), generator=random)
    model = made_network().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    slow = surefoot.calibrate(model, [(x, y)])
    expected, temperature = slow.probabilities(x), float(slow.temperature)
    quick = surefoot.calibrate(model.to(GPU), [(x, y)])
    assert {value.device.type for value in quick.state_dict().values()} == {"cuda"}
    assert float(quick.temperature) == pytest.approx(temperature, rel=1e-3)
    assert all(torch.equal(before[key], value.cpu()) for key, value in model.state_dict().items())
    assert model.training
    on_gpu = x.to(GPU)
    assert apart(quick.probabilities(on_gpu), expected) < 2e-3
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert apart(quick.probabilities(on_gpu), expected) < 5e-2
    quick.eval()
    with torch.no_grad():
        assert apart(torch.compile(quick)(on_gpu), quick(on_gpu)) < 1e-2
    both = surefoot.Ensemble([quick, surefoot.calibrate(made_network().to(GPU), [(x, y)])])
    mean = torch.stack([member.probabilities(on_gpu) for member in both.members]).mean(dim=0)
    assert apart(both.probabilities(on_gpu), mean) < 1e-5
    assert apart(both.to("cpu").probabilities(x), mean) < 2e-3


def images_with(augmentation):
    """Smooth random images, whose views change little where a crop moves by a rounding error, and labels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(ROWS, 3, 10, 10, generator=random) * 255
    pixels = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear").to(torch.uint8)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=random)
    sides = torch.full((ROWS,), SIDE)
    return Images(pixels, sides, sides, PLAIN.view, 0.9, augmentation), labels


class Steps:
    """The first steps of a training with a recipe, from the network's first weights."""

    def __init__(self, network, first, recipe, device):
        inputs, labels = images_with(recipe.augmentation)
        network.load_state_dict(first)
        objective = Classification(LabelKind.ONE_LABEL, recipe.label_smoothing)
        if recipe.variant is not None:  # the last quarter of a batch is taken for unlabelled
            targets = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(3)).log_softmax(
                dim=1
            )
            objective = Distillation(LabelKind.ONE_LABEL, 2.0, 0.5, targets, labelled=3 * BATCH // 4)
        self.inputs, self.device = inputs.on(device), device
        kind = CapturedStepper if device == GPU else Stepper
        self.stepper = kind(network.to(device), self.inputs, labels.to(device), objective, recipe)
        draws = inputs.draws(STEPS, BATCH, torch.Generator().manual_seed(1))
        self.draws = with_mixing_shares(draws, recipe, 2).to(device)
        network.train()

    def step(self, index, rate, take=None):
        """One step at a rate, as the stepper takes it or another; the order of the rows is always the same."""
        rows = torch.arange(index * BATCH, (index + 1) * BATCH) % ROWS
        self.stepper.begin_step(rate, index)
        take = take or type(self.stepper).step
        take(self.stepper, rows, self.inputs.fetch(rows, self.device), self.draws[index], index)

    def weights(self):
        """The floating values of the network's state, copied."""
        state = self.stepper.network.state_dict()
        return {name: value.cpu().clone() for name, value in state.items() if value.is_floating_point()}


def distance(a, b, first):
    """How far apart two weights are, relative to the way of the second from the first weights."""
    norms = [sum(float((x[k].double() - b[k].double()).square().sum()) for k in b) ** 0.5 for x in (a, first)]
    return norms[0] / norms[1]


@pytest.fixture(scope="module")
def network():
    """One network on the GPU, so that it is compiled once for each size of a batch, and its first weights."""
    made = made_network()
    first = {name: value.clone() for name, value in made.state_dict().items()}
    with arithmetic(GPU):
        yield made, first


@pytest.mark.parametrize("name", RECIPES)
def test_captured_steps_are_the_uncaptured_ones_and_nearly_those_of_the_cpu(name, network):
    on_gpu, first = network
    recipe, results = RECIPES[name], []
    for of, device, take in ((on_gpu, GPU, None), (on_gpu, GPU, Stepper.step), (made_network(), CPU, None)):
        steps = Steps(of, first, recipe, device)
        for index in range(STEPS):
            steps.step(index, recipe.rate(recipe.epochs * index / STEPS), take)
        results.append(steps.weights())
    captured, uncaptured, slow = results
    assert distance(captured, uncaptured, first) < 1e-3
    assert distance(captured, slow, first) < 0.3


def test_a_captured_step_takes_another_rate(network):
    steps = Steps(*network, SHARP, GPU)
    steps.step(0, 0.01)
    graph, state = steps.stepper.graph, steps.stepper.state()
    before, moved = steps.weights(), []
    trained = [name for name, _ in steps.stepper.network.named_parameters()]
    for rate in (0.0, 0.01, 0.02):
        steps.stepper.restore(**state)
        steps.step(1, rate)
        moved.append(torch.cat([(steps.weights()[name] - before[name]).flatten() for name in trained]))
    assert not moved[0].any()
    assert float((moved[2] - 2 * moved[1]).norm() / moved[1].norm()) < 1e-2
    assert steps.stepper.graph is graph


def test_the_average_of_the_weights_is_the_one_by_hand(network):
    steps = Steps(*network, SHARP, GPU)
    expected = {name: value.double() for name, value in steps.weights().items()}
    for index in range(STEPS):
        steps.step(index, 0.02)
        decay = min(SHARP.weight_average, (1 + index) / (AVERAGE_WARM_UP + index))
        for name, value in steps.weights().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = steps.stepper.average
    assert max(apart(found[name].double(), value) for name, value in expected.items()) < 1e-5


def test_a_training_that_is_stopped_and_resumed_is_one_that_is_not(network):
    made, first = network
    inputs, labels = images_with(SHARP.augmentation)
    saved, asked, states = [], [], []

    def must_stop():
        asked.append(None)
        return len(asked) == STEPS + 2  # in the middle of an epoch

    for hooks in (Hooks(), Hooks(save=saved.append, must_stop=must_stop), Hooks()):
        made.load_state_dict(first)
        options = {"seed": 1, "device": GPU, "hooks": hooks, "checkpoint": saved[-1] if saved else None}
        try:
            train(made, inputs, labels, Classification(LabelKind.ONE_LABEL), SHARP, **options)
        except StoppedError:
            continue
        states.append({name: value.cpu().clone() for name, value in made.state_dict().items()})
    assert saved
    assert all(torch.equal(states[0][name], states[1][name]) for name in first)


@pytest.mark.parametrize("augmentation", ["inception", "strong"])
def test_views_are_those_of_the_cpu(augmentation):
    inputs, _ = images_with(augmentation)
    rows = torch.arange(BATCH)
    draws = inputs.draws(1, BATCH, torch.Generator().manual_seed(3))[0]
    views = []
    for where in (GPU, CPU):
        here = inputs.on(where)
        made = here.training_views(here.fetch(rows, where), rows.to(where), draws.to(where))
        views.append(made.float().cpu())
    differences = (views[0] - views[1]).abs()
    assert float(differences.mean()) < 5e-3
    assert float((differences > 0.05).float().mean()) < 5e-3
