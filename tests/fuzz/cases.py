"""The cases: each is drawn from a generator and gives one or more commands, with what must come of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.fuzz import inputs, oracle
from tests.fuzz.inputs import damaged, draw, nasty_names, write

VALID, EITHER, ANY, REFUSED = "valid", "either", "any", "refused"
SUFFIXES = (".npz", ".parquet", ".csv")
TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Step:
    """A command and what must come of it.

    `expect`: valid input must succeed; `either` may be refused, but not misunderstood; `any` may do either;
    what is `refused` must be. `check` returns what is wrong with the output, if it succeeded.
    """

    words: tuple
    expect: str = VALID
    check: Callable[[str], str | None] = lambda _: None
    may_fail: bool = False  # exit code 1 is an answer, such as an alarm
    writes: tuple | None = ()  # outputs; None is anything
    caches: tuple = ()  # outputs that a refusal may leave, too


@dataclass(frozen=True)
class Place:
    """Where a case runs, and what was prepared for all cases: a bundle, a store, a task."""

    folder: Path
    base: Path

    def __truediv__(self, name):
        return self.folder / name


# Predictions: valid


def _scores_check(drawn_by_side, *, stream=False):
    def check(stdout):
        document = json.loads(stdout)
        for side, drawn in drawn_by_side.items():
            found, wanted = document[side], oracle.scores(drawn.logits, drawn.labels)
            plain = {
                "n": wanted.pop("n"),
                "members": len(drawn.logits),
                "classes": drawn.logits.shape[2],
                "kind": "many_labels" if drawn.many else "one_label",
            }
            for name, value in plain.items():
                if found[name] != value:
                    return f"{side} {name} is {found[name]}, not {value}"
            for name, value in wanted.items():
                wrong = _wrong_score(name, found["metrics"].get(name), value, drawn, stream)
                if wrong:
                    return f"{side} {wrong}"
        return None

    return check


RANKED = ("ece", "aurc", "risk_at_80", "coverage_at_5", "e99")


def _wrong_score(name, score, value, drawn, stream):
    if score is None:
        return f"{name} is missing"
    if (score["value"] is None) != (value is None):
        return f"{name} is {score['value']}, not {value}"
    if value is None or (name in RANKED and not drawn.exact):
        return None  # a float32 is another number at a decimal that decides ties and thresholds
    slack = TOLERANCE if drawn.exact else 1e-5
    slack += (score.get("bound") or 0.0) if stream else 0.0
    if stream and "bound" in score and score["bound"] is None:
        return None
    if abs(score["value"] - value) > slack * max(1.0, abs(value)):
        return f"{name} is {score['value']!r}, not {value!r}"
    return None


def evaluate_valid(place, rng):
    """`evaluate` of one or two valid files, in memory, streamed, or in several parts."""
    first = draw(rng)
    sides = {"familiar": first}
    if rng.random() < 0.3:
        n, classes = int(rng.choice([1, 7, 40])), first.logits.shape[2]
        sides["unfamiliar"] = draw(rng, many=first.many, n=n, classes=classes)
    suffix = str(rng.choice(SUFFIXES if max(len(d.logits) for d in sides.values()) == 1 else SUFFIXES[:2]))
    stream = suffix != ".npz" and rng.random() < 0.3
    probs = rng.random() < 0.25
    words, read = ["evaluate"], {}
    for side, drawn in sides.items():
        if suffix != ".npz" and rng.random() < 0.15:
            path, read[side] = _in_parts(drawn, place / side, suffix, rng)
        else:
            path = place / f"{side}{suffix}"
            read[side] = write(drawn, path, rng, probs=probs)
        words.append(path)
    known = {drawn.names for drawn in read.values() if drawn.names is not None}
    expect = VALID if len(known) < 2 else ANY
    words += ["--format", "json", "--resamples", int(rng.choice([0, 0, 0, 7]))]
    words += ["--stream", "--workers", 1] if stream else ["--no-stream"]
    yield Step(tuple(words), expect, _scores_check(read, stream=stream))


def _in_parts(drawn, folder, suffix, rng):
    """The rows in several files of one folder, all written in the same way; what they are together."""
    folder.mkdir()
    names = tuple(f"c{index}" for index in range(drawn.logits.shape[2]))
    drawn = replace(drawn, names=names)
    cuts = sorted({0, drawn.n, *(int(cut) for cut in rng.integers(0, drawn.n + 1, 2))})
    seed = int(rng.integers(2**31))
    parts = []
    for number, (start, end) in enumerate(pairwise(cuts)):
        part = replace(drawn, logits=drawn.logits[:, start:end], labels=drawn.labels[start:end])
        parts.append(write(part, folder / f"{number}{suffix}", np.random.default_rng(seed)))
    logits = np.concatenate([part.logits for part in parts], axis=1)
    return folder, replace(parts[0], logits=logits, labels=drawn.labels)


def names_round_trip(place, rng):
    """Nasty class names: refused, or understood; and what `apply` writes, `evaluate` reads as the same."""
    drawn = draw(rng, members=1, least=3, classes=int(rng.integers(2, 7)))
    drawn = replace(drawn, names=nasty_names(rng, drawn.logits.shape[2]))
    source = place / f"in{rng.choice(SUFFIXES)}"
    read = write(drawn, source, rng)
    check = _scores_check({"familiar": read})
    options = ("--format", "json", "--resamples", 0)
    yield Step(("evaluate", source, *options), EITHER, check)
    if rng.random() < 0.3 and source.suffix != ".npz":
        streamed = _scores_check({"familiar": read}, stream=True)
        yield Step(("evaluate", source, "--stream", *options), EITHER, streamed)
    target = place / f"out{rng.choice(SUFFIXES)}"
    (place / "c.json").write_text(json.dumps(temperature(1.0, read)))
    done = yield Step(("apply", place / "c.json", source, "-o", target), EITHER, writes=(target,))
    if done == 0:
        yield Step(("evaluate", target, *options), VALID, check)
        if rng.random() < 0.3:
            form = str(rng.choice(["table", "markdown", "latex", "csv"]))
            yield Step(("evaluate", source, "--resamples", 0, "--format", form))


def temperature(value, drawn, **changes):
    """The document of a calibration."""
    document = {
        "kind": "temperature", "temperature": value, "interval": {"low": value, "high": value, "level": 0.95},
        "n": 100, "label_kind": "many_labels" if drawn.many else "one_label", "classes": drawn.logits.shape[2],
        "at_bound": False, "separable": False, "flat": False, "declined": None, "evidence": None, "remarks": [],
        "surefoot": "0", "format": 1,
    }  # fmt: skip
    return document | changes


def calibrate_valid(place, rng):
    """`calibrate`, compared with an independent search; then `apply`, then `evaluate`."""
    drawn = draw(rng, least=2)
    suffix = str(rng.choice(SUFFIXES if len(drawn.logits) == 1 else SUFFIXES[:2]))
    source, fitted = place / f"val{suffix}", place / "c.json"
    read = write(drawn, source, rng, probs=rng.random() < 0.2)
    method = str(rng.choice(["temperature", "temperature", "temperature>=1", "budget"]))
    stream = ("--stream",) if suffix != ".npz" and method == "temperature" and rng.random() < 0.3 else ()
    names = {"temperature>=1": "softening"}
    words = ("calibrate", source, "-o", fitted, "--method", names.get(method, method), *stream)
    done = yield Step(words, VALID, lambda _: _wrong_fit(fitted, read, method), writes=(fitted,))
    if done != 0:
        return
    scale = json.loads(fitted.read_text())["temperature"]
    target = place / f"out{rng.choice(SUFFIXES[:2] if len(read.logits) > 1 else SUFFIXES)}"
    expect = VALID if suffix != ".npz" or target.suffix != ".csv" else EITHER  # lists do not fit into a .csv
    done = yield Step(("apply", fitted, source, "-o", target), expect, writes=(target,))
    if done == 0 and len(read.logits) == 1 and read.exact and 1e-3 < scale < 1e3:
        scaled = replace(read, logits=read.logits / scale)
        check = _scores_check({"familiar": scaled})
        yield Step(("evaluate", target, "--format", "json", "--resamples", 0), VALID, check)
        yield Step(
            ("evaluate", source, "--calibration", fitted, "--format", "json", "--resamples", 0), VALID, check
        )


def _wrong_fit(path, drawn, method):
    found = json.loads(path.read_text())
    best = found["best"] if method == "budget" else found
    if best["flat"]:
        return None
    value = best["declined"] or best["temperature"] if method == "temperature>=1" else best["temperature"]

    def nll(t):
        return oracle.mean_nll(drawn.logits, drawn.labels, t)

    wanted = oracle.best_temperature(drawn.logits, drawn.labels)
    slack = 1e-8 if drawn.exact else 1e-5
    if best["at_bound"] and (wanted > value > 1 or wanted < value < 1):  # no minimum between the bounds
        return None
    if nll(value) > nll(wanted) + slack * max(1.0, nll(wanted)):
        return f"T = {value!r} has an NLL of {nll(value)!r}; T = {wanted!r} has {nll(wanted)!r}"
    sharp = min(nll(wanted * f) for f in (0.999, 1.001)) > nll(wanted) + 10 * slack
    if sharp and abs(np.log(value / wanted)) > 1e-3:
        return f"T = {value!r}, not {wanted!r}"
    if method == "budget" and not found["at_bound"]:
        limit = (1 + found["budget"]) * nll(wanted)
        if abs(nll(found["temperature"]) - limit) > 1e-4 * limit:
            return f"NLL {nll(found['temperature'])!r} at the budget's T, not {limit!r}"
    if method == "temperature>=1" and found["temperature"] != max(1.0, value):
        return f"T = {found['temperature']!r}, not {max(1.0, value)!r}"
    return None


def thresholds_valid(place, rng):
    """`thresholds`: the counts of its file, its bound, and the fractions that `monitor` accepts."""
    drawn = draw(rng, many=False, n=int(rng.choice([2, 30, 120])))
    if not drawn.exact:
        return
    val = place / "val.npz"
    np.savez(val, logits=drawn.logits, labels=drawn.labels)
    target, level = float(rng.choice([0.05, 0.2, 0.5, 0.9])), float(rng.choice([0.5, 0.9, 0.95]))
    out = place / "t.json"
    words = ("thresholds", val, "--target-error", target, "--level", level, "-o", out)

    def check(_):
        if not out.exists():
            return None
        found = json.loads(out.read_text())
        logs = oracle.log_probabilities(drawn.logits, many=False)
        known = drawn.labels >= 0
        confidence = np.exp(logs.max(axis=1)).round(oracle.DECIMALS)[known]
        wrong = logs.argmax(axis=1)[known] != drawn.labels[known]
        above = confidence >= found["accept"]
        error = found["measured"]["val"]["error"]
        if (error["k"], error["n"]) != (int(wrong[above].sum()), int(above.sum())):
            return (
                f"{error['k']} of {error['n']} accepted are wrong, not {wrong[above].sum()} of {above.sum()}"
            )
        if found["error_at_most"] > target:
            return f"the bound is {found['error_at_most']}, above the target {target}"
        for each in found["candidates"]:
            tail = (1 - level) * (0.1 if each["n"] == len(wrong) else 0.1 / 19)
            bound = _binomial_bound(each["wrong"], each["n"], tail)
            if abs(each["bound"] - bound) > 1e-6:
                return f"the bound of {each['wrong']} in {each['n']} is {each['bound']}, not {bound}"
        return None

    html = ("--html", place / "t.html") if rng.random() < 0.02 else ()
    yield Step((*words, *html), VALID, check, may_fail=True, writes=(out, place / "t.html"))
    if out.exists():
        words = ("monitor", val, val, "--thresholds", out, "--format", "json")
        yield Step(words, VALID, may_fail=True)


def _binomial_bound(k, n, tail):
    """The p at which at most k of n has a probability of `tail`, by bisection of the sum."""
    from math import comb

    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        chance = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
        low, high = (p, high) if chance > tail else (low, p)
    return 1.0 if k == n else low


def monitor_valid(place, rng):
    """`monitor` with a history: means and distances by hand, and the file grows by one line a check."""
    classes = int(rng.integers(2, 5))
    files, drawn = [], []
    for name in ("reference", "current"):
        each = draw(rng, many=False, members=1, least=2, classes=classes)
        drawn.append(replace(each, logits=each.logits.astype(np.float64)))
        files.append(place / f"{name}.npz")
        np.savez(files[-1], logits=each.logits[0], labels=each.labels)
    history = place / "h.jsonl"
    written = (history, place / ".h.jsonl.lock")

    def check(lines):
        def of(stdout):
            found = json.loads(stdout)
            tops = [np.exp(oracle.log_probabilities(d.logits, False).max(axis=1)).round(12) for d in drawn]
            text = json.dumps(found)
            finding = next((f for f in found.get("findings", ()) if f.get("name") == "confidence"), None)
            if finding is None:
                return f"no finding on confidence in {text[:200]}"
            points = np.concatenate(tops)
            shares = [(t[None, :] <= points[:, None]).mean(axis=1) for t in tops]
            wanted = (tops[0].mean(), tops[1].mean(), np.abs(shares[0] - shares[1]).max())
            got = [finding[name] for name in ("reference", "current", "distance")]
            if not np.allclose(got, wanted, atol=1e-9):
                return f"{got}, not {wanted}"
            if lines is not None and len(history.read_text().splitlines()) != lines:
                return "the history has not one line a check"
            return None

        return of

    words = ("monitor", *files, "--format", "json")
    if rng.random() < 0.5:
        yield Step(words, VALID, check(None), may_fail=True)
        return
    for number in (1, 2):
        lines = number if number == 1 else None
        done = yield Step((*words, "--history", history), VALID, check(lines), may_fail=True, writes=written)
    if done in (0, 1):
        history.write_bytes(damaged(history.read_bytes(), rng))
        yield Step((*words, "--history", history), ANY, may_fail=True, writes=written)


# Predictions: damaged and hostile


def _reading_commands(place, rng, path):
    """A command that reads this file."""
    other = place / "other.npz"
    drawn = draw(rng, many=False, members=1, n=12, classes=3)
    np.savez(other, logits=drawn.logits, labels=drawn.labels)
    (place / "c.json").write_text(json.dumps(temperature(1.5, drawn)))
    out = place / f"out{rng.choice(SUFFIXES)}"
    json_out = place / "out.json"
    choice = int(rng.integers(11))
    commands = [
        ("evaluate", path, "--resamples", 0, "--format", "json"),
        ("evaluate", path, "--resamples", 0, "--stream"),
        ("evaluate", other, path, "--resamples", 0),
        ("evaluate", path, "--resamples", 3, "--group-by", "site", "--format", "csv"),
        ("evaluate", path, "--resamples", 0, "--calibration", place / "c.json"),
        ("calibrate", path, "-o", json_out),
        ("calibrate", path, "-o", json_out, "--stream"),
        ("calibrate", path, "-o", json_out, "--method", "novelty"),
        ("apply", place / "c.json", path, "-o", out),
        ("thresholds", path, "--target-error", 0.5, "-o", json_out),
        ("monitor", other, path) if rng.random() < 0.5 else ("monitor", path, path),
    ]
    return Step(commands[choice], ANY, may_fail=True, writes=(out, json_out))


def predictions_damaged(place, rng):
    """A predictions file with damaged bytes, or with damage below right checksums."""
    drawn = draw(rng, n=int(rng.choice([1, 8, 40])), classes=int(rng.integers(2, 5)))
    suffix = str(
        rng.choice([".npz", ".npz", ".parquet", ".csv"] if len(drawn.logits) == 1 else [".npz", ".parquet"])
    )
    path = place / f"in{suffix}"
    read = write(drawn, path, rng, probs=rng.random() < 0.2)
    data = path.read_bytes()
    if suffix == ".npz" and rng.random() < 0.6:
        path.write_bytes(inputs.rewritten_npz(data, rng))
        yield _reading_commands(place, rng, path)
        return
    path.write_bytes(damaged(data, rng))
    if suffix == ".npz" and rng.random() < 0.3:  # a zip has checksums: damage is noticed, or harmless
        names = ("--metric", "nll", "--metric", "label_error")
        check = _checksummed(read)
        yield Step(("evaluate", path, "--resamples", 0, "--format", "json", *names), EITHER, check)
        return
    yield _reading_commands(place, rng, path)


def _checksummed(drawn):
    def check(stdout):
        found = json.loads(stdout)["familiar"]["metrics"]
        wanted = oracle.scores(drawn.logits, drawn.labels)
        for name in ("nll", "label_error"):
            wrong = _wrong_score(name, found[name], wanted[name], drawn, stream=False)
            if wrong:
                return wrong
        return None

    return check


def predictions_odd(place, rng):
    """Well-formed files of any type, shape and value."""
    suffix = str(rng.choice(SUFFIXES))
    path = place / f"in{suffix}"
    (inputs.odd_npz if suffix == ".npz" else inputs.odd_table)(path, rng)
    yield _reading_commands(place, rng, path)


def labels_that_wrap(place, rng):
    """Labels that a narrower type would turn into valid ones: refused."""
    n, classes = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    logits = rng.standard_normal((n, classes))
    value, kind = [
        (156, "u1"), (2**64 - 100, "u8"), (2**32 - 100, "u4"), (2**16 - 100, "u2"), (156, "i8"), (256, "i8"), (2**64 - 1, "u8"),
        (2**32, "i8"), (2**63, "u8"), (-356, "i8"), (2**53 + 2.0, "f8"), (1.5, "f8"), (np.nan, "f8"), (-1, "i8"), (1e300, "f8"),
        (2**64 - 100.0, "f8"), (1e30, "g"), (2**63, "g"),
    ][int(rng.integers(18))]  # fmt: skip
    labels = rng.integers(0, 2, (n, classes) if rng.random() < 0.4 else n).astype(kind)
    labels.reshape(-1)[int(rng.integers(labels.size))] = np.array([value]).astype(kind)[0]
    path = place / "in.npz"
    np.savez(path, logits=logits, labels=labels)
    yield Step(("evaluate", path, "--resamples", 0), REFUSED)


def special_files(place, rng):
    """FIFOs, folders, sockets, devices, loops and missing files, as any input or output."""
    drawn = draw(rng, many=False, members=1, n=5, classes=3)
    good, fitted = place / "good.npz", place / "c.json"
    np.savez(good, logits=drawn.logits, labels=drawn.labels)
    fitted.write_text(json.dumps(temperature(2.0, drawn)))
    suffix = str(rng.choice([".npz", ".parquet", ".csv", ".json", ".toml", ""]))
    odd = place / f"odd{suffix}"
    inputs.special_file(odd, rng)
    commands = [
        ("evaluate", odd), ("evaluate", good, odd), ("evaluate", odd, "--stream"), ("evaluate", good, "--calibration", odd),
        ("calibrate", odd, "-o", place / "o.json"), ("calibrate", good, "-o", odd), ("apply", odd, good, "-o", place / "o.npz"),
        ("apply", fitted, odd, "-o", place / "o.npz"), ("apply", fitted, good, "-o", odd), ("thresholds", odd),
        ("thresholds", good, "-o", odd, "--target-error", 0.9), ("thresholds", good, "--calibration", odd), ("monitor", good, odd),
        ("monitor", odd, good), ("monitor", good, good, "--history", odd), ("monitor", good, good, "--thresholds", odd),
        ("monitor", good, good, "--output", odd), ("evaluate", good, "--report", odd, "--resamples", 0), ("report", odd), ("show", odd),
        ("data", "check", odd), ("ls", "runs", "--store", odd), ("status", "--store", odd), ("predict", place.base / "bundle", odd, "-o", place / "o.csv"),
        ("predict", odd, good, "-o", place / "o.csv"), ("run", odd), ("train", odd), ("tune", odd, "-o", place / "o.toml"),
        ("train", "toy", "--recipe", odd), ("export", odd, "-o", place / "o.onnx"), ("compare", odd, odd), ("data", "decode", odd),
        ("thresholds", good, "--html", odd, "--target-error", 0.9), ("predict", place.base / "bundle", place.base / "run/images/part0/000.png", "-o", odd),
        ("predict", place.base / "bundle", place.base / "run/images/part0/000.png", "-o", place / "o.csv", "--thresholds", odd), ("train", "toy/moons", "--weights", odd),
    ]  # fmt: skip
    words = commands[int(rng.integers(len(commands)))]
    if words[:2] in (("train", "toy/moons"), ("train", "toy")) and odd.is_file():
        return
    outputs = (
        odd,
        place / "nowhere",
        place / f".odd{suffix}.lock",
        *(place / f"o.{e}" for e in ("json", "npz", "csv", "toml", "onnx")),
        place / "thresholds.json",
    )
    yield Step(words, ANY, may_fail=True, writes=outputs)


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
        "evaluate": ([good], ["--group-by", "--metric", "--error-above", "--fail-if", "--format", "--resamples", "--seed", "--workers",
                              "--engine", "--address", "--calibration", "--report"]),
        "calibrate": ([good, "-o", place / "o.json"], ["--method", "--budget", "--reference", "--group-by", "--workers", "--engine"]),
        "apply": ([fitted, good, "-o", place / "o.csv"], ["--output"]),
        "thresholds": ([good, "-o", place / "o.json"], ["--target-error", "--min-coverage", "--reject-error", "--level", "--split", "--seed",
                                                        "--for-class", "--unfamiliar", "--familiar-test", "--calibration"]),
        "monitor": ([good, good], ["--alpha", "--bound", "--history", "--kind", "--format", "--thresholds", "--output", "--calibration"]),
        "show": (["quickstart"], ["--as", "--store"]),
        "ls": (["metrics"], ["--store"]),
        "status": (["--store", place.base / "run/store"], ["--store"]),
        "report": ([place.base / "scores.csv"], ["--method", "--paper", "--set"]),
        "train": (["toy/moons", "--set", "epochs=0"], ["--set", "--members", "--device", "--workers", "--weights", "--recipe", "--root"]),
        "run": (["nothing-of-this-name"], ["--set", "--method", "--root", "--device", "--engine", "--workers"]),
        "tune": (["nothing-of-this-name", "-o", place / "o.toml"], ["--rate", "--sharpness", "--length", "--runs", "--most-epochs", "--search"]),
    }  # fmt: skip
    name = str(rng.choice(list(commands)))
    words, options = commands[name]
    extra = []
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        extra += [str(rng.choice(options)), str(rng.choice(values))]
    if "ray" in extra or "--engine" in extra:
        extra = [word if word != "ray" else "local" for word in extra]
    yield Step((name, *words, *extra), ANY, may_fail=True, writes=None)


# Documents


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
            ("monitor", good, good, "--calibration", bad),
        ]
    )
    words = commands[int(rng.integers(len(commands)))]
    yield Step(words, ANY, may_fail=True, writes=(out, place / "o.json"))


def _toml_bytes(text, rng):
    """A TOML text with values replaced, then perhaps damaged bytes."""
    lines = text.splitlines()
    values = ["9" * 400, "-1", "nan", "inf", "1e400", "true", '""', "[]", "{}", "1979-05-27", "0x" + "f" * 300, '"\\u0000"',
              "[[1]]", '"\x1b[31m"', "0.5", "1_000", "[1, 2]", '"x"', "{ at_least = nan }", "{ equals = 1, in = [] }",
              "{ in = [1979-05-27, 'a', 1.5] }", "{ missing = 3 }", '"..\\u002f"', "07:32:00", "-0.0", "[" * 500, "9223372036854775808"]  # fmt: skip
    for _ in range(int(rng.choice([1, 1, 2, 4]))):
        places = [i for i, line in enumerate(lines) if "=" in line] or [0]
        at = int(rng.choice(places))
        key = lines[at].partition("=")[0]
        roll = rng.random()
        if roll < 0.65:
            lines[at] = f"{key}= {rng.choice(values)}"
        elif roll < 0.75:
            del lines[at]
        elif roll < 0.85:
            lines.insert(
                at,
                f"{rng.choice(['seed', 'x', 'name', 'val', 'groups', 'plugins', 'runs'])} = {rng.choice(values)}",
            )
        else:
            lines[at] = f"{str(rng.choice(inputs.NASTY))!r} = {rng.choice(values)}"
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
        yield Step(words, ANY, may_fail=True, writes=None, caches=(place / "cache",))
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
    if rng.random() < 0.35:
        image.write_bytes(damaged(image.read_bytes(), rng))
    elif path.suffix == ".json" and rng.random() < 0.7:
        path.write_bytes(_document_bytes(json.loads(path.read_text()), rng))
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))
    out = place / f"o{rng.choice(['.csv', '.parquet'])}"
    words = ("predict", folder, image, "-o", out, "--device", "cpu")
    words += ("--probabilities",) if rng.random() < 0.5 else ()
    yield Step(words, ANY, may_fail=True, writes=(out,))


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
    yield Step(words, ANY, may_fail=True, writes=None)


FAMILIES = {
    evaluate_valid: 16,
    calibrate_valid: 8,
    names_round_trip: 8,
    thresholds_valid: 3,
    monitor_valid: 4,
    predictions_damaged: 22,
    predictions_odd: 12,
    labels_that_wrap: 2,
    special_files: 6,
    odd_options: 8,
    calibrations_damaged: 5,
    descriptions_damaged: 5,
    bundles_damaged: 3,
    stores_damaged: 2,
}


def family_of(rng):
    """A family, by its weight."""
    weights = np.array(list(FAMILIES.values()), dtype=float)
    return list(FAMILIES)[int(rng.choice(len(weights), p=weights / weights.sum()))]
