"""Ensembles of 1 to M of the same members: what each further network is worth, at no further training."""

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.metrics import Metric
from surefoot.predictions import Predictions
from surefoot.results import Run


@dataclass(frozen=True)
class SizeScores:
    """An ensemble of the first so many members: each metric's value on each side."""

    members: int
    values: dict[tuple[str, str], float]  # by side and metric


def by_size(run: Run, metrics: Sequence[Metric]) -> list[SizeScores]:
    """One run of an ensemble whose members are calibrated each by itself, or not at all; by growing size."""
    sides = {str(split).removeprefix("test_"): said for split, said in run.after.items()}
    largest = next(iter(sides.values())).members
    return [
        SizeScores(
            size,
            {
                (side, metric.name): metric.function(_first(said, size))
                for side, said in sides.items()
                for metric in metrics
            },
        )
        for size in range(1, largest + 1)
    ]


def _first(predictions: Predictions, members: int) -> Predictions:
    return predictions.with_logits(predictions.logits[:members])
