"""What is frozen: each case runs commands in a folder of inputs and gives plain data, without prose."""

import csv
import inspect
import io
import json
import re
import tomllib
import types
import typing
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import typer

from surefoot.cli.app import app
from tests.cli.command import rows_of, surefoot

RESULTS = Path(__file__).parents[2] / "docs/results"
TEXT = "<text>"
VARIES = {"surefoot", "source", "sources", "at", "verdict"}  # a version, paths, a date, sentences
JSON = ("--format", "json", "--resamples", 20)
CALIBRATORS = {
    "temperature": ("five-val.parquet", "many-val.npz", "members-val.npz", "logit.csv", "probs.npz"),
    "member-temperatures": ("members-val.npz", "many-members-val.npz"),
    "temperature-before-averaging": ("members-val.npz", "many-members-val.npz"),
    "softening": ("five-val.parquet", "soft-val.npz", "many-val.npz"),
    "budget": ("two-val.parquet", "five-val.parquet", "soft-val.npz", "many-val.npz", "members-val.npz"),
    "novelty": ("two-val.parquet", "five-val.parquet", "many-val.npz", "members-val.npz"),
    "vector": ("five-val.parquet", "many-val.npz"),
    "matrix": ("five-val.parquet",),
    "dirichlet": ("five-val.parquet",),
    "platt": ("members-val.npz",),
    "beta": ("two-val.parquet",),
    "isotonic": ("two-val.parquet",),
    "histogram": ("many-val.npz",),
}
STREAMED = ("temperature", "softening")
EVALUATED = {
    "two classes": ("two-f.parquet", "two-u.parquet", "--error-above", 0.9, "--seed", 5),
    "one side": ("five-f.parquet",),
    "five classes by group": ("five-f.parquet", "five-u.parquet", "--group-by", "site"),
    "many labels": ("many-f.npz", "many-u.npz"),
    "members": ("members-f.npz", "members-u.npz"),
    "many labels of members": ("many-members-f.npz", "many-members-u.npz"),
    "one logit": ("logit.csv",),
    "probabilities": ("probs.npz",),
    "no intervals": ("five-f.parquet", "five-u.parquet", "--resamples", 0, "--metric", "nll", "--metric", "e99"),
    "streamed": ("one-parts-f", "one-parts-u"),
    "streamed many labels": ("many-parts-f", "many-parts-u"),
    "streamed members": ("members.parquet", "--stream"),
    "several files in memory": ("one-parts-f", "one-parts-u", "--no-stream"),
}  # fmt: skip
CALIBRATED = {
    "temperature": ("five-val.parquet", "five-f.parquet", "five-u.parquet"),
    "temperature by group": ("five-val.parquet", "five-f.parquet", "five-u.parquet", "--group-by", "site"),
    "temperature of many labels": ("many-val.npz", "many-f.npz", "many-u.npz"),
    "temperature, streamed": ("one-parts-val", "one-parts-f", "one-parts-u"),
    "temperature of many labels, streamed": ("many-parts-val", "many-parts-f", "many-parts-u"),
    "member-temperatures": ("members-val.npz", "members-f.npz", "members-u.npz"),
    "softening": ("soft-val.npz", "large-f.npz"),
    "budget": ("two-val.parquet", "two-f.parquet", "two-u.parquet"),
    "novelty": ("five-val.parquet", "five-f.parquet", "five-u.parquet"),
}  # fmt: skip
PUBLISHED = {"animals64": "animals", "cat-dog": "cat-dog"}


def evaluations(inputs, _):
    """`evaluate` without a calibration."""
    return {
        name: _json("evaluate", *(_within(inputs, word) for word in words), *_options(words))
        for name, words in EVALUATED.items()
    }


def calibrated_evaluations(inputs, out):
    """`evaluate --calibration`: what changed as well."""
    found = {}
    for name, (val, *words) in CALIBRATED.items():
        method = re.match("[a-z-]+", name)[0]
        _fit(method, inputs / val, out / "c.json")
        words = [_within(inputs, word) for word in words]
        found[name] = _json("evaluate", *words, "--calibration", out / "c.json", *JSON)
    return found


def evaluation_formats(inputs, _):
    """`evaluate --format csv` and the numbers of `--format markdown`."""
    words = ("evaluate", inputs / "two-f.parquet", inputs / "two-u.parquet", "--resamples", 10)
    return {
        "csv": _csv(surefoot(*words, "--format", "csv").stdout),
        "markdown": _cells(surefoot(*words, "--format", "markdown").stdout),
    }


def evaluation_report(inputs, out):
    """`evaluate --report`: the report.json that it writes."""
    words = (
        "evaluate",
        inputs / "five-f.parquet",
        inputs / "five-u.parquet",
        "--metric",
        "nll",
        "--metric",
        "ece",
    )
    surefoot(*words, "--resamples", 5, "--group-by", "site", "--report", out / "r")
    found = json.loads((out / "r/report.json").read_text())
    return {"files": _names(out / "r"), "report.json": _without_prose(found)}


