"""The report of an experiment: one self-contained page, JSON, tables, figures and calibrations."""

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes

import surefoot.plots as plots
from surefoot import __version__
from surefoot.calibrators import save_calibration
from surefoot.evaluation.comparison import scores_text
from surefoot.experiments.experiment import EXPERIMENTS, Experiment
from surefoot.experiments.run import Study, read_folder
from surefoot.experiments.workflow import REPORT_VALUES
from surefoot.io import all_or_none, make_folder, toml_text
from surefoot.pages import template_named
from surefoot.report.study_figures import part_figures
from surefoot.report.study_gallery import Gallery, part_gallery
from surefoot.report.study_part import PartReport, fitted_table, part_reports, subgroup_table
from surefoot.report.study_questions import pairs_csv
from surefoot.report.study_tables import LONGEST_NAME, safe_name, summary_csv, write_table_files
from surefoot.report.study_verdict import first_tables
from surefoot.report.style import Picture
from surefoot.report.tables import to_html
from surefoot.report.views import View, write_files
from surefoot.runtime import in_processes, one_thread
from surefoot.text import confidence_text

LIBRARIES = ("torch", "numpy", "scipy", "matplotlib")


class Drawn(NamedTuple):
    """A figure as files."""

    name: str
    svg: str
    png: bytes
    caption: str


@dataclass(frozen=True, eq=False)
class Pictures:
    """Of one part."""

    gallery: Gallery | None
    figures: tuple[Drawn, ...]


@dataclass(frozen=True, eq=False)
class StudyReport:
    """The report of each part, and the page that was written."""

    parts: tuple[PartReport, ...]
    page: Path


def report_folder(study: Study) -> Path:
    """Where the report of an experiment that was run belongs: in its folder, if it reports all that was run.

    With other methods or values it has a folder of its own in there, named after them, so that it does not
    replace the full report.
    """
    assert study.folder is not None
    changed = _changed(study)
    if not changed:
        return study.folder
    texts = (
        f"{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in changed.items()
    )
    name = f"report {' '.join(texts)}"
    if len(name) > LONGEST_NAME:  # which would be cut, so that two reports could have the same
        name = f"report {study.experiment.digest}"
    return study.folder / safe_name(name)


def _changed(study: Study) -> dict[str, Any]:
    """The values that the report has and the experiment was not run with."""
    if study.folder is None:
        return {}
    run, _ = read_folder(study.folder)
    values = {name: getattr(study.experiment, name) for name in REPORT_VALUES}
    return {name: value for name, value in values.items() if value != getattr(run, name)}


@one_thread()
def write_study(study: Study, folder: Path) -> StudyReport:
    """Write `report.html`, `report.json`, tables, figures and calibrations into a folder."""
    parts = part_reports(study)
    pictures = _drawn_pictures(parts)
    with all_or_none():
        return _write_report(study, parts, pictures, folder)


def _write_report(
    study: Study, parts: tuple[PartReport, ...], pictures: list[Pictures], folder: Path
) -> StudyReport:
    experiment = study.experiment
    make_folder(folder)
    for part, of_part in zip(parts, pictures, strict=True):
        write_part_tables(part, folder / "tables")
        make_folder(folder / "calibrations")
        for method in part.study.comparison.methods:
            for run in method.runs:
                if run.calibration is not None:
                    file = f"{part.name}-{safe_name(method.name)}-run{run.run}.json"
                    save_calibration(run.calibration, folder / "calibrations" / file)
        write_files(folder / "figures", _picture_files(part.name, of_part))
    about = {
        "surefoot": __version__,
        "versions": {
            "Python": platform.python_version(),
            **{library: version(library) for library in LIBRARIES},
        },
        "reproduce": [_command(study)],
    }
    document = {
        **about,
        "experiment": experiment.as_dict(),
        "parts": [part.document(part.groups) for part in parts],
    }
    page = _page(experiment, about, parts, pictures)
    write_files(folder, {"report.json": json.dumps(document, indent=1), "report.html": page})
    return StudyReport(parts, folder / "report.html")


