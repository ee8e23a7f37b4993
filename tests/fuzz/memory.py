"""Cases of arrays in memory: of any layout, and changed in place after predictions were made of them."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import torch

import surefoot
from tests.fuzz.inputs import Drawn, draw, pick
from tests.fuzz.oracle import IGNORE
from tests.fuzz.steps import ANY, EITHER, SUFFIXES, VALID, Step
from tests.fuzz.valid import scores_check

GARBAGE = (np.nan, np.inf, 1e300, -1e6, 10**6, 2**40, -(2**50), -1, -100, 0, 3)
LAYOUTS = {
    "as it is": lambda array, _: array,
    "fortran": lambda array, _: np.asfortranarray(array),
    "reversed": lambda array, _: array[::-1].copy()[::-1],
    "strided": lambda array, _: np.repeat(array, 3, axis=-1)[..., ::3],
    "unaligned": lambda array, _: np.frombuffer(b"0" + array.tobytes(), "u1").copy()[1:].view(array.dtype).reshape(array.shape),
    "big endian": lambda array, _: array.astype(array.dtype.newbyteorder(">")),
    "tensor": lambda array, _: torch.from_numpy(array.copy()),
    "strided tensor": lambda array, _: torch.from_numpy(np.stack([array, array], axis=-1))[..., 1],
    "list": lambda array, _: array.tolist(),
    "memory map": lambda array, path: np.save(path, array) or np.load(path, mmap_mode="r+"),
    "subclass": lambda array, _: array.copy().view(np.matrix if array.ndim == 2 else np.recarray),
    "masked without a mask": lambda array, _: np.ma.array(array),
    "read only": lambda array, _: array.view(),
}  # fmt: skip


def arrays(place, rng):
    """Predictions are what they were made of, whatever happens to the arrays afterwards."""
    n, kind = pick(rng, [1, 1, 2, 30, 3000]), pick(rng, ["f8", "f8", "f4", "f2"])
    classes, members = pick(rng, [2, 3, 40]), 1 if rng.random() < 0.8 else 2
    drawn = draw(rng, n=n, classes=classes, members=members, many=False if n > 30 else None)
    scores = drawn.logits.astype(kind)
    drawn = Drawn(scores.astype(np.float64), drawn.labels, exact=kind == "f8")
    labels = drawn.labels.astype(pick(rng, ["i8", "i8", "i4", "i2", "f8"]))
    parts = {"logits": scores[0].copy() if len(scores) == 1 else scores, "labels": labels}
    if rng.random() < 0.4:
        parts |= {"groups": np.arange(n) % 5, "ids": np.arange(n)}
        parts |= {"novelty": rng.random(n), "features": rng.random((n, 3))}
    if rng.random() < 0.15:
        yield from _masked(parts, drawn, rng)
        return
    layouts = {name: pick(rng, list(LAYOUTS)) for name in parts}
    given = {name: LAYOUTS[how](parts[name], place / f"{name}.npy") for name, how in layouts.items()}
    for name, how in layouts.items():
        if how == "read only":  # while the array that it is a view of is changed
            given[name].flags.writeable = False
    made, words = [], [f"{name}:{how}" for name, how in layouts.items()]
    if (yield Step(("from_logits", *words), VALID, call=lambda: made.append(_made(given, drawn)))) != 0:
        return
    facts = {"call": lambda: _facts(made[0]), "check": _facts_check(drawn)}
    if rng.random() < 0.5:
        yield Step(("used before", *words), VALID, **facts)
    for name, how in layouts.items():
        if rng.random() < 0.8:
            _spoil(parts[name] if how == "read only" else given[name], rng)
    yield Step(("evaluate, changed", *words), EITHER, **facts)
    use, path = pick(rng, USES), place / f"out{pick(rng, SUFFIXES)}"
    outputs = {"writes": (path,), "caches": (path,)}
    yield Step(("used after", *words), ANY, call=lambda: use(made[0], path), **outputs)
    _spoil(made[0].labels if rng.random() < 0.7 else made[0].logits, rng)
    yield Step(("its own tensors changed",), ANY, call=lambda: _tried(use, made[0], path), **outputs)


def _masked(parts, drawn, rng):
    """What is masked is not known: refused, or a label that is ignored; never the number below the mask."""
    name, made = pick(rng, ["logits", "labels"]), []
    masked = np.ma.array(parts[name], mask=rng.random(parts[name].shape) < 0.5)
    masked.mask.reshape(-1)[0] = True

    def check(_):
        found, below = made[0].labels.flat[0], drawn.labels.flat[0]
        return "a masked value is used" if name == "logits" or found == below != IGNORE else None

    call = lambda: made.append(_made(parts | {name: masked}, drawn))  # noqa: E731
    yield Step(("masked", name), EITHER, check, call=call)


def _made(parts, drawn):
    kind = "many_labels" if drawn.many else "one_label"
    return surefoot.Predictions.from_logits(**parts, kind=kind)


def _spoil(owner, rng):
    """Change some values in place; where nothing can be changed, that is an answer."""
    value = pick(rng, GARBAGE)
    with contextlib.suppress(ValueError, TypeError, OverflowError, RuntimeError), np.errstate(all="ignore"):
        rows = rng.random(len(owner)) < 0.7
        rows[0] = True
        if isinstance(owner, list):
            for index in np.flatnonzero(rows):
                owner[index] = value
        else:
            owner[torch.from_numpy(rows) if isinstance(owner, torch.Tensor) else rows] = value


def _facts(predictions):
    """What `evaluate` says after a new computation, and with what the predictions keep of earlier ones."""
    from surefoot import evaluate

    both = (replace(predictions), predictions)
    return json.dumps([evaluate(each, resamples=0).to_dict() for each in both])


def _facts_check(drawn):
    check = scores_check({"familiar": drawn}, ("nll", "label_error", "brier", "entropy"))
    return lambda stdout: next(filter(None, (check(json.dumps(found)) for found in json.loads(stdout))), None)


def _tried(use, predictions, path):
    """Any exception of Python is an answer to tensors of ours that were changed; a crash is none."""
    with contextlib.suppress(Exception):
        use(predictions, path)
    return ""


def _write(predictions, path):
    surefoot.write_predictions(predictions, path)
    surefoot.read_predictions(path)
    return ""


def _calibrate(predictions, _):
    return str(surefoot.fit_calibration("temperature", predictions)(predictions).probs().sum())


def _take(predictions, _):
    return str(surefoot.monitor(predictions, predictions.take(slice(None, None, -1))).alarm)


def _choose(predictions, _):
    surefoot.choose_sets(predictions, coverage=0.5)
    return repr(surefoot.choose_thresholds(predictions, target_error=0.9))


USES = (_write, _calibrate, _take, _choose, lambda predictions, _: _facts(predictions))
