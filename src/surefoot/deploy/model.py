"""Modules that give calibrated logits: a model, an ensemble of models, the networks of a bundle."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from surefoot.calibrators import Calibration
from surefoot.calibrators.calibration import BEFORE_AND_AFTER
from surefoot.deploy.modules import FittedModule, module_of
from surefoot.errors import InputError
from surefoot.lab.novelty import logits_score
from surefoot.lab.training.average import average_sigmoid, average_softmax
from surefoot.lab.training.predict import evaluating
from surefoot.predictions.arguments import checked
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.novelty import Scale
from surefoot.predictions.outcomes import Array
from surefoot.predictions.scikit import logits_of_rows
from surefoot.predictions.validate import check_class_names

NUMBERS = "biuf"  # kinds of arrays that torch knows


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output, (n,), (n, 1) or (n, classes): a tensor, or what has one as `logits`.

    Half precision becomes float32, as half is not enough for a temperature and a sum of probabilities.
    """
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = f"a tensor of {logits.dtype}" if isinstance(logits, Tensor) else type(output).__name__
        raise InputError(f"the model returned {got}; allowed: logits, or an output that has .logits")
    if logits.ndim not in (1, 2):
        shape = tuple(logits.shape)
        raise InputError(f"the model's logits have shape {shape}; allowed: (n, classes), (n, 1) or (n,)")
    return logits if logits.dtype is torch.float64 else logits.float()


def is_one_logit(logits: Tensor) -> bool:
    """Whether there is one number for each sample: the log odds of class 1."""
    return logits.ndim == 1 or logits.shape[1] == 1


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model's first weights are; None where it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return None if first is None else first.device


def float_type_of(model: nn.Module) -> torch.dtype | None:
    """The type of a model's first weights that are floats; None where it has none."""
    return next((each.dtype for each in model.parameters() if each.is_floating_point()), None)


def moved(value: Any, model: nn.Module) -> Any:
    """Tensors and arrays, also in lists, tuples and mappings, on the model's device; all else as it is."""
    if isinstance(value, Tensor):
        device = device_of(model)
        return value if device is None else value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: moved(each, model) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [moved(each, model) for each in value]
    return from_array(value, model)


def from_array(value: Any, model: nn.Module) -> Any:
    """An array of numbers as a tensor on the model's device, floats in its type; all else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in NUMBERS:
        return value
    own = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])  # torch refuses or warns about others
    dtype = float_type_of(model) if own.dtype.kind == "f" else None
    return torch.as_tensor(own, dtype=dtype, device=device_of(model))


def model_outputs(model: nn.Module, inputs: Any) -> Any:
    """The model's output; a mapping is passed by name, a list as several inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list) else model(inputs)


