"""Checks that CI cannot run: the deployment code on a GPU, compared with the CPU.

    python benchmarks/on_a_gpu.py [--store RUNS --run NAME --method ensemble-of-t --images FOLDER]
    python benchmarks/on_a_gpu.py --training-only

First our own network (and torchvision's and timm's, if installed) with `surefoot.calibrate` and
`surefoot.Ensemble`: moved, under autocast, compiled. Then the options of training: captured and uncaptured
steps, rates, the average of the weights, strong views, resuming. Then, if a run is given, its bundle: the
output of `surefoot predict` for the test images on the device, compared with the stored predictions; and an
export. Prints the largest differences, and fails if one is above its tolerance.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import surefoot
from surefoot.networks.backbones import build_network
from surefoot.predictions.labels import LabelKind
from surefoot.recipes.recipe import Recipe, Teachers
from surefoot.store.draft import Checkpoint
from surefoot.training.data import Images
from surefoot.training.loop import (
    AVERAGE_WARM_UP,
    CapturedStepper,
    Hooks,
    Stepper,
    StoppedError,
    arithmetic,
    train,
    with_mixing_shares,
)
from surefoot.training.losses import Classification, Distillation, Objective
from surefoot.variants import Distilled

STEPS, BATCH, ROWS, SIDE = 4, 64, 256, 80
PLAIN = Recipe(learning_rate=0.02, epochs=2, batch=BATCH, view=64, weight_decay=0.0005)
SHARP = replace(PLAIN, sharpness=0.1, schedule="cosine", weight_average=0.9, augmentation="strong")
RECIPES = {
    "plain": PLAIN,
    "sharpness-aware": SHARP,
    "RegMixup": replace(PLAIN, regmixup=10.0, label_smoothing=0.1),
    "separate batches": replace(
        SHARP, variant=Distilled(teachers=Teachers(PLAIN, (0,)), unlabelled=1 / 3, separate_batches=True)
    ),
}

failures: list[str] = []


def check(what: str, found: float, allowed: float) -> None:
    """Print one line per check."""
    verdict = "ok" if found <= allowed else "FAILED"
    print(f"{verdict:6} {what}: {found:.2g} (allowed {allowed:g})", flush=True)
    if found > allowed:
        failures.append(what)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference."""
    return float((a.float().cpu() - b.float().cpu()).abs().max())


def modules(device: torch.device) -> None:
    """Calibrated modules and ensembles."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(256, 3, 64, 64, generator=random)
    y = torch.randint(0, 5, (256,), generator=random)
    builders = {"ours": lambda: build_network("resnet18", 5, generator=torch.Generator().manual_seed(1))}
    try:
        from torchvision import models

        builders["torchvision's"] = lambda: models.resnet18(num_classes=5)
    except (ImportError, RuntimeError):
        print("torchvision is not installed or does not work: skipped")
    try:
        import timm

        builders["timm's"] = lambda: timm.create_model("convnext_atto", num_classes=5)
    except (ImportError, RuntimeError):
        print("timm is not installed or does not work: skipped")
    for name, build in builders.items():
        torch.manual_seed(0)
        model = build().train()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        slow = surefoot.calibrate(model, [(x, y)])
        expected, temperature = slow.probabilities(x), float(slow.temperature)
        quick = surefoot.calibrate(model.to(device), [(x, y)])
        where = {str(value.device.type) for value in quick.state_dict().values()}
        check(f"{name}: tensors not on the device", len(where - {device.type}), 0)
        check(f"{name}: T, relative", abs(float(quick.temperature) / temperature - 1), 1e-3)
        changed = sum(not torch.equal(before[key], value.cpu()) for key, value in model.state_dict().items())
        check(f"{name}: weights and statistics changed", changed + (not model.training), 0)
        on_device = x.to(device)
        check(f"{name}: probabilities", apart(quick.probabilities(on_device), expected), 2e-3)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            check(f"{name}: in bfloat16", apart(quick.probabilities(on_device), expected), 5e-2)
        quick.eval()
        compiled = torch.compile(quick)
        with torch.no_grad():
            check(f"{name}: compiled logits", apart(compiled(on_device), quick(on_device)), 1e-2)
        both = surefoot.Ensemble([quick, surefoot.calibrate(build().to(device), [(x, y)])])
        mean = torch.stack([member.probabilities(on_device) for member in both.members]).mean(dim=0)
        check(f"{name}: an ensemble's probabilities", apart(both.probabilities(on_device), mean), 1e-5)
        back = both.to("cpu")
        check(f"{name}: and back on the CPU", apart(back.probabilities(x), mean), 2e-3)


def images_with(augmentation: str) -> tuple[Images, Tensor]:
    """Smooth random images, whose views change little where a crop moves by a rounding error, and labels."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(ROWS, 3, 10, 10, generator=random) * 255
    pixels = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear").to(torch.uint8)
    labels = torch.randint(0, 5, (ROWS,), generator=random)
    sides = torch.full((ROWS,), SIDE)
    return Images(pixels, sides, sides, PLAIN.view, 0.9, augmentation), labels


