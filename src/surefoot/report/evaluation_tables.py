"""An evaluation as tables (every metric, or the eight of the headline), as rows, and as a verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from surefoot.evaluation.scores import GROUP_METRICS, Evaluation, GroupScores, Score, SetScores
from surefoot.metrics import Metric
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.zeros import LOG_ZERO
from surefoot.report.tables import Column, Section, Table, rows_csv
from surefoot.text import (
    count_of,
    interval_text,
    number_text,
    percent_range,
    signed_interval_text,
    signed_text,
)

BOUND_SHOWN = 1e-4  # a streamed value that may be off by more than this says so
FEW_GROUPS = 20
ALLOWED = 0.01  # errors among predictions of more than 99% confidence, if calibrated
FLOOR = "ece_floor"
LONGEST_GROUP = 20  # letters of a group's name
BRACKETS = "Brackets: 95% interval."
PARENTHESES = "Parentheses: not significant, the 95% interval includes 0."
NOISE = "Noise floor: the ECE that a calibrated model has by chance."
CONFIDENT = "E99: the error among predictions with more than 99% confidence."
BINNED = "Streamed: some values are approximate."


@dataclass(frozen=True, eq=False)
class Summary:
    """An evaluation with its tables and its verdict, made once for terminal, page and JSON."""

    evaluation: Evaluation

    @cached_property
    def tables(self) -> list[Table]:
        """Every metric; then the worst groups, where there are any."""
        return evaluation_tables(self.evaluation)

    @cached_property
    def verdict(self) -> list[str]:
        """What they mean, in sentences."""
        return evaluation_verdict(self.evaluation)


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Every metric, with a calibration before and after it; then the worst groups, where there are any."""
    tables = [(_calibrated_table if evaluation.change else _main_table)(evaluation)]
    if any(scores.groups for scores in evaluation.sides.values()):
        tables.append(_worst_table(evaluation))
    return tables


def score_text(score: Score) -> str:
    """Value, interval, and k of n: `0.0840 [0.0711, 0.0985] 171/2034`; if streamed also the error bound.

    >>> score_text(Score(0.5, 0.25, 0.75, k=2, n=4))
    '0.5000 [0.2500, 0.7500] 2/4'
    >>> score_text(Score(0.5, bound=0.0004))
    '0.5000 (binned, ± 0.0004)'
    """
    if math.isnan(score.value):
        return "undefined (n = 0)" if score.n == 0 else "undefined"
    parts = [number_text(score.value), interval_text(score.low, score.high)]
    if score.n is not None:
        parts.append(f"{score.k}/{score.n}")
    if score.bound is not None and not score.bound <= BOUND_SHOWN:
        parts.append("(binned)" if math.isnan(score.bound) else f"(binned, ± {score.bound:.1g})")
    return " ".join(filter(None, parts))


def difference_text(score: Score) -> str:
    """A difference and its interval, with signs: `-0.0123 [-0.0200, -0.0046]`."""
    value = signed_text(score.value, undefined="undefined")
    return f"{value} {signed_interval_text(score.low, score.high)}".strip()


def subject_of(evaluation: Evaluation) -> str:
    """What was evaluated, as the title of a table."""
    one = next(iter(evaluation.sides.values()))
    kind = "one label" if one.kind is LabelKind.ONE_LABEL else "many labels"
    members = "" if one.members == 1 else f", mean of {one.members} members"
    what = "Before and after calibration" if evaluation.change else "Predictions as given"
    return f"{what}: {kind}, {one.classes} classes{members}"


def _main_table(evaluation: Evaluation) -> Table:
    """A row per metric: the value on each side, and the gap."""
    sides = evaluation.sides
    header = ["metric", *(f"{side} (n = {scores.n:,})" for side, scores in sides.items())]
    header += ["gap"] if evaluation.gap else []
    rows = []
    for metric in evaluation.metrics:
        row = [metric.title, *(score_text(scores.metrics[metric.name]) for scores in sides.values())]
        rows.append([*row, difference_text(evaluation.gap[metric.name])] if evaluation.gap else row)
    return Table.of_text(subject_of(evaluation), header, rows)


def _calibrated_table(evaluation: Evaluation) -> Table:
    """A section per side with a row per metric: before, after and the change; then the gap."""
    sections = []
    for side, scores in evaluation.sides.items():
        rows = []
        for metric in evaluation.metrics:
            before = evaluation.uncalibrated[side].metrics[metric.name].value
            after, change = scores.metrics[metric.name], evaluation.change[side][metric.name]
            before_text = number_text(before, undefined="undefined")
            rows.append((metric.title, before_text, score_text(after), difference_text(change)))
        sections.append(Section.of_text(f"{side} (n = {scores.n:,})", rows))
    if evaluation.gap:
        gaps = [(m.title, "", difference_text(evaluation.gap[m.name]), "") for m in evaluation.metrics]
        sections.append(Section.of_text("unfamiliar minus familiar", gaps))
    columns = (Column("metric", align="left"), *map(Column, ("before", "after", "change")))
    return Table(subject_of(evaluation), columns, tuple(sections))


