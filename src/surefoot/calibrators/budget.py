"""Risk-budget temperature: as soft as a stated loss on familiar data allows."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import brentq

from surefoot.calibrators.scale import mean_nll, search_bounds
from surefoot.calibrators.temperature import (
    Evidence,
    Numbers,
    Temperature,
    TemperatureModule,
    check_fits,
    fit_temperature,
    only_labelled,
)
from surefoot.errors import InputError
from surefoot.kinds import LabelKind
from surefoot.predictions import Predictions

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