class Steps:
    """The first steps of a training with a recipe, from the network's first weights, captured or not."""

    def __init__(self, network, first: dict[str, Tensor], recipe: Recipe, device: torch.device) -> None:
        inputs, labels = images_with(recipe.augmentation)
        network.load_state_dict(first)
        kind = CapturedStepper if device.type == "cuda" else Stepper
        objective: Objective = Classification(LabelKind.ONE_LABEL, recipe.label_smoothing)
        if recipe.variant is not None:  # the last quarter of a batch is taken for unlabelled
            targets = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(3)).log_softmax(dim=1)
            objective = Distillation(LabelKind.ONE_LABEL, 2.0, 0.5, targets, labelled=3 * BATCH // 4)
        self.inputs, self.device = inputs.on(device), device
        self.stepper = kind(network.to(device), self.inputs, labels.to(device), objective, recipe)
        self.draws = inputs.draws(STEPS, BATCH, torch.Generator().manual_seed(1))
        self.draws = with_mixing_shares(self.draws, recipe, 2).to(device)
        network.train()

    def step(self, index: int, rate: float, *, captured: bool = True) -> None:
        """One step at a rate; the order of the rows is always the same."""
        rows = torch.arange(index * BATCH, (index + 1) * BATCH) % ROWS
        self.stepper.begin_step(rate, index)
        arguments = (rows, self.inputs.fetch(rows, self.device), self.draws[index], index)
        if captured:
            self.stepper.step(*arguments)
        else:
            Stepper.step(self.stepper, *arguments)

    def weights(self) -> dict[str, Tensor]:
        """The floating values of the network's state, copied."""
        state = self.stepper.network.state_dict()
        return {name: value.cpu().clone() for name, value in state.items() if value.is_floating_point()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor], from_first: dict[str, Tensor]) -> float:
    """How far apart two weights are, relative to the way of the second from the first weights."""
    norms = [
        sum(float((x[name].double() - b[name].double()).square().sum()) for name in b) ** 0.5
        for x in (a, from_first)
    ]
    return norms[0] / norms[1]


def training(device: torch.device) -> None:
    """The options of training, with one network, so that it is compiled once for each size of a batch."""
    network = build_network("resnet18", 5, generator=torch.Generator().manual_seed(1))
    first = {name: value.clone() for name, value in network.state_dict().items()}
    on_cpu = build_network("resnet18", 5, generator=torch.Generator().manual_seed(1))
    with arithmetic(device):
        for name, recipe in RECIPES.items():
            results = {}
            for how in ("captured", "uncaptured", "on the CPU"):
                here = torch.device("cpu") if how == "on the CPU" else device
                steps = Steps(on_cpu if how == "on the CPU" else network, first, recipe, here)
                for index in range(STEPS):
                    rate = recipe.rate(recipe.epochs * index / STEPS)
                    steps.step(index, rate, captured=how == "captured")
                results[how] = steps.weights()
            one, other, slow = results.values()
            check(f"{name}: captured and uncaptured steps, relative", distance(one, other, first), 1e-3)
            check(f"{name}: captured steps and the CPU's, relative", distance(one, slow, first), 0.3)
        rates(Steps(network, first, SHARP, device))
        average(Steps(network, first, SHARP, device))
    resuming(network, first, device)
    for augmentation in ("inception", "strong"):
        inputs, _ = images_with(augmentation)
        rows = torch.arange(BATCH)
        draws = inputs.draws(1, BATCH, torch.Generator().manual_seed(3))[0]
        views = [
            each.training_views(each.fetch(rows, where), rows.to(where), draws.to(where)).float().cpu()
            for where in (device, torch.device("cpu"))
            for each in (inputs.on(where),)
        ]
        differences = (views[0] - views[1]).abs()
        check(f"{augmentation} views and the CPU's, mean", float(differences.mean()), 5e-3)
        check(f"{augmentation} views: share apart", float((differences > 0.05).float().mean()), 5e-3)


def rates(steps: Steps) -> None:
    """Other learning rates in the graph that was captured with the first one."""
    steps.step(0, 0.01)
    graph, state = getattr(steps.stepper, "graph", None), steps.stepper.state()
    before, moved = steps.weights(), []
    trained = [name for name, _ in steps.stepper.network.named_parameters()]
    for rate in (0.0, 0.01, 0.02):
        steps.stepper.restore(**state)
        steps.step(1, rate)
        moved.append(torch.cat([(steps.weights()[name] - before[name]).flatten() for name in trained]))
    check("captured steps: moved at rate 0", float(moved[0].abs().max()), 0)
    twice = float((moved[2] - 2 * moved[1]).norm() / moved[1].norm())
    check("captured steps: twice the rate, relative", twice, 1e-2)
    check("captured steps: captured again", float(getattr(steps.stepper, "graph", None) is not graph), 0)


