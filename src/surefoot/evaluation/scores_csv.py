"""`scores.csv`: one line per method, run, side and metric, from which the tables can be rebuilt."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from surefoot.errors import InputError
from surefoot.evaluation.compare import BASELINE, Values, tabulate
from surefoot.evaluation.comparison import Comparison, MethodRuns, Place, RunScore
from surefoot.evaluation.scores import SIDES
from surefoot.intervals import NAN
from surefoot.metrics import METRICS, Metric
from surefoot.text import csv_text, exact_text

HEADER = ("method", "run", "side", "metric", "value", "k", "n")


def scores_text(comparison: Comparison) -> str:
    """Every run's values in full precision; empty where undefined."""
    lines = []
    for method in comparison.methods:
        for (side, metric), cell in method.cells.items():
            for score in cell.runs:
                numbers = (exact_text(score.value), exact_text(score.k), exact_text(score.n))
                lines.append((method.name, score.run, side, metric, *numbers))
    return csv_text(HEADER, lines)


def read_scores(path: str | Path) -> dict[str, dict[Place, list[RunScore]]]:
    """The scores by method, then by side and metric."""
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""))
    header = tuple(next(lines, ()))
    if header != HEADER:
        raise InputError(f"{path} begins with {','.join(header)[:80]!r}; needed: {','.join(HEADER)}")
    scores: dict[str, dict[Place, list[RunScore]]] = {}
    seen = set()
    for line in lines:
        try:
            method, place, score = _parsed(line)
        except ValueError as error:
            raise InputError(f"{path}, line {lines.line_num}: {error}") from error
        if (method, place, score.run) in seen:
            what = f"run {score.run} of {method!r}, {' '.join(place)}"
            raise InputError(f"{path}, line {lines.line_num}: {what} is given twice; allowed: once")
        seen.add((method, place, score.run))
        scores.setdefault(method, {}).setdefault(place, []).append(score)
    return scores


def comparison_from_scores(
    values: Values,
    about: Sequence[MethodRuns] = (),
    metrics: Sequence[Metric] | None = None,
    *,
    baseline: str = BASELINE,
) -> Comparison:
    """The comparison from its scores, without the bootstrap, which needs the predictions.

    `about` describes the methods, in the order of the rows; of any other method only the name is known.
    """
    known = [method.name for method in about]
    methods = [*about, *(MethodRuns(name, name) for name in values if name not in known)]
    places = {place for of_method in values.values() for place in of_method}
    scores = {method.name: values.get(method.name, {}) for method in methods}
    sides = [side for side in SIDES if side in {side for side, _ in places}]
    if metrics is None:
        named = [METRICS.named(name) for name in sorted({name for _, name in places})]
        metrics = [metric for metric in METRICS if metric in named]
    return tabulate(methods, metrics, sides, scores, baseline=baseline)


def _parsed(line: Sequence[str]) -> tuple[str, Place, RunScore]:
    if len(line) != len(HEADER):
        raise ValueError(f"{len(line)} values; needed: {len(HEADER)}")
    method, run, side, metric, value, k, n = line
    if side not in SIDES:
        raise ValueError(f"side {side!r}; allowed: {', '.join(SIDES)}")
    counts = (int(k) if k else None, int(n) if n else None)
    return method, (side, metric), RunScore(int(run), float(value) if value else NAN, *counts)