def calibrations(inputs, out):
    """`calibrate` with every method, on every kind of predictions, in memory and streamed."""
    assert list(CALIBRATORS) == _listed("calibrators"), "a calibrator that is not frozen"
    found = {}
    for method, files in CALIBRATORS.items():
        for file in files:
            found[f"{method}, {file}"] = _fit(method, inputs / file, out / "c.json")
        if method in STREAMED:
            for parts in ("one-parts-val", "many-parts-val"):
                for option in ("--stream", "--no-stream"):
                    words = (method, inputs / parts, out / "c.json", option)
                    found[f"{method}, {parts}, {option}"] = _fit(*words)
    found["by group"] = _fit("temperature", inputs / "five-val.parquet", out / "c.json", "--group-by", "site")
    return found


def applied(inputs, out):
    """`apply`: shapes, types, sums and first rows of what it writes."""
    found = {}
    for method, files in CALIBRATORS.items():
        for val in files:
            _fit(method, inputs / val, out / "c.json")
            given = val.replace("-val", "-u")
            given = given if (inputs / given).exists() else val
            surefoot("apply", out / "c.json", inputs / given, "-o", out / "applied.npz")
            found[f"{method}, {given}"] = _arrays(out / "applied.npz")
    _fit("temperature", inputs / "five-val.parquet", out / "c.json")
    for suffix, read in ((".csv", pyarrow.csv.read_csv), (".parquet", pyarrow.parquet.read_table)):
        surefoot("apply", out / "c.json", inputs / "five-u.parquet", "-o", out / f"applied{suffix}")
        table = read(out / f"applied{suffix}")
        found[suffix] = {
            "columns": table.column_names,
            "rows": table.num_rows,
            "first": table.slice(0, 3).to_pylist(),
        }
    return found


def chosen_thresholds(inputs, out):
    """`thresholds`: the file that it writes."""
    val, test, strange = (inputs / f"large-{name}.npz" for name in ("val", "f", "u"))
    _fit("temperature", test, out / "c.json")
    cases = {
        "plain": (val, "--target-error", 0.1),
        "measured": (val, "--target-error", 0.2, "--reject-error", 0.3, "--familiar-test", test, "--unfamiliar", strange),
        "calibrated": (val, "--target-error", 0.15, "--calibration", out / "c.json", "--level", 0.9),
        "split": (val, "--target-error", 0.2, "--split", 0.4, "--seed", 3),
        "one class of many": (inputs / "large-many.npz", "--target-error", 0.2, "--for-class", "c1"),
    }  # fmt: skip
    found = {}
    for name, words in cases.items():
        surefoot("thresholds", *words, "-o", out / "t.json")
        found[name] = _without_prose(json.loads((out / "t.json").read_text()))
    refused = ("thresholds", strange, "--target-error", 0.0001, "-o", out / "none.json")
    surefoot(*refused, check=1)
    assert not (out / "none.json").exists()
    return found


def looks(inputs, out):
    """`monitor`: single looks, and a history with all that its file holds."""
    val, test, strange = (inputs / f"large-{name}.npz" for name in ("val", "f", "u"))
    surefoot("thresholds", val, "--target-error", 0.2, "--split", 0.4, "-o", out / "t.json")
    _fit("temperature", test, out / "c.json")
    form = ("--format", "json")
    found = {
        "familiar": _json("monitor", val, test, *form),
        "unfamiliar": _json("monitor", val, strange, *form, check=1),
        "unlabelled": _json("monitor", val, inputs / "unlabelled.csv", *form, check=1),
        "calibrated": _json("monitor", val, test, "--calibration", out / "c.json", "--alpha", 0.1, *form),
        "thresholds": _json("monitor", val, strange, "--thresholds", out / "t.json", *form, check=1),
        "bound": _json("monitor", val, strange, "--bound", 0.9, *form),
        "many labels": _json("monitor", inputs / "many-f.npz", inputs / "many-val.npz", *form),
    }
    history = out / "h.jsonl"
    options = ("--history", history, "--thresholds", out / "t.json", *form)
    found["history"] = [
        _json("monitor", val, current, *options, check=code) for current, code in ((test, 0), (test, 0), (strange, 1))
    ]  # fmt: skip
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    found["history file"] = [_without_prose({**line, "reference": TEXT}) for line in lines]
    return found


def published(_, out):
    """`report` from the published scores: every number of every table, without titles and headers."""
    found = {}
    for name, paper in PUBLISHED.items():
        said = surefoot("report", RESULTS / f"{name}-scores.csv", "--paper", paper, "-o", out / name)
        (file,) = (out / name).glob("*.md")
        found[name] = {"files": _names(out / name), "tables": _cells(file.read_text())}
        found[name]["printed"] = _printed(said.stdout)
    said = surefoot("report", RESULTS / "toy-wave-scores.csv", "--method", "single", "--method", "ensemble")
    found["two methods, printed"] = _printed(said.stdout)
    return found


