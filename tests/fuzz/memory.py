"""Cases of arrays in memory: of any layout, and changed in place after predictions were made of them."""

import contextlib
import json

import numpy as np
import torch

from tests.fuzz import oracle
from tests.fuzz.inputs import Drawn, draw
from tests.fuzz.oracle import IGNORE
from tests.fuzz.steps import ANY, EITHER, SUFFIXES, VALID, Step
from tests.fuzz.valid import wrong_score

GARBAGE = (np.nan, np.inf, 1e300, -1e6, 10**6, 2**40, -(2**50), -1, -100, 0, 3)
LAYOUTS = ("as it is", "fortran", "reversed", "strided", "read only", "broadcast view", "unaligned", "big endian", "tensor",
           "reversed tensor view", "list", "memory map", "subclass", "masked without a mask")  # fmt: skip


def laid_out(array, how, path):
    """The same values in another layout in memory, or container, and what to change in place."""
    array = np.array(array)
    if how == "fortran":
        array = np.asfortranarray(array)
    elif how == "reversed":
        array = array[::-1].copy()[::-1]
    elif how == "strided":
        wide = np.zeros((*array.shape[:-1], 3 * array.shape[-1]), array.dtype)
        wide[..., ::3] = array
        array = wide[..., ::3]
    elif how == "read only":
        owner = array
        array = owner.view()
        array.flags.writeable = False
        return array, owner
    elif how == "broadcast view":
        array = np.ascontiguousarray(array[None])[0]
    elif how == "unaligned":
        data = np.zeros(array.nbytes + 1, np.uint8)
        view = data[1:].view(array.dtype).reshape(array.shape)
        view[...] = array
        array = view
    elif how == "big endian":
        array = array.astype(array.dtype.newbyteorder(">"))
    elif how == "tensor":
        array = torch.from_numpy(array)
    elif how == "reversed tensor view":
        wide = torch.from_numpy(np.stack([array, array], axis=-1))
        array = wide[..., 1]
    elif how == "list":
        array = array.tolist()
    elif how == "memory map":
        np.save(path, array)
        array = np.load(path, mmap_mode="r+")
    elif how == "subclass":
        array = array.view(np.matrix) if array.ndim == 2 else array.view(np.recarray)
    elif how == "masked without a mask":
        array = np.ma.array(array)
    return array, array


def arrays(place, rng):
    """Predictions are what they were made of, whatever happens to the arrays afterwards."""
    n = int(rng.choice([1, 1, 2, 30, 3000]))
    classes, members = int(rng.choice([2, 3, 40])), 1 if rng.random() < 0.8 else 2
    drawn = draw(rng, n=n, classes=classes, members=members, many=False if n > 30 else None)
    kind = str(rng.choice(["f8", "f8", "f4", "f2"]))
    scores = drawn.logits.astype(kind)
    drawn = Drawn(scores.astype(np.float64), drawn.labels, exact=kind == "f8")
    labels = drawn.labels.astype(str(rng.choice(["i8", "i8", "i4", "i2", "f8"])))
    given, owners = {}, []
    arrays = {"logits": scores[0] if len(scores) == 1 else scores, "labels": labels}
    arrays |= (
        {
            "groups": np.arange(n) % 5,
            "ids": np.arange(n),
            "novelty": rng.random(n),
            "features": rng.random((n, 3)),
        }
        if rng.random() < 0.4
        else {}
    )
    masked = rng.random() < 0.15
    for name, array in arrays.items():
        given[name], owner = laid_out(array, str(rng.choice(LAYOUTS)), place / f"{name}.npy")
        owners.append(owner)
    made = []

    def make():
        from surefoot import Predictions

        parts = dict(given)
        if masked:
            name = str(rng.choice(["logits", "labels"]))
            parts[name] = np.ma.array(arrays[name], mask=rng.random(arrays[name].shape) < 0.5)
            parts[name].mask.reshape(-1)[0] = True
        many = np.ndim(arrays["labels"]) == 2
        made.append(
            Predictions.from_logits(
                parts.pop("logits"), parts.pop("labels"), kind="many_labels" if many else "one_label", **parts
            )
        )
        return ""

    if masked:
        yield Step(("from_logits, masked",), ANY, call=make)
        # What is masked is not known: refused, or a label that is ignored; never the number below the mask.
        if made:
            yield Step(("masked labels",), VALID, call=lambda: "", check=lambda _: _unmasked(made[0], drawn))
        return
    words = ("from_logits", *(f"{name}:{type(each).__name__}" for name, each in given.items()))
    if (yield Step(words, VALID, call=make)) != 0:
        return
    if rng.random() < 0.5:
        yield Step(("used before",), VALID, call=lambda: _facts(made[0]), check=_facts_check(drawn))
    for owner in owners:
        if rng.random() < 0.8:
            _spoil(owner, rng)
    yield Step(
        ("evaluate, changed", *words[1:]), EITHER, call=lambda: _facts(made[0]), check=_facts_check(drawn)
    )
    use, path = USES[int(rng.integers(len(USES)))], place / f"out{rng.choice(SUFFIXES)}"
    yield Step(
        ("used after", *words[1:]), ANY, call=lambda: use(made[0], path), writes=(path,), caches=(path,)
    )
    own = made[0].labels if rng.random() < 0.7 else made[0].logits
    _spoil(own, rng)
    yield Step(
        ("its own tensors changed",),
        ANY,
        call=lambda: _tried(use, made[0], path),
        writes=(path,),
        caches=(path,),
    )


