"""Networks and what was fitted for them, as one module."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.calibrators import Calibration, MemberTemperatures, NoveltyScaling
from surefoot.deploy.model import Calibrated, CalibratedModule, Ensemble, logits_of
from surefoot.novelty import FROM_LOGITS, Scale
from surefoot.predictions.labels import LabelKind

ENERGY, MAX_PROBABILITY = "energy", "max-probability"


@dataclass(frozen=True)
class Novelty:
    """Which score says how strange a sample is, from logits alone, and the scale that a fit read it on."""

    score: str
    scale: Scale | None = None

    def of(self, logits: Tensor, kind: LabelKind) -> Tensor:
        """(n,) in float64, from the networks' own logits (members, n, classes): the mean over members."""
        return torch.stack([FROM_LOGITS[self.score](each, kind) for each in logits]).mean(dim=0)


def assembled(
    networks: Sequence[nn.Module], calibration: Calibration | None, novelty: Novelty, kind: LabelKind
) -> CalibratedModule:
    """What a method says, from samples to calibrated logits, in evaluation mode."""
    if isinstance(calibration, NoveltyScaling):
        assert novelty.scale is not None
        (network,) = networks
        return NoveltyCalibrated(network, calibration, novelty.score, novelty.scale).eval()
    if isinstance(calibration, MemberTemperatures):
        fitted = zip(networks, calibration.members, strict=True)
        return Ensemble([Calibrated(each, t.temperature, kind=kind) for each, t in fitted]).eval()
    model = networks[0] if len(networks) == 1 else Ensemble(networks, kind=kind)
    if calibration is None:
        return (model if isinstance(model, CalibratedModule) else Calibrated(model, kind=kind)).eval()
    return Calibrated(model, calibration.temperature, kind=kind).eval()


class NoveltyCalibrated(CalibratedModule):
    """softmax(z / (T0 + T1 novelty)), the novelty from the logits z themselves."""

    t0: Tensor
    t1: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, model: nn.Module, calibration: NoveltyScaling, score: str, scale: Scale) -> None:
        super().__init__()
        self.kind = calibration.label_kind
        self.model = model
        self.score = score
        for name, value in (
            ("t0", calibration.t0),
            ("t1", calibration.t1),
            ("low", scale.low),
            ("high", scale.high),
        ):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """z / T(x), in the shape of z."""
        logits = logits_of(self.model(*inputs, **named))
        score = self._score(logits).to(logits.dtype)
        span = torch.where(self.high > self.low, self.high - self.low, 1.0)
        novelty = (score.clamp(self.low, self.high) - self.low) / span
        return logits / (self.t0 + self.t1 * novelty).unsqueeze(1)

    def _score(self, logits: Tensor) -> Tensor:
        if self.score == ENERGY and self.kind is LabelKind.MANY_LABELS:
            # The softplus written out: onnxruntime has none in float64.
            return -(logits.clamp(min=0) + (-logits.abs()).exp().log1p()).sum(dim=1)
        return FROM_LOGITS[self.score](logits, self.kind)
