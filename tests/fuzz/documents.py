"""Cases of documents, images, bundles and stores with odd values or damage."""

import json
import shutil

import numpy as np

from tests.fuzz import inputs
from tests.fuzz.inputs import damaged, draw
from tests.fuzz.steps import ANY, SUFFIXES, Step, may_fail


def _odd_value(rng):
    return [
        None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 10**400, float("nan"), float("inf"), "", "x", "nan", "1", [], {}, [1, [2, []]],
        {"a": None}, "\x1b[31m", "x" * 4000, [None] * 50, 2**63, -(2**63) - 1, "\ud800", 1e-320, ["a", "a"], {"": 0}, "../../etc",
    ][int(rng.integers(30))]  # fmt: skip


def changed_document(document, rng):
    """A document with some of its values replaced, removed or added, at any depth."""
    if not isinstance(document, dict | list) or (rng.random() < 0.03):
        return _odd_value(rng)
    if not document:
        return _odd_value(rng)
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = keys[int(rng.integers(len(keys)))]
    copy = document.copy()
    roll = rng.random()
    if roll < 0.15:
        copy.pop(key)
    elif roll < 0.2 and isinstance(copy, dict):
        copy[str(rng.choice(inputs.NASTY))] = _odd_value(rng)
    else:
        copy[key] = changed_document(copy[key], rng)
    return copy


def _document_bytes(document, rng):
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        document = changed_document(document, rng)
    text = json.dumps(document).encode()
    return damaged(text, rng) if rng.random() < 0.25 else text


def calibrations_damaged(place, rng):
    """A calibration or a thresholds file with odd values, used by every command that reads one."""
    drawn = draw(rng, many=False, members=1, n=30, classes=3)
    good, bad = place / "good.npz", place / "bad.json"
    np.savez(good, logits=drawn.logits, labels=drawn.labels, novelty=rng.random(30))
    kinds = sorted((place.base / "documents").glob("*.json"))
    source = kinds[int(rng.integers(len(kinds)))]
    bad.write_bytes(_document_bytes(json.loads(source.read_text()), rng))
    thresholds = source.name.startswith("thresholds")
    out = place / f"o{rng.choice(SUFFIXES)}"
    commands = (
        [
            ("monitor", good, good, "--thresholds", bad),
            ("monitor", good, good, "--thresholds", bad, "--format", "json"),
        ]
        if thresholds
        else [
            ("apply", bad, good, "-o", out),
            ("evaluate", good, "--calibration", bad, "--resamples", 0),
            ("thresholds", good, "--calibration", bad, "--target-error", 0.9, "-o", place / "o.json"),
            ("sets", good, "--calibration", bad, "-o", place / "o.json"),
            ("monitor", good, good, "--calibration", bad),
        ]
    )
    words = commands[int(rng.integers(len(commands)))]
    yield Step(words, ANY, may_fail=may_fail(words), writes=(out, place / "o.json"))


def _toml_bytes(text, rng):
    """A TOML text with values replaced, then perhaps damaged bytes."""
    lines = text.splitlines()
    values = ["9" * 400, "-1", "nan", "inf", "1e400", "true", '""', "[]", "{}", "1979-05-27", "0x" + "f" * 300, '"\\u0000"',
              "[[1]]", '"\x1b[31m"', "0.5", "1_000", "[1, 2]", '"x"', "{ at_least = nan }", "{ equals = 1, in = [] }",
              "{ in = [1979-05-27, 'a', 1.5] }", "{ missing = 3 }", '"..\\u002f"', "07:32:00", "-0.0", "[" * 500, "9223372036854775808",
              "{ a" + ".a" * 60_000 + " = 1 }"]  # fmt: skip
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        places = [i for i, line in enumerate(lines) if "=" in line] or [0]
        at = int(rng.choice(places))
        key, value = lines[at].partition("=")[0], values[int(rng.integers(len(values)))]
        roll = rng.random()
        if roll < 0.65:
            lines[at] = f"{key}= {value}"
        elif roll < 0.75:
            del lines[at]
        elif roll < 0.85:
            lines.insert(
                at,
                f"{rng.choice(['seed', 'x', 'name', 'val', 'groups', 'plugins', 'runs'])} = {value}",
            )
        else:
            lines[at] = f"{str(rng.choice(inputs.NASTY))!r} = {value}"
        if not lines:
            lines = [""]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damaged(data, rng) if rng.random() < 0.25 else data


