"""Temperature scaling: one T, one per member, at least one, and with a risk budget."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor, nn

from surefoot.calibrators.search import Reading, best_scale, is_flat, is_separable, mean_nll, search_bounds
from surefoot.errors import InputError
from surefoot.intervals import NORMAL, few_samples_factor
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions

FEW_ROWS = 200
MUCH_WORSE = 0.05  # of the ECE on the data that T was fitted on
WIDE = 1.5  # an interval whose ends differ by more than this factor is called wide

Numbers = TypeVar("Numbers", Tensor, NDArray[np.floating])


@dataclass(frozen=True)
class Evidence:
    """What a calibration did to the data it was fitted on."""

    nll_before: float  # unclipped: what the fit minimises
    nll_after: float
    ece_before: float
    ece_after: float


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A fitted T: a function from Predictions to Predictions. Members are averaged first, then divided."""

    kind: ClassVar[str] = "temperature"

    temperature: float
    low: float  # 95% interval, from the curvature and the spread of the rows' slopes (sandwich)
    high: float
    n: int
    label_kind: LabelKind
    classes: int
    at_bound: bool = False
    separable: bool = False  # every label is predicted correctly
    flat: bool = False  # the logits say nothing at all: any T is as good, and 1 is taken
    evidence: Evidence | None = None
    declined: float | None = None  # the fitted T, below 1, that was not used; low and high are its interval

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same samples with calibrated logits."""
        check_fits(predictions, self.label_kind, self.classes)
        averaged = predictions.average()
        return averaged.with_logits(averaged.logits / self.temperature)

    def scale(self, logits: Numbers) -> Numbers:
        """Bare logits of one model, as a tensor or an array, divided by T."""
        return logits / self.temperature

    def module(self) -> "TemperatureModule":
        """As a torch module, to put behind a network."""
        return TemperatureModule(torch.tensor(self.temperature))

    def lines(self) -> list[str]:
        """What was fitted, in a line."""
        ends = "" if self.at_bound else f" (95% interval {self.low:.5g} to {self.high:.5g})"
        if self.declined is not None:
            return [f"T = 1, because the fitted T = {self.declined:.5g}{ends} is below 1, n = {self.n:,}"]
        return [f"T = {self.temperature:.5g}{ends}, n = {self.n:,}"]

    def remarks(self) -> list[str]:
        """What the user should know before trusting this T, in plain words; empty when all is well."""
        remarks = []
        if self.flat:
            remarks.append("the logits of every row are equal, so no T changes anything; T = 1 was taken")
        elif self.declined is not None:
            remarks.append(
                f"the fitted T = {self.declined:.3g} is below 1 and would make the model surer everywhere; "
                "it was declined, and predictions are left as they are"
            )
        elif self.separable:
            remarks.append(
                f"every label is predicted correctly, so the NLL falls for ever as T does: T = "
                f"{self.temperature:.3g} is only where the search ends; use more validation data"
            )
        elif self.at_bound:
            remarks.append(
                f"T = {self.temperature:.3g} is where the search ends: the logits say nothing useful about "
                "the labels; check that labels and classes are in the same order, and that no label is "
                "given a probability of exactly 0, as trees do"
            )
        elif self.high < 1:
            remarks.append(
                f"T = {self.temperature:.3g} is below 1: the model is underconfident here, and dividing by T "
                "makes it surer everywhere, on unfamiliar data too, where that usually does harm"
            )
        if self.n < FEW_ROWS or (not self.at_bound and self.high > WIDE * self.low):
            reach = "unknown" if self.high == math.inf else f"{self.low:.3g} to {self.high:.3g}"
            remarks.append(f"n = {self.n} rows are few for this fit: the 95% interval of T is {reach}")
        if self.evidence is not None and self.evidence.ece_after > self.evidence.ece_before + MUCH_WORSE:
            remarks.append(
                f"the ECE rose from {self.evidence.ece_before:.3g} to {self.evidence.ece_after:.3g}: some "
                "labels have next to no probability and rule the fit (trees give exact zeros); T is none for "
                "the other rows"
            )
        return remarks


@dataclass(frozen=True)
class MemberTemperatures:
    """A T for each member of an ensemble: members are divided first, then averaged by whoever reads them."""

    kind: ClassVar[str] = "member-temperatures"

    members: tuple[Temperature, ...]
    evidence: Evidence | None = None

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same samples with each member's logits calibrated."""
        check_fits(predictions, self.members[0].label_kind, self.members[0].classes)
        if predictions.members != len(self.members):
            raise InputError(
                f"the calibration was fitted for {len(self.members)} members, "
                f"but the predictions have {predictions.members}"
            )
        return predictions.with_logits(self.scale(predictions.logits))

    def scale(self, logits: Numbers) -> Numbers:
        """Bare logits (members, n, classes), as a tensor or an array, each member divided by its T."""
        values = [member.temperature for member in self.members]
        if isinstance(logits, Tensor):
            return logits / torch.tensor(values, dtype=logits.dtype, device=logits.device).reshape(-1, 1, 1)
        return logits / np.array(values, dtype=logits.dtype).reshape(-1, 1, 1)

    def module(self) -> "TemperatureModule":
        """As a torch module, to put behind the stacked logits of the members."""
        values = torch.tensor([member.temperature for member in self.members])
        return TemperatureModule(values.reshape(-1, 1, 1))

    def lines(self) -> list[str]:
        """What was fitted, in a line for each member."""
        if len(self.members) == 1:
            return self.members[0].lines()
        return [f"member {i}: {line}" for i, t in enumerate(self.members) for line in t.lines()]

    def remarks(self) -> list[str]:
        """Each member's remarks."""
        return [f"member {i}: {remark}" for i, t in enumerate(self.members) for remark in t.remarks()]


