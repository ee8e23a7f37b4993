"""Cases of valid predictions: the numbers of every command are compared with the oracle's."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np

from surefoot.calibrators import CALIBRATORS
from tests.fuzz import oracle
from tests.fuzz.inputs import damaged, draw, nasty_names, pick, write
from tests.fuzz.steps import ANY, EITHER, SUFFIXES, TOLERANCE, VALID, Step


def _metrics(rng):
    """The options of the metrics that the oracle knows, or mostly (the rest takes longest) of all."""
    return [word for name in oracle.METRICS for word in ("--metric", name)] if rng.random() < 0.8 else []


RANKED = ("ece", "aurc", "risk_at_80", "coverage_at_5", "e99")


def scores_check(drawn_by_side, names=None, *, stream=False):
    """Compare what `evaluate` prints as JSON with the oracle; all of its metrics, or these."""

    def check(stdout):
        document = json.loads(stdout)
        return next(filter(None, (wrong(side, document[side]) for side in drawn_by_side)), None)

    def wrong(side, found):
        drawn = drawn_by_side[side]
        wanted = oracle.scores(drawn.logits, drawn.labels)
        kind = "many_labels" if drawn.many else "one_label"
        facts = {
            "n": wanted.pop("n"),
            "members": len(drawn.logits),
            "classes": drawn.logits.shape[2],
            "kind": kind,
        }
        for name, value in facts.items():
            if found[name] != value:
                return f"{side} {name} is {found[name]}, not {value}"
        for name in names or wanted:
            problem = wrong_score(name, found["metrics"].get(name), wanted[name], drawn, stream)
            if problem and name in RANKED:  # right if a confidence is rounded to the other side
                nudged = (oracle.scores(drawn.logits, drawn.labels, by)[name] for by in oracle.NUDGES)
                problem = problem and all(
                    wrong_score(name, found["metrics"].get(name), each, drawn, stream) for each in nudged
                )
            if problem:
                return f"{side} {name} is {found['metrics'].get(name)}, not {wanted[name]!r}"
        return None

    return check


def wrong_score(name, score, value, drawn, stream):
    """Whether a score is missing, or another number than this, beyond what rounding explains."""
    if score is None or (score["value"] is None) != (value is None):
        return True
    if value is None or (name in RANKED and not drawn.exact):
        return False  # a float32 is another number at a decimal that decides ties and thresholds
    bound = score.get("bound", 0.0) if stream else 0.0
    slack = (TOLERANCE if drawn.exact else 1e-5) + (np.inf if bound is None else bound)
    return abs(score["value"] - value) > slack * max(1.0, abs(value))


def evaluate_valid(place, rng):
    """`evaluate` of one or two valid files, in memory, streamed, or in several parts."""
    first = draw(rng)
    sides = {"familiar": first}
    if rng.random() < 0.3:
        n, classes = pick(rng, [1, 7, 40]), first.logits.shape[2]
        sides["unfamiliar"] = draw(rng, many=first.many, n=n, classes=classes)
    suffix = pick(rng, SUFFIXES if max(len(d.logits) for d in sides.values()) == 1 else SUFFIXES[:2])
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
    words += ["--format", "json", "--resamples", pick(rng, [0, 0, 0, 7])]
    words += ["--stream"] if stream else ["--no-stream"]
    yield Step((*words, *_metrics(rng)), expect, scores_check(read, stream=stream))


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
    source = place / f"in{pick(rng, SUFFIXES)}"
    read = write(drawn, source, rng)
    check = scores_check({"familiar": read})
    options = ("--format", "json", "--resamples", 0, *_metrics(rng))
    yield Step(("evaluate", source, *options), EITHER, check)
    if rng.random() < 0.3 and source.suffix != ".npz":
        streamed = scores_check({"familiar": read}, stream=True)
        yield Step(("evaluate", source, "--stream", *options), EITHER, streamed)
    target = place / f"out{pick(rng, SUFFIXES)}"
    (place / "c.json").write_text(json.dumps(temperature(1.0, read)))
    done = yield Step(("apply", place / "c.json", source, "-o", target), EITHER, writes=(target,))
    if done == 0:
        yield Step(("evaluate", target, *options), VALID, check)
        if rng.random() < 0.3:
            form = pick(rng, ["table", "markdown", "latex", "csv"])
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
    suffix = pick(rng, SUFFIXES if len(drawn.logits) == 1 else SUFFIXES[:2])
    source, fitted = place / f"val{suffix}", place / "c.json"
    read = write(drawn, source, rng, probs=rng.random() < 0.2)
    method = pick(rng, ["temperature", "temperature", "temperature>=1", "budget"])
    stream = ("--stream",) if suffix != ".npz" and method == "temperature" and rng.random() < 0.3 else ()
    names = {"temperature>=1": "softening"}
    force = ("--force",) if rng.random() < 0.3 else ()
    words = ("calibrate", source, "-o", fitted, "--method", names.get(method, method), *stream, *force)
    raised = replace(read, logits=oracle.without_zeros(read.logits, read.many))
    is_fitted = lambda _: _wrong_fit(fitted, raised, method, bool(force))  # noqa: E731
    if (yield Step(words, VALID, is_fitted, writes=(fitted,))) != 0:
        return
    document = json.loads(fitted.read_text())
    scale = document["temperature"]
    read = read if document.get("lowest_probability") is None else raised
    target = place / f"out{pick(rng, SUFFIXES[:2] if len(read.logits) > 1 else SUFFIXES)}"
    expect = VALID if suffix != ".npz" or target.suffix != ".csv" else EITHER  # lists do not fit into a .csv
    done = yield Step(("apply", fitted, source, "-o", target), expect, writes=(target,))
    if done == 0 and len(read.logits) == 1 and read.exact and 1e-3 < scale < 1e3:
        scaled = replace(read, logits=read.logits / scale)
        check = scores_check({"familiar": scaled})
        options = ("--format", "json", "--resamples", 0, *_metrics(rng))
        yield Step(("evaluate", target, *options), VALID, check)
        yield Step(("evaluate", source, "--calibration", fitted, *options), VALID, check)


def _wrong_fit(path, drawn, method, force):
    found = json.loads(path.read_text())
    budgeted = "best" in found
    if budgeted != (method == "budget") and (force or not found.get("declined")):
        return f"the file of {method!r} has {'a' if budgeted else 'no'} budget"
    best = found["best"] if budgeted else found
    if best["flat"]:
        return None
    value = best["declined"] or best["temperature"]

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
    if budgeted and not found["at_bound"] and not best["at_bound"]:
        limit = (1 + found["budget"]) * nll(wanted)
        if abs(nll(found["temperature"]) - limit) > 1e-4 * limit:
            return f"NLL {nll(found['temperature'])!r} at the budget's T, not {limit!r}"
    if not budgeted:
        low, high = best["interval"]["low"], best["interval"]["high"]
        is_unknown = (
            best["at_bound"] or high is None or high >= 100 * low or best.get("ece_declined") is not None
        )
        used = 1.0 if is_unknown and not force else max(1.0, value) if method == "temperature>=1" else value
        if found["temperature"] != used:
            return f"T = {found['temperature']!r}, not {used!r}"
    return None


def thresholds_valid(place, rng):
    """`thresholds`: the counts of its file, its bound, and the fractions that `monitor` accepts."""
    drawn = draw(rng, many=False, n=pick(rng, [2, 30, 120]))
    if not drawn.exact:
        return
    val = place / "val.npz"
    np.savez(val, logits=drawn.logits, labels=drawn.labels)
    target, level = pick(rng, [0.05, 0.2, 0.5, 0.9]), pick(rng, [0.5, 0.9, 0.95])
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


def sets_valid(place, rng):
    """`sets`: its limit, and how many sets contain the true class, by hand."""
    drawn = draw(rng, many=False, n=pick(rng, [1, 2, 30, 120]))
    if not drawn.exact:
        return
    val, out = place / "val.npz", place / "s.json"
    np.savez(val, logits=drawn.logits, labels=drawn.labels)
    coverage = pick(rng, [0.01, 0.5, 0.9, 0.99])

    def check(_):
        found = json.loads(out.read_text())
        known = drawn.labels >= 0
        probs = np.exp(oracle.log_probabilities(drawn.logits, many=False)).round(oracle.DECIMALS)[known]
        labels = drawn.labels[known]
        true = np.sort(probs[np.arange(len(labels)), labels])[::-1]
        rank = int(np.ceil((len(true) + 1) * coverage - 1e-9))
        limit = true[rank - 1] if rank <= len(true) else 0.0
        inside = (probs[np.arange(len(labels)), labels] >= limit) | (probs.argmax(axis=1) == labels)
        wanted = (len(labels), limit, int(inside.sum()))
        got = (found["n"], found["least_probability"], found["measured"]["val"]["coverage"]["k"])
        return None if np.allclose(got, wanted, rtol=0, atol=1e-11) else f"{got}, not {wanted}"

    expect = VALID if (drawn.labels >= 0).any() else EITHER
    yield Step(("sets", val, "--coverage", coverage, "-o", out), expect, check, writes=(out,))


def refit_valid(place, rng):
    """A calibration of any kind: what `apply` writes is evaluated as the input with the calibration is."""
    drawn = draw(rng, many=False, least=2)
    suffix = pick(rng, SUFFIXES if len(drawn.logits) == 1 else SUFFIXES[:2])
    source, fitted = place / f"val{suffix}", place / "c.json"
    write(drawn, source, rng)
    method = pick(rng, [each.name for each in CALIBRATORS if each.name != "novelty"])
    force = ("--force",) if rng.random() < 0.5 else ()
    words = ("calibrate", source, "-o", fitted, "--method", method, *force)
    if (yield Step(words, ANY, writes=(fitted,))) != 0:
        return
    target = place / "out.npz"
    yield Step(("apply", fitted, source, "-o", target), VALID, writes=(target,))
    options = ("--format", "json", "--resamples", 0, "--metric", "nll", "--metric", "brier")
    outputs = []

    def keep(stdout):
        found = json.loads(stdout)["familiar"]
        outputs.append([found["n"], found["classes"], *(each["value"] for each in found["metrics"].values())])
        same = np.allclose(np.array(outputs[0], float), np.array(outputs[-1], float), atol=1e-6, rtol=1e-6)
        return None if same or None in outputs[0] else f"{outputs[-1]}, not {outputs[0]}"

    yield Step(("evaluate", target, *options), VALID, keep)
    yield Step(("evaluate", source, "--calibration", fitted, *options), VALID, keep)


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
            findings = {each["name"]: each for each in json.loads(stdout)["findings"]}
            finding = findings["confidence"]
            tops = [np.exp(oracle.log_probabilities(d.logits, False).max(axis=1)).round(12) for d in drawn]
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
