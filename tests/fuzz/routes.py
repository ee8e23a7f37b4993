"""Cases of the same data by several routes: probabilities of 0, other class orders and names, groups."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from surefoot.calibrators import CALIBRATORS
from tests.fuzz import oracle
from tests.fuzz.inputs import Drawn, _written, draw, nasty_names
from tests.fuzz.oracle import IGNORE, LEAST
from tests.fuzz.steps import ANY, EITHER, REFUSED, SUFFIXES, VALID, Step
from tests.fuzz.valid import _binomial_bound, _scores_check, _wrong_fit


def saved(path, scores, labels, *, scale="logit", names=None, dtype="f8", **columns):
    """Write (n, classes) scores in a type; without names, classes have none in an .npz, or numbers."""
    scores, known = np.asarray(scores).astype(dtype), {name: np.asarray(each) for name, each in columns.items()}
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
    _written(path, write_to, pa.table(table | known))
    return path


# Probabilities of 0


def zeros(place, rng):
    """The NLL, ECE and T of a forest's probabilities are the same from every file and type."""
    n, classes = int(rng.choice([5, 30, 150])), int(rng.choice([2, 3, 6]))
    trees = int(rng.choice([1, 4, 16, 64, 1024]))  # of which all shares are exact in float16
    votes = rng.multinomial(trees, rng.dirichlet(np.full(classes, rng.choice([0.1, 0.3, 1])), n))
    probs, labels = votes / trees, rng.integers(0, classes, n)
    sure = rng.random(n) < 0.8
    labels[sure] = probs[sure].argmax(axis=1)
    labels[rng.random(n) < rng.choice([0, 0.2])] = IGNORE
    labels[0] = probs[0].argmin()
    tiny = str(rng.choice(["0", "0", "1e-39", "1e-60", "5e-324"]))
    options = ("--format", "json", "--resamples", 0)
    nlls = []
    for suffix, dtype, stream in (SUFFIXES_OF_ZEROS[i] for i in rng.choice(len(SUFFIXES_OF_ZEROS), 2, replace=False)):
        given = np.where(probs == 0, float(tiny), probs)
        path = saved(place / f"{dtype}{stream}{suffix}".replace("--", "-"), given, labels, scale="prob", dtype=dtype)
        drawn = Drawn(np.log(np.maximum(probs, LEAST))[None], labels, exact=dtype == "f8", smooth=False)
        check = _scores_check({"familiar": drawn}, stream=stream == "--stream")
        yield Step(("evaluate", path, *options, stream), VALID, _also_ece(check, drawn, nlls))
        fitted = place / "c.json"
        raised = replace(drawn, logits=oracle.without_zeros(drawn.logits, many=False))
        words = ("calibrate", path, "-o", fitted, *((stream,) if stream == "--stream" else ()))
        done = yield Step(words, VALID, lambda _, f=fitted, r=raised: _wrong_fit(f, r, "temperature", False), writes=(fitted,))
        if done == 0:
            document = json.loads(fitted.read_text())
            used = drawn if document.get("lowest_probability") is None else raised
            after = replace(used, logits=used.logits / document["temperature"], exact=False)
            yield Step(("evaluate", path, "--calibration", fitted, *options, stream), VALID, _scores_check({"familiar": after}, stream=stream == "--stream"))


SUFFIXES_OF_ZEROS = [(".npz", dtype, "--no-stream") for dtype in ("f2", "f4", "f8", ">f8", "g")] + [
    (suffix, dtype, stream)
    for suffix, dtype in ((".parquet", "f4"), (".parquet", "f8"), (".csv", "f8"), (".parquet", "f2"))
    for stream in ("--stream", "--no-stream")
]


def _also_ece(check, drawn, seen):
    """The scores, and an ECE that is the same from every type, however little the types' ties differ."""

    def of(stdout):
        found = json.loads(stdout)["familiar"]["metrics"]["ece"]
        seen.append(found["value"])
        slack = 1e-6 + 2 * (found.get("bound") or 0.0)
        wrong = abs(seen[0] - found["value"]) > slack
        return check(stdout) or (f"ECE {found['value']} here and {seen[0]} from another type" if wrong else None)

    return of
