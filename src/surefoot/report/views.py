"""How results look: as text, HTML, a frame, plain values, a plot and a page. One `View` for each type."""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import surefoot.plots as plots
from surefoot import __version__
from surefoot.calibrators import Calibration, calibration_document
from surefoot.deploy.groups import groups_document, repeated_sentences
from surefoot.deploy.monitor import Check
from surefoot.deploy.monitor_text import monitor_document, monitor_verdict
from surefoot.deploy.sets import Sets, sets_document
from surefoot.deploy.thresholds import Thresholds, Unreachable, Zone
from surefoot.deploy.thresholds_file import thresholds_document
from surefoot.errors import InputError
from surefoot.evaluation.scores import Evaluation, Score, evaluation_document
from surefoot.experiments.changes import ExperimentChange
from surefoot.experiments.run import Study
from surefoot.intervals import NAN, Interval
from surefoot.io import all_or_none, make_folder, replacing
from surefoot.pages import template_named
from surefoot.predictions.predictions import Predictions
from surefoot.report.changes import change_document, change_notes, task_tables, value_tables
from surefoot.report.choice import choice_of, verdict_of
from surefoot.report.comparison import TableContext
from surefoot.report.evaluation import Subject, write_report
from surefoot.report.headline import headline_tables as evaluation_headlines
from surefoot.report.monitor import monitor_table
from surefoot.report.sets import sets_table, sets_verdict
from surefoot.report.study import write_study
from surefoot.report.study_tables import headline_tables, part_document, part_names, table_context
from surefoot.report.style import WIDTH, side_style, svg_of
from surefoot.report.summary import summarize
from surefoot.report.table_text import to_text
from surefoot.report.tables import Table, to_html
from surefoot.report.thresholds import parts_table, thresholds_table, thresholds_verdict
from surefoot.results import Result
from surefoot.text import count_of, visible, without_controls

if TYPE_CHECKING:
    import pandas

