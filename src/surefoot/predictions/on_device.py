"""The facts of decisions in the memory of a GPU: what metrics reduce to a few numbers is reduced there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.predictions.outcomes import ONE, Array, Curve, Ranking
from surefoot.predictions.parts import Part, name_of


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """One label per row: the facts of `Outcomes`, as tensors."""

    facts: Tensor  # (4, decisions) float64: log p(true), confidence, squared error, entropy
    correct: Tensor  # (decisions,) bool
    keys: Tensor  # (decisions,) int64: twice the doubt in units of the last decimal, plus 1 where it is wrong
    sums: dict[object, float] = field(default_factory=dict)  # of all decisions, where they are known

    @staticmethod
    def of(facts: Tensor, correct: Tensor) -> "DeviceFacts":
        doubts = ((1 - facts[1]) * ONE).round().to(torch.int64)
        return DeviceFacts(facts, correct, 2 * doubts + ~correct)

    @property
    def log_p_true(self) -> Tensor:
        return self.facts[0]

    @property
    def confidence(self) -> Tensor:
        return self.facts[1]

    @property
    def squared_error(self) -> Tensor:
        return self.facts[2]

    @property
    def entropy(self) -> Tensor:
        return self.facts[3]

    def take(self, rows: Tensor) -> "DeviceFacts":
        """The named decisions."""
        return DeviceFacts(self.facts[:, rows], self.correct[rows], self.keys[rows])

    def sums_of(self, *parts: Part) -> list[float]:
        """The sums of functions of the facts over all decisions."""
        names = [name_of(part) for part in parts]
        if self.sums.keys() >= set(names):
            return [self.sums[name] for name in names]
        sums: list[float] = torch.stack([part(self).sum(dtype=torch.float64) for part in parts]).tolist()
        return sums

    def ranking(self) -> Ranking:
        """Decisions from the most confident to the least."""
        keys, order = self.ranked
        ends = torch.nonzero(torch.diff(keys >> 1, append=keys.new_full((1,), -1)))
        return Ranking(on_host(order), on_host(ends.squeeze(1)))

    def curve_at(self, edges: Array) -> Curve:
        """A curve that is exact at these numbers of the most confident decisions, and for the ties there."""
        last = np.clip(edges[1:] - 1, 0, None).astype(np.int64)  # the decision before each edge
        places = torch.from_numpy(last).to(self.keys.device, non_blocking=True)
        keys, _ = self.ranked
        at_knots = (_kernel() if keys.is_cuda else _sums_below)(keys, places).cpu().numpy().reshape(3, -1)
        mass, first = np.unique(np.append(0.0, at_knots[0]), return_index=True)  # nothing comes before 0
        errors, doubt = (np.append(0.0, each)[first] for each in at_knots[1:])
        return Curve(mass, errors, mass - doubt / ONE)

    @cached_property
    def ranked(self) -> tuple[Tensor, Tensor]:
        """The keys in ascending order, and the decisions in this order; nobody waits for a GPU to do it."""
        keys, order = self.keys.sort()
        return keys, order


def _kernel() -> Callable[[Tensor, Tensor], Tensor]:
    """The sums in one kernel, where there is Triton; it is imported for a GPU only."""
    from surefoot.predictions import fused

    return fused.sums_below if fused.IS_AVAILABLE else _sums_below


def _sums_below(keys: Tensor, places: Tensor) -> Tensor:
    """As `sums_below` of `fused`, operation by operation."""
    ties = keys[places] & -2
    knots = torch.searchsorted(keys, torch.stack([ties, ties + 2]))
    before = (knots - 1).clamp(min=0)
    # Of one dimension at a time: a GPU adds up each row of a matrix in a single block.
    sums = (keys & 1).cumsum(0), (keys >> 1).cumsum(0, dtype=torch.float64)
    return torch.stack([knots, *(torch.where(knots > 0, each[before], 0) for each in sums)])


def on_host(values: Tensor) -> NDArray[Any]:
    """A copy from a GPU, into locked memory: into other memory it takes forty times as long."""
    return started_copy(values)()


def started_copy(values: Tensor) -> Callable[[], NDArray[Any]]:
    """Start such a copy; the function that is returned waits for it, and not for what the GPU does after."""
    if values.device.type == "cpu":
        return lambda: np.asarray(values.numpy())
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
    is_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_done.record(torch.cuda.current_stream(values.device))

    def wait() -> NDArray[Any]:
        is_done.synchronize()
        return np.asarray(copy.numpy())

    return wait