def commands(*_):
    """Every command with its arguments and options: their names, types, limits and defaults, in their order."""
    return _command(typer.main.get_command(app))


def registries(*_):
    """The names of what there is, and the built-in experiments as they would run."""
    found = {what: _listed(what) for what in ("metrics", "calibrators", "methods", "experiments")}
    found["as they would run"] = {
        name: _without_prose(tomllib.loads(surefoot("ls", "experiments", name).stdout))
        for name in found["experiments"]
    }
    return found


CASES = (
    evaluations,
    calibrated_evaluations,
    evaluation_formats,
    evaluation_report,
    calibrations,
    applied,
    chosen_thresholds,
    looks,
    published,
    commands,
    registries,
)


def _within(inputs, word):
    """A word of the command line, as a path where an input has that name."""
    return inputs / word if isinstance(word, str) and (inputs / word).exists() else word


def _options(words):
    return JSON[:2] if "--resamples" in words else JSON


def _json(*words, check=0):
    return _without_prose(json.loads(surefoot(*words, check=check).stdout))


def _fit(method, val, file, *options):
    surefoot("calibrate", val, "--method", method, "-o", file, *options)
    return _without_prose(json.loads(file.read_text()))


def _without_prose(found, name=""):
    """Sentences, and what varies from one day to the next, give way; keys, numbers and names stay."""
    if name in VARIES:
        return TEXT
    if isinstance(found, dict):
        return {key: _without_prose(value, key) for key, value in found.items()}
    if isinstance(found, list):
        return [_without_prose(value) for value in found]
    return TEXT if isinstance(found, str) and " " in found else found


def _csv(text):
    return [[_number(cell) for cell in row] for row in csv.reader(io.StringIO(text))]


def _number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


def _cells(markdown):
    """The tables: what stands in their cells but words and names of rows; marks such as ** stay."""
    tables = []
    for block in re.findall(r"(?:^\|.*\n?)+", markdown, flags=re.MULTILINE):
        _, _, *rows = [line.strip().strip("|").split("|") for line in block.splitlines()]
        tables.append([" | ".join(re.sub("[A-Za-z]+", "", c).strip() for c in row[1:]) for row in rows])
    return tables


def _printed(text):
    """The numbers of a table of methods in plain text, with their marks; of all its parts, if it is wide."""
    rows = [row[1:] for row in rows_of(text) if re.fullmatch(r"[\d.]+\*?(\(\*\))?|\u2013", row[1])]
    count = sum(row[0].isdecimal() for row in rows)
    return [" | ".join(cell for row in rows[place::count] for cell in row) for place in range(count)]


def _names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _arrays(path):
    found = {}
    with np.load(path) as file:
        for name in sorted(file.files):
            array = file[name]
            found[name] = {"type": array.dtype.kind, "shape": list(array.shape)}
            if name == "logits":
                rows = array.reshape(-1, array.shape[-1])
                found[name] |= {"first": rows[:2].tolist(), "sums": np.abs(rows).sum(axis=0).tolist()}
            elif array.dtype.kind in "iuf" and name != "attributes":
                found[name]["sum"] = float(np.abs(array).sum())
    return found


def _listed(what):
    """The first column of `surefoot ls`."""
    return [row[0] for row in rows_of(surefoot("ls", what).stdout) if row[1]]


def _command(command):
    found = {}
    if command.callback is not None:
        kinds = typing.get_type_hints(inspect.unwrap(command.callback))
        params = [each for each in command.get_params(typer.Context(command)) if each.name != "help"]
        found["parameters"] = [_parameter(each, kinds.get(each.name)) for each in params]
    inner = getattr(command, "commands", {})
    if inner:
        found["commands"] = {name: _command(each) for name, each in inner.items()}
    return found


def _parameter(parameter, kind):
    limited = getattr(parameter, "type", parameter)  # typer below 0.20 has limits in a type of click's
    default = parameter.default
    if isinstance(default, Enum | Path):
        default = default.value if isinstance(default, Enum) else str(default)
    return {
        "names": [*parameter.opts, *parameter.secondary_opts],
        "type": _kind(kind),
        "required": parameter.required,
        "default": default,
        "limits": [getattr(limited, end, None) for end in ("min", "max")],
    }


def _kind(kind):
    """A type in words, None taken from it; an Enum is its values."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return _kind(next(each for each in typing.get_args(kind) if each is not type(None)))
    if typing.get_origin(kind) is not None:
        return f"{typing.get_origin(kind).__name__} of {_kind(typing.get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.value for each in kind]
    return getattr(kind, "__name__", str(kind))
