"""Input arrays and their validation, in memory and streamed: each error says what, got and allowed.

Does not need torch.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError, one_line, shown
from surefoot.predictions.archive import refuse_invalid_text
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.logits import extremes_of, map_rows
from surefoot.predictions.memory import refuse_larger_than_memory
from surefoot.predictions.zeros import as_zeros

SUM_TOLERANCE = 1e-3  # how far a row of probabilities may be from summing to 1
LARGEST_LOGIT = 1e100  # so that squares and sums stay finite
MOST_FEATURES = 64  # for each row; project more at random
LARGEST_WHOLE = 2**53  # above it, a float64 does not hold every whole number

Floats = NDArray[np.floating]
Whole = NDArray[np.integer]


def as_array(name: str, values: Any) -> NDArray[Any]:
    """A contiguous array of numbers in this machine's byte order, sharing memory where it can."""
    array = as_rectangle(name, values)
    if array.dtype.kind == "O" and array.ndim:  # such as columns of pandas that can have gaps
        array = as_rectangle(name, array.tolist())
    if array.dtype.kind == "O" and array.ndim:
        numbers = (isinstance(each, float | np.number) or _is_small(each) for each in array.flat)
        first = next((place for place, is_number in enumerate(numbers) if not is_number), 0)
        row = np.unravel_index(first, array.shape)[0]
        raise InputError(f"{name} hold {shown(array.flat[first])} in row {row}; allowed: numbers")
    if array.dtype.kind not in "fiub":
        kind = {"U": "text", "O": type(values).__name__}.get(array.dtype.kind, array.dtype)
        what = "are None" if values is None else f"have type {kind}"
        raise InputError(f"{name} {what}; allowed: numbers")
    if not array.ndim:
        raise InputError(f"{name} are a single number; allowed: an array with a number for each row")
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(native)


def _is_small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def as_rectangle(name: str, values: Any) -> NDArray[Any]:
    """An array of any type."""
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{name} have rows of different lengths; allowed: a rectangular array") from None
    except (RuntimeError, TypeError) as error:  # of tensors in a list
        raise InputError(f"{name} are no array ({one_line(error)}); allowed: numbers") from None


def as_floats(name: str, values: Any) -> Floats:
    """An array of float32 or float64; half precision is widened to float32, all else to float64."""
    array = as_array(name, values)
    if array.dtype in (np.float32, np.float64):
        return array
    with np.errstate(over="ignore"):  # a long double may become infinity, which is refused
        return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def as_labels(values: Any) -> Whole:
    """Labels as whole numbers: int64, or int8 where they are one column per class and fit."""
    labels = as_array("labels", values)
    if labels.dtype.kind == "f":
        wide = labels if labels.itemsize >= 8 else labels.astype(np.float64)
        whole = (np.abs(wide) <= LARGEST_WHOLE) & (np.rint(wide) == wide)
        if not whole.all():
            row = int(np.argwhere(~whole)[0][0])
            raise InputError(f"labels in row {row} are {labels[row].tolist()}; allowed: whole numbers")
    if labels.dtype == np.uint64 and labels.size and labels.max() > LARGEST_WHOLE:  # it could wrap to IGNORE
        raise InputError(f"labels up to {labels.max()}; allowed: up to {LARGEST_WHOLE}")
    fits = labels.ndim > 1 and (labels.size == 0 or (labels.min() >= -128 and labels.max() <= 127))
    return labels.astype(np.int8 if fits else np.int64, copy=False)