class TemperatureModule(nn.Module):
    """Divides logits by a fixed T; it is a buffer, so it moves and saves with the model."""

    temperature: Tensor

    def __init__(self, temperature: Tensor) -> None:
        super().__init__()
        self.register_buffer("temperature", temperature.to(torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)


def fit_temperature(val: Predictions) -> Temperature:
    """The T that minimises the unclipped NLL of `val`, exact to 1e-6 and always positive.

    T = argmin_T mean -log p_true(z / T). Several members are averaged first. Guo et al., ICML 2017.

    >>> fit_temperature(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1])).temperature
    3.6409569065...
    """
    labelled = only_labelled(val)
    if is_flat(labelled):
        return Temperature(
            temperature=1.0, low=0.0, high=math.inf, at_bound=True, flat=True, **_facts(labelled)
        )
    lowest, highest = search_bounds(labelled)
    scale, reading = best_scale(labelled, lowest, highest)
    # At an inner optimum the rows' slopes cancel, so some are positive; if none is, look at the answers.
    separable = not float(reading.row_slopes.max()) > 0 and is_separable(labelled)
    if separable:
        scale = highest
    at_bound = separable or not lowest * 1.01 < scale < highest / 1.01
    factor = math.inf if at_bound else _interval_factor(reading, scale, labelled.groups)
    return Temperature(
        temperature=1 / scale,
        low=1 / factor / scale,
        high=factor / scale,
        at_bound=at_bound,
        separable=separable,
        **_facts(labelled),
    )


def fit_member_temperatures(val: Predictions) -> MemberTemperatures:
    """A temperature for each member by itself: the paper's ensemble of T-scaled models."""
    return MemberTemperatures(tuple(fit_temperature(val.member(i)) for i in range(val.members)))


def only_labelled(val: Predictions) -> Predictions:
    """The rows with at least one known label, members averaged: what a calibration is fitted on."""
    known = val.labels >= 0
    if not known.any():
        raise InputError("no labels to fit a temperature on; allowed: predictions with at least one label")
    return (val if known.all() else val.take(known.reshape(val.n, -1).any(dim=1).numpy())).average()


class Classified(Protocol):
    """Anything of a kind and a number of classes: Predictions, or the shape of those that are streamed."""

    @property
    def kind(self) -> LabelKind: ...

    @property
    def classes(self) -> int: ...


def check_fits(predictions: Classified, label_kind: LabelKind, classes: int) -> None:
    """Refuse predictions of another kind than the calibration was fitted on."""
    if (predictions.kind, predictions.classes) != (label_kind, classes):
        raise InputError(
            f"the calibration was fitted for {label_kind} with {classes} classes, "
            f"but the predictions are {predictions.kind} with {predictions.classes} classes"
        )


def _facts(labelled: Predictions) -> dict[str, Any]:
    return {"n": labelled.n, "label_kind": labelled.kind, "classes": labelled.classes}


def _interval_factor(reading: Reading, scale: float, groups: NDArray[Any] | None) -> float:
    """exp(t * standard error of log T), by the sandwich sqrt(sum g^2) / sum h; g is summed within groups."""
    slopes = reading.row_slopes.numpy()
    if groups is not None:
        _, member_of = np.unique(groups, return_inverse=True)
        slopes = np.bincount(member_of, slopes)
    error = float(np.sqrt(slopes @ slopes)) / reading.second / scale
    widened = NORMAL * few_samples_factor(len(slopes)) * error
    return math.exp(widened) if widened < 700 else math.inf


def fit_temperature_at_least_one(val: Predictions) -> Temperature:
    """The T of `fit_temperature` where it is 1 or more; else 1, with the T that was declined.

    T = max(1, argmin_T NLL(z / T)). Li & Hoiem, CVPR 2020, for networks distilled from an ensemble, which
    may be underconfident on familiar data: to sharpen them would do harm on unfamiliar data.

    >>> fitted = fit_softening(Predictions.from_logits([[0.1, 0.0]] * 4, [0, 0, 0, 1]))
    >>> fitted.temperature, fitted.declined
    (1.0, 0.0910239...)
    """
    return at_least_one(fit_temperature(val))


def at_least_one(fitted: Temperature) -> Temperature:
    """A fitted T where it is 1 or more; else 1, with the T that was declined."""
    if fitted.temperature >= 1:
        return fitted
    return replace(fitted, temperature=1.0, declined=fitted.temperature)


BUDGET = 0.02
TOLERANCE = 1e-9  # of log T


@dataclass(frozen=True, kw_only=True)
class BudgetTemperature:
    """A T above the best one: a function from Predictions to Predictions. Members are averaged first."""

    kind: ClassVar[str] = "budget"

    temperature: float  # the one that is used
    best: Temperature  # the one with the least NLL
    budget: float  # the share by which the NLL may rise
    nll_best: float  # unclipped, on the validation data
    nll_used: float
    at_bound: bool = False  # the budget allows any T: the end of the search was taken
    evidence: Evidence | None = None

    @property
    def n(self) -> int:
        return self.best.n

    @property
    def label_kind(self) -> LabelKind:
        return self.best.label_kind

    @property
    def classes(self) -> int:
        return self.best.classes

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same samples with calibrated logits."""
        check_fits(predictions, self.label_kind, self.classes)
        averaged = predictions.average()
        return averaged.with_logits(self.scale(averaged.logits))

    def scale(self, logits: Numbers) -> Numbers:
        """Bare logits of one model, as a tensor or an array, divided by T."""
        return logits / self.temperature

    def module(self) -> TemperatureModule:
        """As a torch module, to put behind a network."""
        return TemperatureModule(torch.tensor(self.temperature))

    def lines(self) -> list[str]:
        """What was fitted: the T that is used, then the best one."""
        share = f"at most {100 * self.budget:.3g}% above the least"
        used = f"T = {self.temperature:.5g}, NLL {self.nll_used:.5g}: {share}"
        return [used, *(f"least NLL {self.nll_best:.5g} at {line}" for line in self.best.lines())]

    def remarks(self) -> list[str]:
        """What the user should know before trusting this T, in plain words; empty when all is well."""
        remarks = [f"best T: {remark}" for remark in self.best.remarks()]
        if self.best.at_bound:
            remarks.insert(
                0, "there is no best T to start from, so the fitted T was taken and no budget used"
            )
        elif self.at_bound:
            remarks.insert(
                0,
                f"any T, however large, keeps within the budget of {100 * self.budget:.3g}%: T = "
                f"{self.temperature:.3g} is only where the search ends; take a smaller budget",
            )
        return remarks


def fit_budget_temperature(val: Predictions, budget: float = BUDGET) -> BudgetTemperature:
    """The largest T that costs at most the share `budget` of the least NLL of `val`, exact to 1e-6.

    T = max {T : NLL(z / T) <= (1 + budget) min_T NLL(z / T)}, NLL unclipped, members averaged first. The
    NLL is convex in 1/T, so above the best T it only rises and there is one such T. Where there is no best T
    (labels all predicted correctly, logits that say nothing), the T of `fit_temperature` is taken.

    >>> fitted = fit_budget_temperature(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1]))
    >>> round(fitted.best.temperature, 4), round(fitted.temperature, 4)
    (3.641, 5.2539)
    """
    if not (math.isfinite(budget) and budget >= 0):
        raise InputError(f"budget is {budget}; allowed: a number from 0, as 0.02 for two percent")
    labelled = only_labelled(val)
    best = fit_temperature(labelled)
    least = mean_nll(labelled, 1 / best.temperature)
    temperature, at_bound = best.temperature, False
    if not best.at_bound:
        temperature, at_bound = _softest(labelled, best.temperature, (1 + budget) * least)
    return BudgetTemperature(
        temperature=temperature,
        best=best,
        budget=float(budget),
        nll_best=least,
        nll_used=mean_nll(labelled, 1 / temperature),
        at_bound=at_bound,
    )


def _softest(labelled: Predictions, best: float, limit: float) -> tuple[float, bool]:
    """The largest T whose NLL is at most `limit`, and whether the search ended before it."""
    largest = 1 / search_bounds(labelled)[0]

    def excess(log_t: float) -> float:
        return mean_nll(labelled, math.exp(-log_t)) - limit

    if excess(math.log(largest)) <= 0:
        return largest, True
    if excess(math.log(best)) >= 0:  # no budget, or one too small for float64
        return best, False
    root = float(brentq(excess, math.log(best), math.log(largest), xtol=TOLERANCE / 2))
    return max(best, math.exp(root - TOLERANCE)), False  # on the side that keeps within the budget