def descriptions_damaged(place, rng):
    """Tasks, manifests, experiments and recipes with odd values."""
    how = str(rng.choice(["task", "task", "manifest", "experiment", "experiment", "scores"]))
    if how in ("task", "manifest"):
        for name in ("task.toml", "manifest.csv"):
            data = (place.base / "task" / name).read_bytes()
            if (how == "task") == (name == "task.toml"):
                data = _toml_bytes(data.decode(), rng) if how == "task" else _csv_bytes(data, rng)
            (place / name).write_bytes(data)
        (place / "images").symlink_to(place.base / "task" / "images")
        words = [
            ("data", "check", place / "task.toml"),
            ("data", "check", place / "task.toml", "--format", "json"),
            ("data", "check", place / "task.toml", "--resolved", place / "split.csv"),
            ("data", "decode", place / "task.toml", "--size", 8, "--cache", place / "cache"),
        ][int(rng.choice([0, 0, 1, 1, 2, 3]))]
        yield Step(words, ANY, may_fail=may_fail(words), writes=None, caches=(place / "cache",))
        return
    if how == "scores":
        path = place / "scores.csv"
        path.write_bytes(_csv_bytes((place.base / "scores.csv").read_bytes(), rng))
        output = ("--output", place / "out") if rng.random() < 0.3 else ()
        yield Step(("report", path, *output), ANY, writes=None if output else ())
        return
    texts = sorted((place.base / "experiments").glob("*.toml"))
    path = place / "e.toml"
    path.write_bytes(_toml_bytes(texts[int(rng.integers(len(texts)))].read_text(), rng))
    yield Step(("show", path), ANY)


def _csv_bytes(data, rng):
    lines = data.decode().splitlines()
    for _ in range(int(rng.choice([1, 1, 2, 5]))):
        at = int(rng.integers(len(lines)))
        cells = lines[at].split(",")
        cells[int(rng.integers(len(cells)))] = inputs._quoted(inputs._cell(rng), rng)
        if rng.random() < 0.15:
            cells.append("x")
        lines[at] = ",".join(cells) if rng.random() < 0.9 else ""
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damaged(data, rng) if rng.random() < 0.4 else data


# Bundles and stores


def bundles_damaged(place, rng):
    """A bundle, or images, with damage: `predict` and `export`."""
    folder = place / "bundle"
    shutil.copytree(place.base / "bundle", folder)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    path = files[int(rng.integers(len(files)))]
    image = place / "picture.png"
    pictures = sorted((place.base / "run/images/part0").iterdir())
    picture = pictures[int(rng.integers(len(pictures)))]
    image = place / f"picture{picture.suffix}"
    image.write_bytes(picture.read_bytes())
    # Of a network by a plugin, of a newer version, without bundle.json, with a link.
    recovery = (
        "again",
        "unknown network",
        "is not one this version reads",
        "'surefoot bundle' writes one",
        "'cp -RL'",
    )
    if rng.random() < 0.35:
        recovery = ()
        image.write_bytes(damaged(image.read_bytes(), rng))
    elif path.suffix == ".json" and rng.random() < 0.7:
        path.write_bytes(_document_bytes(json.loads(path.read_text()), rng))
    elif rng.random() < 0.2:
        path.unlink()
        inputs.special_file(path, rng)
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))
    out = place / f"o{rng.choice(['.csv', '.parquet'])}"
    words = ("predict", folder, image, "-o", out, "--device", "cpu")
    words += ("--probabilities",) if rng.random() < 0.5 else ()
    yield Step(words, ANY, may_fail=may_fail(words), writes=(out,), says=recovery)


def stores_damaged(place, rng):
    """A store with a damaged file: the commands that read it."""
    store = place / "store"
    shutil.copytree(place.base / "run/store", store, symlinks=True)
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    path = files[int(rng.integers(len(files)))]
    if path.suffix == ".json" and rng.random() < 0.6:
        path.write_bytes(_document_bytes(json.loads(path.read_text()), rng))
    elif path.suffix == ".toml" and rng.random() < 0.6:
        path.write_bytes(_toml_bytes(path.read_text(), rng))
    elif rng.random() < 0.1:
        path.unlink()
    elif rng.random() < 0.2:
        path.unlink()
        inputs.special_file(path, rng)
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))
    options = ("--store", store)
    words = [
        ("ls", "runs", *options),
        ("show", "tiny", "--as", "run", *options),
        ("status", *options),
        ("compare", "tiny", "tiny", "--resamples", 0, *options),
        ("predictions", "tiny", "single", "-o", place / "out", *options),
        ("bundle", "tiny", "single", "-o", place / "out", "--resamples", 0, *options),
        ("predictions", "tiny", "single", "-o", place / "out", *options),
        ("bundle", "tiny", "single", "-o", place / "out", "--resamples", 0, *options),
    ][int(rng.integers(8))]
    says = ("again", "remove", "trains what is missing", "it was run with")  # the last: a method is gone
    yield Step(words, ANY, may_fail=may_fail(words), writes=None, says=says)
