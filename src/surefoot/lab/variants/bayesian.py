"""Bayesian networks: dropout and a variance for each logit, sampled when predicting."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.errors import InputError, one_of, require_number, require_whole
from surefoot.lab.variants.base import Variant
from surefoot.predictions.labels import LabelKind

if TYPE_CHECKING:
    from torch import nn

    from surefoot.lab.networks.network import Network
    from surefoot.lab.recipes.recipe import Spec
    from surefoot.lab.training.losses import Objective
    from surefoot.lab.training.predict import Predictor, Sampled
    from surefoot.lab.variants.build import Build, TaskContext, Training


@dataclass(frozen=True, kw_only=True)
class Bayesian(Variant):
    """Dropout sampled at test time and a variance for each logit (Kendall & Gal, NeurIPS 2017)."""

    name: ClassVar[str] = "bayesian"
    needs_features: ClassVar[bool] = True
    bundled_novelty: ClassVar[str] = "max-probability"  # its outputs are log probabilities: no energy

    dropout: float = 0.2
    samples: int = 100  # of the logits, in testing
    training_samples: int = 20  # and in training, for each step
    sampled: str = "head"  # dropout before the last layer, sampled there; or "network": in every layer

    def __post_init__(self) -> None:
        require_number("dropout", self.dropout, lambda v: 0 <= v < 1, "at least 0 and below 1")
        object.__setattr__(self, "dropout", float(self.dropout))
        for name in ("samples", "training_samples"):
            require_whole(name, getattr(self, name), 1)
        one_of("sampled", self.sampled, ("head", "network"))

    def network_options(self, network: str) -> dict[str, Any]:
        """A head with a variance; dropout before it, or in every layer where the whole network is sampled."""
        if self.sampled == "head":
            return {"head": "gaussian", "head_dropout": self.dropout}
        if network not in ("mlp", "residual-mlp", "densenet161"):
            raise InputError(
                f"network {network!r} has no dropout in its layers; allowed with sampled = 'network': "
                "densenet161, mlp, residual-mlp"
            )
        before_head = 0.0 if network == "mlp" else self.dropout  # the mlp's last layer has its own
        return {"head": "gaussian", "head_dropout": before_head, "layer_dropout": self.dropout}

    def objective(self, training: "Training") -> "Objective":
        """The loss of the mean probability over samples of the logits."""
        from surefoot.lab.training.losses import NoisyClassification

        smoothing = training.recipe.label_smoothing
        return NoisyClassification(training.task.kind, self.training_samples, smoothing)

    def predictor(self, build: "Build", purpose: str) -> "Predictor":
        """The mean probability over samples."""
        return self.sampler(build.spec, build.context, purpose)

    def sampler(self, spec: "Spec", context: "TaskContext", purpose: str) -> "Sampled":
        """Draws the samples of a network for a purpose, a split's name: the same ones each time."""
        from surefoot.lab.training.data import generator
        from surefoot.lab.training.predict import Sampled

        identity = (context.task.training_identity, spec.recipe.digest, spec.seed)
        random = generator(*identity, "samples", purpose, device=context.device)
        return Sampled(context.task.kind, self.samples, random, self.sampled == "network")

    @property
    def bundle_obstacle(self) -> str | None:
        """A bundle samples the head only."""
        if self.sampled == "head":
            return None
        return "samples dropout in every layer, which a bundle's fixed graph cannot"

    @property
    def bundle_remark(self) -> str | None:
        """A bundle's samples are fixed."""
        return (
            "a bundle draws this method's samples once, and not for every row as here: choose thresholds and "
            "references on the predictions of 'surefoot predict' for labelled images"
        )

    def deployed(self, network: "Network", kind: LabelKind, key: str) -> "nn.Module":
        """With its samples fixed."""
        from surefoot.lab.training.data import generator
        from surefoot.lab.training.predict import FixedSamples

        return FixedSamples(network, self.samples, kind, generator(key, "deployed samples"))
