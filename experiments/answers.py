"""The six questions as one figure and one table, from the published pages.

    python experiments/answers.py [--pages docs/results]

Reads the tables of each task's page and those of recipes.md. Writes answers.svg (as tuned, other recipes,
and the paper) into the same folder, the answers into its README.md, and with intervals, next to the methods
that the paper does not have, into its details.md; the two kinds of ensemble, from the scores, into its
ensembles.md; each between two comments. The rows of all methods in its README.md, and those in the
repository's README.md are written again from the scores.
"""

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from surefoot.evaluation.comparison import mean_scores
from surefoot.experiments.methods import METHODS
from surefoot.experiments.paper import QUESTIONS, paper_choice
from surefoot.report.style import GREY, SMALL, WIDTH, Picture, finished, key_below, percent_ticks

TASKS = {"gender": "gender-utkface", "cat-dog": "cat-dog", "animals": "animals64", "objects": "objects96"}
NUMBER = r"[+-]?\d+\.\d+"
ROW = re.compile(
    rf"^\| (?P<question>D[^|]+?\?) \([^|]+\| \d+ \| (?P<word>[^|]+) \| {NUMBER} \| (?P<without>{NUMBER}) "
    rf"\| \**(?P<change>{NUMBER})\** \\?\[(?P<low>{NUMBER}), (?P<high>{NUMBER})\\?\] "
    r"\| (?:±(?P<margin>\d+\.\d+)|[^|]+) \|",
    re.MULTILINE,
)
CHANGES = re.compile(r"^\| `[^`]+`( \| [+-]?\d+%){4} \|$", re.MULTILINE)  # rows of all methods
NLLS = re.compile(r"^\| `[^`]+`[^|]* \| \d+( \| [^|]+\(\*[^|]+\*\)){4} \|$", re.MULTILINE)  # of the README
TITLE = "The relative change of the unfamiliar NLL by each step; left of 0 is better."
BEGIN, END = "<!-- {}: written by experiments/answers.py -->", "<!-- end of {} -->"
MORE_METHODS = re.compile(r"^\*\*Not in the paper.*?\n\n(?P<table>(?:\|.*\n)+)", re.MULTILINE)
AVERAGED = ("single-t", "ensemble-of-t", "t-of-ensemble")
COLUMNS = {
    "familiar NLL \N{MINUS SIGN} entropy": ("familiar", "nll_minus_entropy"),
    "familiar NLL": ("familiar", "nll"),
    "unfamiliar NLL \N{MINUS SIGN} entropy": ("unfamiliar", "nll_minus_entropy"),
    "unfamiliar NLL": ("unfamiliar", "nll"),
    "unfamiliar NLL at best T (oracle)": ("unfamiliar", "nll_best_t"),
}
WORDS = {"yes": "**yes**", "no: negligible difference": "no"}
PANEL_LETTERS = 34  # of a panel's title
OURS, OTHER, PAPER = "as tuned", "another recipe", "the paper, on its data"
STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#0072b2", "marker": "o", "markersize": 5},
    OTHER: {"color": "#56b4e9", "marker": "o", "markersize": 3.5, "markerfacecolor": "none"},
    PAPER: {"color": "#d55e00", "marker": "D", "markersize": 4.5},
}

Means = Sequence[Mapping[tuple[str, str, str], float]]  # of each task, by method, side and metric


@dataclass(frozen=True)
class Answer:
    """A question's answer on a task: the relative change of the NLL, with its intervals."""

    question: str
    change: float
    low: float  # over images
    high: float
    margin: float  # over runs, to both sides
    word: str


def answers(text: str) -> Iterator[Answer]:
    """The rows of one table."""
    for row in ROW.finditer(text):
        without = float(row["without"])
        changes = (float(row[name] or "nan") / without for name in ("change", "low", "high", "margin"))
        yield Answer(row["question"], *changes, word=row["word"])


def answers_by_task(pages: Path) -> dict[str, list[Answer]]:
    """From each task's page."""
    return {task: list(answers((pages / f"{name}.md").read_text())) for task, name in TASKS.items()}


def questions_table(pages: Path, cell: Callable[[str, Answer], str]) -> str:
    """A row per question, a cell per task."""
    ours = answers_by_task(pages)
    by_question = zip(*ours.values(), strict=True)
    return markdown("question", ((each[0].question, *map(cell, ours, each)) for each in by_question))


def with_paper(task: str, answer: Answer) -> str:
    """A word and a percentage, and the paper's percentage."""
    changes = f"{percent(answer.change)}; *{percent(paper_change(answer.question, task))}*"
    return f"{WORDS.get(answer.word, answer.word)} ({changes})"


def with_intervals(_task: str, answer: Answer) -> str:
    """The numbers: the interval for new groups, and half of that over runs."""
    interval = f"[{answer.low:+.1%}, {answer.high:+.1%}] ±{answer.margin:.1%}"
    return f"{WORDS.get(answer.word, answer.word)}: {answer.change:+.1%} {interval}"


def more_methods_table(pages: Path) -> str:
    """Unfamiliar NLL less that of the ensemble of T-scaled networks, of each method not in the paper."""
    differences: dict[str, dict[str, str]] = {}
    for task, name in TASKS.items():
        [table] = MORE_METHODS.findall((pages / f"{name}.md").read_text())
        for line in table.splitlines()[2:]:
            method, _, difference, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
            differences.setdefault(method, {})[task] = difference
    return markdown(
        "method",
        ((method, *(of.get(task, "\N{EN DASH}") for task in TASKS)) for method, of in differences.items()),
    )


def markdown(first: str, rows: Iterable[Sequence[str]]) -> str:
    """A table with a column per task after the first one."""
    lines = [f"| {' | '.join(cells)} |" for cells in ((first, *TASKS), *rows)]
    return "\n".join([lines[0], "|---|" + "---|" * len(TASKS), *lines[1:]])


