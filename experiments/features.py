"""The features of a store's networks, for the study of `surefoot monitor` (benchmarks/monitoring.py).

    python experiments/features.py --packs DATA --store RUNS [--networks 6] gender cat-dog animals objects

The inputs of the last layer on both test sets, projected at random to 64 numbers as `surefoot predictions
--features` does, in float16, as features.npz in the folder of each network: `experiments/session.py collect`
packs them. Images come from the cache that training wrote next to the store. The logits of these features
are compared with the stored ones. A network that has the file is skipped, so the same command resumes.
"""

import argparse
import json
import tomllib
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from session import HERE, ROOTS, WEIGHTS

from surefoot.deploy.features import projected
from surefoot.errors import InputError
from surefoot.recipes.recipe import Spec
from surefoot.store.files import DONE, SPEC, read_document, write_arrays
from surefoot.store.store import Store
from surefoot.tasks import Task, task_named
from surefoot.training.data import task_inputs
from surefoot.training.predict import network_features, predict
from surefoot.variants import recipe_from
from surefoot.variants.build import TESTED, TaskContext

FEATURES = "features.npz"
LARGEST_DIFFERENCE = 0.1  # of a logit: other kernels round differently
LARGEST_FEATURE = float(np.finfo(np.float16).max)


def specs(store: Store, task: Task, networks: int | None) -> list[Spec]:
    """The finished networks of a task that predict its test sets; the first of each recipe, by seed."""
    found: dict[str, list[Spec]] = {}
    for path in sorted((store.root / "networks").glob(f"*/*/*/{DONE}")):
        document = read_document(path.with_name(SPEC))
        recipe = recipe_from(document["recipe"])
        spec = Spec(document["task"], document["task_identity"], recipe, document["seed"])
        if spec.task_identity == task.identity and all(store.has_predictions(spec, each) for each in TESTED):
            found.setdefault(recipe.digest, []).append(spec)
    return [spec for each in found.values() for spec in sorted(each, key=lambda spec: spec.seed)[:networks]]


def write_features(spec: Spec, store: Store, context: TaskContext) -> float:
    """Write the features of one network; the largest difference of a logit of theirs from the stored one."""
    network = context.restored(spec, store.weights(spec))
    arrays, largest = {}, 0.0
    for split in TESTED:
        features = predict([network], context.inputs[split], context.device, predictor=network_features)[0]
        with torch.inference_mode():
            logits = network.head(features.to(context.device)).float().cpu()
        difference = float(
            (logits - torch.tensor(store.predictions(spec, split).logits[0]).float()).abs().max()
        )
        if not difference <= LARGEST_DIFFERENCE:
            raise InputError(
                f"{store.folder(spec)}: logits of {split} differ by {difference:g} from the stored ones; "
                f"allowed: {LARGEST_DIFFERENCE:g}"
            )
        largest = max(largest, difference)
        small = projected([features]).numpy()
        if np.abs(small).max() > LARGEST_FEATURE:
            raise InputError(f"{store.folder(spec)}: features up to {np.abs(small).max():g} exceed float16")
        arrays[str(split)] = small.astype(np.float16)
    write_arrays(arrays, store.folder(spec) / FEATURES)
    return largest


def of_task(name: str, chosen: argparse.Namespace) -> None:
    """The features of one task's networks."""
    given = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))["task"]
    root = chosen.packs / ROOTS[name] if name in ROOTS else None
    task = task_named(str(HERE / given) if given.endswith(".toml") else given, root=root)
    store, differences = Store(chosen.store), []
    for recipe, group in groupby(specs(store, task, chosen.networks), key=lambda spec: spec.recipe):
        missing = [spec for spec in group if not (store.folder(spec) / FEATURES).is_file()]
        if missing:
            inputs = task_inputs(task, recipe, cache=chosen.store.parent / "cache")
            context = TaskContext(task, inputs, torch.device(chosen.device))
            differences += [write_features(spec, store, context) for spec in missing]
    found = {"networks": len(differences), "largest difference of a logit": max(differences, default=0.0)}
    print(name, json.dumps(found), flush=True)


def main() -> None:
    """Each task in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", choices=WEIGHTS, help=", ".join(WEIGHTS))
    parser.add_argument("--packs", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--networks", type=int, metavar="N", help="of each recipe, the first seeds; else all")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_intermixed_args()
    for name in chosen.names:
        of_task(name, chosen)


if __name__ == "__main__":
    main()
