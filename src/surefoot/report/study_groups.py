"""Per subgroup: the single network and the recommended method, with intervals."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from surefoot.metrics import metric_named
from surefoot.metrics.proper import CLIP
from surefoot.outcomes import Array, Index, Outcomes
from surefoot.predictions import Predictions
from surefoot.report.comparison_tables import DASH
from surefoot.results import TESTED, Result
from surefoot.runner import PartStudy
from surefoot.scoring import SIDES, Score, evaluate
from surefoot.statistics import LEVEL
from surefoot.tasks.base import Split

COUNTED = tuple(metric_named(name) for name in ("label_error", "e99"))


@dataclass(frozen=True)
class GroupRow:
    """One subgroup of one side: each method's scores by metric, in the order of the methods."""

    side: str
    group: str
    n: int
    scores: tuple[dict[str, Score], ...]


@dataclass(frozen=True)
class GroupTable:
    """The methods' titles and a row per subgroup, the highest NLL of the last method first."""

    titles: tuple[str, ...]
    rows: tuple[GroupRow, ...]


def group_table(part: PartStudy, recommended: str | None) -> GroupTable | None:
    """Subgroups under the first run of the single network and of the recommended method; None without any."""
    wanted = dict.fromkeys(("single", recommended))
    results = {result.method.name: result for result in part.results if result.runs}
    shown = [results[name] for name in wanted if name in results]
    if not shown:
        return None
    rows = [row for side in zip(SIDES, TESTED, strict=True) for row in _rows(*side, shown)]
    return GroupTable(tuple(result.method.title for result in shown), tuple(rows)) if rows else None


def _rows(side: str, split: Split, shown: Sequence[Result]) -> Iterator[GroupRow]:
    said = [result.runs[0].after.get(split) for result in shown]
    there = [predictions for predictions in said if predictions is not None]
    if len(there) < len(shown) or any(p.groups is None or not p.outcomes.total for p in there):
        return
    found = [_by_group(predictions) for predictions in there]
    groups = sorted(found[0], key=lambda group: -found[-1][group][1]["nll"].value)
    for group in groups:
        yield GroupRow(side, group, found[0][group][0], tuple(each[group][1] for each in found))


def _by_group(predictions: Predictions) -> dict[str, tuple[int, dict[str, Score]]]:
    """Rows and scores of each subgroup; proportions have exact intervals, the NLL has Student's."""
    assert predictions.groups is not None
    member_of = np.unique(predictions.groups, return_inverse=True)[1]
    parts = [part for part in predictions.outcomes.split_by(member_of) if part.total]
    scored = evaluate(predictions, metrics=COUNTED, resamples=0).sides["familiar"].groups
    return {
        group.group: (group.n, {"nll": nll_score(part), **group.metrics})
        for group, part in zip(scored, parts, strict=True)
    }


def nll_score(outcomes: Outcomes) -> Score:
    """The clipped NLL with Student's 95% interval over rows; a row's many labels count together."""
    losses = -np.clip(outcomes.log_p_true, *np.log(CLIP))
    return mean_score(losses, outcomes.row)


def mean_score(values: Array, row: Index) -> Score:
    """The mean of values that belong to rows, with an interval from the spread of the rows' sums."""
    _, place = np.unique(row, return_inverse=True)
    rows, mean = int(place.max()) + 1, float(values.mean())
    if rows < 2:
        return Score(mean)
    excess = np.bincount(place, values - mean)
    error = math.sqrt(rows / (rows - 1) * float(excess @ excess)) / len(values)
    reach = float(student.ppf((1 + LEVEL) / 2, rows - 1)) * error
    return Score(mean, max(0.0, mean - reach), mean + reach)


def value_text(score: Score) -> str:
    """The value, with k of n where it is a proportion; a dash where undefined."""
    if math.isnan(score.value):
        return DASH
    return f"{score.value:.3f}" if score.n is None else f"{score.k}/{score.n} = {score.value:.3f}"


def interval_text(score: Score) -> str:
    """The interval in brackets; nothing where there is none."""
    return "" if math.isnan(score.low) else f"[{score.low:.3f}, {score.high:.3f}]"
