"""Checks that CI cannot run: the deployment code on a GPU, compared with the CPU.

    python benchmarks/on_a_gpu.py [--store RUNS --run NAME --method ensemble-of-t --images FOLDER]

First our own network (and torchvision's and timm's, if installed) with `surefoot.calibrate` and
`surefoot.Ensemble`: moved, under autocast, compiled. Then, if a run is given, its bundle: the output of
`surefoot predict` for the test images on the device, compared with the stored predictions; and an export.
Prints the largest differences, and fails if one is above its tolerance.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import surefoot
from surefoot.networks.backbones import build_network

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


def surefoot_command(*words: object) -> None:
    """The command line, from source."""
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", *map(str, words)]
    subprocess.run(command, check=True)


def bundle(chosen: argparse.Namespace) -> None:
    """A bundle of a run, evaluated on the device."""
    from surefoot.experiments.run import read_folder, results_of
    from surefoot.store.store import Store

    store = Store(chosen.store)
    _, plans = read_folder(store.experiment_folder(chosen.run))
    result = next(r for r in results_of(plans[0], store) if r.method.name == chosen.method)
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
        stored = expected.probs().numpy()[known]
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
    parser.add_argument("--store", type=Path)
    parser.add_argument("--run")
    parser.add_argument("--method", default="ensemble-of-t")
    parser.add_argument("--images", type=Path)
    chosen = parser.parse_args()
    modules(torch.device(chosen.device))
    if chosen.run is not None:
        bundle(chosen)
    sys.exit(f"{len(failures)} failed: {'; '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
