"""The headline of an evaluation: a table of eight metrics that fits into 80 columns."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from surefoot.evaluation.scores import GROUP_METRICS, Evaluation, Score, SetScores
from surefoot.metrics import Metric
from surefoot.predictions.labels import LabelKind
from surefoot.report.summary import BOUND_SHOWN, subject_of
from surefoot.report.tables import Column, Section, Table
from surefoot.text import number_text, signed_text

FLOOR = "ece_floor"
LONGEST_GROUP = 20  # letters of a group's name
BRACKETS = "Brackets: 95% interval."
PARENTHESES = "Parentheses: not significant, the 95% interval includes 0."
NOISE = "Noise floor: the ECE that a calibrated model has by chance."
CONFIDENT = "E99: the error among predictions with more than 99% confidence."
BINNED = "Streamed: some values are approximate."


@dataclass(frozen=True)
class Shown:
    """How a metric is shown: its title, and its numbers in percent or as they are."""

    title: str
    percent: bool = True
    complement: bool = False  # 1 minus the metric

    def of(self, score: Score) -> Score:
        """The score as it is shown."""
        return self._scaled(_one_minus(score) if self.complement else score)

    def of_difference(self, score: Score) -> Score:
        """A difference of two scores as it is shown."""
        return self._scaled(_negative(score) if self.complement else score)

    def decimals(self, value: float) -> int:
        """Three digits of a percentage."""
        return 3 if not self.percent else 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0

    def _scaled(self, score: Score) -> Score:
        factor = 100 if self.percent else 1
        return replace(score, value=factor * score.value, low=factor * score.low, high=factor * score.high)


HEADLINES = {  # titles of at most 20 letters, so that everything fits into 80 columns
    "label_error": Shown("Accuracy, %", complement=True),
    "signed_ece": Shown("Conf. - accuracy, %"),
    "nll": Shown("NLL", percent=False),
    "brier": Shown("Brier", percent=False),
    "ece": Shown("ECE, % (noise floor)"),
    "e99": Shown("E99, %"),
    "aurc": Shown("AURC, %"),
    "coverage_at_1": Shown("Coverage, 1% risk, %"),
}
PRECISION = Shown("Mean AP, %", complement=True)  # with many labels


def headline_tables(evaluation: Evaluation, requested: Iterable[str] = (), *, more: str = "") -> list[Table]:
    """The headline metrics, or those requested; then the worst groups, where there are groups.

    `more` says where the other metrics are.
    """
    names = set(requested) or set(HEADLINES)
    chosen = [metric for metric in evaluation.metrics if metric.name in names]
    chosen.sort(key=lambda metric: list(HEADLINES).index(metric.name) if metric.name in HEADLINES else 99)
    shown = {metric.name: _shown(metric, evaluation) for metric in chosen}
    columns, rows = (_before_and_after if evaluation.change else _as_given)(evaluation, shown)
    notes = [*_notes(evaluation, rows), *([more] if len(rows) < len(evaluation.metrics) else [])]
    table = Table(subject_of(evaluation), tuple(columns), (Section.of_text(None, rows),))
    tables = [replace(table, notes=(" ".join(notes),)) if notes else table]
    if any(scores.groups for scores in evaluation.sides.values()):
        tables.append(_worst_groups(evaluation, shown))
    return tables


def _shown(metric: Metric, evaluation: Evaluation) -> Shown:
    one = next(iter(evaluation.sides.values()))
    if metric.name == "label_error" and one.kind is LabelKind.MANY_LABELS:
        return PRECISION
    if metric.name == "ece" and FLOOR not in one.metrics:
        return Shown("ECE, %")
    if metric.name in HEADLINES:
        return HEADLINES[metric.name]
    share = metric.count is not None
    return Shown(f"{metric.title}, %" if share else metric.title, percent=share)


def _as_given(evaluation: Evaluation, shown: dict[str, Shown]) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("metric", align="left")]
    columns += [Column(f"n = {scores.n:,}", side, "left") for side, scores in evaluation.sides.items()]
    columns += [Column("difference")] if evaluation.gap else []
    rows = []
    for name, how in shown.items():
        cells = [_value(how, scores.metrics, name) for scores in evaluation.sides.values()]
        cells += [_difference(how, evaluation.gap[name])] if evaluation.gap else []
        rows.append([how.title, *cells])
    return columns, rows


def _before_and_after(
    evaluation: Evaluation, shown: dict[str, Shown]
) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("metric", align="left")]
    for side, scores in evaluation.sides.items():
        columns += [Column(name, f"{side}, n = {scores.n:,}") for name in ("before", "after", "change")]
    rows = []
    for name, how in shown.items():
        cells = []
        for side, change in evaluation.change.items():
            before, after = (s[side].metrics for s in (evaluation.uncalibrated, evaluation.sides))
            cells += [_number(how, before[name]), _number(how, after[name]) + _floor(how, after, name)]
            cells.append(_difference(how, change[name]))
        rows.append([how.title, *cells])
    return columns, rows


def _worst_groups(evaluation: Evaluation, shown: dict[str, Shown]) -> Table:
    def worst_text(scores: SetScores, name: str) -> str:
        worst = scores.worst(name)
        if worst is None:
            return "none"
        short = worst.group if len(worst.group) <= LONGEST_GROUP else f"{worst.group[: LONGEST_GROUP - 3]}..."
        return f"{_number(shown[name], worst.metrics[name])} in {short} (n = {worst.n:,})"

    sides = evaluation.sides.values()
    rows = [
        [how.title.partition(" (")[0], *(worst_text(scores, name) for scores in sides)]
        for name, how in shown.items()
        if name in GROUP_METRICS
    ]
    counts = (f"{side} ({len(scores.groups)} groups)" for side, scores in evaluation.sides.items())
    columns = (Column(name, align="left") for name in ("metric", *counts))
    return Table("Worst group", tuple(columns), (Section.of_text(None, rows),))


def _notes(evaluation: Evaluation, rows: list[list[str]]) -> list[str]:
    titles, texts = {row[0] for row in rows}, [text for row in rows for text in row[1:]]
    every = [score for scores in evaluation.sides.values() for score in scores.metrics.values()]
    applies = {
        BRACKETS: any("[" in text for text in texts),
        PARENTHESES: any(text.startswith("(") for text in texts),
        NOISE: HEADLINES["ece"].title in titles,
        CONFIDENT: HEADLINES["e99"].title in titles,
        BINNED: any(score.bound is not None and not score.bound <= BOUND_SHOWN for score in every),
    }
    return [note for note, holds in applies.items() if holds]


def _value(how: Shown, scores: Mapping[str, Score], name: str) -> str:
    """A number with its noise floor or its interval."""
    score, floor = how.of(scores[name]), _floor(how, scores, name)
    ends = [number_text(end, how.decimals(end)) for end in (score.low, score.high)]
    interval = "" if floor or math.isnan(score.low) else f"[{', '.join(ends)}]"
    return f"{_number(how, scores[name])}{floor} {interval}".rstrip()


def _number(how: Shown, score: Score) -> str:
    value = how.of(score).value
    return number_text(value, how.decimals(value), undefined="none")


def _floor(how: Shown, scores: Mapping[str, Score], name: str) -> str:
    return f" ({_number(how, scores[FLOOR])})" if name == "ece" and FLOOR in scores else ""


def _difference(how: Shown, score: Score) -> str:
    """With its sign; in parentheses where the interval includes 0."""
    value = how.of_difference(score).value
    text = signed_text(value, how.decimals(value), undefined="none")
    return f"({text})" if score.low <= 0 <= score.high else text


def _one_minus(score: Score) -> Score:
    return replace(score, value=1 - score.value, low=1 - score.high, high=1 - score.low)


def _negative(score: Score) -> Score:
    return replace(score, value=-score.value, low=-score.high, high=-score.low)
