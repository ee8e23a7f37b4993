"""Cases of damaged and hostile predictions, files that are none, and options."""

import json

import numpy as np

from surefoot.calibrators import CALIBRATORS
from tests.fuzz import inputs
from tests.fuzz.inputs import damaged, draw, pick, write
from tests.fuzz.steps import ANY, EITHER, REFUSED, SUFFIXES, Step, may_fail
from tests.fuzz.valid import scores_check, temperature


def _reading_commands(place, rng, path):
    """A command that reads this file."""
    other = place / "other.npz"
    drawn = draw(rng, many=False, members=1, n=12, classes=3)
    np.savez(other, logits=drawn.logits, labels=drawn.labels)
    (place / "c.json").write_text(json.dumps(temperature(1.5, drawn)))
    out = place / f"out{pick(rng, SUFFIXES)}"
    json_out = place / "out.json"
    few = ("--resamples", 0, "--metric", "nll", "--metric", "ece")
    method = pick(rng, [each.name for each in CALIBRATORS])
    commands = [
        ("evaluate", path, *few, "--format", "json"),
        ("evaluate", path, *few, "--stream"),
        ("evaluate", other, path, *few),
        ("evaluate", path, *few[2:], "--resamples", 3, "--group-by", "site", "--format", "csv"),
        ("evaluate", path, "--resamples", 0, "--calibration", place / "c.json"),
        ("calibrate", path, "-o", json_out, *pick(rng, [(), ("--stream",), ("--method", method)])),
        ("apply", place / "c.json", path, "-o", out),
        ("thresholds", path, "--target-error", 0.5, "-o", json_out),
        ("sets", path, "-o", json_out),
        ("sets", other, "--unfamiliar", path, "--coverage", 0.5),
        ("monitor", pick(rng, [other, path]), path),
    ]
    words = pick(rng, commands)
    return Step(words, ANY, may_fail=may_fail(words), writes=(out, json_out))


def predictions_damaged(place, rng):
    """A predictions file with damaged bytes, or with damage below right checksums."""
    drawn = draw(rng, n=pick(rng, [1, 8, 40]), classes=int(rng.integers(2, 5)))
    path = (
        place / f"in{pick(rng, ['.npz', '.npz', '.parquet', '.csv'][: 4 if len(drawn.logits) == 1 else 3])}"
    )
    read = write(drawn, path, rng, probs=rng.random() < 0.2)
    data, is_zip = path.read_bytes(), path.suffix == ".npz"
    if is_zip and rng.random() < 0.6:
        path.write_bytes(inputs.rewritten_npz(data, rng))
    else:
        path.write_bytes(damaged(data, rng))
        if is_zip and rng.random() < 0.3:  # a zip has checksums: damage is noticed, or harmless
            names = ("--metric", "nll", "--metric", "label_error")
            words = ("evaluate", path, "--resamples", 0, "--format", "json", *names)
            yield Step(words, EITHER, scores_check({"familiar": read}, names[1::2]))
            return
    yield _reading_commands(place, rng, path)


def predictions_odd(place, rng):
    """Well-formed files of any type, shape and value."""
    path = place / f"in{pick(rng, SUFFIXES)}"
    (inputs.odd_npz if path.suffix == ".npz" else inputs.odd_table)(path, rng)
    yield _reading_commands(place, rng, path)


WRAPPING = (
    (156, "u1"), (2**64 - 100, "u8"), (2**32 - 100, "u4"), (2**16 - 100, "u2"), (156, "i8"), (256, "i8"), (2**64 - 1, "u8"),
    (2**32, "i8"), (2**63, "u8"), (-356, "i8"), (2**53 + 2.0, "f8"), (1.5, "f8"), (np.nan, "f8"), (-1, "i8"), (1e300, "f8"),
    (2**64 - 100.0, "f8"), (1e30, "g"), (2**63, "g"),
)  # fmt: skip


def labels_that_wrap(place, rng):
    """Labels that a narrower type would turn into valid ones: refused."""
    n, classes = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    value, kind = pick(rng, WRAPPING)
    labels = rng.integers(0, 2, (n, classes) if rng.random() < 0.4 else n).astype(kind)
    labels.reshape(-1)[int(rng.integers(labels.size))] = np.array([value]).astype(kind)[0]
    np.savez(place / "in.npz", logits=rng.standard_normal((n, classes)), labels=labels)
    yield Step(("evaluate", place / "in.npz", "--resamples", 0), REFUSED)


