"""Cases of documents, images, bundles and stores with odd values or damage."""

import json
import shutil

import numpy as np

from tests.fuzz.inputs import NASTY, damaged, draw, odd_cell, pick, quoted, special_file
from tests.fuzz.steps import ANY, SUFFIXES, Step, may_fail

VALUES = (
    None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 10**400, float("nan"), float("inf"), "", "x", "nan", "1", [], {}, [1, [2, []]],
    {"a": None}, "\x1b[31m", "x" * 4000, [None] * 50, 2**63, -(2**63) - 1, "\ud800", 1e-320, ["a", "a"], {"": 0}, "../../etc",
)  # fmt: skip
TOML_VALUES = (
    "9" * 400, "-1", "nan", "inf", "1e400", "true", '""', "[]", "{}", "1979-05-27", "0x" + "f" * 300, '"\\u0000"', "[[1]]",
    '"\x1b[31m"', "0.5", "1_000", "[1, 2]", '"x"', "{ at_least = nan }", "{ equals = 1, in = [] }", "{ missing = 3 }",
    "{ in = [1979-05-27, 'a', 1.5] }", '"..\\u002f"', "07:32:00", "-0.0", "[" * 500, "9223372036854775808",
    "{ a" + ".a" * 60_000 + " = 1 }",
)  # fmt: skip
TOML_KEYS = ("seed", "x", "name", "val", "groups", "plugins", "runs")


