"""Calibrations as torch modules, to be put behind a network, in bundles and exports."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.calibrators.affine import Affine
from surefoot.calibrators.calibration import Calibration
from surefoot.calibrators.novelty import NoveltyScaling
from surefoot.calibrators.one_vs_rest import LogisticCurves
from surefoot.calibrators.pieces import Pieces
from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind


def module_of(calibration: Calibration, dtype: torch.dtype = torch.float32) -> nn.Module:
    """`calibration.apply` as a module, of logits (members, n, classes) or (n, classes).

    The members are there unless `averages_members`. If `needs_novelty`, the second input is the novelty of
    each sample, (n,), between 0 and 1.
    """
    own: Callable[[], nn.Module] | None = getattr(calibration, "module", None)
    if own is not None:
        return own()
    if isinstance(calibration, Affine):
        return AffineModule(calibration, dtype)
    if isinstance(calibration, LogisticCurves):
        return LogisticModule(calibration, dtype)
    if isinstance(calibration, Pieces):
        return PiecesModule(calibration, dtype)
    if isinstance(calibration, NoveltyScaling):
        return NoveltyScalingModule(calibration.t0, calibration.t1)
    if calibration.temperatures:
        each = torch.tensor(calibration.temperatures)
        return TemperatureModule(each[0] if calibration.averages_members else each.reshape(-1, 1, 1))
    raise InputError(f"a {calibration.kind} calibration has no torch module, so it cannot be bundled")


class FittedModule(nn.Module):
    """A module that keeps its own buffers, the fitted numbers, in full precision when it is moved or cast."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        full = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in full.items():
            if not buffer.is_meta:
                setattr(self, name, buffer.to(getattr(self, name).device))
        return self


class TemperatureModule(FittedModule):
    """Divides logits by a fixed T; it is a buffer, so it moves and saves with the model."""

    temperature: Tensor

    def __init__(self, temperature: Tensor) -> None:
        super().__init__()
        self.register_buffer("temperature", temperature.to(torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits)


class NoveltyScalingModule(FittedModule):
    """Divides logits (n, classes) by T0 + T1 novelty (n,)."""

    t0: Tensor
    t1: Tensor

    def __init__(self, t0: float, t1: float) -> None:
        super().__init__()
        for name, value in (("t0", t0), ("t1", t1)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, logits: Tensor, novelty: Tensor) -> Tensor:
        return logits / (self.t0 + self.t1 * novelty).unsqueeze(1)


class AffineModule(FittedModule):
    """W f + b of logits (n, classes)."""

    weights: Tensor
    bias: Tensor

    def __init__(self, calibration: Affine, dtype: torch.dtype) -> None:
        super().__init__()
        self.is_log_probability = calibration.is_log_probability
        self.is_centred = calibration.label_kind is LabelKind.ONE_LABEL and not self.is_log_probability
        self.register_buffer("weights", torch.tensor(calibration.weights, dtype=dtype))
        self.register_buffer("bias", torch.tensor(calibration.bias, dtype=dtype))

    def forward(self, logits: Tensor) -> Tensor:
        if self.is_log_probability:
            logits = F.log_softmax(logits, dim=1)
        elif self.is_centred:
            logits = logits - logits.mean(dim=1, keepdim=True)
        weights, bias = self.weights.to(logits), self.bias.to(logits)
        if len(weights) == 1:
            return logits * weights + bias
        return logits @ weights.T + bias


class OneVsRestModule(FittedModule, ABC):
    """Logits (n, classes) to log odds of each curve (curves, n), through the curve, and back."""

    def __init__(self, kind: LabelKind, classes: int) -> None:
        super().__init__()
        self.kind, self.classes = kind, classes

    @abstractmethod
    def curve(self, log_odds: Tensor) -> Tensor:
        """Calibrated log odds (curves, n)."""

    def log_probabilities(self, log_odds: Tensor) -> Tensor:
        """Of each curve, (curves, n)."""
        return -F.softplus(-self.curve(log_odds))

    def forward(self, logits: Tensor) -> Tensor:
        given = log_odds(logits, self.kind)
        if self.kind is LabelKind.MANY_LABELS:
            return self.curve(given).T
        if self.classes == 2:
            return F.pad(self.curve(given), (0, 0, 1, 0)).T
        return self.log_probabilities(given).T


class LogisticModule(OneVsRestModule):
    """Curves of two slopes and an intercept."""

    parameters_of_curves: Tensor

    def __init__(self, calibration: LogisticCurves, dtype: torch.dtype) -> None:
        super().__init__(calibration.label_kind, calibration.classes)
        curves = (calibration.slopes_above, calibration.slopes_below, calibration.intercepts)
        self.register_buffer("parameters_of_curves", torch.tensor(curves, dtype=dtype))

    def curve(self, log_odds: Tensor) -> Tensor:
        above, below, intercept = self.parameters_of_curves.to(log_odds).unsqueeze(2)
        # s = log p - log(1 - p), so that equal slopes give slope * s exactly, however large s is.
        calibrated: Tensor = below * log_odds + (above - below) * -F.softplus(-log_odds) + intercept
        return calibrated


def log_odds(logits: Tensor, kind: LabelKind) -> Tensor:
    """Of each curve's class against all others: (classes, n), or (1, n) of two classes.

    log p_k - log(1 - p_k) = z_k - logsumexp of the others; computed without cancellation.

    >>> log_odds(torch.tensor([[0.0, 40.0, 0.0]]), LabelKind.ONE_LABEL).T
    tensor([[-40.0000,  39.3069, -40.0000]])
    """
    if kind is LabelKind.MANY_LABELS:
        return logits.T.contiguous()
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0]).unsqueeze(0)
    below = logits.T.contiguous()
    below = below - below.amax(dim=0)
    weights = below.exp()
    found = below - torch.log((weights.sum(dim=0) - weights).clamp(min=0.5))  # of all but the largest logit
    largest = logits.argmax(dim=1).unsqueeze(0)
    others = below.scatter(0, largest, -torch.inf).logsumexp(dim=0, keepdim=True)
    return found.scatter(0, largest, -others)