def _spoil(owner, rng):
    """Change some values in place; where nothing can be changed, that is an answer."""
    value = GARBAGE[int(rng.integers(len(GARBAGE)))]
    with contextlib.suppress(ValueError, TypeError, OverflowError, RuntimeError), np.errstate(all="ignore"):
        rows = rng.random(len(owner)) < 0.7
        rows[0] = True
        if isinstance(owner, list):
            for index in np.flatnonzero(rows):
                owner[index] = value
        else:
            owner[torch.from_numpy(rows) if isinstance(owner, torch.Tensor) else rows] = value


def _facts(predictions):
    """What `evaluate` says, and labels, after a new computation."""
    from dataclasses import replace

    from surefoot import evaluate

    found = evaluate(replace(predictions), resamples=0).to_dict()["familiar"]
    again = evaluate(predictions, resamples=0).to_dict()["familiar"]
    return json.dumps([found, again])


def _facts_check(drawn):
    wanted = oracle.scores(drawn.logits, drawn.labels)

    def check(stdout):
        for found in json.loads(stdout):
            for name in ("nll", "label_error", "brier", "entropy"):
                wrong = wrong_score(name, found["metrics"][name], wanted[name], drawn, stream=False)
                if wrong:
                    return wrong
        return None

    return check


def _unmasked(predictions, drawn):
    found, under = predictions.labels.numpy(), drawn.labels
    return "a masked value is used" if found.flat[0] != IGNORE and found.flat[0] == under.flat[0] else None


def _tried(use, predictions, path):
    """Any exception of Python is an answer to tensors of ours that were changed; a crash is none."""
    with contextlib.suppress(Exception):
        use(predictions, path)
    return ""


def _write(predictions, path):
    from surefoot import read_predictions, write_predictions

    write_predictions(predictions, path)
    read_predictions(path)
    return ""


def _calibrate(predictions, _):
    from surefoot import fit_calibration

    fitted = fit_calibration("temperature", predictions)
    return str(fitted(predictions).probs().sum())


def _take(predictions, _):
    from surefoot import monitor

    taken = predictions.take(slice(None, None, -1))
    return str(monitor(predictions, taken).alarm)


def _choose(predictions, _):
    from surefoot import choose_sets, choose_thresholds

    choose_sets(predictions, coverage=0.5)
    return repr(choose_thresholds(predictions, target_error=0.9))


USES = (_write, _calibrate, _take, _choose, lambda predictions, _: _facts(predictions))