def _worst_table(evaluation: Evaluation) -> Table:
    def worst_text(worst: GroupScores | None, name: str) -> str:
        if worst is None:
            return "none"
        return f"{score_text(worst.metrics[name])} in {worst.group} (n = {worst.n})"

    counts = (f"{side} ({len(scores.groups)} groups)" for side, scores in evaluation.sides.items())
    rows = [
        [m.title, *(worst_text(scores.worst(m.name), m.name) for scores in evaluation.sides.values())]
        for m in evaluation.metrics
        if m.name in GROUP_METRICS
    ]
    return Table.of_text("Worst group", ("metric", *counts), rows)


def score_rows(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Long and numeric: a row per metric and part."""
    parts: dict[str, Mapping[str, Score]] = {s: scores.metrics for s, scores in evaluation.sides.items()}
    parts |= {"gap": evaluation.gap} if evaluation.gap else {}
    parts |= {f"{side} uncalibrated": scores.metrics for side, scores in evaluation.uncalibrated.items()}
    parts |= {f"{side} change": scores for side, scores in evaluation.change.items()}
    for metric in evaluation.metrics:
        for part, scores in parts.items():
            score = scores[metric.name]
            numbers = {"value": score.value, "low": score.low, "high": score.high, "k": score.k, "n": score.n}
            yield {"metric": metric.name, "part": part, **numbers}


def evaluation_csv(evaluation: Evaluation) -> str:
    """The rows in full precision, empty where undefined."""
    return rows_csv(("metric", "part", "value", "low", "high", "k", "n"), score_rows(evaluation))


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


def evaluation_verdict(evaluation: Evaluation) -> list[str]:
    """A sentence per side, one on confident errors, one on the effect of calibration; then warnings."""
    sentences = [_side_sentence(side, scores) for side, scores in evaluation.sides.items()]
    if "unfamiliar" in evaluation.sides:
        sentences.append(_confident_sentence("unfamiliar", evaluation.sides["unfamiliar"]))
    if evaluation.change:
        sentences.append(_calibration_sentence(evaluation))
    sentences.append(_few_groups_sentence(evaluation))
    as_given = evaluation.uncalibrated or evaluation.sides
    sentences += [_zeros_sentence(side, scores) for side, scores in as_given.items() if scores.zeros]
    for side, predictions in evaluation.predictions.items():
        from surefoot.calibrators.advice import probabilities_remark

        remark = probabilities_remark(predictions)
        sentences.append("" if remark is None else f"On {side} data {remark}.")
    return [sentence for sentence in sentences if sentence]


def _side_sentence(side: str, scores: SetScores) -> str:
    error, signed = scores.metrics.get("label_error"), scores.metrics.get("signed_ece")
    if error is None or signed is None or math.isnan(error.value):
        return ""
    mistakes = (
        f"is wrong {error.value:.1%} of the time"
        if error.n is not None
        else f"has a mean average precision of {1 - error.value:.3f}"
    )
    points = 100 * abs(signed.value)
    if signed.low <= 0 <= signed.high or points < 0.05:
        confidence = "its mean confidence does not differ significantly from its accuracy"
    else:
        direction = "too high" if signed.value > 0 else "too low"
        confidence = f"its confidence is {points:.1f} points {direction} on average"
    return f"On {side} data the model {mistakes} and {confidence}."


def _confident_sentence(side: str, scores: SetScores) -> str:
    e99 = scores.metrics.get("e99")
    if e99 is None or e99.k is None or not e99.n:
        return ""
    if e99.low > ALLOWED:
        comparison = "above"
    elif e99.high < ALLOWED:
        comparison = "below"
    else:
        comparison = "not significantly different from"
    wrong = count_of(e99.k, "is wrong", "are wrong")
    return (
        f"Of {count_of(e99.n, f'{side} prediction')} with more than 99% confidence, {wrong} "
        f"({e99.value:.1%}, 95% interval {percent_range(e99.low, e99.high)}): {comparison} "
        "the limit of 1% for a calibrated model."
    )


def _calibration_sentence(evaluation: Evaluation) -> str:
    parts = []
    for side, change in evaluation.change.items():
        if "nll" not in change:
            return ""
        before, after = (s[side].metrics["nll"].value for s in (evaluation.uncalibrated, evaluation.sides))
        # No note where the interval is undefined: comparisons with NaN are false.
        noise = " (not significant)" if change["nll"].low <= 0 <= change["nll"].high else ""
        parts.append(f"{side} NLL from {before:.3f} to {after:.3f}{noise}")
    return f"Calibration changed {' and '.join(parts)}."


def _zeros_sentence(side: str, scores: SetScores) -> str:
    """What probabilities of exactly 0 do to the NLL."""
    of_nll = ""
    if scores.kind is LabelKind.ONE_LABEL and "nll_unclipped" in scores.metrics:
        nll = scores.metrics["nll_unclipped"].value
        of_nll = f", {-LOG_ZERO * scores.zeros / scores.n:.3g} of the unclipped NLL of {nll:.3g}"
    labels = count_of(scores.zeros, f"{side} label has", f"{side} labels have")
    return f"{labels} a probability of exactly 0: each counts as {-LOG_ZERO:.1f}{of_nll}."


def _few_groups_sentence(evaluation: Evaluation) -> str:
    few = [
        count_of(scores.independent, f"{side} group")
        for side, scores in evaluation.sides.items()
        if scores.groups and scores.independent < FEW_GROUPS
    ]
    if not few:
        return ""
    return (
        f"The intervals are rough, because there are only {' and '.join(few)}; from one group alone there is "
        "no interval."
    )
