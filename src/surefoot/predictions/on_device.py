"""The facts of decisions in the memory of a GPU: what metrics reduce to a few numbers is reduced there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.predictions.outcomes import Array, Curve, Ranking


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """One label per row: the facts of `Outcomes`, as tensors."""

    facts: Tensor  # (4, decisions) float64: log p(true), confidence, squared error, entropy
    correct: Tensor  # (decisions,) bool

    @cached_property
    def log_p_true(self) -> Tensor:
        return self.facts[0]

    @cached_property
    def confidence(self) -> Tensor:
        return self.facts[1]

    @cached_property
    def squared_error(self) -> Tensor:
        return self.facts[2]

    @cached_property
    def entropy(self) -> Tensor:
        return self.facts[3]

    def take(self, rows: Tensor) -> "DeviceFacts":
        """The named decisions."""
        return DeviceFacts(self.facts[:, rows], self.correct[rows])

    def sums_of(self, *parts: Callable[[Any], Any]) -> list[float]:
        """The sums of functions of the facts over all decisions."""
        values = [part(self) for part in parts]
        facts = (self.log_p_true, self.confidence, self.squared_error, self.entropy)
        for number, fact in enumerate(facts):
            if len(values) == 1 and values[0] is fact:
                return [self._sums[number]]
        sums: list[float] = torch.stack([each.sum(dtype=torch.float64) for each in values]).tolist()
        return sums

    @cached_property
    def _sums(self) -> list[float]:
        """Of all facts: waiting for a sum takes longer than adding up."""
        sums: list[float] = self.facts.sum(dim=1).tolist()
        return sums

    def ranking(self) -> Ranking:
        """Decisions from the most confident to the least."""
        doubts, order = self._ranked
        ends = torch.nonzero(torch.diff(doubts, append=doubts.new_ones(1)))  # -confidence is never 1
        return Ranking(on_host(order), on_host(ends.squeeze(1)))

    def curve_at(self, edges: Array) -> Curve:
        """A curve that is exact at these numbers of the most confident decisions, and for the ties there."""
        doubts, order = self._ranked
        last = np.clip(edges[1:-1] - 1, 0, None).astype(np.int64)  # the decision before each edge
        at_edges = doubts[torch.from_numpy(last).to(doubts.device, non_blocking=True)]
        ties = [torch.searchsorted(doubts, at_edges, right=right) for right in (False, True)]
        knots = torch.cat([*ties, ties[0].new_full((1,), len(order))])
        # Of one dimension at a time: a GPU adds up each row of a matrix in a single block.
        sums = [(~self.correct)[order].cumsum(0), doubts.neg().cumsum(0)]
        before = (knots - 1).clamp(min=0)
        at_knots = torch.stack([torch.where(knots > 0, each[before].to(torch.float64), 0.0) for each in sums])
        mass, errors, confidence = torch.cat([knots.unsqueeze(0), at_knots]).cpu().numpy()
        mass, first = np.unique(np.append(0.0, mass), return_index=True)
        return Curve(mass, np.append(0.0, errors)[first], np.append(0.0, confidence)[first])

    @cached_property
    def _ranked(self) -> tuple[Tensor, Tensor]:
        """-confidence in ascending order, and the decisions in this order."""
        doubts, order = self.confidence.neg().sort()
        return doubts, order


def on_host(values: Tensor) -> NDArray[Any]:
    """A copy from a GPU, into locked memory: into other memory it takes forty times as long."""
    if values.device.type == "cpu":
        return np.asarray(values.numpy())
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    return np.asarray(copy.numpy())