def as_keys(name: str, values: Any) -> NDArray[Any]:
    """Groups or ids: one text or whole number per row."""
    try:
        keys = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    except ValueError as error:
        raise InputError(f"{name}: not a plain list; allowed: a list of text or whole numbers") from error
    if keys.dtype.kind == "O":
        if keys.ndim == 1 and all(isinstance(value, str) for value in keys):
            return _as_text(name, keys)
        if keys.ndim == 1:
            _refuse_missing(name, keys.tolist())
        try:
            keys = np.asarray(keys.tolist())
        except ValueError as error:
            raise InputError(f"{name}: not a plain list; allowed: a list of text or whole numbers") from error
    elif keys.dtype.kind == "U":
        refuse_invalid_text(name, keys)
    if keys.ndim != 1 or keys.dtype.kind not in "Uiub":
        raise InputError(
            f"{name} have type {keys.dtype} and shape {keys.shape}; allowed: a list of text or whole numbers"
        )
    return keys.astype(keys.dtype.newbyteorder("="), copy=False)  # Arrow takes no other byte order


def _refuse_missing(name: str, keys: list[Any]) -> None:
    """Raise for None, or for a number that is NaN among text, which numpy would turn into the text 'nan'."""
    for row, key in enumerate(keys):
        if key is None or (isinstance(key, float) and math.isnan(key)):
            raise InputError(f"{name} are missing in row {row}; allowed: a value in every row")


def _as_text(name: str, texts: NDArray[Any]) -> NDArray[Any]:
    """Text of one length in memory, as numpy has it, filled up with null characters; so none can be in it."""
    longest = max(map(len, texts), default=0)
    refuse_larger_than_memory(f"{name} of up to {longest:,} characters", 4 * longest * len(texts))
    wrong = next((text for text in texts if "\0" in text), None)
    if wrong is not None:
        raise InputError(f"{name} hold {wrong!r}; allowed: text without null characters")
    result = texts.astype(str)
    refuse_invalid_text(name, result)
    return result


def as_predictions(
    scale: str,
    scores: Floats,
    labels: Whole | None,
    kind: LabelKind | None = None,
    *,
    out: Floats | None = None,
) -> tuple[Floats, Whole, LabelKind]:
    """Logits (members, n, classes), labels and their kind, from scores on the scale `logit` or `prob`.

    The shape of the labels decides the kind; without labels `kind` has to be given. Scores of shape (n,) or
    with a last axis of 1 are binary: the log odds, or the probability, of class 1. Probabilities of 0 are
    explained in `zeros`; their logarithms are written to `out`, which may be `scores`, where it is given.
    """
    if scale == "prob":
        check_probability_range(scores)
    logits = _with_members(scores)
    is_binary = logits.shape[2] == 1
    if is_binary and kind is not LabelKind.MANY_LABELS and labels is not None and labels.shape[1:] == (1,):
        labels = labels[:, 0].astype(np.int64)  # one logit and one label per row, each in a column
    if labels is not None:
        by_shape = LabelKind.MANY_LABELS if labels.ndim == 2 else LabelKind.ONE_LABEL
        if kind is not None and kind is not by_shape:
            raise InputError(f"labels of {labels.ndim} dimensions are {by_shape}, but kind is {kind}")
        kind = by_shape
    elif kind is None:
        raise InputError("no labels and no kind; allowed: labels, or kind=one_label or many_labels")
    kind = LabelKind(kind)
    if scale == "prob":
        logits = _logits_of(logits, kind, None if out is None else _with_members(out))
    if is_binary and kind is LabelKind.ONE_LABEL:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
    if labels is None:
        shape = logits.shape[1:2] if kind is LabelKind.ONE_LABEL else logits.shape[1:]
        labels = np.full(shape, IGNORE, dtype=np.int64 if kind is LabelKind.ONE_LABEL else np.int8)
    return logits, labels, kind


def check_predictions(
    logits: Floats,
    labels: Whole,
    kind: LabelKind,
    class_names: Sequence[str] | None,
) -> None:
    """Raise unless logits and labels are what `Predictions` holds."""
    check_logits(logits)
    _, n, classes = logits.shape
    check_length("labels", labels, n)
    check_labels(labels, kind, n, classes)
    if class_names is None:
        return
    if len(class_names) != classes:
        raise InputError(f"{len(class_names)} class names for {classes} classes; the numbers must be equal")
    check_class_names(class_names)


