"""Pages made from the declarations of the package when the site is built, so that they cannot be out of date.

One page per metric, method, calibrator and task; the API by module; the options of each command.
"""

import html
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import surefoot
from surefoot.calibrators import CALIBRATORS, DEFINITIONS, Calibrator
from surefoot.cli.app import app
from surefoot.lab.comparison.comparison import mean_scores
from surefoot.lab.experiments.experiment import EXPERIMENTS
from surefoot.lab.experiments.methods import METHODS, Method, calibrated_rows
from surefoot.lab.tasks import TASKS, TaskEntry
from surefoot.metrics import METRICS, Metric

DOCS = Path(__file__).parents[1]
RESULTS = {
    "gender-utkface": "gender",
    "cat-dog": "cat-dog",
    "animals64": "animals",
    "objects96": "objects",
}
BETTER = {
    "lower": "Lower is better.",
    "higher": "Higher is better.",
    "zero": "Best at 0.",
    "neither": "It describes the predictions; neither high nor low is better.",
}
API = {
    "predictions": "Predictions",
    "evaluation": "Evaluation",
    "calibrators": "Calibration",
    "deploy": "Models, thresholds and monitoring",
    "experiments": "Experiments",
    "extend": "Extending",
}
EXTENDING = {"Metric", "Calibrator", "Method", "TaskEntry", "Variant", "Calibration", "register"}
MODULES = {"metrics": "Metrics", "plots": "Plots", "sklearn": "scikit-learn"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages where no page is written by hand, and list them where the nav has a `*`."""
    pages = dict(generated())
    for uri, text in pages.items():
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=text))
    places = Counter(file.dest_uri for file in files)
    if twice := [place for place, count in places.items() if count > 1]:
        raise PluginError(f"two pages are written to {', '.join(twice)}; allowed: one")
    have = [*pages, *sorted(file.src_uri for file in files if file.src_uri not in pages)]
    config.nav = _expanded(config.nav, have)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Add the options to the page of a command."""
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    if folder != "commands" or name not in commands():
        return markdown
    return f"{markdown.rstrip()}\n\n{options(name, commands()[name])}"


def generated() -> Iterator[tuple[str, str]]:
    """The path and the Markdown of each page."""
    for name, command in commands().items():
        yield f"commands/{name}.md", f"# surefoot {name}\n\n{inspect.cleandoc(command.help or '')}\n"
    yield from _listed("metrics", "Metrics", METRICS, metric_page, "formula", "reference")
    yield from _listed("calibrators", "Calibrators", CALIBRATORS, calibrator_page, "formula", "reference")
    yield from _listed("built-in-tasks", "Built-in tasks", TASKS, task_page, "description")
    yield from _listed("methods/names", "Methods by name", METHODS, method_page, "formula", "reference")
    yield from api_pages()


def _listed(
    folder: str, title: str, entries: Iterable[Any], page: Callable[[Any], str], *columns: str
) -> Iterator[tuple[str, str]]:
    """A table of the entries, and a page for each."""
    rows = [
        (f"[{each.title}]({each.name}.md)", f"`{each.name}`", *(_cell(getattr(each, c)) for c in columns))
        for each in entries
    ]
    listing = {"methods/names": "methods", "built-in-tasks": "tasks"}.get(folder, folder)
    text = f"`surefoot ls {listing}` prints this list. "
    text += "[Add your own](../extending.md)." if "/" not in folder else "[Compared](../README.md)."
    yield f"{folder}/index.md", f"# {title}\n\n{text}\n\n{table(('', 'name', *columns), rows)}"
    for each in entries:
        yield f"{folder}/{each.name}.md", page(each)


# commands


@cache
def commands() -> dict[str, click.Command]:
    """Each command of `surefoot`, by name."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return dict(group.commands)


def options(name: str, command: click.Command) -> str:
    """The options of a command, or of each of its own commands, as `--help` has them; folded."""
    below = getattr(command, "commands", None) or {"": command}
    parts = [(f"surefoot {name} {each}".strip(), _options_table(sub)) for each, sub in below.items()]
    return "\n".join(f'??? info "{title} --help"\n\n{indent(text, "    ")}' for title, text in parts)


def _options_table(command: click.Command) -> str:
    rows = []
    for each in command.get_params(click.Context(command)):
        if getattr(each, "hidden", False) or each.name == "help":
            continue
        if each.param_type_name == "argument":
            names = f"`{(each.name or '').upper()}`"
        else:
            names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
        rows.append((names, _cell(getattr(each, "help", "") or ""), _default(each)))
    return table(("option", "meaning", "default"), rows)


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value is None or value is False or value == () or value == []:
        return ""
    if "UNSET" in repr(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


# metrics, calibrators, tasks, methods


def metric_page(metric: Metric) -> str:
    """A metric's definition, how to compute it, and its function."""
    low, high = (f"{bound:g}".replace("inf", "∞") for bound in metric.bounds)
    streamed = (
        "exact"
        if metric.numerator is not None
        else "with a proven range"
        if metric.curve is not None
        else "yes"
        if metric.streamed is not None
        else "no"
    )
    rows = [
        ("formula", _cell(metric.formula)),
        ("reference", _cell(metric.reference)),
        ("range", f"{low} to {high}"),
        ("interval", "bootstrap over rows or groups" if metric.resampled else "none"),
        ("in [data larger than memory](../streaming.md)", streamed),
    ]
    if metric.many_labels is not None:
        rows.append(("with many labels", _cell(metric.many_labels.formula)))
    text = f"# {metric.title}\n\n{BETTER[metric.better]}\n\n{table((f'`{metric.name}`', ''), rows)}\n"
    text += f"```sh\nsurefoot evaluate familiar.parquet unfamiliar.parquet --metric {metric.name}\n```\n"
    function = getattr(surefoot.metrics, metric.name, None)
    if function is not None:
        text += f"\n::: {function.__module__}.{function.__name__}\n"
    return text


def calibrator_page(calibrator: Calibrator) -> str:
    """A calibrator's definition, its options, and how to fit it."""
    rows = [
        ("formula", _cell(calibrator.formula)),
        ("reference", _cell(calibrator.reference)),
        ("in the file", _cell(DEFINITIONS.get(calibrator.kind, ""))),
        *((f"option `{option.name}`", _cell(option.description)) for option in calibrator.options),
        ("labels", "one per row" if calibrator.one_label_only else "one per row, or many"),
        ("needs", "logits" if calibrator.one_model else _needs(calibrator)),
    ]
    text = f"# {calibrator.title}\n\n{table((f'`{calibrator.name}`', ''), rows)}\n"
    text += f"```sh\nsurefoot calibrate val.parquet --method {calibrator.name} -o calibration.json\n```\n\n"
    text += f'```python\ncalibration = surefoot.fit_calibration("{calibrator.name}", val)\n```\n'
    if calibrator.name == "novelty":
        return text + "\nAs a method: [novelty scaling](../methods/novelty-scaling.md).\n"
    rows_of_it = ", ".join(f"`{name}`" for name in calibrated_rows(calibrator.name))
    text += f"\nMethods with it: {rows_of_it}. "
    return text + "[All calibrators compared](../methods/calibrators.md).\n"


def _needs(calibrator: Calibrator) -> str:
    return "logits and a novelty score" if calibrator.name == "novelty" else "logits of several members"


def task_page(task: TaskEntry) -> str:
    """What a task is, the files that it needs, and the presets that use it."""
    text = f"# {task.title}\n\n{task.description[0].upper()}{task.description[1:]}.\n\n"
    if task.variants:
        text += "Variants: " + ", ".join(f"`{task.name}/{name}`" for name in task.variants) + ".\n\n"
    presets = [each for each in EXPERIMENTS if task.name in {p.task.partition("/")[0] for p in each.parts}]
    if presets:
        rows = [(f"`surefoot run {each.name}`", _cell(each.about)) for each in presets]
        text += table(("experiment", ""), rows) + "\n"
    if task.layout is None:
        return text + "It needs no files: the data are in the package, or generated.\n"
    places = [
        (
            " or ".join(f"`{path}`" for path in place.paths),
            _cell(place.what),
            _cell(place.optional) or "required",
        )
        for place in task.layout.places
    ]
    text += (
        f"It needs these files: `surefoot data show {task.name} --root FOLDER` says which are missing.\n\n"
    )
    text += table(("path in the folder", "what", "without it"), places)
    sources = [
        (_cell(each.title), f"<{each.published}>", _cell(each.terms), _cell(each.citation))
        for each in task.layout.sources()
    ]
    return text + "\n" + table(("data", "published", "terms", "citation"), sources)


def method_page(method: Method) -> str:
    """A method's definition, its cost, and its scores in the study."""
    rows = [
        ("formula", _cell(method.formula)),
        ("reference", _cell(method.reference)),
        ("from", _cell(method.origin)),
        ("networks to train", _cell(method.training)),
        ("passes to predict", _cell(method.inference)),
        ("fitted on", _cell(method.fitted_on) if method.fit else "nothing is fitted"),
        ("calibrator", f"[`{method.fit}`](../../calibrators/{method.fit}.md)" if method.fit else "none"),
    ]
    text = f"# {method.title}\n\n{table((f'`{method.name}`', ''), rows)}\n"
    text += f"[How it works, and what it did](../{method.page}.md).\n\n" if method.page else ""
    oracle = " --oracle" if method.oracle else ""
    text += f"```sh\nsurefoot run quickstart --method {method.name}{oracle}\n```\n"
    scores = [
        (f"[{title}](../../results/{task}.md)", *_scores(task, method.name))
        for task, title in RESULTS.items()
    ]
    if any(row[1] for row in scores):
        text += "\n## In the study\n\nMeans over runs, familiar / unfamiliar; lower is better. "
        text += "From the files `docs/results/*-scores.csv`.\n\n"
        text += table(("task", "NLL", "label error", "ECE", "E99"), scores)
    return text


def _scores(task: str, method: str) -> list[str]:
    means = published(task)
    cells = []
    for metric in ("nll", "label_error", "ece", "e99"):
        sides = [means.get((method, side, metric)) for side in ("familiar", "unfamiliar")]
        cells.append(" / ".join(f"{value:.3f}" for value in sides if value is not None))
    return cells


@cache
def published(task: str) -> dict[tuple[str, str, str], float]:
    """The mean over runs of each method, side and metric."""
    return mean_scores(DOCS / "results" / f"{task}-scores.csv")


# the API


def api_pages() -> Iterator[tuple[str, str]]:
    """What `surefoot` has in Python, by part of the package."""
    names: dict[str, list[str]] = {part: [] for part in API}
    for name in surefoot.__all__:
        value = getattr(surefoot, name)
        home = getattr(value, "__module__", None)
        if isinstance(value, ModuleType) or home is None or not (callable(value) or inspect.isclass(value)):
            continue
        part = home.split(".")[1]
        names["extend" if name in EXTENDING else part if part in API else "predictions"].append(name)
    rows = []
    for part, title in API.items():
        objects = "\n\n".join(f"::: surefoot.{name}" for name in names[part])
        yield f"api/{part}.md", f"# {title}\n\n{objects}\n"
        rows.append((f"[{title}]({part}.md)", ", ".join(f"`{name}`" for name in names[part])))
    for module, title in MODULES.items():
        yield f"api/{module}.md", f"# {title}\n\n::: surefoot.{module}\n{_of_module(module)}"
        rows.append((f"[{title}]({module}.md)", f"`surefoot.{module}`"))
    text = "# API\n\nFrom the docstrings. Start with [Python](../python.md), which shows how to use it.\n\n"
    yield "api/index.md", text + table(("page", "names"), rows)


def _of_module(name: str) -> str:
    """The options of a page about a module."""
    chosen = ["show_root_heading: false", "show_root_toc_entry: false"]
    names = getattr(import_module(f"surefoot.{name}"), "__all__", None)
    if names is not None:
        chosen.append(f"members: [{', '.join(names)}]")
    return "    options:\n" + "".join(f"      {each}\n" for each in chosen)


# Markdown


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    header = tuple(header)
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Plain text in a cell: no character of it is markup."""
    return re.sub(r"([|*_\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _expanded(nav: list[Any], have: list[str]) -> list[Any]:
    """The nav with each `folder/*` replaced by the pages of that folder that it does not name itself."""
    named = set(re.findall(r"[\w/.-]+\.md", repr(nav)))

    def pages(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            return [
                {
                    title: [page for each in below for page in pages(each)]
                    if isinstance(below, list)
                    else below
                }
            ]
        if not entry.endswith("*"):
            return [entry]
        folder = entry.removesuffix("*")
        return [
            uri
            for uri in have
            if uri.startswith(folder)
            and "/" not in uri.removeprefix(folder)
            and uri.endswith(".md")
            and uri not in named
        ]

    return [page for each in nav for page in pages(each)]