def _command(study: Study) -> str:
    """What writes the report again, in its folder: the run by name where the experiment is built in."""
    changed = _changed(study)
    if not changed:
        return (
            f"surefoot run {study.experiment.name if study.experiment in EXPERIMENTS else 'experiment.toml'}"
        )
    methods = [f"--method {name}" for name in changed.pop("methods", ())]
    values = [
        f"--set {name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in changed.items()
    ]
    return " ".join(["surefoot report ..", *methods, *values])


def write_part_tables(part: PartReport, folder: Path) -> list[Path]:
    """A part's tables as Markdown, LaTeX, HTML and CSV; their paths."""
    texts = {
        f"{part.name}-scores.csv": scores_text(part.study.comparison),
        f"{part.name}-summary.csv": summary_csv(part.study.comparison, part.context),
        f"{part.name}-pairs.csv": pairs_csv(part.study.comparison),
    }
    tables = write_table_files([*part.questions, *part.tables], folder, part.name)
    return [*tables, *write_files(folder, texts)]


def _drawn_pictures(parts: Sequence[PartReport]) -> list[Pictures]:
    """The gallery and the figures of every part, on all cores."""
    draws: list[list[Callable[[], Any]]] = []
    for part in parts:
        gallery = partial(part_gallery, part.study, part.recommended)
        figures = [partial(_drawn, part.name, draw) for draw in part_figures(part.study, part.recommended)]
        draws.append([gallery, *figures])
    drawn = iter(in_processes(lambda draw: draw(), list(chain.from_iterable(draws))))
    return [Pictures(next(drawn), tuple(filter(None, islice(drawn, len(draw) - 1)))) for draw in draws]


def _drawn(part: str, draw: Callable[[], Picture | None]) -> Drawn | None:
    if (picture := draw()) is None:
        return None
    named = replace(picture, name=f"{part}-{picture.name}")
    return Drawn(picture.name, named.svg(), named.png(), picture.caption)


def _picture_files(part: str, pictures: Pictures) -> dict[str, bytes]:
    """Each figure as SVG and PNG, the gallery as PNG; by the names of the files."""
    files: dict[str, bytes] = {}
    if pictures.gallery is not None and pictures.gallery.png is not None:
        files[f"{part}-gallery.png"] = pictures.gallery.png
    for drawn in pictures.figures:
        # A file of its own has a white background, and ink that does not depend on a page.
        alone = drawn.svg.replace("<svg ", '<svg style="background:#fff;color:#1c2126" ', 1)
        files |= {f"{part}-{drawn.name}.svg": alone.encode(), f"{part}-{drawn.name}.png": drawn.png}
    return files


def _page(
    experiment: Experiment, about: dict[str, Any], parts: Sequence[PartReport], pictures: Sequence[Pictures]
) -> str:
    names = [part.name for part in parts]
    figures = [{each.name: (Markup(each.svg), each.caption) for each in drawn.figures} for drawn in pictures]
    return template_named("study.html").render(
        experiment=experiment,
        about=about,
        parts=parts,
        figures=dict(zip(names, figures, strict=True)),
        galleries=dict(zip(names, (drawn.gallery for drawn in pictures), strict=True)),
        configuration=toml_text(experiment.as_dict()),
        to_html=to_html,
        first_tables=first_tables,
        subgroup_table=subgroup_table,
        fitted_table=fitted_table,
        percent=confidence_text,
    )


def study_view(study: Study) -> View:
    """How a study looks."""
    parts = part_reports(study)

    def rows() -> Iterator[dict[str, Any]]:
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
        documents = [part.document() for part in parts]
        return {"surefoot": __version__, "experiment": study.experiment.as_dict(), "parts": documents}

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
        tuple(sentence for part in parts for sentence in part.verdict),
        tuple(table for part in parts for table in part.headline),
        rows,
        document,
        draw,
        lambda folder: write_study(study, folder).page,
    )