def check_class_names(names: Iterable[str]) -> None:
    """Raise unless every file type can hold the names, and no two of them look the same.

    A .csv strips the spaces around a name, and writes IGNORE where a class name could be.
    """
    normalised: Counter[str] = Counter()
    for name in names:
        if not name or name != name.strip():
            raise InputError(f"class name {name!r}; allowed: not empty, and no spaces around it")
        if re.search("[\0\ud800-\udfff]", name):
            raise InputError(f"class name {name!r}; allowed: Unicode without null characters")
        if re.fullmatch(rf"-0*{-IGNORE}(\.0*)?", name):
            raise InputError(f"class name {name!r} is the mark of unknown labels; allowed: another name")
        normalised[_looks(name)] += 1
    repeated = next((name for name, count in normalised.items() if count > 1), None)
    if repeated is not None:
        raise InputError(f"class name {repeated!r} occurs twice; allowed: different names")


def _looks(name: str) -> str:
    """The name without characters that are not shown, and with one form of each accent."""
    if name.isascii():
        return name
    shown = (letter for letter in name if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFC", "".join(shown))


def check_logits(logits: Floats) -> None:
    """Raise unless logits are finite, at most LARGEST_LOGIT in size, and (members, n, classes)."""
    shape = logits.shape
    if len(shape) != 3 or logits.dtype not in (np.float32, np.float64):
        allowed = "float32 or float64 (members, n, classes)"
        raise InputError(f"logits have type {logits.dtype}, shape {shape}; allowed: {allowed}")
    members, n, classes = shape
    if not members or not n:
        raise InputError(f"no rows: logits have shape {shape}; allowed: at least one row")
    if classes < 2:
        raise InputError(f"{classes} class; allowed: two or more (or one logit with labels 0 and 1)")
    low, high = extremes_of(logits)
    if not (np.isfinite(low) and np.isfinite(high)):
        where = first_not_finite(logits[0] if members == 1 and logits.ndim == 3 else logits)
        raise InputError(f"logits hold {where}; allowed: finite numbers")
    if max(abs(low), abs(high)) > LARGEST_LOGIT:
        raise InputError(f"logits from {low:g} to {high:g}; allowed: up to {LARGEST_LOGIT:g} in size")


def first_not_finite(values: Floats) -> str:
    """What the first element that is not finite is, and where."""
    index = np.argwhere(~np.isfinite(values))[0].tolist()
    names = ("member", "row", "column")[-len(index) :] if len(index) > 1 else ("row",)
    where = ", ".join(f"{name} {at}" for name, at in zip(names, index, strict=True))
    return f"{'NaN' if np.isnan(values[tuple(index)]) else 'infinity'} in {where}"


def check_features(features: Floats) -> None:
    """Raise unless features are finite and (n, 1 to MOST_FEATURES)."""
    if features.ndim != 2 or not 1 <= features.shape[1] <= MOST_FEATURES:
        raise InputError(f"features have shape {features.shape}; allowed: (n, 1 to {MOST_FEATURES})")
    _check_floats("features hold", features)
    largest = float(np.abs(features).max(initial=0))
    if largest > LARGEST_LOGIT:
        raise InputError(f"features up to {largest:g}; allowed: up to {LARGEST_LOGIT:g} in size")


def check_novelty(novelty: Floats) -> None:
    """Raise unless novelty is finite and (n,)."""
    if novelty.ndim != 1:
        raise InputError(f"novelty has shape {novelty.shape}; allowed: (n,)")
    _check_floats("novelty holds", novelty)


def _check_floats(what: str, values: Floats) -> None:
    if values.dtype.kind != "f":
        raise InputError(f"{what} {values.dtype}; allowed: float")
    if not np.isfinite(values).all():
        raise InputError(f"{what} {first_not_finite(values)}; allowed: finite numbers")


def check_labels(labels: Whole, kind: LabelKind, n: int, classes: int) -> None:
    """Raise unless labels are class indices (n,), or 0 and 1 of shape (n, classes); or IGNORE."""
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels have type {labels.dtype}; allowed: whole numbers")
    if kind is LabelKind.ONE_LABEL:
        if labels.ndim != 1:
            raise InputError(f"labels have shape {labels.shape}; allowed: (n,) or (n, classes)")
        if labels.view(f"u{labels.itemsize}").max() < classes:  # read as unsigned, negative ones are large
            return
        wrong = ((labels < 0) & (labels != IGNORE)) | (labels >= classes)
        allowed = f"0 to {classes - 1}, or {IGNORE} for unknown"
    else:
        if labels.shape != (n, classes):
            raise InputError(
                f"labels have shape {labels.shape} and logits ({n}, {classes}); "
                "for many labels the shapes must be equal"
            )
        wrong = (labels != 0) & (labels != 1) & (labels != IGNORE)
        allowed = f"0, 1 or {IGNORE} (ignored)"
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0])
        raise InputError(f"label {int(labels[index])} in row {index[0]} is out of range; allowed: {allowed}")