def ensembles_table(pages: Path) -> str:
    """T before and after averaging: a row per method and task."""
    lines = ["| task | method | " + " | ".join(COLUMNS) + " |", "|---|---|" + "--:|" * len(COLUMNS)]
    for task, name in TASKS.items():
        means = mean_scores(pages / f"{name}-scores.csv")
        for method in AVERAGED:
            cells = [
                f"{means[method, side, metric]:{'+' if 'minus' in metric else ''}.4f}"
                for side, metric in COLUMNS.values()
            ]
            first = task if method == AVERAGED[0] else ""
            lines.append(
                f"| {first} | `{method}` | " + " | ".join(cells).replace("-", "\N{MINUS SIGN}") + " |"
            )
    return "\n".join(lines)


def change_row(line: str, means: Means) -> str:
    """On the page of methods: the change of unfamiliar NLL from `single-t`, on each task."""
    method = line.split("`")[1]
    changes = [of[method, "unfamiliar", "nll"] / of["single-t", "unfamiliar", "nll"] - 1 for of in means]
    return f"| `{method}` | {' | '.join(map(percent, changes))} |"


def nll_row(line: str, means: Means) -> str:
    """In the README: unfamiliar NLL on each task; the paper's stays."""
    method, cells = line.split("`")[1], line.split(" | ")
    for place, of in enumerate(means, start=2):
        cells[place] = f"{of[method, 'unfamiliar', 'nll']:.3f} {cells[place].partition(' ')[2]}"
    return " | ".join(cells)


def percent(change: float) -> str:
    """A signed percentage without decimals; 0 has no sign."""
    rounded = round(100 * change)
    return f"{rounded:+d}%" if rounded else "0%"


def with_table(text: str, name: str, table: str) -> str:
    """The page with its table of that name replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def paper_change(text: str, task: str) -> float:
    """The same change in the paper's numbers."""
    question = next(each for each in QUESTIONS if each.text == text)
    rows = (METHODS.named(name).paper for name in (question.other, question.method))
    without, with_it = (paper_choice("resnet18", task, row, "nll", "unfamiliar") or math.nan for row in rows)
    return with_it / without - 1


def answers_picture(pages: Path) -> Picture:
    """A panel for each question, a line for each task."""
    recipes = re.split(r"^## ", (pages / "recipes.md").read_text(), flags=re.MULTILINE)
    ours = answers_by_task(pages)
    others = {
        task: [answer for part in recipes if part.startswith(f"{name}:") for answer in answers(part)]
        for task, name in TASKS.items()
    }
    questions = [answer.question for answer in ours["gender"]]
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        panels: Any = figure.subplots(2, 3, sharey=True)
        for axes, question in zip(panels.flat, questions, strict=True):
            draw_panel(axes, question, ours, others)
        keys = [Line2D([], [], linestyle="none", label=name, **style) for name, style in STYLES.items()]
        key_below(figure, keys, columns=3)
        return finished(figure, "answers", TITLE)


def draw_panel(
    axes: Axes, question: str, ours: dict[str, list[Answer]], others: dict[str, list[Answer]]
) -> None:
    """Ours first, other recipes below it, the paper's last."""
    axes.set_title(textwrap.fill(question, PANEL_LETTERS), loc="left", fontsize=9)
    axes.axvline(0, color=GREY, linewidth=0.8)
    for place, task in enumerate(ours):
        [answer] = [each for each in ours[task] if each.question == question]
        draw_answer(axes, place - 0.22, answer, STYLES[OURS])
        of_question = [each for each in others[task] if each.question == question]
        for below, other in enumerate(of_question):
            draw_answer(axes, place - 0.04 + 0.14 * below, other, STYLES[OTHER])
        axes.plot(paper_change(question, task), place + 0.34, linestyle="none", **STYLES[PAPER])
    axes.set_yticks(range(len(ours)), list(ours))
    axes.set_ylim(len(ours) - 0.45, -0.55)
    axes.margins(x=0.08)
    percent_ticks(axes.xaxis)


def draw_answer(axes: Axes, place: float, answer: Answer, style: dict[str, Any]) -> None:
    """A point on its interval over images, on a wider line its interval over runs."""
    runs = [answer.change - answer.margin, answer.change + answer.margin]
    axes.plot(runs, [place, place], color=style["color"], linewidth=4.5, alpha=0.3, solid_capstyle="butt")
    axes.plot([answer.low, answer.high], [place, place], color=style["color"], linewidth=1.2)
    axes.plot(answer.change, place, linestyle="none", markeredgecolor=style["color"], **style)


def main() -> None:
    """Write the figure and the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", type=Path, default=Path("docs/results"))
    pages = parser.parse_args().pages
    path = pages / "answers.svg"
    path.write_text(answers_picture(pages).svg())
    print(path)
    for page, name, table in (
        ("README.md", "answers", questions_table(pages, with_paper)),
        ("details.md", "answers", questions_table(pages, with_intervals)),
        ("details.md", "methods", more_methods_table(pages)),
        ("ensembles.md", "ensembles", ensembles_table(pages)),
    ):
        path = pages / page
        path.write_text(with_table(path.read_text(), name, table))
        print(path)
    means = [mean_scores(pages / f"{name}-scores.csv") for name in TASKS.values()]
    for path, rows, row in (
        (pages / "README.md", CHANGES, change_row),
        (pages.parent.parent / "README.md", NLLS, nll_row),
    ):
        path.write_text(rows.sub(lambda found, row=row: row(found[0], means), path.read_text()))
        print(path)


if __name__ == "__main__":
    main()
