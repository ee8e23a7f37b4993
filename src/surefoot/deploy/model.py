"""A model and its temperature, and an ensemble of such, as one torch module each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from surefoot.calibrators import BudgetTemperature, Temperature
from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import average_sigmoid, average_softmax
from surefoot.training.predict import evaluating

NUMBERS = "biuf"  # kinds of arrays that torch knows


def logits_of(output: Any) -> Tensor:
    """The logits in a model's answer, (n,), (n, 1) or (n, classes): a tensor, or what holds one as `logits`.

    Half precision becomes float32: a temperature and a sum of probabilities need the digits.
    """
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = f"a tensor of {logits.dtype}" if isinstance(logits, Tensor) else type(output).__name__
        raise InputError(f"the model answered {got}; allowed: logits, or an output that has .logits")
    if logits.ndim not in (1, 2):
        shape = tuple(logits.shape)
        raise InputError(f"the model's logits have shape {shape}; allowed: (n, classes), (n, 1) or (n,)")
    return logits if logits.dtype is torch.float64 else logits.float()


def is_one_logit(logits: Tensor) -> bool:
    """Whether there is one number for each sample: the log odds of class 1."""
    return logits.ndim == 1 or logits.shape[1] == 1


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model's first weights are; None where it has none."""
    held = next(chain(model.parameters(), model.buffers()), None)
    return None if held is None else held.device


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
    own = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])  # others torch refuses, or warns of
    dtype = float_type_of(model) if own.dtype.kind == "f" else None
    return torch.as_tensor(own, dtype=dtype, device=device_of(model))


def model_outputs(model: nn.Module, question: Any) -> Any:
    """The model's answer; a mapping is handed over by name, several inputs in order."""
    if isinstance(question, Mapping):
        return model(**question)
    return model(*question) if isinstance(question, list) else model(question)


def is_scikit_classifier(model: object) -> bool:
    """Whether it is fitted and says scores or probabilities, as scikit-learn's classifiers do."""
    says = hasattr(model, "decision_function") or hasattr(model, "predict_proba")
    return says and hasattr(model, "classes_") and not isinstance(model, nn.Module)


