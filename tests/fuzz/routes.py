"""Cases of the same data by several routes: probabilities of 0, other class orders and names, groups."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import surefoot
from surefoot import metrics
from surefoot.calibrators import CALIBRATORS
from tests.fuzz import oracle
from tests.fuzz.inputs import Drawn, draw, nasty_names, pick, written
from tests.fuzz.oracle import IGNORE, LEAST
from tests.fuzz.steps import ANY, EITHER, REFUSED, SUFFIXES, VALID, Step
from tests.fuzz.valid import _wrong_fit, scores_check


def saved(path, scores, labels, *, scale="logit", names=None, dtype="f8", **columns):
    """Write (n, classes) scores in a type; without names, classes have none in an .npz, or numbers."""
    scores, known = (
        np.asarray(scores).astype(dtype),
        {name: np.asarray(each) for name, each in columns.items()},
    )
    if path.suffix == ".npz":
        named = {} if names is None else {"classes": np.array(names)}
        np.savez(path, **{f"{scale}s": scores, "labels": labels}, **named, **known)
        return path
    if names is None and path.suffix == ".parquet":
        table = {f"{scale}s": list(scores), "label": labels}
    else:
        texts = names or [str(index) for index in range(scores.shape[1])]
        table = {f"{scale}_{name}": scores[:, index] for index, name in enumerate(texts)}
        table["label"] = [texts[label] if label >= 0 else str(IGNORE) for label in labels]
    write_to = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
    written(path, write_to, pa.table(table | known))
    return path


# Probabilities of 0


def zeros(place, rng):
    """The NLL, ECE and T of a forest's probabilities are the same from every file and type."""
    n, classes = pick(rng, [5, 30, 150]), pick(rng, [2, 3, 6])
    trees = pick(rng, [1, 4, 16, 64, 1024])  # of which all shares are exact in float16
    votes = rng.multinomial(trees, rng.dirichlet(np.full(classes, rng.choice([0.1, 0.3, 1])), n))
    probs, labels = votes / trees, rng.integers(0, classes, n)
    sure = rng.random(n) < 0.8
    labels[sure] = probs[sure].argmax(axis=1)
    labels[rng.random(n) < rng.choice([0, 0.2])] = IGNORE
    labels[0] = probs[0].argmin()
    tiny = pick(rng, ["0", "0", "1e-39", "1e-60", "5e-324"])
    options = ("--format", "json", "--resamples", 0)
    nlls = []
    given = np.where(probs == 0, float(tiny), probs)
    for suffix, dtype, stream in rng.permutation(WAYS).tolist()[:2]:
        path = saved(place / f"{dtype}{stream[1:]}{suffix}", given, labels, scale="prob", dtype=dtype)
        drawn = Drawn(np.log(np.maximum(probs, LEAST))[None], labels, exact=dtype == "f8")
        check = scores_check({"familiar": drawn}, stream=stream == "--stream")
        yield Step(("evaluate", path, *options, stream), VALID, _also_ece(check, drawn, nlls))
        fitted = place / "c.json"
        raised = replace(drawn, logits=oracle.without_zeros(drawn.logits, many=False))
        words = ("calibrate", path, "-o", fitted, *((stream,) if stream == "--stream" else ()))
        is_fitted = lambda _, raised=raised: _wrong_fit(place / "c.json", raised, "temperature", False)  # noqa: E731
        if (yield Step(words, VALID, is_fitted, writes=(fitted,))) == 0:
            document = json.loads(fitted.read_text())
            used = drawn if document.get("lowest_probability") is None else raised
            after = replace(used, logits=used.logits / document["temperature"], exact=False)
            check = scores_check({"familiar": after}, stream=stream == "--stream")
            yield Step(("evaluate", path, "--calibration", fitted, *options, stream), VALID, check)


TABLES = ((".parquet", "f2"), (".parquet", "f4"), (".parquet", "f8"), (".csv", "f8"))
WAYS = [(".npz", dtype, "--no-stream") for dtype in ("f2", "f4", "f8", ">f8", "g")]
WAYS += [(*table, stream) for table in TABLES for stream in ("--stream", "--no-stream")]


def _also_ece(check, drawn, seen):
    """The scores, and an ECE that is the same from every type, however little the types' ties differ."""

    def of(stdout):
        found = json.loads(stdout)["familiar"]["metrics"]["ece"]
        seen.append(found["value"])
        slack = 1e-6 + 2 * (found.get("bound") or 0.0)
        if abs(seen[0] - found["value"]) > slack:
            return f"ECE {found['value']} here and {seen[0]} from another type"
        return check(stdout)

    return of


# Orders and names of classes


