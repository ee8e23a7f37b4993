"""An evaluation as tables, as CSV, and as a verdict in a few sentences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.evaluation.scores import GROUP_METRICS, Evaluation, GroupScores, Score, SetScores
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.zeros import LOG_ZERO
from surefoot.report.tables import Column, Section, Table
from surefoot.text import (
    count_of,
    csv_text,
    exact_text,
    interval_text,
    number_text,
    percent_range,
    signed_interval_text,
    signed_text,
)

BOUND_SHOWN = 1e-4  # a streamed value that may be off by more than this says so
FEW_GROUPS = 20
ALLOWED = 0.01  # errors among predictions of more than 99% confidence, if calibrated


@dataclass(frozen=True)
class Summary:
    """An evaluation with its tables and its verdict, made once for terminal, page and JSON."""

    evaluation: Evaluation
    tables: tuple[Table, ...]
    verdict: tuple[str, ...]


def summarize(evaluation: Evaluation) -> Summary:
    """The tables and the verdict of an evaluation."""
    return Summary(evaluation, tuple(evaluation_tables(evaluation)), tuple(evaluation_verdict(evaluation)))


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


def evaluation_csv(evaluation: Evaluation) -> str:
    """Long and numeric: a line per metric and part, in full precision, empty where undefined."""
    parts: dict[str, Mapping[str, Score]] = {s: scores.metrics for s, scores in evaluation.sides.items()}
    parts |= {"gap": evaluation.gap} if evaluation.gap else {}
    parts |= {f"{side} uncalibrated": scores.metrics for side, scores in evaluation.uncalibrated.items()}
    parts |= {f"{side} change": scores for side, scores in evaluation.change.items()}
    lines = []
    for metric in evaluation.metrics:
        for part, scores in parts.items():
            score = scores[metric.name]
            numbers = (exact_text(each) for each in (score.value, score.low, score.high, score.k, score.n))
            lines.append((metric.name, part, *numbers))
    return csv_text(("metric", "part", "value", "low", "high", "k", "n"), lines)


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