class ScikitModel(nn.Module):
    """Arrays or tensors to a classifier's logits, on the CPU."""

    def __new__(cls, *_: Any, **__: Any) -> "ScikitModel":
        """Here and not as a decorator, since it loads `torch._dynamo`, which takes a second."""
        _keep_out_of_graphs()
        return super().__new__(cls)

    def __init__(self, classifier: Any, kind: LabelKind) -> None:
        super().__init__()
        self.classifier = classifier
        self.kind = kind

    def forward(self, samples: ArrayLike | Tensor) -> Tensor:
        """Logits (n, classes), or (n,) of two classes."""
        rows = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else samples
        logits = logits_of_rows(self.classifier, rows, self.kind)
        device = samples.device if isinstance(samples, Tensor) else None
        # As everywhere in float64, in which a forest's equal probabilities stay equal; not every GPU has it.
        dtype = torch.float64 if device is None or device.type == "cpu" else torch.float32
        return torch.as_tensor(logits, dtype=dtype, device=device)

    @property
    def class_names(self) -> list[str] | None:
        """The classes, if they are text that names of classes can be; numbers are indices, not names."""
        if self.kind is LabelKind.MANY_LABELS:
            return None
        names: list[Any] = np.asarray(self.classifier.classes_).tolist()
        if not all(isinstance(name, str) for name in names):
            return None
        try:
            check_class_names(names)
        except InputError:
            return None
        return names

    def label_indices(self, labels: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels in the classifier's names, as indices of its classes; labels in columns unchanged."""
        given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if self.kind is LabelKind.MANY_LABELS:
            return given
        given = given.reshape(-1)
        places = {name: place for place, name in enumerate(np.asarray(self.classifier.classes_).tolist())}
        unknown = [name for name in given.tolist() if name not in places]
        if unknown:
            have = ", ".join(map(str, list(places)[:10]))
            raise InputError(f"label {unknown[0]!r} is not a class of the classifier; have: {have}")
        return np.asarray([places[name] for name in given.tolist()], dtype=np.int64)


@cache
def _keep_out_of_graphs() -> None:
    """Let `torch.compile` call a classifier instead of tracing it."""
    disable: Any = torch.compiler.disable
    ScikitModel.forward = disable(ScikitModel.forward)  # type: ignore[method-assign]


@dataclass(frozen=True)
class Report:
    """The calibration that was fitted on held-out data, and its effect on them."""

    calibration: Calibration
    nll_before: float  # unclipped
    nll_after: float
    ece_before: float
    ece_after: float

    @staticmethod
    def of(calibration: Calibration) -> "Report":
        """From a calibration with its evidence."""
        assert calibration.evidence is not None
        return Report(calibration, **{name: getattr(calibration.evidence, name) for name in BEFORE_AND_AFTER})

    @property
    def n(self) -> int:
        """Held-out rows with a label."""
        return self.calibration.n

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about the fit; empty if there are none."""
        return tuple(self.calibration.notes())

    def __str__(self) -> str:
        nll = f"NLL {self.nll_before:.4f} -> {self.nll_after:.4f} (unclipped)"
        ece = f"ECE {self.ece_before:.4f} -> {self.ece_after:.4f}"
        notes = (f"note: {remark}" for remark in self.remarks)
        return "\n".join([*self.calibration.lines(), nll, ece, *notes])


class CalibratedModule(FittedModule):
    """A module whose forward pass gives calibrated logits in the shape of the model's own.

    So it can replace the model: a loss, an argmax or a threshold at 0 after it need no change.
    """

    kind: LabelKind

    def logits(self, *inputs: Any, **named: Any) -> Tensor:
        """The forward pass in evaluation mode, without gradients; all modes are restored afterwards.

        NumPy arrays are allowed: they become tensors on the model's device.
        """
        inputs = tuple(from_array(each, self) for each in inputs)
        named = {name: from_array(each, self) for name, each in named.items()}
        training = any(module.training for module in self.modules())
        with torch.no_grad(), evaluating([self]) if training else nullcontext():
            logits: Tensor = self(*inputs, **named)
        return logits

    def probabilities(self, *inputs: Any, **named: Any) -> Tensor:
        """(n, classes), in evaluation mode: rows sum to 1, or for many labels each column is one label's.

        One logit gives two columns: for class 0 and for class 1.
        """
        return probabilities_of(self.logits(*inputs, **named), self.kind)


def probabilities_of(logits: Tensor, kind: LabelKind) -> Tensor:
    """(n, classes) from calibrated logits of any of the shapes that models give."""
    if kind is LabelKind.MANY_LABELS:
        return logits.sigmoid()
    if is_one_logit(logits):
        log_odds = logits.reshape(-1, 1)
        return torch.cat([torch.sigmoid(-log_odds), torch.sigmoid(log_odds)], dim=1)
    return logits.softmax(dim=1)


class RaisedZeros(nn.Module):
    """Logits whose probabilities are at least `lowest`; the classes are on the last axis, or one logit."""

    def __init__(self, lowest: float, kind: LabelKind) -> None:
        super().__init__()
        self.lowest, self.kind = lowest, kind

    def forward(self, logits: Tensor) -> Tensor:
        if self.kind is LabelKind.MANY_LABELS:
            limit = math.log(self.lowest) - math.log1p(-self.lowest)
            return logits.clamp(limit, -limit)
        if logits.ndim == 1 or logits.shape[-1] == 1:
            both: Tensor = self(torch.stack([torch.zeros_like(logits), logits], dim=-1))
            return (both[..., 1] - both[..., 0]).reshape(logits.shape)
        return logits.log_softmax(dim=-1).clamp(min=math.log(self.lowest))


def raised_zeros(lowest: float | None, kind: LabelKind) -> nn.Module:
    """What a calibration does with the logits before anything else."""
    return nn.Identity() if lowest is None else RaisedZeros(lowest, kind)


class Calibrated(CalibratedModule):
    """softmax(z / T), or sigmoid(z / T): an unchanged model and the T that its logits are divided by.

    >>> Calibrated(nn.Identity(), temperature=2.0)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """

    temperature: Tensor  # a buffer: it moves and is saved with the model

    @checked
    def __init__(
        self,
        model: Any,
        temperature: float = 1.0,
        *,
        kind: LabelKind | str = LabelKind.ONE_LABEL,
        lowest_probability: float | None = None,
        report: Report | None = None,
    ) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise InputError(f"temperature is {temperature!r}; allowed: a positive number")
        self.kind = LabelKind(kind)
        self.model = as_module(model, self.kind)
        self.training = self.model.training
        self.report = report
        device = device_of(self.model)
        if device is not None and device.type == "meta":  # offloaded weights; T keeps its value
            device = None
        value = torch.tensor(float(temperature), dtype=torch.float32, device=device)
        self.register_buffer("temperature", value)
        self.zeros = raised_zeros(lowest_probability, self.kind)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """z / T, in the shape of z, float32 or float64."""
        logits: Tensor = self.zeros(logits_of(self.model(*inputs, **named)))
        return logits / self.temperature.to(logits)

    def extra_repr(self) -> str:
        return f"temperature={float(self.temperature):.5g}, kind={self.kind}"


class CalibratedBy(CalibratedModule):
    """An unchanged model and a calibration of its logits that is more than one temperature."""

    @checked
    def __init__(self, model: Any, calibration: Calibration, *, report: Report | None = None) -> None:
        super().__init__()
        if calibration.needs_novelty or not calibration.averages_members:
            raise InputError(
                f"a {calibration.kind} calibration needs more than one model's logits; allowed: others"
            )
        self.kind = calibration.label_kind
        self.model = as_module(model, self.kind)
        self.training = self.model.training
        self.report = report
        zeros = raised_zeros(calibration.lowest_probability, self.kind)
        self.calibration = nn.Sequential(zeros, module_of(calibration))
        device = device_of(self.model)
        if device is not None and device.type != "meta":
            self.calibration.to(device)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Calibrated logits in the shape of the model's own; two classes in one logit stay one."""
        logits = logits_of(self.model(*inputs, **named))
        if self.kind is LabelKind.MANY_LABELS or not is_one_logit(logits):
            calibrated: Tensor = self.calibration(logits)
            return calibrated
        log_odds = logits.reshape(-1, 1)
        both: Tensor = self.calibration(torch.cat([torch.zeros_like(log_odds), log_odds], dim=1))
        return (both[:, 1] - both[:, 0]).reshape(logits.shape)

    def extra_repr(self) -> str:
        return f"kind={self.kind}"


class Ensemble(CalibratedModule):
    """The mean of the members' probabilities, each member divided by its own T first (Li & Hoiem, CVPR 2020).

    Members are calibrated models; with `kind`, others are allowed too, with T = 1.

    >>> ensemble = Ensemble([nn.Identity(), nn.Identity()], kind="one_label")
    >>> ensemble.probabilities(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    @checked
    def __init__(self, members: Sequence[Any], *, kind: LabelKind | str | None = None) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble of 0 members; needed: one or more")
        self.kind = _shared_kind(members, kind)
        self.members = nn.ModuleList(
            member if isinstance(member, CalibratedModule) else Calibrated(member, kind=self.kind)
            for member in members
        )
        self.training = any(member.training for member in self.members)

    @property
    def temperature(self) -> Tensor:
        """Each member's, (members,), on the CPU; 1 for a member that is itself an ensemble."""
        return torch.tensor(
            [float(each.temperature) if isinstance(each, Calibrated) else 1.0 for each in self.members]
        )

    @property
    def report(self) -> tuple[Report | None, ...]:
        """Each member's."""
        return tuple(getattr(member, "report", None) for member in self.members)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """log mean_m p_m, for many labels and one logit its log odds, in the shape of the members' logits."""
        each = [member(*inputs, **named) for member in self.members]
        if any(one.shape != each[0].shape for one in each):
            shapes = ", ".join(str(tuple(one.shape)) for one in each)
            raise InputError(f"the members' logits have shapes {shapes}; allowed: one shape")
        softmax = self.kind is LabelKind.ONE_LABEL and not is_one_logit(each[0])
        return (average_softmax if softmax else average_sigmoid)(torch.stack(each))


def as_module(model: Any, kind: LabelKind) -> nn.Module:
    """A torch module as it is; a scikit-learn classifier as one."""
    if isinstance(model, nn.Module):
        return model
    scores = hasattr(model, "decision_function") or hasattr(model, "predict_proba")
    if scores and hasattr(model, "classes_"):
        return ScikitModel(model, kind)
    raise InputError(
        f"the model has type {type(model).__name__}; allowed: a torch.nn.Module, or a fitted scikit-learn "
        "classifier with decision_function or predict_proba"
    )


def _shared_kind(members: Sequence[Any], kind: LabelKind | str | None) -> LabelKind:
    kinds = {member.kind for member in members if isinstance(member, CalibratedModule)}
    if kind is not None:
        kinds.add(LabelKind(kind))
    elif any(not isinstance(member, CalibratedModule) for member in members):
        raise InputError(
            "a member is not calibrated; needed: surefoot.calibrate(member, val), or kind='one_label' or "
            "'many_labels' to take it with T = 1"
        )
    if len(kinds) > 1:
        raise InputError(f"the members are of kinds {', '.join(sorted(kinds))}; allowed: one kind")
    return kinds.pop()


@dataclass(frozen=True)
class Novelty:
    """The novelty score of samples, from logits alone, and its scale if a calibration was fitted on it."""

    score: str
    scale: Scale | None = None

    def of(self, logits: Any, kind: LabelKind) -> Array:
        """(n,) in float64, from the networks' own logits (members, n, classes): the mean over members."""
        members = logits if isinstance(logits, Tensor) else torch.tensor(logits)
        each = [logits_score(self.score)(member, kind) for member in members]
        mean: Array = torch.stack(each).mean(dim=0).numpy()
        return mean


class NoveltyModule(FittedModule):
    """The scaled novelty (n,), between 0 and 1, from the logits (n, classes) of one network."""

    low: Tensor
    high: Tensor

    def __init__(self, score: str, scale: Scale, kind: LabelKind) -> None:
        super().__init__()
        self.score, self.kind = score, kind
        self.register_buffer("low", torch.tensor(scale.low, dtype=torch.float32))
        self.register_buffer("high", torch.tensor(scale.high, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        if self.score == "energy" and self.kind is LabelKind.MANY_LABELS:
            # The softplus written out: onnxruntime has none in float64.
            score = -(logits.clamp(min=0) + (-logits.abs()).exp().log1p()).sum(dim=1)
        else:
            score = logits_score(self.score)(logits, self.kind).to(logits.dtype)
        span = torch.where(self.high > self.low, self.high - self.low, 1.0)
        return (score.clamp(self.low, self.high) - self.low) / span


class CalibratedNetworks(CalibratedModule):
    """The networks of a method, their average and its calibration, in evaluation mode."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        calibration: Calibration | None,
        novelty: Novelty,
        kind: LabelKind,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.networks = nn.ModuleList(networks)
        self.zeros = raised_zeros(None if calibration is None else calibration.lowest_probability, kind)
        self.calibration = nn.Identity() if calibration is None else module_of(calibration)
        self.averages_first = calibration is None or calibration.averages_members
        self.novelty: NoveltyModule | None = None
        if calibration is not None and calibration.needs_novelty:
            assert novelty.scale is not None
            assert len(networks) == 1
            self.novelty = NoveltyModule(novelty.score, novelty.scale, kind)
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Calibrated logits (n, classes)."""
        logits = self.zeros(torch.stack([logits_of(network(*inputs, **named)) for network in self.networks]))
        average = average_softmax if self.kind is LabelKind.ONE_LABEL else average_sigmoid
        novelty = () if self.novelty is None else (self.novelty(logits[0]),)
        calibrated: Tensor = self.calibration(average(logits) if self.averages_first else logits, *novelty)
        return calibrated if self.averages_first else average(calibrated)
