"""Networks to keep: made in a moment, with every part that a trained one has."""

import torch

from surefoot.lab.recipes.recipe import Recipe, Spec
from surefoot.lab.store.draft import Checkpoint
from surefoot.lab.tasks.task import Split
from tests.conftest import draw_one_label

SPEC = Spec("toy/wave", "0" * 64, Recipe(network="mlp", width=16), 3)
OTHER = Spec("toy/wave", "0" * 64, Recipe(network="mlp", width=16), 11)


def checkpoint(seed=0, size=100):
    torch.manual_seed(seed)
    weights, momentum, average = torch.randn(3, size)
    name = "layer.weight"
    return Checkpoint(2, 5, {name: weights}, [momentum], 0.1 + 0.2, {name: average})


def make(store, spec=SPEC):
    with store.claim(spec) as draft:
        draft.log({"phase": "train", "epoch": 1, "epochs": 1, "loss": 0.5, "seconds": 2.0})
        draft.save_weights("weights", {"layer.weight": torch.arange(3.0)})
        draft.save_predictions(Split.VAL, draw_one_label(20))
        draft.save_checkpoint("train", checkpoint())
        draft.finish({"seconds": draft.logged("seconds")})
