"""Risk-budget temperature: the largest T whose NLL on familiar data stays within a limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from surefoot.calibrators.calibration import (
    OF_DATA,
    Calibration,
    data_facts,
    for_any_data,
    require_numbers,
)
from surefoot.calibrators.declaration import Calibrator, Option, Share
from surefoot.calibrators.search import mean_nll, search_bounds
from surefoot.calibrators.temperature import SingleTemperature, Temperature, fit_temperature, only_labelled
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

TOLERANCE = 1e-9  # of log T
SURPLUS = "surplus"  # a budget: what a network gained on a plain one
BUDGET = Share(
    "budget",
    float,
    0.02,
    "how far the NLL may rise above its minimum, e.g. 5% or 0.05; or surplus: up to the minimum NLL of the "
    "reference",
    low=0,
    words=(SURPLUS,),
    shown_default="2%",
)
REFERENCE = Option("reference", Path, None, "the plain model's predictions of the same rows, for a surplus")


@dataclass(frozen=True, kw_only=True)
class BudgetTemperature(SingleTemperature):
    """A T above the one with the lowest NLL."""

    kind: ClassVar[str] = "budget"

    best: Temperature  # the one with the lowest NLL
    budget: float | str  # the share by which the NLL may rise, or "surplus"
    nll_best: float  # unclipped, on the validation data
    nll_used: float
    nll_limit: float | None = None  # for "surplus": the reference's lowest NLL
    at_bound: bool = False  # the budget allows any T: the end of the search was taken

    def __post_init__(self) -> None:
        super().__post_init__()
        has_limit = self.nll_limit is not None
        if has_limit != (self.budget == SURPLUS):
            which = "with" if has_limit else "without"
            allowed = f"allowed: {SURPLUS!r} with one, a number without"
            raise InputError(f"budget is {self.budget!r} {which} an nll_limit; {allowed}")
        limit = {} if self.nll_limit is None else {"nll_limit": self.nll_limit}
        for name, nll in ({"nll_best": self.nll_best, "nll_used": self.nll_used} | limit).items():
            require_numbers(name, [nll], least=0)
        if self.budget != SURPLUS:
            require_numbers("budget", [float(self.budget)], least=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the facts are those of the best T; without `nll_limit` where there is none."""
        values = super().to_dict()
        left_out = OF_DATA if self.nll_limit is not None else (*OF_DATA, "nll_limit")
        return {name: value for name, value in values.items() if name not in left_out}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """From plain values."""
        return super().from_dict({**{name: document["best"][name] for name in OF_DATA}, **document})

    def details(self) -> dict[str, float]:
        """The best T, and for "surplus" the NLL of both models at their best T."""
        best = {"lowest NLL at T =": self.best.temperature}
        if self.nll_limit is None:
            return best
        return best | {"lowest NLL:": self.nll_best, "reference's lowest NLL:": self.nll_limit}

    def lines(self) -> list[str]:
        """The T that is used, then the best one."""
        used = f"T = {self.temperature:.5g}, NLL {self.nll_used:.5g}: {self._rule}"
        return [used, *(f"lowest NLL {self.nll_best:.5g} at {line}" for line in self.best.lines())]

    @property
    def _rule(self) -> str:
        """What the NLL is held to, in words."""
        if self.nll_limit is None:
            return f"at most {100 * float(self.budget):.3g}% above the lowest"
        if self._nothing_to_spend:
            return f"the lowest, not below the reference's lowest, {self.nll_limit:.5g}"
        return f"at most the reference's least, {self.nll_limit:.5g}"

    @property
    def _nothing_to_spend(self) -> bool:
        return self.nll_limit is not None and self.nll_best >= self.nll_limit

    def cautious(self) -> Calibration:
        """T = 1 where the interval of the best T spans orders of magnitude."""
        if not self.best.is_unknown or self.best.flat:
            return self
        return replace(self.best, class_names=self.class_names).cautious()

    def remarks(self) -> list[str]:
        """Warnings about the budget and about the best T."""
        return [*self._budget_remarks(), *(f"best T: {remark}" for remark in self.best.remarks())]

    def _budget_remarks(self) -> list[str]:
        """At most one warning about the budget."""
        if self._nothing_to_spend:
            return [
                f"the lowest NLL, {self.nll_best:.5g}, is not below the reference's, {self.nll_limit:.5g}: "
                "there is no surplus, so the T with the lowest NLL is used"
            ]
        if self.nll_limit is None and self.best.at_bound:
            return ["there is no best T to start from, so the fitted T is used without a budget"]
        if not self.at_bound:
            return []
        ends = f"T = {self.temperature:.3g} is only the end of the search range"
        if self.nll_limit is None:
            share = f"{100 * float(self.budget):.3g}%"
            return [f"any T, however large, is within the budget of {share}: {ends}; take a smaller budget"]
        return [
            f"any T, however large, has an NLL of at most the reference's: {ends}; "
            "check that the reference is a trained model"
        ]