def check_length(name: str, values: Any, n: int) -> None:
    """Raise unless there is a value for every row, or none at all."""
    if values is not None and len(values) != n:
        raise InputError(f"{len(values)} {name} for {n} rows of logits; the lengths must be equal")


def check_probability_range(probs: Floats) -> None:
    """Raise unless there are probabilities, all from 0 to 1."""
    if probs.size == 0:
        raise InputError("no rows: probs are empty; allowed: at least one row")
    if probs.min() >= 0 and probs.max() <= 1:
        return
    index = tuple(np.argwhere(~((probs >= 0) & (probs <= 1)))[0])
    row = index[0] if probs.ndim < 3 else index[1]
    raise InputError(
        f"probability {probs[index]:g} in row {row} is outside [0, 1]; allowed: probabilities, not logits"
    )


def check_probability_sums(probs: Floats) -> None:
    """Raise unless the probabilities (members, n, classes) of every row sum to 1."""
    totals = np.einsum("mnc->mn", probs, dtype=np.float64)  # up to six times faster than probs.sum(axis=2)
    wrong = np.abs(totals - 1) > SUM_TOLERANCE
    if wrong.any():
        member, row = np.argwhere(wrong)[0]
        total = f"probabilities in row {row} sum to {totals[member, row]:.6g}"
        raise InputError(f"{total}; allowed: 1 within {SUM_TOLERANCE:g}")


def _with_members(scores: Floats) -> Floats:
    if scores.ndim == 1:
        return scores.reshape(1, -1, 1)
    if scores.ndim == 2:
        return scores[None]
    if scores.ndim == 3:
        return scores
    raise InputError(
        f"logits or probs have shape {scores.shape}; allowed: (n, classes) or (members, n, classes)"
    )


def _as_written(probs: Floats) -> NDArray[np.float64]:
    """In float64; a float32 that is nearest to a decimal of up to 4 digits is that decimal, as in a .csv.

    Rows of float32 sum to 1 only nearly, so that equal probabilities would no longer tie.
    """
    wide = probs.astype(np.float64, copy=False)
    if probs.dtype == np.float64:
        return wide
    short = wide.round(4)
    return np.where(short.astype(probs.dtype) == probs, short, wide)


def _logits_of(probs: Floats, kind: LabelKind, out: Floats | None) -> Floats:
    """log p for softmax, log(p / (1 - p)) for sigmoid; in float64, so that equal probabilities tie."""
    has_odds = probs.shape[2] == 1 or kind is LabelKind.MANY_LABELS
    if not has_odds:
        check_probability_sums(probs)
    logits = np.empty(probs.shape) if out is None else out

    def write(part: slice) -> None:
        some = _as_written(probs[:, part])
        others = np.log(as_zeros(1 - some)) if has_odds else 0.0
        logits[:, part] = np.log(as_zeros(some)) - others

    map_rows(probs.shape[1], probs, write)
    return logits
