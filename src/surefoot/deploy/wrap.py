"""A model and its temperature, and an ensemble of such, as one torch module each."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from surefoot.calibrators import BudgetTemperature, Temperature
from surefoot.combine import average_sigmoid, average_softmax
from surefoot.deploy.outputs import device_of, from_array, is_one_logit, logits_of
from surefoot.deploy.scikit import ScikitModel, is_scikit_classifier
from surefoot.errors import InputError
from surefoot.kinds import LabelKind
from surefoot.training.predict import evaluating


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


class Answering(nn.Module):
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


class Calibrated(Answering):
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


class Ensemble(Answering):
    """The mean of the members' probabilities, each member divided by its own T first (Li & Hoiem, CVPR 2020).

    Members are calibrated models; others may stand beside them where `kind` is said, and count with T = 1.
    """

    def __init__(self, members: Sequence[Any], *, kind: LabelKind | str | None = None) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble of 0 members; needed: one or more")
        self.kind = _shared_kind(members, kind)
        self.members = nn.ModuleList(
            member if isinstance(member, Answering) else Calibrated(member, kind=self.kind)
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
    kinds = {member.kind for member in members if isinstance(member, Answering)}
    if kind is not None:
        kinds.add(kind_named(kind))
    elif any(not isinstance(member, Answering) for member in members):
        raise InputError(
            "a member is not calibrated; needed: surefoot.calibrate(member, val), or kind='one_label' or "
            "'many_labels' to take it with T = 1"
        )
    if len(kinds) > 1:
        raise InputError(f"the members are of kinds {', '.join(sorted(kinds))}; allowed: one kind")
    return kinds.pop()