class PiecesModule(OneVsRestModule):
    """Curves of points; each curve is filled up with its last point to the same length."""

    scores: Tensor
    probabilities: Tensor

    def __init__(self, calibration: Pieces, dtype: torch.dtype) -> None:
        super().__init__(calibration.label_kind, calibration.classes)
        most = max(2, *map(len, calibration.scores))
        for name in ("scores", "probabilities"):
            curves = getattr(calibration, name)
            filled = [list(curve) + [curve[-1]] * (most - len(curve)) for curve in curves]
            self.register_buffer(name, torch.tensor(filled, dtype=dtype))

    def shares(self, log_odds: Tensor) -> Tensor:
        """The calibrated probability of each curve's class (curves, n)."""
        return _interpolated(log_odds, self.scores.to(log_odds), self.probabilities.to(log_odds))

    def curve(self, log_odds: Tensor) -> Tensor:
        shares = self.shares(log_odds)
        return torch.log(shares) - torch.log1p(-shares)

    def log_probabilities(self, log_odds: Tensor) -> Tensor:
        return torch.log(self.shares(log_odds))


def _interpolated(values: Tensor, scores: Tensor, probabilities: Tensor) -> Tensor:
    """As numpy.interp, curve by curve; of two points with the same score, the second is that of the score."""
    if torch.compiler.is_compiling():
        # Comparisons instead of a search, which ONNX does not have.
        counts = [(row.unsqueeze(1) >= own).sum(dim=1) for row, own in zip(values, scores, strict=True)]
        passed = torch.stack(counts)
    else:
        passed = torch.searchsorted(scores, values, right=True)
    left = (passed - 1).clamp(min=0)
    spans, rises = scores.diff(dim=1), probabilities.diff(dim=1)
    is_step = spans < torch.finfo(spans.dtype).tiny
    slopes = F.pad(torch.where(is_step, 0, rises / torch.where(is_step, 1, spans)), (0, 1))
    beyond = (values - scores.gather(1, left)).clamp(min=0)
    return probabilities.gather(1, left) + beyond * slopes.gather(1, left)