def changed_document(document, rng):
    """A document with some of its values replaced, removed or added, at any depth."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.03:
        return pick(rng, VALUES)
    key = pick(rng, list(document) if isinstance(document, dict) else range(len(document)))
    copy = document.copy()
    roll = rng.random()
    if roll < 0.15:
        copy.pop(key)
    elif roll < 0.2 and isinstance(copy, dict):
        copy[pick(rng, NASTY)] = pick(rng, VALUES)
    else:
        copy[key] = changed_document(copy[key], rng)
    return copy


def _json_bytes(data, rng):
    document = json.loads(data)
    for _ in range(pick(rng, [1, 1, 2, 4])):
        document = changed_document(document, rng)
    return json.dumps(document).encode()


def _toml_bytes(data, rng):
    """With values replaced, lines removed and added."""
    lines = data.decode().splitlines()
    for _ in range(pick(rng, [1, 1, 2, 4])):
        lines = lines or [""]
        at = pick(rng, [i for i, line in enumerate(lines) if "=" in line] or [0])
        key, value = lines[at].partition("=")[0], pick(rng, TOML_VALUES)
        lines[at : at + 1] = [
            *[[f"{key}= {value}"]] * 13,
            *[[]] * 2,
            *[[f"{pick(rng, TOML_KEYS)} = {value}", lines[at]]] * 2,
            *[[f"{pick(rng, NASTY)!r} = {value}"]] * 3,
        ][int(rng.integers(20))]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _csv_bytes(data, rng):
    lines = data.decode().splitlines()
    for _ in range(pick(rng, [1, 1, 2, 5])):
        at = int(rng.integers(len(lines)))
        cells = lines[at].split(",")
        cells[int(rng.integers(len(cells)))] = quoted(odd_cell(rng), rng)
        if rng.random() < 0.15:
            cells.append("x")
        lines[at] = ",".join(cells) if rng.random() < 0.9 else ""
    return "\n".join(lines).encode("utf-8", "surrogatepass")


CHANGES = {".json": _json_bytes, ".toml": _toml_bytes, ".csv": _csv_bytes}


def _spoiled(source, rng):
    """The bytes of a text file with odd values, and sometimes with damage."""
    data = CHANGES[source.suffix](source.read_bytes(), rng)
    return damaged(data, rng) if rng.random() < 0.25 else data


def _spoil(path, rng):
    """Odd values, damage, another kind of file, or nothing, where the file was."""
    if path.suffix in (".json", ".toml") and rng.random() < 0.65:
        path.write_bytes(_spoiled(path, rng))
    elif rng.random() < 0.25:
        path.unlink()
        special_file(path, rng)
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))


def calibrations_damaged(place, rng):
    """A calibration or a thresholds file with odd values, used by every command that reads one."""
    drawn = draw(rng, many=False, members=1, n=30, classes=3)
    good, bad = place / "good.npz", place / "bad.json"
    np.savez(good, logits=drawn.logits, labels=drawn.labels, novelty=rng.random(30))
    source = pick(rng, sorted((place.base / "documents").glob("*.json")))
    bad.write_bytes(_spoiled(source, rng))
    outputs = (place / f"o{pick(rng, SUFFIXES)}", place / "o.json")
    of_thresholds = ("monitor", good, good, "--thresholds", bad)
    commands = [
        ("apply", bad, good, "-o", outputs[0]),
        ("evaluate", good, "--calibration", bad, "--resamples", 0),
        ("thresholds", good, "--calibration", bad, "--target-error", 0.9, "-o", outputs[1]),
        ("sets", good, "--calibration", bad, "-o", outputs[1]),
        ("monitor", good, good, "--calibration", bad),
    ]
    if source.name.startswith("thresholds"):
        commands = [of_thresholds, (*of_thresholds, "--format", "json")]
    words = pick(rng, commands)
    yield Step(words, ANY, may_fail=may_fail(words), writes=outputs)


def descriptions_damaged(place, rng):
    """Tasks, manifests, experiments and scores with odd values."""
    how = pick(rng, ["task.toml", "task.toml", "manifest.csv", "experiment", "experiment", "scores"])
    if how == "scores":
        path = place / "scores.csv"
        path.write_bytes(_spoiled(place.base / "scores.csv", rng))
        output = ("--output", place / "out") if rng.random() < 0.3 else ()
        yield Step(("report", path, *output), ANY, writes=None if output else ())
        return
    if how == "experiment":
        path = place / "e.toml"
        path.write_bytes(_spoiled(pick(rng, sorted((place.base / "experiments").glob("*.toml"))), rng))
        yield Step(("ls", "experiments", path), ANY)
        return
    for name in ("task.toml", "manifest.csv"):
        source = place.base / "task" / name
        (place / name).write_bytes(_spoiled(source, rng) if name == how else source.read_bytes())
    (place / "images").symlink_to(place.base / "task" / "images")
    options = [(), (), ("--format", "json"), ("--format", "json"), ("--resolved", place / "split.csv")]
    words = ("data", "check", place / "task.toml", *pick(rng, options))
    yield Step(words, ANY, may_fail=may_fail(words), writes=None)


# Of a network by a plugin, of a newer version, without bundle.json, with a link.
RECOVERY = (
    "again",
    "unknown network",
    "is not one this version reads",
    "'surefoot bundle' writes one",
    "'cp -RL'",
)


def bundles_damaged(place, rng):
    """A bundle, or an image, with damage: `predict`."""
    folder, says = place / "bundle", RECOVERY
    shutil.copytree(place.base / "bundle", folder)
    picture = pick(rng, sorted((place.base / "run/images/part0").iterdir()))
    image = place / f"picture{picture.suffix}"
    image.write_bytes(picture.read_bytes())
    if rng.random() < 0.35:
        says = ()
        image.write_bytes(damaged(image.read_bytes(), rng))
    else:
        _spoil(pick(rng, sorted(path for path in folder.iterdir() if path.is_file())), rng)
    out = place / f"o{pick(rng, ['.csv', '.parquet'])}"
    words = ("predict", folder, image, "-o", out, "--device", "cpu")
    words += ("--probabilities",) if rng.random() < 0.5 else ()
    yield Step(words, ANY, may_fail=may_fail(words), writes=(out,), says=says)


def stores_damaged(place, rng):
    """A store with a damaged file: the commands that read it."""
    store = place / "store"
    shutil.copytree(place.base / "run/store", store, symlinks=True)
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    _spoil(pick(rng, files), rng)
    commands = [
        ("ls", "runs"),
        ("ls", "runs", "tiny"),
        ("ls", "networks"),
        ("compare", "tiny", "tiny", "--resamples", 0),
        *[("predictions", "tiny", "single", "-o", place / "out")] * 2,
        *[("bundle", "tiny", "single", "-o", place / "out", "--resamples", 0)] * 2,
    ]
    words = (*pick(rng, commands), "--store", store)
    says = ("again", "remove", "trains what is missing", "it was run with")  # the last: a method is gone
    yield Step(words, ANY, may_fail=may_fail(words), writes=None, says=says)
