"""The base of all training variants. Its own behaviour is plain training on labels.

Plans and recipes hold variants, so importing one must not import torch: what trains, predicts and bundles is
imported inside the methods.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from surefoot.lab.recipes.recipe import Protocol, Recipe, VariantValues
from surefoot.lab.tasks.task import Split, Task
from surefoot.predictions.labels import LabelKind

if TYPE_CHECKING:
    from torch import nn

    from surefoot.lab.networks.network import Network
    from surefoot.lab.training.losses import Objective
    from surefoot.lab.training.predict import Predictor
    from surefoot.lab.variants.build import Build, Training


@dataclass(frozen=True)
class Variant(VariantValues):
    """A way to train a network. A subclass adds its values as fields and overrides what differs."""

    name: ClassVar[str] = "plain"
    needs_features: ClassVar[bool] = False  # of the network, not only its logits
    bundled_novelty: ClassVar[str] = "energy"  # the novelty score that a bundle computes from its logits

    @property
    def label(self) -> str:
        """What a network is called in messages."""
        return self.name

    @property
    def unlabelled_share(self) -> float:
        """Unlabelled samples in an epoch, as a share of the labelled ones."""
        return 0.0

    def unlabelled_rows(self, _task: Task) -> NDArray[np.bool_] | None:
        """Which unlabelled samples of a task are used; None: all."""
        return None

    def obstacle(self, recipe: Recipe, task: Task) -> str | None:
        """Why such a network cannot be trained for a task, as the end of a sentence; None where it can."""
        if self.unlabelled_share and Split.UNLABELLED not in task.splits:
            return f"needs unlabelled samples, and task {task.name!r} has none"
        if self.needs_features and not recipe.gives_features:
            return f"needs the features, and {recipe.network!r} gives logits only"
        return None

    def produce(self, build: "Build") -> dict[str, Any]:
        """Write the network's weights and predictions to the draft; returns facts to be stored with them."""
        build.train_and_predict()
        return {}

    def objective(self, training: "Training") -> "Objective":
        """What training minimises."""
        from surefoot.lab.training.losses import Classification

        return Classification(training.task.kind, training.recipe.label_smoothing)

    def predictor(self, _build: "Build", _purpose: str) -> "Predictor":
        """How the network's logits are computed; `purpose` seeds what is random."""
        from surefoot.lab.training.predict import network_logits

        return network_logits

    def trainings(self, recipe: Recipe) -> int:
        """How many times a network of that recipe is trained, for the progress display."""
        return 2 if recipe.protocol is Protocol.PAPER else 1

    @property
    def bundle_obstacle(self) -> str | None:
        """Why such a network cannot be bundled, as the end of a sentence; None where it can."""
        return None

    @property
    def bundle_remark(self) -> str | None:
        """How a bundle's predictions differ from the stored ones; None where they are the same."""
        return None

    def deployed(self, network: "Network", _kind: LabelKind, _key: str) -> "nn.Module":
        """The module that a bundle calls; `key` seeds what is random."""
        return network


PLAIN = Variant()


def variant_of(recipe: Recipe) -> Variant:
    """The variant of a recipe."""
    if recipe.variant is None:
        return PLAIN
    assert isinstance(recipe.variant, Variant), "a variant is a subclass of surefoot.lab.variants.Variant"
    return recipe.variant