def average(steps: Steps) -> None:
    """The average of the weights, compared with one computed by hand."""
    expected = {name: value.double() for name, value in steps.weights().items()}
    for index in range(STEPS):
        steps.step(index, 0.02)
        decay = min(SHARP.weight_average, (1 + index) / (AVERAGE_WARM_UP + index))
        for name, value in steps.weights().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = steps.stepper.average
    largest = max(float((found[name].double().cpu() - value).abs().max()) for name, value in expected.items())
    check("average of the weights and one by hand", largest, 1e-5)


def resuming(network, first: dict[str, Tensor], device: torch.device) -> None:
    """A training that is stopped in the middle of an epoch and resumed, and one that is not."""
    inputs, labels = images_with(SHARP.augmentation)
    saved: list[Checkpoint] = []
    called: list[None] = []

    def stop() -> bool:
        called.append(None)
        return len(called) == STEPS + 2

    stopped = Hooks(save=saved.append, must_stop=stop)
    states = []
    for hooks in (Hooks(), stopped, Hooks()):
        network.load_state_dict(first)
        checkpoint = saved[-1] if saved else None
        options = {"seed": 1, "device": device, "hooks": hooks, "checkpoint": checkpoint}
        try:
            train(network, inputs, labels, Classification(LabelKind.ONE_LABEL), SHARP, **options)
        except StoppedError:
            continue
        states.append({name: value.cpu().clone() for name, value in network.state_dict().items()})
    different = sum(not torch.equal(states[0][name], states[1][name]) for name in first)
    check("stopped and resumed: tensors that differ", different, 0)


def surefoot_command(*words: object) -> None:
    """The command line, from source."""
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", *map(str, words)]
    subprocess.run(command, check=True)


def bundle(chosen: argparse.Namespace) -> None:
    """A bundle of a run, asked again on the device."""
    from surefoot.experiments.results import results_of
    from surefoot.experiments.run import read_folder
    from surefoot.store.store import Store

    store = Store(chosen.store)
    _, plans = read_folder(store.experiment_folder(chosen.run))
    result = next(r for r in results_of(plans[0], store) if r.name == chosen.method)
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch, "bundle"), Path(scratch, "predictions.parquet")
        surefoot_command("bundle", chosen.run, chosen.method, "-o", folder, "--store", chosen.store)
        for device in dict.fromkeys((chosen.device, "cpu")):
            start = time.perf_counter()
            words = ("--device", device, "--probabilities", "--skip-unreadable")
            surefoot_command("predict", folder, chosen.images, "-o", out, *words)
            print(f"predict on {device}: {time.perf_counter() - start:.1f} s, start included", flush=True)
            compare(out, result, chosen.images, device)
            out.unlink()
        surefoot_command("export", folder, "-o", Path(scratch, "model.pt2"))


def row_of(name: str, images: Path, place: dict[str, int]) -> int | None:
    """The row of the sample with that file name, in any folder."""
    for path in (str(images / name), str(images / f"{name}.jpg"), name):
        if path in place:
            return place[path]
    return None


def compare(out: Path, result, images: Path, device: str) -> None:
    """Predictions for the test images, compared with the stored ones."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(out).to_pydict()
    place = {path: row for row, path in enumerate(table["path"])}
    for split, expected in result.runs[0].after.items():
        rows = [row_of(str(name), images, place) for name in expected.ids]
        known = [index for index, row in enumerate(rows) if row is not None]
        if not known:
            print(f"none of {split} is below {images}")
            continue
        stored = expected.probs()[known]
        confidence = np.array([table["confidence"][rows[index]] for index in known])
        labels = np.array([table["label"][rows[index]] for index in known])
        names = np.array(expected.class_names)[stored.argmax(axis=1)]
        where = f"{device}, {split}, {len(known)} images"
        check(f"{where}: other labels, share", float((labels != names).mean()), 0.002)
        gaps = np.abs(confidence - stored.max(axis=1))
        check(f"{where}: confidence, median", float(np.median(gaps)), 1e-3)
        check(f"{where}: confidence, largest", float(gaps.max()), 0.1)


def main() -> None:
    """Run the requested checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--training-only", action="store_true", help="without the checks of modules")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--run")
    parser.add_argument("--method", default="ensemble-of-t")
    parser.add_argument("--images", type=Path)
    chosen = parser.parse_args()
    if not chosen.training_only:
        modules(torch.device(chosen.device))
    training(torch.device(chosen.device))
    if chosen.run is not None:
        bundle(chosen)
    sys.exit(f"{len(failures)} failed: {'; '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