def special_files(place, rng):
    """FIFOs, folders, sockets, devices, loops and missing files, as any input or output."""
    drawn = draw(rng, many=False, members=1, n=5, classes=3)
    good, fitted = place / "good.npz", place / "c.json"
    np.savez(good, logits=drawn.logits, labels=drawn.labels)
    fitted.write_text(json.dumps(temperature(2.0, drawn)))
    suffix = pick(rng, [".npz", ".parquet", ".csv", ".json", ".toml", ""])
    odd = place / f"odd{suffix}"
    inputs.special_file(odd, rng)
    commands = [
        ("evaluate", odd), ("evaluate", good, odd), ("evaluate", odd, "--stream"), ("evaluate", good, "--calibration", odd),
        ("calibrate", odd, "-o", place / "o.json"), ("calibrate", good, "-o", odd), ("apply", odd, good, "-o", place / "o.npz"),
        ("apply", fitted, odd, "-o", place / "o.npz"), ("apply", fitted, good, "-o", odd), ("thresholds", odd),
        ("thresholds", good, "-o", odd, "--target-error", 0.9), ("thresholds", good, "--calibration", odd), ("monitor", good, odd),
        ("monitor", odd, good), ("monitor", good, good, "--history", odd), ("monitor", good, good, "--thresholds", odd),
        ("monitor", good, good, "--output", odd), ("evaluate", good, "--report", odd, "--resamples", 0), ("report", odd), ("ls", "experiments", odd),
        ("data", "check", odd), ("ls", "runs", "--store", odd), ("ls", "networks", "--store", odd), ("predict", place.base / "bundle", odd, "-o", place / "o.csv"),
        ("predict", odd, good, "-o", place / "o.csv"), ("run", odd), ("train", odd), ("tune", odd, "-o", place / "o.toml"),
        ("train", "toy", "--recipe", odd), ("export", odd, "-o", place / "o.onnx"), ("compare", odd, odd),
        ("sets", odd), ("sets", good, "-o", odd), ("sets", good, "--calibration", odd), ("sets", good, "--familiar-test", odd),
        ("sets", good, "--unfamiliar", odd), ("bundle", odd, "single", "-o", place / "o.csv"), ("embed", odd, "-o", place / "o.npz"),
        ("embed", "toy", "-o", odd), ("predictions", odd, "single", "-o", place / "o.csv"), ("export", place.base / "bundle", "-o", odd),
        ("bundle", "tiny", "single", "-o", odd, "--store", place.base / "run/store", "--resamples", 0), ("serve", odd),
        ("evaluate", good, "--calibration", fitted, "--report", odd),
        ("thresholds", good, "--html", odd, "--target-error", 0.9), ("predict", place.base / "bundle", place.base / "run/images/part0/000.png", "-o", odd),
        ("predict", place.base / "bundle", place.base / "run/images/part0/000.png", "-o", place / "o.csv", "--thresholds", odd), ("train", "toy/moons", "--weights", odd),
    ]  # fmt: skip
    words = pick(rng, commands)
    if words[:2] in (("train", "toy/moons"), ("train", "toy")) and odd.is_file():
        return
    written = [f"o.{end}" for end in ("json", "npz", "csv", "toml", "onnx")]
    outputs = [
        odd,
        *(place / name for name in (*written, "nowhere", f".odd{suffix}.lock", "thresholds.json")),
    ]
    yield Step(words, ANY, may_fail=may_fail(words), writes=tuple(outputs))


def odd_options(place, rng):
    """Options with values out of range, of another type, or that do not go together."""
    drawn = draw(rng, members=1, n=20, classes=3, many=False)
    good, fitted = place / "good.npz", place / "c.json"
    np.savez(good, logits=drawn.logits, labels=drawn.labels, groups=np.arange(20) % 4)
    fitted.write_text(json.dumps(temperature(2.0, drawn)))
    values = ["0", "-1", "1", "nan", "inf", "-inf", "1e400", "9" * 400, "", " ", "x", "0.5", "1%", "-5%", "surplus", "\x1b[1m",
              "[red]x", "a\nb", "True", "1e-320", "2**3", "٣", "--", "-", "familiar.nll>0", "gap.nll>1", "familiar.x<1", "familiar.nll>nan",
              "familiar.nll.low>=0", "unfamiliar.e99>0.02", "table", "json", "novelty", "budget", "nll", "site", "groups", "temperature",
              str(good), str(fitted), "/", ".", "../x", "x" * 5000]  # fmt: skip
    commands = {
        "evaluate": ([good], ["--group-by", "--metric", "--error-above", "--fail-if", "--format", "--resamples", "--seed",
                              "--engine", "--calibration", "--report"]),
        "calibrate": ([good, "-o", place / "o.json"], ["--method", "--budget", "--reference", "--group-by", "--engine"]),
        "apply": ([fitted, good, "-o", place / "o.csv"], ["--output"]),
        "thresholds": ([good, "-o", place / "o.json"], ["--target-error", "--min-coverage", "--reject-error", "--level", "--split", "--seed",
                                                        "--for-class", "--unfamiliar", "--familiar-test", "--calibration"]),
        "sets": ([good, "-o", place / "o.json"], ["--coverage", "--familiar-test", "--unfamiliar", "--calibration", "--output"]),
        "monitor": ([good, good], ["--alpha", "--bound", "--history", "--kind", "--format", "--thresholds", "--output", "--calibration"]),
        "ls": (["metrics"], ["--store"]),
        "report": ([place.base / "scores.csv"], ["--method", "--paper", "--set"]),
        "train": (["toy/moons", "--set", "epochs=0"], ["--set", "--members", "--device", "--workers", "--weights", "--recipe", "--root"]),
        "run": (["nothing-of-this-name"], ["--set", "--method", "--root", "--device", "--engine", "--workers"]),
        "tune": (["nothing-of-this-name", "-o", place / "o.toml"], ["--rate", "--runs", "--most-epochs", "--search"]),
    }  # fmt: skip
    name = pick(rng, list(commands))
    words, options = commands[name]
    extra = [word for _ in range(pick(rng, [1, 1, 2, 3])) for word in (pick(rng, options), pick(rng, values))]
    words = (name, *words, *extra)
    yield Step(words, ANY, may_fail=may_fail(words), writes=None)
