"""What changed for one method between two experiments: before, after, and their difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from surefoot.comparison.bootstrap import Draw, resampled
from surefoot.comparison.compared import ENOUGH_RESAMPLES, compare
from surefoot.comparison.differences import difference
from surefoot.comparison.values import Cell, Difference, MethodRuns, Place, Said
from surefoot.defaults import RESAMPLES
from surefoot.metrics import Metric
from surefoot.outcomes import Array
from surefoot.predictions import Predictions
from surefoot.scoring import SIDES
from surefoot.statistics import few_samples_factor

BEFORE, AFTER = "before", "after"
ONE_SIDE = SIDES[0]  # a side by itself is compared as if it were the only one


Cells = Mapping[Place, Cell]


@dataclass(frozen=True)
class Change:
    """A method's metric on one side, in both experiments; the difference is after less before."""

    side: str
    metric: Metric
    before: float
    after: float
    difference: Difference
    runs: int  # that the means are over, of the one with more
    paired: bool  # the same samples: resampled together

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0


def changes(
    before: MethodRuns,
    after: MethodRuns,
    metrics: Sequence[Metric],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Change, ...]:
    """Every metric on each side that both have, over the runs that both have; one run stands against all."""
    found: list[Change] = []
    for index, side in enumerate(SIDES):
        pair = _shared(_one_side(before, BEFORE, side), _one_side(after, AFTER, side))
        if all(each.runs for each in pair):
            found += _on_side(side, *pair, metrics, resamples, [seed, index])
    return tuple(found)


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Whether both are of the same samples in the same order, as far as labels and names tell."""
    if one.kind is not other.kind or not torch.equal(one.labels, other.labels):
        return False
    return one.ids is None or other.ids is None or np.array_equal(one.ids, other.ids)


def _on_side(
    side: str,
    before: MethodRuns,
    after: MethodRuns,
    metrics: Sequence[Metric],
    resamples: int,
    seed: list[int],
) -> list[Change]:
    first = before.runs[0].familiar
    paired = all(same_rows(first, said.familiar) for each in (before, after) for said in each.runs)
    if paired:
        together = compare([before, after], metrics, resamples=resamples, seed=seed[1], baseline=BEFORE)
        old, new = (together.method(name).cells for name in (BEFORE, AFTER))
        gaps = [new[ONE_SIDE, metric.name].from_baseline for metric in metrics]
    else:
        old, new = (compare([each], metrics, resamples=0).methods[0].cells for each in (before, after))
        gaps = _unpaired(before, after, (old, new), metrics, resamples, seed)
    runs = max(len(before.runs), len(after.runs))
    found = []
    for metric, gap in zip(metrics, gaps, strict=True):
        ours, theirs = (cells[ONE_SIDE, metric.name].mean for cells in (old, new))
        found.append(Change(side, metric, ours, theirs, gap or Difference(theirs - ours), runs, paired))
    return found


def _unpaired(
    before: MethodRuns,
    after: MethodRuns,
    cells: tuple[Cells, Cells],
    metrics: Sequence[Metric],
    resamples: int,
    seed: list[int],
) -> list[Difference | None]:
    """Other samples before than after: each is resampled by itself."""
    if not resamples:
        return [None] * len(metrics)
    spread: dict[tuple[str, int], Array] = {}
    factors = []
    for index, method in enumerate((before, after)):
        first = method.runs[0].familiar
        rng = np.random.default_rng([*seed, index])
        draw = Draw.of(first.n, first.groups, resamples=resamples, rng=rng)
        factors.append(few_samples_factor(len(np.unique(draw.unit_of[first.outcomes.row]))))
        for said in method.runs:
            slow = min(resamples, ENOUGH_RESAMPLES)
            drawn = resampled(said.familiar.outcomes, metrics, draw, slow_resamples=slow)
            spread[method.name, said.run] = drawn
    return [
        difference(
            {name: of[ONE_SIDE, metric.name] for name, of in zip((BEFORE, AFTER), cells, strict=True)},
            AFTER,
            BEFORE,
            {key: drawn[index] for key, drawn in spread.items()},
            max(factors),
            paired=False,
        )
        for index, metric in enumerate(metrics)
    ]


def _one_side(method: MethodRuns, name: str, side: str) -> MethodRuns:
    """A method under another name, with one side alone."""
    said = [(each.run, each.side(side)) for each in method.runs]
    runs = tuple(Said(run, predictions) for run, predictions in said if predictions is not None)
    return replace(method, name=name, runs=runs, spread_of=None)


def _shared(before: MethodRuns, after: MethodRuns) -> tuple[MethodRuns, MethodRuns]:
    """The runs that both have; one run stands against every run of the other."""
    if 1 in (len(before.runs), len(after.runs)):
        return before, after
    shared = {said.run for said in before.runs} & {said.run for said in after.runs}
    ours, theirs = (tuple(said for said in each.runs if said.run in shared) for each in (before, after))
    return replace(before, runs=ours), replace(after, runs=theirs)
