"""An evaluation as tables: metric | familiar | unfamiliar | gap, in words that any format can print."""

import csv
import io
import math
from collections.abc import Mapping

from surefoot.kinds import LabelKind
from surefoot.report.table import Table as Table
from surefoot.scores import GROUP_METRICS, Evaluation, GroupScores, Score

BOUND_SHOWN = 1e-4  # a streamed value that may be off by more says so


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """The main table; then what calibration changed and the worst groups, where there are any."""
    tables = [_main_table(evaluation)]
    if evaluation.change:
        tables.append(_change_table(evaluation))
    if any(scores.groups for scores in evaluation.sides.values()):
        tables.append(_worst_table(evaluation))
    return tables


def text_of(score: Score) -> str:
    """Value, interval, and k of n: `0.0840 [0.0711, 0.0985] 171/2034`; of cells also how far it may be off.

    >>> text_of(Score(0.5, 0.25, 0.75, k=2, n=4))
    '0.5000 [0.2500, 0.7500] 2/4'
    >>> text_of(Score(0.5, bound=0.0004))
    '0.5000 (binned, ± 0.0004)'
    """
    if math.isnan(score.value):
        return "undefined (n = 0)" if score.n == 0 else "undefined"
    parts = [f"{score.value:.4f}"]
    if not math.isnan(score.low):
        parts.append(f"[{score.low:.4f}, {score.high:.4f}]")
    if score.n is not None:
        parts.append(f"{score.k}/{score.n}")
    if score.bound is not None and not score.bound <= BOUND_SHOWN:
        parts.append("(binned)" if math.isnan(score.bound) else f"(binned, ± {score.bound:.1g})")
    return " ".join(parts)


def signed_text_of(score: Score) -> str:
    """A difference, with its sign."""
    if math.isnan(score.value):
        return "undefined"
    ends = "" if math.isnan(score.low) else f" [{_signed(score.low)}, {_signed(score.high)}]"
    return f"{_signed(score.value)}{ends}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # adding 0 turns a rounded -0.0 into +0.0


def _main_table(evaluation: Evaluation) -> Table:
    sides = evaluation.sides
    header = ["metric", *(f"{side} (n = {scores.n:,})" for side, scores in sides.items())]
    rows = []
    for metric in evaluation.metrics:
        row = [metric.title, *(text_of(scores.metrics[metric.name]) for scores in sides.values())]
        rows.append((*row, signed_text_of(evaluation.gap[metric.name])) if evaluation.gap else tuple(row))
    one = next(iter(sides.values()))
    kind = "one label" if one.kind is LabelKind.ONE_LABEL else "many labels"
    members = "" if one.members == 1 else f", mean of {one.members} members"
    what = "Calibrated predictions" if evaluation.change else "Predictions as given"
    title = f"{what}: {kind}, {one.classes} classes{members}"
    return Table(title, (*header, "gap") if evaluation.gap else tuple(header), tuple(rows))


def _change_table(evaluation: Evaluation) -> Table:
    header = ["metric"]
    for side in evaluation.change:
        header += [f"{side} before", f"{side} change"]
    rows = []
    for metric in evaluation.metrics:
        row = [metric.title]
        for side, change in evaluation.change.items():
            before = evaluation.uncalibrated[side].metrics[metric.name].value
            row += [text_of(Score(before)), signed_text_of(change[metric.name])]
        rows.append(tuple(row))
    return Table("What calibration changed (paired intervals)", tuple(header), tuple(rows))


def _worst_table(evaluation: Evaluation) -> Table:
    rows = []
    for metric in evaluation.metrics:
        if metric.name in GROUP_METRICS:
            row = [metric.title]
            for scores in evaluation.sides.values():
                worst = scores.worst(metric.name)
                row.append("none" if worst is None else _worst_text(worst, metric.name))
            rows.append(tuple(row))
    counts = (f"{side} ({len(scores.groups)} groups)" for side, scores in evaluation.sides.items())
    return Table("Worst group", ("metric", *counts), tuple(rows))


def _worst_text(worst: GroupScores, name: str) -> str:
    return f"{text_of(worst.metrics[name])} in {worst.group} (n = {worst.n})"


def to_markdown(tables: list[Table]) -> str:
    """GitHub's tables."""
    lines = []
    for table in tables:
        lines += [f"**{table.title}**", "", _markdown_row(table.header)]
        lines.append("|" + "|".join([":--", *["--:"] * (len(table.header) - 1)]) + "|")
        lines += [*(_markdown_row(row) for row in table.rows), ""]
    return "\n".join(lines)


def _markdown_row(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def to_latex(tables: list[Table]) -> str:
    """booktabs tables."""
    lines = []
    for table in tables:
        lines += [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(table.title)}}}"]
        lines.append(rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}")
        lines += [r"\toprule", _latex_row(table.header), r"\midrule"]
        lines += [_latex_row(row) for row in table.rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _latex_row(cells: tuple[str, ...]) -> str:
    # A cell that begins with '[' would be read as an option of the '\\' before it.
    escaped = (latex_text(cell) for cell in cells)
    return " & ".join(f"{{}}{cell}" if cell.startswith("[") else cell for cell in escaped) + r" \\"


def latex_text(text: str) -> str:
    """Text with whatever LaTeX would read as a command escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " ", "\r": " "}
    special |= {"\u2013": "--", "\u00b1": r"$\pm$"}
    return "".join(special.get(character, character) for character in text)


def to_csv(evaluation: Evaluation) -> str:
    """Long and numeric: a line per metric and part, empty where undefined."""
    parts: dict[str, Mapping[str, Score]] = {s: scores.metrics for s, scores in evaluation.sides.items()}
    parts |= {"gap": evaluation.gap} if evaluation.gap else {}
    parts |= {f"{side} uncalibrated": scores.metrics for side, scores in evaluation.uncalibrated.items()}
    parts |= {f"{side} change": scores for side, scores in evaluation.change.items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("metric", "part", "value", "low", "high", "k", "n"))
    for metric in evaluation.metrics:
        for part, scores in parts.items():
            score = scores[metric.name]
            numbers = ("" if math.isnan(v) else repr(v) for v in (score.value, score.low, score.high))
            k, n = ("" if count is None else count for count in (score.k, score.n))
            writer.writerow((metric.name, part, *numbers, k, n))
    return out.getvalue()