def class_orders(place, rng):
    """A calibration, thresholds, sets or a reference, used on other orders of the same classes, other names, none."""
    classes, n = int(rng.integers(2, 6)), pick(rng, [30, 80])
    drawn = draw(rng, many=False, members=1, n=n, classes=classes)
    logits = drawn.logits[0] * rng.uniform(0.3, 2, classes) + rng.standard_normal(classes)
    names = tuple(f"class {index}" for index in rng.permutation(classes))
    if rng.random() < 0.3:
        names = nasty_names(rng, classes)
    order, labels = rng.permutation(classes), drawn.labels
    moved = np.where(labels >= 0, np.argsort(order)[np.maximum(labels, 0)], IGNORE)
    val = saved(place / f"val{pick(rng, SUFFIXES)}", logits, labels, names=names)
    in_order = tuple(names[i] for i in order)
    other = saved(place / f"other{pick(rng, SUFFIXES)}", logits[:, order], moved, names=in_order)
    renamed = saved(place / f"renamed{pick(rng, SUFFIXES)}", logits, labels, names=(*names[1:], "another"))
    unnamed = saved(place / "unnamed.npz", logits, labels)
    fitted, out = place / "fitted.json", place / f"out{pick(rng, SUFFIXES)}"
    prepare, use = _fit_and_use(val, fitted, out, rng)
    if prepare and (yield Step(prepare, ANY, may_fail=True, writes=(fitted,))) != 0:
        return
    answers = []

    def same(stdout):
        answers.append(_facts(json.loads(stdout)))
        return _unlike(answers[0], answers[-1])

    known = {"check": same, "may_fail": True, "writes": (out,)}
    for path, expect, notes in ((val, EITHER, ()), (other, VALID, ()), (unnamed, VALID, ("no class names",))):
        done = yield replace(use(path), expect=expect, notes=notes, **known)
        if path == val and done not in (0, 1):
            return
    yield replace(use(renamed), expect=REFUSED)


def _fit_and_use(val, fitted, out, rng):
    """A command that fits on `val`, and a step that uses what it wrote on another file."""
    options = ("--format", "json", "--resamples", 0, "--metric", "nll", "--metric", "brier")
    kinds = ["evaluate", "evaluate", "apply", "calibrated", "thresholds", "accepted", "sets", "monitor"]
    kind = pick(rng, kinds)
    method = pick(rng, [each.name for each in CALIBRATORS if each.one_model])
    calibrate = ("calibrate", val, "-o", fitted, "--method", method, "--force")
    thresholds = ("thresholds", val, "--target-error", 0.8, "-o", fitted)
    thresholds += ("--per", "class") if rng.random() < 0.4 else ()
    monitor = ("monitor", val)
    return {
        "evaluate": (calibrate, lambda path: Step(("evaluate", path, "--calibration", fitted, *options))),
        "apply": (calibrate, lambda path: Step(("apply", path), call=lambda: _applied(fitted, path, out))),
        "calibrated": (calibrate, lambda path: Step((*monitor, path, "--calibration", fitted, *options[:2]))),
        "thresholds": (thresholds, lambda path: Step((*monitor, path, "--thresholds", fitted, *options[:2]))),
        "accepted": (thresholds, lambda path: Step(("accepted", path), call=lambda: _accepted(fitted, path))),
        "sets": (None, lambda path: Step(("sets", path), call=lambda: _sizes(val, path))),
        "monitor": (None, lambda path: Step((*monitor, path, *options[:2]))),
    }[kind]


def _applied(fitted, path, out):
    surefoot.write_predictions(surefoot.load_calibration(fitted)(surefoot.read_predictions(path)), out)
    after = surefoot.read_predictions(out)
    return json.dumps({"nll": metrics.nll_unclipped(after), "brier": metrics.brier(after)})


def _accepted(fitted, path):
    return json.dumps(surefoot.load_thresholds(fitted).accepted(surefoot.read_predictions(path)).tolist())


def _sizes(val, path):
    given = surefoot.read_predictions(path)
    chosen = surefoot.choose_sets(surefoot.read_predictions(val), coverage=0.8).of(given)
    true = [bool(row[label]) for row, label in zip(chosen, given.labels.tolist(), strict=True) if label >= 0]
    return json.dumps({"sizes": chosen.sum(axis=1).tolist(), "true": true})


def _facts(document, at=""):
    """The numbers of a document by their place; of a check for shift, what depends on no random order."""
    if isinstance(document, dict) and "findings" in document:
        findings = {each["name"]: [each["reference"], each["current"]] for each in document["findings"]}
        document = {"findings": findings, "accuracy": document["accuracy"]["estimated"], "n": document["n"]}
    if isinstance(document, dict | list):
        pairs = document.items() if isinstance(document, dict) else enumerate(document)
        return {k: v for name, each in pairs for k, v in _facts(each, f"{at}/{name}").items()}
    return {at: document} if isinstance(document, int | float) else {}


