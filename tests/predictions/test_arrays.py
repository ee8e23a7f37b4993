"""Arrays are the user's: what is done to them later changes nothing, and every layout in memory is read."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from surefoot import (
    InputError,
    LabelKind,
    Predictions,
    fit_calibration,
    fit_temperature,
    predictions_of,
)
from surefoot.metrics import METRICS
from surefoot.predictions.arrays import LARGE, frozen
from surefoot.sklearn import TemperatureScaledClassifier
from tests.conftest import draw_many_labels, draw_one_label

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.5, 3.0], [1.0, 0.0, 0.0]])
LABELS = np.array([0, 1, 2, 1])
MASKED = np.ma.masked_array([0, 1, 2, 1], mask=[False, False, True, False])
OTHERS = {"groups": np.array([1, 1, 2, 2]), "ids": np.array(list("abcd")), "novelty": np.arange(4.0)}
OTHERS["features"] = np.ones((4, 2))


def values_of(predictions):
    """Everything that is computed from predictions, and what they hold."""
    found = {metric.name: metric.function(predictions) for metric in METRICS}
    found["T"] = fit_temperature(predictions).temperature
    for name in ("groups", "ids", "novelty", "features", "attributes"):
        value = getattr(predictions, name)
        found[name] = value if value is None or isinstance(value, pa.Table) else value.tolist()

    return repr(found)  # NaN equals itself there


def arrays():
    return LOGITS.copy(), LABELS.copy(), {name: array.copy() for name, array in OTHERS.items()}


def spoil(*given):
    for array in given:
        array[:] = "z" if array.dtype.kind == "U" else 99 if array.dtype.kind in "iu" else np.nan


def from_arrays(make):
    logits, labels, others = arrays()
    return make(logits, labels, **others), (logits, labels, *others.values())


def from_tensors():
    logits, labels, _ = arrays()
    return Predictions.from_logits(torch.from_numpy(logits), torch.from_numpy(labels)), (logits, labels)


def from_the_constructor():
    logits, labels, others = arrays()
    tensors = {name: torch.from_numpy(others.pop(name)) for name in ("novelty", "features")}
    given = logits, labels, *(tensor.numpy() for tensor in tensors.values()), *others.values()
    tensors["logits"], tensors["labels"] = torch.from_numpy(logits)[None], torch.from_numpy(labels)
    return Predictions(**tensors, kind=LabelKind.ONE_LABEL, **others), given


def from_with_logits():
    logits, labels, _ = arrays()
    first = Predictions.from_logits(np.zeros_like(logits), labels)
    return first.with_logits(torch.from_numpy(logits)[None]), (logits, labels)


def from_replace():
    logits, labels, others = arrays()
    first = Predictions.from_logits(logits, np.zeros(4, dtype=int))
    made = replace(first, labels=torch.from_numpy(labels), groups=others["groups"])
    return made, (logits, labels, others["groups"])


def from_a_frame(make):
    logits, labels, others = arrays()
    columns = {f"logit_{k}": np.ascontiguousarray(logits[:, k]) for k in range(3)} | {"label": labels}
    columns |= {"groups": others["groups"], "age": np.arange(4)}
    return Predictions.from_frame(make(columns)), tuple(columns.values())


def from_attributes():
    logits, labels, _ = arrays()
    age, size = np.arange(4), np.arange(4.0)
    made = Predictions.from_logits(logits, labels, attributes=pa.table({"age": age, "size": size}))
    return made, (logits, labels, age, size)


def from_batches():
    """A loader that returns the same memory each time."""
    logits, labels, _ = arrays()
    two, truth = np.empty((2, 3)), np.empty(2, dtype=int)

    def batches():
        for start in (0, 2):
            two[:], truth[:] = logits[start : start + 2], labels[start : start + 2]
            yield two, truth

    return Predictions.from_batches(batches()), (two, truth)


def from_a_loader():
    """The same, of a model that returns its inputs."""
    logits, labels, _ = arrays()
    two, truth = torch.empty(2, 3, dtype=torch.float64), torch.empty(2, dtype=torch.int64)

    def batches():
        for start in (0, 2):
            two[:] = torch.from_numpy(logits[start : start + 2])
            truth[:] = torch.from_numpy(labels[start : start + 2])
            yield two, truth

    return predictions_of(torch.nn.Identity(), batches()), (two.numpy(), truth.numpy())


ROUTES = {
    "arrays": lambda: from_arrays(Predictions.from_logits),
    "probs": lambda: from_arrays(
        lambda z, y, **rest: Predictions.from_probs(np.exp(z) / np.exp(z).sum(1, keepdims=True), y, **rest)
    ),
    "tensors": from_tensors,
    "constructor": from_the_constructor,
    "with_logits": from_with_logits,
    "replace": from_replace,
    "dictionary": lambda: from_a_frame(dict),
    "arrow": lambda: from_a_frame(pa.table),
    "pandas": lambda: from_a_frame(lambda columns: pd.DataFrame(columns, copy=False)),
    "attributes": from_attributes,
    "batches": from_batches,
    "loader": from_a_loader,
}


@pytest.mark.parametrize("route", ROUTES)
def test_later_changes_in_place_change_nothing(route):
    untouched, _ = ROUTES[route]()
    expected = values_of(untouched)
    predictions, given = ROUTES[route]()
    spoil(*given)
    assert values_of(predictions) == expected
    if route != "probs":
        assert METRICS["nll"].function(predictions) == METRICS["nll"].function(
            Predictions.from_logits(LOGITS, LABELS)
        )


def test_a_large_array_changed_between_two_metrics_changes_nothing():
    drawn = draw_one_label(n=20_000, classes=5)
    logits, labels = drawn.logits[0].copy(), drawn.labels.copy()
    predictions = Predictions.from_logits(logits, labels)
    METRICS["nll"].function(predictions)
    spoil(logits, labels)
    assert METRICS["ece"].function(predictions) == METRICS["ece"].function(drawn)
    assert fit_temperature(predictions) == fit_temperature(drawn)


def layouts(array):
    """The same array in other layouts."""
    yield np.asfortranarray(array)
    yield np.ascontiguousarray(array[::-1])[::-1]
    yield np.repeat(array, 2, axis=0)[::2]
    yield array.astype(array.dtype.newbyteorder(">"))
    read_only = array.copy()
    read_only.flags.writeable = False
    yield read_only
    yield array.astype(object)
    if array.ndim == 2:
        yield np.ascontiguousarray(array[:, ::-1])[:, ::-1]
        yield np.repeat(array, 2, axis=1)[:, ::2]


@pytest.mark.parametrize("rows", [1, 4])
def test_every_layout_is_read_alike(rows):
    expected = Predictions.from_logits(
        LOGITS[:rows], LABELS[:rows], **{k: v[:rows] for k, v in OTHERS.items()}
    )
    for logits in layouts(LOGITS[:rows]):
        assert np.array_equal(Predictions.from_logits(logits, LABELS[:rows]).logits, expected.logits)
    for labels in layouts(LABELS[:rows]):
        assert np.array_equal(Predictions.from_logits(LOGITS[:rows], labels).labels, expected.labels)
    for key in OTHERS:
        for values in layouts(OTHERS[key][:rows]):
            made = getattr(Predictions.from_logits(LOGITS[:rows], LABELS[:rows], **{key: values}), key)
            assert made.tolist() == getattr(expected, key).tolist()


def test_many_labels_in_fortran_order_are_read_alike():
    drawn = draw_many_labels(n=50, classes=3)
    logits, labels = np.asfortranarray(drawn.logits[0]), np.asfortranarray(drawn.labels)
    assert METRICS["ece"].function(Predictions.from_logits(logits, labels)) == METRICS["ece"].function(drawn)


def test_the_constructor_takes_tensors_of_other_types_and_layouts():
    logits, labels = torch.from_numpy(LOGITS.copy()), torch.from_numpy(LABELS.copy())
    expected = values_of(Predictions.from_logits(logits, labels))
    for z in (logits.T.contiguous().T, logits.clone().requires_grad_(), logits.repeat(1, 2)[:, :3]):
        for y in (labels.to(torch.int32), labels.repeat_interleave(2)[::2], labels.double()):
            made = Predictions(logits=z[None], labels=y, kind=LabelKind.ONE_LABEL)
            assert values_of(made) == expected


@pytest.mark.parametrize("keys", [MASKED, np.array([1.0, 2, 3, 4]), np.zeros((4, 1), int)])
def test_the_constructor_refuses_keys_as_from_logits_does(keys):
    for make in (
        Predictions.from_logits,
        lambda z, y, **rest: replace(Predictions.from_logits(z, y), **rest),
    ):
        with pytest.raises(InputError, match="groups"):
            make(LOGITS, LABELS, groups=keys)


def test_only_arrays_that_nobody_can_write_to_are_not_copied(tmp_path):
    logits = LOGITS.copy()
    view = logits[:]
    view.flags.writeable = False
    assert Predictions.from_logits(view, LABELS).logits.ctypes.data != logits.ctypes.data
    np.save(tmp_path / "logits.npy", LOGITS)
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    assert Predictions.from_logits(mapped, LABELS).logits.ctypes.data == mapped.ctypes.data
    first = Predictions.from_logits(logits, LABELS)
    copied = copy.deepcopy(first.logits)
    assert first.with_logits(copied).logits.ctypes.data not in (copied.ctypes.data, first.logits.ctypes.data)
    assert replace(first, novelty=torch.zeros(4)).logits.ctypes.data == first.logits.ctypes.data


def test_a_copy_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("surefoot.predictions.memory.available_memory", lambda: LARGE)
    with pytest.raises(InputError, match=r"a copy of an array that is not read-only would take 256\.0 MiB"):
        frozen(np.broadcast_to(np.zeros(1), (LARGE // 8 + 1,)))


def test_a_calibration_and_thresholds_do_not_change_with_the_data_they_were_fitted_on():
    drawn = draw_one_label(n=500, classes=3)
    for method in ("temperature", "vector", "isotonic"):
        logits, labels = drawn.logits[0].copy(), drawn.labels.copy()
        fitted = fit_calibration(method, Predictions.from_logits(logits, labels), force=True)
        before = fitted.to_dict()
        spoil(logits, labels)
        assert fitted.to_dict() == before


REFUSED = {
    "masked labels": (LOGITS, MASKED, "labels are masked in row 2; allowed: a value in every row"),
    "masked logits": (np.ma.masked_equal(LOGITS, 3.0), LABELS, "logits are masked in row 2"),
    "masked names": (
        LOGITS,
        np.ma.masked_array(list("abca"), mask=MASKED.mask),
        "labels are masked in row 2",
    ),
    "a list with a masked array": (
        [*LOGITS[:3], np.ma.masked_equal(LOGITS[3], 1.0)],
        LABELS,
        "masked in row 3",
    ),
    "pandas' NA": (LOGITS, pd.Series([0, None, 1, 2], dtype="Int64"), "labels in row 1 are nan"),
    "pandas' NA in logits": (
        pd.DataFrame(LOGITS).astype("Float64").replace(3.0, pd.NA),
        LABELS,
        "<NA> in row 2",
    ),
    "names with a gap": (LOGITS, pd.Series(["a", None, "b", "c"], dtype="string"), "empty in row 1"),
    "Arrow with a gap": (LOGITS, pa.array([0, None, 1, 2]), "labels in row 1 are nan"),
    "objects": (LOGITS, [0, None, 1, 2], "labels hold None in row 1; allowed: numbers"),
    "a large whole number": ([[10**400, 0, 0]] * 4, LABELS, "in row 0; allowed: numbers"),
    "float8": (torch.zeros(4, 3).to(torch.float8_e4m3fn), LABELS, "logits are a cpu float8_e4m3fn tensor"),
    "no data": (torch.zeros(4, 3, device="meta"), LABELS, "logits are a meta float32 tensor"),
    "nested": (
        torch.nested.nested_tensor([torch.zeros(3)] * 4, layout=torch.jagged),
        LABELS,
        "logits are a nested tensor",
    ),
    "conjugates": (torch.conj(torch.zeros(4, 3) + 0j), LABELS, "logits have type complex64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_no_numbers_is_refused_in_one_sentence(case):
    logits, labels, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        Predictions.from_logits(logits, labels, class_names=["a", "b", "c"])


@pytest.mark.parametrize("make", [list, pd.DataFrame, lambda z: pd.DataFrame(z).astype("Float64"), pa.array])
def test_other_containers_are_read(make):
    given = make(LOGITS.tolist()) if make is pa.array else make(LOGITS)
    for labels in (pa.array(LABELS), pa.chunked_array([pa.array(LABELS)]), pd.Series(LABELS, dtype="Int64")):
        assert np.array_equal(Predictions.from_logits(given, labels).logits[0], LOGITS)
    for names in (
        pa.array(list("abcb")),
        pd.Categorical(list("abcb")),
        pd.Series(list("abcb"), dtype="string"),
    ):
        made = Predictions.from_logits(given, names, class_names=["a", "b", "c"])
        assert made.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([(LOGITS, 5)], "a batch has 4 rows of logits and labels 5; must be equal"),
        ([(LOGITS, None)], "labels None; must be equal"),
        ([(LOGITS, [[1], [1, 2], 3, 4])], "labels have rows of different lengths"),
        ([(LOGITS, LABELS), (LOGITS, np.eye(4, 3))], r"a row of labels has shape \(\) in the first batch"),
        ([(LOGITS, MASKED)], "labels are masked in row 2"),
    ],
)
def test_batches_whose_labels_do_not_fit_are_refused(batches, message):
    with pytest.raises(InputError, match=message):
        Predictions.from_batches(batches)


def test_masked_labels_and_weights_are_refused_by_the_classifier_of_scikit_learn():
    for masked in ({"y": MASKED}, {"y": LABELS, "sample_weight": MASKED}):
        with pytest.raises(InputError, match="masked in row 2; allowed: a value in every row"):
            TemperatureScaledClassifier().fit(LOGITS, **masked)


def test_a_loader_whose_labels_are_one_number_is_refused():
    with pytest.raises(InputError, match="the labels of a batch are 5; allowed: a label for each row"):
        predictions_of(torch.nn.Identity(), [(torch.from_numpy(LOGITS), 5)])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(None, None, -1), [1, 2, 1, 0]),
        (slice(-1, -4, -2), [1, 1]),
        (np.arange(4)[::-1], [1, 2, 1, 0]),
        (range(-2, 0), [2, 1]),
        (torch.tensor([True, False, False, True]), [0, 1]),
    ],
)
def test_rows_are_taken_in_any_order(rows, expected):
    taken = Predictions.from_logits(LOGITS, LABELS, attributes={"age": range(4)}).take(rows)
    assert taken.labels.tolist() == expected
    assert np.isfinite(METRICS["nll"].function(taken))


@pytest.mark.parametrize(
    "rows", [slice("a", None), slice(0, 4, 0), np.ma.masked_array([0, 1], mask=[0, 1]), -1]
)
def test_rows_that_cannot_be_taken_are_refused(rows):
    with pytest.raises(InputError, match="rows cannot be taken"):
        Predictions.from_logits(LOGITS, LABELS).take(rows)