@for_any_data
def fit_budget_temperature(
    val: "Predictions", budget: float | str = BUDGET.default, *, reference: "Predictions | None" = None
) -> BudgetTemperature:
    """The largest T whose NLL on `val` is within the budget, exact to 1e-6.

    T = max {T : NLL(z / T) <= limit}, NLL unclipped, members averaged first. The limit is
    (1 + budget) min_T NLL(z / T), or with the budget "surplus" min_T NLL(r / T), r being the logits of
    `reference`: the plain model's predictions of the same rows. So a better model spends its advantage on
    a higher T; without an advantage, the T with the lowest NLL is used.

    The NLL is convex in 1/T, so above the best T it only rises and there is one such T. If all logits of each
    row are equal, or the budget is a share of an NLL that has no minimum (all labels predicted correctly),
    the T of `fit_temperature` is taken.

    >>> from surefoot import Predictions
    >>> fitted = fit_budget_temperature(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1]))
    >>> round(fitted.best.temperature, 4), round(fitted.temperature, 4)
    (3.641, 5.2539)
    >>> labels = [0, 0, 0, 0, 0, 0, 0, 1]
    >>> plain = Predictions.from_logits([[4.0, 0.0]] * 6 + [[0.0, 4.0], [4.0, 0.0]], labels)  # 6 of 8 correct
    >>> better = Predictions.from_logits([[4.0, 0.0]] * 8, labels)  # 7 of 8
    >>> fit_budget_temperature(better, "surplus", reference=plain).temperature
    9.93877...
    """
    _check(val, budget, reference)
    labelled = only_labelled(val).average()
    best = fit_temperature(labelled)
    least = mean_nll(labelled, 1 / best.temperature)
    nll_limit = None if reference is None else _least_nll(only_labelled(reference).average())
    if nll_limit is None:
        limit, can_spend = (1 + float(budget)) * least, not best.at_bound
    else:
        limit, can_spend = nll_limit, least < nll_limit and not best.flat
    temperature, at_bound = best.temperature, False
    if can_spend:
        temperature, at_bound = _largest_within(labelled, best.temperature, limit)
    return BudgetTemperature(
        temperature=temperature,
        best=best,
        budget=SURPLUS if isinstance(budget, str) else float(budget),
        nll_best=least,
        nll_used=mean_nll(labelled, 1 / temperature),
        nll_limit=nll_limit,
        at_bound=at_bound,
        **data_facts(labelled),
    )


def _check(val: "Predictions", budget: float | str, reference: "Predictions | None") -> None:
    """Refuse a wrong budget, and a reference that is missing, not needed, or of other rows."""
    BUDGET.check(budget)
    if reference is None:
        if budget == SURPLUS:
            raise InputError(
                "budget is 'surplus' without a reference; "
                "needed: the plain model's predictions of the same validation rows"
            )
        return
    if budget != SURPLUS:
        raise InputError(f"a reference is given and budget is {budget!r}; allowed: only with {SURPLUS!r}")
    for attribute in ("kind", "classes", "n", "class_names"):
        ours, theirs = getattr(val, attribute), getattr(reference, attribute)
        if ours != theirs and None not in (ours, theirs):
            name = {"n": "rows", "kind": "labels"}.get(attribute, attribute.replace("_", " "))
            raise InputError(
                f"{name} are {theirs} in the reference, {ours} in the predictions; must be equal"
            )
    ids = (val.ids, reference.ids)
    for name, ours, theirs in (("ids", *ids), ("labels", val.labels, reference.labels)):
        if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
            raise InputError(
                f"the reference has other {name} than the predictions; "
                "needed: the same rows in the same order"
            )


def _least_nll(labelled: "Predictions") -> float:
    return mean_nll(labelled, 1 / fit_temperature(labelled).temperature)


def _largest_within(labelled: "Predictions", best: float, limit: float) -> tuple[float, bool]:
    """The largest T whose NLL is at most `limit`, and whether the search ended before it."""
    from scipy.optimize import brentq

    largest = 1 / search_bounds(labelled)[0]

    def excess(log_t: float) -> float:
        return mean_nll(labelled, math.exp(-log_t)) - limit

    if excess(math.log(largest)) <= 0:
        return largest, True
    if excess(math.log(best)) >= 0:  # no budget, or one too small for float64
        return best, False
    root = float(brentq(excess, math.log(best), math.log(largest), xtol=TOLERANCE / 2))
    return max(best, math.exp(root - TOLERANCE)), False  # on the side that is within the budget


BUDGET_TEMPERATURE = Calibrator(
    "budget", "Risk-budget temperature", "largest T with NLL(z / T) <= (1 + budget) min NLL",
    "this package", kind=BudgetTemperature.kind, fit=fit_budget_temperature,
    read=BudgetTemperature.from_dict, options=(BUDGET, REFERENCE)
)  # fmt: skip