class ScikitModel(nn.Module):
    """Arrays or tensors to logits, on the host: `decision_function`, or the logs of `predict_proba`.

    The latter where there is no `decision_function`, or where it scores pairs of classes (one against one):
    those scores are no logits.
    """

    def __init__(self, classifier: Any, kind: LabelKind) -> None:
        super().__init__()
        self.classifier = classifier
        self.kind = kind

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, samples: ArrayLike | Tensor) -> Tensor:
        """Logits (n, classes), or (n,) of two classes."""
        rows = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else samples
        scores = self._scores(rows)
        logits = _log(self._probabilities(rows), self.kind) if scores is None else scores
        device = samples.device if isinstance(samples, Tensor) else None
        return torch.as_tensor(np.asarray(logits), dtype=torch.float32, device=device)

    def _scores(self, rows: Any) -> NDArray[np.float64] | None:
        if not hasattr(self.classifier, "decision_function"):
            return None
        scores = np.asarray(self.classifier.decision_function(rows))
        if scores.ndim == 1:
            return scores
        as_wide = scores.shape[1] == len(self.classifier.classes_)
        return scores if as_wide and not _scores_pairs(self.classifier) else None

    def _probabilities(self, rows: Any) -> NDArray[np.float64]:
        if not hasattr(self.classifier, "predict_proba"):
            name = type(self.classifier).__name__
            raise InputError(f"{name} gives a score for each pair of classes; needed: one for each class")
        found = self.classifier.predict_proba(rows)
        if isinstance(found, list):  # a table for each label, with a column for each value that it had
            values = zip(found, self.classifier.classes_, strict=True)
            found = np.stack([each[:, known == 1].sum(axis=1) for each, known in values], axis=1)
        return np.asarray(found, dtype=np.float64)

    def label_indices(self, labels: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels as the classifier names them, as indices of its classes; labels in columns as they are."""
        given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if self.kind is LabelKind.MANY_LABELS:
            return given
        given = given.reshape(-1)
        places = {name: place for place, name in enumerate(np.asarray(self.classifier.classes_).tolist())}
        unknown = [name for name in given.tolist() if name not in places]
        if unknown:
            have = ", ".join(map(str, list(places)[:10]))
            raise InputError(f"label {unknown[0]!r} is no class of the classifier; have: {have}")
        return np.asarray([places[name] for name in given.tolist()], dtype=np.int64)


def _scores_pairs(classifier: Any) -> bool:
    """Whether it, or the last step of a pipeline, is set to score pairs: of three classes there are three."""
    settings = classifier.get_params() if hasattr(classifier, "get_params") else {}
    shapes = [value for name, value in settings.items() if name.endswith("decision_function_shape")]
    return "ovo" in shapes


def _log(probabilities: NDArray[np.float64], kind: LabelKind) -> NDArray[np.float64]:
    """Logs, or log odds where each column is a label of its own; 0 is read as the smallest float32."""
    tiny = float(np.finfo(np.float32).tiny)
    logs = np.log(np.maximum(probabilities, tiny))
    if kind is LabelKind.MANY_LABELS:
        logs = logs - np.log(np.maximum(1 - probabilities, tiny))
    return np.asarray(logs)


@dataclass(frozen=True)
class Report:
    """What was fitted on held-out data, and what it did to them."""

    calibration: Temperature | BudgetTemperature
    nll_before: float  # unclipped
    nll_after: float
    ece_before: float
    ece_after: float

    @staticmethod
    def of(calibration: Temperature | BudgetTemperature) -> "Report":
        """From a calibration that kept its evidence."""
        assert calibration.evidence is not None
        return Report(calibration, **asdict(calibration.evidence))

    @property
    def n(self) -> int:
        """Held-out rows with a label."""
        return self.calibration.n

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know before trusting it; empty when all is well."""
        return tuple(self.calibration.remarks())

    def __str__(self) -> str:
        nll = f"NLL {self.nll_before:.4f} -> {self.nll_after:.4f} (unclipped)"
        ece = f"ECE {self.ece_before:.4f} -> {self.ece_after:.4f}"
        notes = (f"note: {remark}" for remark in self.remarks)
        return "\n".join([*self.calibration.lines(), nll, ece, *notes])


class CalibratedModule(nn.Module):
    """A module whose forward pass gives calibrated logits in the shape that the model's own have.

    So it takes the model's place: the loss, the argmax and the threshold at 0 behind it stay what they were.
    """

    kind: LabelKind

    def logits(self, *inputs: Any, **named: Any) -> Tensor:
        """What the forward pass gives, in evaluation mode, without gradients; all modes are left as found.

        NumPy arrays go in as well, as tensors where the model is.
        """
        with torch.no_grad():
            if any(module.training for module in self.modules()):
                with evaluating([self]):
                    return self._answer(*inputs, **named)
            return self._answer(*inputs, **named)

    def _answer(self, *inputs: Any, **named: Any) -> Tensor:
        taken = {name: from_array(each, self) for name, each in named.items()}
        answer: Tensor = self(*[from_array(each, self) for each in inputs], **taken)
        return answer

    def probabilities(self, *inputs: Any, **named: Any) -> Tensor:
        """(n, classes) in the same manner: rows sum to 1, or for many labels each column is its own label's.

        One logit gives two columns: of class 0 and of class 1.
        """
        return probabilities_of(self.logits(*inputs, **named), self.kind)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as any module does, but a model in half precision keeps what was fitted, its T, in full."""
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            if not buffer.is_meta:
                setattr(self, name, buffer.to(getattr(self, name).device))
        return self


def probabilities_of(logits: Tensor, kind: LabelKind) -> Tensor:
    """(n, classes) from calibrated logits of any of the shapes that models give."""
    if kind is LabelKind.MANY_LABELS:
        return logits.sigmoid()
    if is_one_logit(logits):
        log_odds = logits.reshape(-1, 1)
        return torch.cat([torch.sigmoid(-log_odds), torch.sigmoid(log_odds)], dim=1)
    return logits.softmax(dim=1)


class Calibrated(CalibratedModule):
    """softmax(z / T), or sigmoid(z / T): a model, held as it is, and the T that its logits are divided by."""

    temperature: Tensor  # a buffer: it moves and is saved with the model

    def __init__(
        self,
        model: Any,
        temperature: float = 1.0,
        *,
        kind: LabelKind | str = LabelKind.ONE_LABEL,
        report: Report | None = None,
    ) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise InputError(f"temperature is {temperature!r}; allowed: a positive number")
        self.kind = kind_named(kind)
        self.model = as_module(model, self.kind)
        self.training = self.model.training
        self.report = report
        there = device_of(self.model)
        if there is not None and there.type == "meta":  # offloaded weights; T keeps its value
            there = None
        value = torch.tensor(float(temperature), dtype=torch.float32, device=there)
        self.register_buffer("temperature", value)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """z / T, in the shape of z, float32 or float64."""
        logits = logits_of(self.model(*inputs, **named))
        return logits / self.temperature.to(logits)

    def extra_repr(self) -> str:
        return f"temperature={float(self.temperature):.5g}, kind={self.kind}"


class Ensemble(CalibratedModule):
    """The mean of the members' probabilities, each member divided by its own T first (Li & Hoiem, CVPR 2020).

    Members are calibrated models; others may stand beside them where `kind` is said, and count with T = 1.
    """

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
        """Each member's, (members,), on the host; 1 where a member is itself made of several."""
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


def kind_named(kind: LabelKind | str) -> LabelKind:
    """A kind from its name."""
    try:
        return LabelKind(kind)
    except ValueError as error:
        raise InputError(f"kind is {kind!r}; allowed: {', '.join(LabelKind)}") from error


def as_module(model: Any, kind: LabelKind) -> nn.Module:
    """A torch module as it is; a scikit-learn classifier as one."""
    if isinstance(model, nn.Module):
        return model
    if is_scikit_classifier(model):
        return ScikitModel(model, kind)
    raise InputError(
        f"the model is a {type(model).__name__}; allowed: a torch.nn.Module, or a fitted scikit-learn "
        "classifier with decision_function or predict_proba"
    )


def _shared_kind(members: Sequence[Any], kind: LabelKind | str | None) -> LabelKind:
    kinds = {member.kind for member in members if isinstance(member, CalibratedModule)}
    if kind is not None:
        kinds.add(kind_named(kind))
    elif any(not isinstance(member, CalibratedModule) for member in members):
        raise InputError(
            "a member is not calibrated; needed: surefoot.calibrate(member, val), or kind='one_label' or "
            "'many_labels' to take it with T = 1"
        )
    if len(kinds) > 1:
        raise InputError(f"the members are of kinds {', '.join(sorted(kinds))}; allowed: one kind")
    return kinds.pop()