def _unlike(first, second):
    """The first number that two documents do not have in common."""
    for at in sorted(first.keys() | second.keys()):
        a, b = first.get(at), second.get(at)
        if None in (a, b) or abs(a - b) > 1e-6 * max(1, abs(a)):
            return f"{at} is {b}, not {a}"
    return None


# Groups


def groups(place, rng):
    """Rows that repeat within their group show no more than one row of each, by every route."""
    classes, (n, copies) = pick(rng, [2, 3]), pick(rng, [(10, 2), (10, 8), (10, 30), (40, 2), (40, 8)])
    sides, files = {}, {}
    for side in ("val", "current"):
        drawn = draw(rng, many=False, members=1, n=n, classes=classes)
        logits = drawn.logits[0] + np.linspace(0, 1e-3, n)[:, None] * rng.random((n, classes))  # no ties
        labels = np.where(drawn.labels < 0, 0, drawn.labels)
        names = np.array([f"{side[0]}{index:03d}" for index in rng.permutation(n)])
        rows = np.repeat(np.arange(n), copies)
        if rng.random() < 0.5:
            rng.shuffle(rows)
        sides[side] = (logits, labels)
        suffix, again = (str(each) for each in rng.choice(SUFFIXES, 2, replace=False))
        files[side] = [
            saved(place / f"{side}-one.npz", logits, labels),
            saved(place / f"{side}{suffix}", logits[rows], labels[rows], groups=names[rows]),
            saved(place / f"{side}{again}", logits[rows], labels[rows], groups=names[rows]),
            saved(place / f"{side}-ids{suffix}", logits[rows], labels[rows], ids=names[rows]),
        ]
    out = place / "out.json"
    how = pick(rng, ["monitor", "monitor", "thresholds", "sets"])
    if how == "monitor":
        yield from _monitor_of_groups(files)
        return
    make = _thresholds_of_groups if how == "thresholds" else _sets_of_groups
    words, check = make(sides["val"], out, copies, rng)
    answers = []

    def same(_):
        document = json.loads(out.read_text()) if out.exists() else {}
        answers.append(_facts(document))
        return _unlike(answers[0], answers[-1]) or (check(document) if document else None)

    known = {"may_fail": True, "writes": (out,)}
    for path in files["val"][1:3]:
        yield Step((words[0], path, "-o", out, *words[1:]), VALID, same, **known)
    yield Step((words[0], files["val"][3], "-o", out, *words[1:]), VALID, notes=REPEATS, **known)


REPEATS = ("repeat",)


def _monitor_of_groups(files):
    """Copies are no evidence: where single rows show nothing, their copies do not raise an alarm."""
    p_values, answers = [], []

    def check(stdout):
        document = json.loads(stdout)
        p_values.append(min(each["adjusted"] for each in document["findings"] if each["name"] == "together"))
        if len(p_values) > 1 and p_values[0] > 0.3 and p_values[-1] < 0.05:
            return f"p is {p_values[-1]} for copies of rows whose p is {p_values[0]}"
        answers.append(document if len(p_values) > 1 else None)
        facts = [_facts(each) for each in answers[1:]]
        return _unlike(facts[0], facts[-1]) if facts else None

    for index, notes in ((0, ()), (1, ()), (2, ()), (3, REPEATS)):
        words = ("monitor", files["val"][index], files["current"][index], "--format", "json")
        yield Step(words, VALID, check if index < 3 else lambda _: None, may_fail=True, notes=notes)


def _thresholds_of_groups(val, out, copies, rng):
    """The groups count, and no bound is below the share of errors; with a lucky order it is below the binomial one."""
    level = pick(rng, [0.8, 0.95])

    def check(document):
        if document["groups"] != document["n"] // copies:
            return f"{document['groups']} groups, where {document['n']} rows are in groups of {copies}"
        for each in document["candidates"]:
            if each["n"] and each["bound"] < each["wrong"] / each["n"]:
                return f"the bound of {each['wrong']} in {each['n']} is {each['bound']}"
        return None

    return ("thresholds", "--target-error", pick(rng, [0.2, 0.5]), "--level", level), check


def _sets_of_groups(val, out, copies, rng):
    """As many groups are covered as conformal prediction of groups needs."""
    coverage = pick(rng, [0.5, 0.8, 0.95])
    logits, labels = val
    probs = np.exp(oracle.log_probabilities(logits[None], many=False)).round(oracle.DECIMALS)
    true = probs[np.arange(len(labels)), labels]
    rank = int(np.ceil((len(labels) + 1) * coverage - 1e-9))

    def check(document):
        limit = document["least_probability"]
        covered = int((true >= limit - 1e-11).sum())
        is_right = limit == 0 if rank > len(labels) else covered >= rank
        return None if is_right else f"{covered} groups are covered, not {rank}"

    return ("sets", "--coverage", coverage), check