MOST_LINES = 38  # of a result as text, besides one that says what is left out
LINE = 100  # characters of a sentence per line
CSS = """
.surefoot { font-size: 0.9rem; line-height: 1.4; }
.surefoot p { margin: 0.2em 0; max-width: 60em; }
.surefoot p.title { font-weight: 600; }
.surefoot .scroll { overflow: auto; max-height: 40em; margin: 0.6em 0; }
.surefoot table { border-collapse: collapse; font-size: inherit; font-variant-numeric: tabular-nums; }
.surefoot caption { text-align: left; font-weight: 600; padding: 0.3em 0; white-space: nowrap; }
.surefoot th, .surefoot td { padding: 0.2em 0.8em; border: 0; text-align: right; white-space: nowrap; }
.surefoot thead th[colspan]:not([colspan="1"]) { text-align: center; }
.surefoot tr:first-child th:first-child, .surefoot tbody th, .surefoot .left { text-align: left; }
.surefoot tbody th { font-weight: 400; }
.surefoot thead th { border-bottom: 1px solid rgba(128, 128, 128, 0.6); font-weight: 600; }
.surefoot tbody tr + tr th, .surefoot tbody tr + tr td { border-top: 1px solid rgba(128, 128, 128, 0.18); }
.surefoot small, .surefoot .notes { opacity: 0.75; }
.surefoot .notes { list-style: none; margin: 0.4em 0; padding: 0; max-width: 60em; }
"""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class View:
    """One result: its verdict and tables, and functions for what takes longer."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    rows: Callable[[], Iterable[Row]]  # of the frame
    document: Callable[[], dict[str, Any]]
    plot: Callable[[Axes | None], Axes]
    write: Callable[[Path], Path] | None = None  # the type's own page, where it has one

    def text(self) -> str:
        """The title, the verdict and the tables in less than 40 lines."""
        lines = [self.title]
        for sentence in self.sentences:
            lines += textwrap.wrap(visible(sentence), LINE)
        left_out = 0
        for table in self.tables:
            written = ["", *to_text(table)]
            if lines[1:] and len(lines) + len(written) >= MOST_LINES and table is not self.tables[0]:
                left_out += 1  # a whole table, rather than its first lines
            else:
                lines += written
        if len(lines) >= MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], "..."]
        if left_out or lines[-1] == "...":
            tables = f"{count_of(left_out, 'more table')}; " if left_out else ""
            lines.append(f"{tables}to_frame() has every number")
        return "\n".join(lines)

    def html(self) -> str:
        """A fragment for notebooks; everything that came from the user is escaped."""
        sentences = Markup("").join(Markup("<p>{}</p>").format(each) for each in self.sentences)
        fragment = Markup('<div class="surefoot"><style>{}</style><p class="title">{}</p>{}{}</div>').format(
            Markup(CSS), self.title, sentences, to_html(self.tables, "result")
        )
        return without_controls(fragment)

    def frame(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas; install it with: pip install pandas") from error
        rows = ({name: NAN if value is None else value for name, value in row.items()} for row in self.rows())
        return pandas.DataFrame(rows)

    def save(self, folder: Path) -> Path:
        """Write the page and the JSON document."""
        if self.write is not None:
            return self.write(folder)
        with rc_context(side_style("familiar", "unfamiliar") | {"font.size": 9}):
            figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
            self.plot(figure.subplots())
            svg = svg_of(figure, "result", self.title)
        page = template_named("result.html").render(
            title=self.title,
            verdict=self.sentences,
            tables=to_html(self.tables, "scores"),
            figure=Markup(svg),
            caption="",
            sources={},
            written="report.json",
            version=__version__,
        )
        document = json.dumps(self.document(), indent=1, allow_nan=False)
        with all_or_none():
            make_folder(folder)
            for name, text in (("report.json", document), ("report.html", page)):
                with replacing(folder / name) as temporary:
                    temporary.write_text(text, encoding="utf-8")
        return folder / "report.html"


def view_of(result: Result) -> View:
    """The view of a result, by its type or that of its base."""
    for kind in type(result).__mro__:
        if kind in VIEWS:
            return VIEWS[kind](result)
    raise InputError(
        f"a {type(result).__name__} cannot be shown; have: {', '.join(k.__name__ for k in VIEWS)}"
    )


def _score_row(score: Score) -> Row:
    return {"value": score.value, "low": score.low, "high": score.high, "k": score.k, "n": score.n}


def _evaluation_view(evaluation: Evaluation) -> View:
    summary = summarize(evaluation)

    def rows() -> Iterable[Row]:
        parts: dict[str, Mapping[str, Score]] = {s: each.metrics for s, each in evaluation.sides.items()}
        parts |= {"gap": evaluation.gap} if evaluation.gap else {}
        parts |= {f"{side} uncalibrated": each.metrics for side, each in evaluation.uncalibrated.items()}
        parts |= {f"{side} change": scores for side, scores in evaluation.change.items()}
        for metric in evaluation.metrics:
            for part, scores in parts.items():
                yield {"metric": metric.name, "part": part, **_score_row(scores[metric.name])}

    def calibrated(what: str) -> dict[str, Predictions]:
        if not evaluation.predictions:
            raise InputError(f"{what} needs the predictions, and these were streamed; allowed: in memory")
        fitted = evaluation.calibration
        given = evaluation.predictions.items()
        return {side: p if fitted is None else fitted(p) for side, p in given}

    def write(folder: Path) -> Path:
        calibrated("a report")
        return write_report(Subject(summary, evaluation.predictions, evaluation.calibration), folder)

    return View(
        "Evaluation",
        summary.verdict,
        tuple(evaluation_headlines(evaluation, more="to_frame() has every metric.")),
        rows,
        lambda: evaluation_document(evaluation),
        lambda ax: plots.reliability(calibrated("a plot"), ax),
        write,
    )


def _calibration_view(calibration: Calibration) -> View:
    evidence, numbers = calibration.evidence, {**calibration.details()}
    facts = {} if evidence is None else {k: v for k, v in asdict(evidence).items() if isinstance(v, float)}

    def rows() -> Iterable[Row]:
        ends = {name: getattr(calibration, name, NAN) for name in ("low", "high")}
        for name, values in calibration.parameters().items():
            for index, value in enumerate(values):
                interval = ends if len(values) == 1 else {"low": NAN, "high": NAN}
                yield {"name": name, "index": index, "value": value, **interval}
        for name, value in (facts | numbers).items():
            yield {"name": name, "index": 0, "value": value, "low": NAN, "high": NAN}

    columns = {"before": "before", "after": "after", "held_out": "after, on rows left out of the fit"}
    columns = {name: title for name, title in columns.items() if f"nll_{name}" in facts}
    table = Table.of_text(
        "On the data that it was fitted on",
        ("metric", *columns.values()),
        [
            (title, *(f"{facts[f'{metric}_{name}']:.4f}" for name in columns))
            for metric, title in (("nll", "NLL (not clipped)"), ("ece", "ECE"))
            if facts
        ],
    )
    return View(
        f"Calibration: {calibration.kind}, {calibration.label_kind}, {calibration.classes} classes",
        (*calibration.lines(), *(f"note: {remark}" for remark in calibration.notes())),
        (table,) if facts else (),
        rows,
        lambda: calibration_document(calibration),
        lambda ax: plots.calibration_map(calibration, ax),
    )


def _thresholds_view(chosen: Thresholds) -> View:
    def rows() -> Iterable[Row]:
        measured: dict[str, Mapping[str, Zone]] = {"val": chosen.zones, **chosen.measured}
        for data, zones in measured.items():
            for name, zone in zones.items():
                share = {f"share_{end}": value for end, value in asdict(zone.share).items()}
                error = {f"error_{end}": value for end, value in asdict(zone.error).items()}
                yield {"data": data, "decision": name, **share, **error}

    return View(
        "Confidence thresholds",
        tuple(thresholds_verdict(chosen, chosen.measured)),
        (*([parts_table(chosen)] if chosen.parts else []), thresholds_table(chosen, chosen.measured)),
        rows,
        lambda: thresholds_document(chosen, sources={}, elsewhere=chosen.measured),
        lambda ax: _draw_candidates(chosen, plots.given_or_new(ax)),
    )


def _unreachable_view(unreachable: Unreachable) -> View:
    return View(
        "Confidence thresholds: none",
        (
            f"{unreachable.sentence[0].upper()}{unreachable.sentence[1:]}.",
            *repeated_sentences(unreachable.repeated),
        ),
        (),
        lambda: (asdict(each) for each in unreachable.candidates),
        lambda: {
            **asdict(unreachable.guarantee),
            "n": unreachable.n,
            **groups_document(unreachable.groups, unreachable.repeated),
            "candidates": [asdict(each) for each in unreachable.candidates],
        },
        lambda ax: _draw_candidates(unreachable, plots.given_or_new(ax)),
    )


def _sets_view(sets: Sets) -> View:
    def rows() -> Iterable[Row]:
        for data, each in sets.measured.items():
            coverage = {f"coverage_{end}": value for end, value in asdict(each.coverage).items()}
            single = {f"single_{end}": value for end, value in asdict(each.single).items()}
            yield {"data": data, **coverage, "mean_size": each.mean_size, **single}

    def draw(ax: Axes | None) -> Axes:
        """How many sets contain the true class, with 95% intervals, and what is guaranteed."""
        axes = plots.given_or_new(ax)
        shares = {name: each.coverage for name, each in sets.measured.items() if each.coverage.n}
        for place, share in enumerate(shares.values()):
            axes.plot([share.low, share.high], [place, place], color="C0", linewidth=1.4)
            axes.plot(share.value, place, "o", color="C0")
        axes.axvline(sets.coverage, color="C3", linewidth=1, label="guaranteed on familiar data")
        axes.set_yticks(range(len(shares)), list(shares))
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlabel("sets that contain the true class")
        axes.legend()
        return axes

    return View(
        "Prediction sets",
        tuple(sets_verdict(sets)),
        (sets_table(sets),),
        rows,
        lambda: sets_document(sets),
        draw,
    )


def _draw_candidates(chosen: Thresholds | Unreachable, axes: Axes) -> Axes:
    """The measured and the guaranteed error of every candidate, the target, and what was chosen."""
    some = [each for each in chosen.candidates if each.n]
    shares = [each.share for each in some]
    style = plots.Style(axes)
    if some:  # with thresholds per class or group, there are none of all rows
        axes.plot(shares, [each.wrong / each.n for each in some], label="measured", **style.line)
        axes.plot(shares, [each.bound for each in some], **plots.Style(axes).point("_"), label="guaranteed")
    target = chosen.guarantee.target_error
    axes.axhline(target, color=plots.GREY, linewidth=1, label="target")
    if isinstance(chosen, Thresholds) and chosen.zones["accept"].error.n:
        zone = chosen.zones["accept"]
        point: Any = {"color": style.colour, "marker": "D", "linestyle": "none", "markersize": 9}
        label = f"accept at {chosen.accept:.4g}" if chosen.per is None else f"accepted, per {chosen.per}"
        axes.plot(zone.share.value, zone.error.value, label=label, **point)
    highest = max([target, *(each.wrong / each.n for each in some)])
    axes.set(xlim=(0, 1.02), ylim=(0, min(1.0, 2 * highest)))
    axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
    plots.percent_axes(axes.xaxis, axes.yaxis)
    axes.legend()
    return axes


def _check_view(check: Check) -> View:
    verdict = monitor_verdict(check)

    def rows() -> Iterable[Row]:
        for each in check.findings:
            plain = ("name", "reference", "current", "distance", "p", "adjusted")
            intervals = {"change": each.change, "more_novel": each.more_novel}
            yield {name: getattr(each, name) for name in plain} | {
                f"{name}_{end}": getattr(interval, end)
                for name, interval in intervals.items()
                for end in ("value", "low", "high")
            }

    def draw(ax: Axes | None) -> Axes:
        accuracies = {"reference": check.reference_accuracy, "current": check.accuracy}
        rows = {name: {"accuracy": interval} for name, interval in accuracies.items()}
        axes = plots.draw_intervals(plots.given_or_new(ax), rows, "accuracy, estimated for the current data")
        plots.percent_axes(axes.xaxis)
        return axes

    return View(
        "Monitor: " + ("alarm" if check.alarm else "no alarm"),
        tuple(verdict),
        (monitor_table(check).select("compared", "reference", "current", "change", "p", "p (corrected)"),),
        rows,
        lambda: monitor_document(check, verdict),
        draw,
    )


def _change_view(change: ExperimentChange) -> View:
    many = len(change.tasks) > 1

    def rows() -> Iterable[Row]:
        for task in change.tasks:
            for method in task.methods:
                for each in method.changes:
                    gap = each.difference
                    yield {
                        "task": task.task,
                        "method": method.name,
                        "metric": each.metric.name,
                        "side": each.side,
                        "before": each.before,
                        "after": each.after,
                        "difference": gap.value,
                        "low": gap.low,
                        "high": gap.high,
                        "runs": each.runs,
                        "paired": each.paired,
                    }

    def draw(ax: Axes | None) -> Axes:
        metric = next((each.metric for t in change.tasks for m in t.methods for each in m.changes), None)
        if metric is None:
            raise InputError("no number is in both experiments; needed: a method that both have")
        intervals = {
            f"{task.task}: {method.title}" if many else method.title: {
                each.side: Interval(each.difference.value, each.difference.low, each.difference.high)
                for each in method.changes
                if each.metric == metric
            }
            for task in change.tasks
            for method in task.methods
        }
        axes = plots.draw_intervals(plots.given_or_new(ax), intervals, f"{metric.title}: after less before")
        axes.axvline(0, color=plots.GREY, linewidth=1)
        return axes

    return View(
        f"Comparison of {change.before.folder.name} and {change.after.folder.name}",
        tuple(change_notes(change)),
        (*task_tables(change), *value_tables(change)),
        rows,
        lambda: change_document(change),
        draw,
    )


def _study_view(study: Study) -> View:
    choices = [choice_of(part) for part in study.parts]
    verdicts = [verdict_of(part, choice) for part, choice in zip(study.parts, choices, strict=True)]
    contexts: list[TableContext] = [table_context(part) for part in study.parts]
    tables = [
        table
        for part, context in zip(study.parts, contexts, strict=True)
        for table in headline_tables(part.comparison, context)
    ]

    def rows() -> Iterable[Row]:
        for part in study.parts:
            for method in part.comparison.methods:
                for (side, metric), cell in method.cells.items():
                    yield {
                        "task": part.plan.task,
                        "network": part.plan.recipe.network,
                        "method": method.name,
                        "side": side,
                        "metric": metric,
                        "mean": cell.mean,
                        "deviation": cell.deviation,
                        "runs": len(cell.runs),
                        "mark": str(cell.mark),
                    }

    def document() -> dict[str, Any]:
        names = part_names(study)
        parts = zip(study.parts, names, verdicts, choices, strict=True)
        return {
            "surefoot": __version__,
            "experiment": study.experiment.as_dict(),
            "parts": [part_document(part, name, said, choice, None) for part, name, said, choice in parts],
        }

    def draw(ax: Axes | None) -> Axes:
        many, intervals = len(study.parts) > 1, {}
        for part in study.parts:
            for method in part.comparison.methods:
                cells = {side: cell for (side, metric), cell in method.cells.items() if metric == "nll"}
                name = f"{part.plan.task}: {method.label}" if many else method.label
                intervals[name] = {s: cell.over_runs.around(cell.mean) for s, cell in cells.items()}
        return plots.draw_intervals(plots.given_or_new(ax), intervals, "NLL (lower is better)")

    return View(
        f"Study: {study.experiment.name}",
        tuple(sentence for said in verdicts for sentence in said),
        tuple(tables),
        rows,
        document,
        draw,
        lambda folder: write_study(study, folder).page,
    )


VIEWS: dict[type, Callable[[Any], View]] = {
    Evaluation: _evaluation_view,
    Calibration: _calibration_view,
    Thresholds: _thresholds_view,
    Unreachable: _unreachable_view,
    Sets: _sets_view,
    Check: _check_view,
    ExperimentChange: _change_view,
    Study: _study_view,
}
