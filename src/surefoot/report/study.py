"""The report of an experiment: one self-contained page, JSON, tables, figures and calibrations."""

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from surefoot import __version__
from surefoot.experiments.experiment import EXPERIMENTS, Experiment
from surefoot.experiments.run import PartStudy, Study
from surefoot.io import make_folder, replacing, toml_text
from surefoot.report.choice import choice_of, verdict_of
from surefoot.report.comparison import comparison_tables
from surefoot.report.gallery import Gallery, part_gallery
from surefoot.report.questions import question_tables
from surefoot.report.study_figures import part_pictures, slider_data
from surefoot.report.study_tables import (
    Fitted,
    GroupTable,
    fitted_rows,
    group_table,
    headline_of,
    part_document,
    part_names,
    setting_of,
    size_tables,
    value_text,
    write_calibrations,
    write_tables,
)
from surefoot.report.style import template_named
from surefoot.report.tables import to_html
from surefoot.runtime import one_thread
from surefoot.text import confidence_text, interval_text

GROUPS_SHOWN = 60
LIBRARIES = ("torch", "numpy", "scipy", "matplotlib")


@dataclass(frozen=True, eq=False)
class PartPage:
    """Everything that the page says of one task, ready for the template."""

    name: str  # of its files, and its anchor
    title: str
    verdict: list[str]
    headline: Markup
    questions: Markup
    tables: Markup
    figures: list[tuple[str, Markup, str]]  # title, SVG, caption
    slider: dict[str, Any] | None
    gallery: Gallery | None
    groups: GroupTable | None
    fitted: list[Fitted]
    sizes: Markup
    skipped: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]
    two_sided: bool
    count: int  # of methods compared


@one_thread()
def write_study(study: Study, folder: Path) -> Path:
    """Write `report.html`, `report.json`, tables, figures and calibrations into a folder; the page's path."""
    make_folder(folder)
    pages, documents = [], []
    for name, part in zip(part_names(study), study.parts, strict=True):
        page, document = _part(part, name, folder)
        pages.append(page)
        documents.append(document)
    write_tables(study, folder)
    write_calibrations(study, folder)
    about = _about(study.experiment)
    twin = json.dumps({**about, "experiment": study.experiment.as_dict(), "parts": documents}, indent=1)
    for name, text in (("report.json", twin), ("report.html", _page(study.experiment, about, pages))):
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _part(part: PartStudy, name: str, folder: Path) -> tuple[PartPage, dict[str, Any]]:
    choice = choice_of(part)
    recommended = None if choice is None else choice.chosen.about.name
    verdict = verdict_of(part)
    groups = group_table(part, recommended)
    gallery = part_gallery(part, recommended)
    figures = _figures(part, name, recommended, folder)
    if gallery is not None and gallery.png is not None:
        _write(folder / "figures" / f"{name}-gallery.png", gallery.png)
    slider = slider_data(part)
    page = PartPage(
        name=name,
        title=setting_of(part).title,
        verdict=verdict,
        headline=to_html(headline_of(part)),
        questions=to_html(question_tables(part.comparison, setting_of(part))),
        tables=to_html(comparison_tables(part.comparison, setting_of(part))),
        figures=figures,
        slider=slider,
        gallery=gallery,
        groups=groups,
        fitted=fitted_rows(part),
        sizes=to_html(size_tables(part)),
        skipped=part.plan.skipped,
        missing={result.method.title: result.missing for result in part.results if result.missing},
        two_sided="unfamiliar" in part.comparison.sides,
        count=len(part.comparison.methods),
    )
    return page, {**part_document(part, name, verdict, choice, groups), "slider": slider}


def _figures(
    part: PartStudy, name: str, recommended: str | None, folder: Path
) -> list[tuple[str, Markup, str]]:
    """Each figure as SVG and PNG below `folder/figures`, and for the page."""
    make_folder(folder / "figures")
    found = []
    for shown in part_pictures(part, name, recommended):
        svg = shown.picture.svg()
        _write(folder / "figures" / f"{shown.picture.name}.svg", _standing_alone(svg).encode())
        _write(folder / "figures" / f"{shown.picture.name}.png", shown.picture.png())
        found.append((shown.picture.title, Markup(svg), shown.caption))
    return found


def _standing_alone(svg: str) -> str:
    """An SVG that is a file of its own: on white, in ink that does not depend on a page."""
    return svg.replace("<svg ", '<svg style="background:#fff;color:#1c2126" ', 1)


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _about(experiment: Experiment) -> dict[str, Any]:
    return {
        "surefoot": __version__,
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "reproduce": _commands(experiment),
    }


def _commands(experiment: Experiment) -> list[str]:
    """How to get the same again: by name where it comes with the house, else from the resolved file."""
    known = any(experiment == each for each in EXPERIMENTS)
    return [f"surefoot run {experiment.name if known else 'experiment.toml'}"]


def _page(experiment: Experiment, about: dict[str, Any], parts: list[PartPage]) -> str:
    return template_named("study.html").render(
        experiment=experiment,
        about=about,
        parts=parts,
        configuration=toml_text(experiment.as_dict()),
        groups_shown=GROUPS_SHOWN,
        value_text=value_text,
        interval_text=interval_text,
        percent=confidence_text,
    )
