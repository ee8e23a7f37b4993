from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit, softmax

from surefoot import IGNORE, InputError, LabelKind, Predictions
from surefoot.metrics import nll
from surefoot.predictions.logits import average
from tests.conftest import draw_many_labels, draw_one_label

LOGITS = [[1.0, 2.0, 3.0], [0.5, 0.0, -0.5]]


class OnlyDLPack:
    """Something that is neither numpy nor torch, and speaks DLPack."""

    def __init__(self, array):
        self.array = np.array(array)
        self.ndim = self.array.ndim

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def tensor(values):
    return pytest.importorskip("torch").tensor(values)


@pytest.mark.parametrize("given", [list, np.array, tensor, OnlyDLPack])
def test_takes_lists_arrays_tensors_and_dlpack(given):
    predictions = Predictions.from_logits(given(LOGITS), given([2, 0]))
    assert predictions.logits.squeeze(0).tolist() == LOGITS
    assert predictions.labels.tolist() == [2, 0]
    assert predictions.kind is LabelKind.ONE_LABEL


def test_shares_memory_with_numpy_even_when_read_only():
    logits = np.array(LOGITS)
    logits.flags.writeable = False
    assert Predictions.from_logits(logits, [2, 0]).logits.ctypes.data == logits.ctypes.data


def test_half_precision_and_foreign_byte_order_are_widened_exactly():
    half = np.array(LOGITS, dtype=np.float16)
    swapped = np.array(LOGITS, dtype=">f8")
    assert Predictions.from_logits(half, [2, 0]).logits.dtype == np.float32
    assert Predictions.from_logits(swapped, [2, 0]).logits.squeeze(0).tolist() == LOGITS
    assert Predictions.from_logits(tensor(LOGITS).bfloat16(), [2, 0]).logits.dtype == np.float32


def test_probs_give_back_the_probs():
    probs = np.array([[0.7, 0.2, 0.1], [0.0, 0.25, 0.75]])
    assert np.allclose(Predictions.from_probs(probs, [0, 1]).probs(), probs, atol=1e-15)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3, 1)])
def test_one_logit_becomes_two_classes(shape):
    log_odds = np.array([2.0, -1.0, 0.0])
    predictions = Predictions.from_logits(log_odds.reshape(shape), [1, 0, 1])
    assert predictions.classes == 2
    assert np.allclose(predictions.probs()[:, 1], 1 / (1 + np.exp(-log_odds)))


def test_one_probability_becomes_two_classes():
    assert np.allclose(Predictions.from_probs([0.9, 0.2], [1, 0]).probs(), [[0.1, 0.9], [0.8, 0.2]])


def test_a_column_of_logits_with_a_column_of_labels_is_binary():
    for make, column in (
        (Predictions.from_logits, [[2.0], [-1.0]]),
        (Predictions.from_probs, [[0.9], [0.2]]),
    ):
        predictions = make(column, [[1], [0]])
        assert (predictions.kind, predictions.classes) == (LabelKind.ONE_LABEL, 2)


def test_grouping_by_a_column_that_cannot_group():
    predictions = draw_one_label(
        2, attributes={"tags": [["a"], ["b", "c"]], "age": [0.5, 1.5], "meta": [{"a": 1}, {"a": 2}]}
    )
    for column in ("tags", "age", "meta"):
        with pytest.raises(InputError, match="allowed: a list of text or whole numbers"):
            predictions.grouped_by(column)


def test_many_labels_by_shape():
    predictions = Predictions.from_probs([[0.9, 0.2], [0.0, 1.0]], [[1, 0], [IGNORE, 1]])
    assert predictions.kind is LabelKind.MANY_LABELS
    assert np.allclose(predictions.probs(), [[0.9, 0.2], [0.0, 1.0]])


def test_average_is_the_mean_probability():
    for predictions, link in (
        (draw_one_label(members=3), partial(softmax, axis=2)),
        (draw_many_labels(members=3), expit),
    ):
        assert np.allclose(predictions.average().probs(), link(predictions.logits).mean(axis=0), atol=1e-14)
        assert predictions.average().members == 1


def test_average_keeps_probabilities_that_underflow():
    logits = np.array([[[0.0, -2000.0]], [[0.0, -2000.0]]])
    assert Predictions.from_logits(logits, [1]).average().logits[0, 0, 1] == -2000


def test_metrics_read_members_as_an_ensemble():
    predictions = draw_one_label(members=4)
    assert nll(predictions) == pytest.approx(nll(predictions.average()), abs=1e-14)


def test_take_and_grouped_by_keep_everything_in_step():
    predictions = draw_one_label(
        6, ids=list("abcdef"), novelty=range(6), attributes={"age": [1, 2, 3, 4, 5, 6], "sex": list("mfmfmf")}
    )
    taken = predictions.take([4, 1])
    assert taken.ids.tolist() == ["e", "b"]
    assert taken.novelty.tolist() == [4.0, 1.0]
    assert taken.attributes.to_pydict() == {"age": [5, 2], "sex": ["m", "f"]}
    assert taken.grouped_by("sex").groups.tolist() == ["m", "f"]
    assert np.array_equal(taken.logits[0, 0], predictions.logits[0, 4])
    with pytest.raises(InputError, match="unknown column 'size'; have: age, sex"):
        taken.grouped_by("size")


@pytest.mark.parametrize(
    "values", [["a", "", " "], ["a", None, None], [1.0, np.nan, np.nan], ["a", None, ""]]
)
def test_rows_without_a_group_are_refused(values):
    attributes = pa.table({"who": pa.array(values, pa.float64() if values[0] == 1 else pa.string())})
    predictions = draw_one_label(3, attributes=attributes)
    with pytest.raises(
        InputError, match="column 'who' is empty in 2 rows, first in row 1; every row needs a group"
    ):
        predictions.grouped_by("who")


def test_unlabelled_predictions_say_their_kind():
    predictions = Predictions.from_logits(LOGITS, None, kind=LabelKind.ONE_LABEL)
    assert predictions.outcomes.total == 0
    assert np.isnan(nll(predictions))
    with pytest.raises(InputError, match="no labels and no kind"):
        Predictions.from_logits(LOGITS, None)


def test_rows_with_unknown_labels_are_left_out():
    predictions = Predictions.from_logits(LOGITS, [2, IGNORE])
    assert nll(predictions) == nll(predictions.take([0]))


REFUSED = {
    "NaN logit": (lambda: Predictions.from_logits([[1.0, np.nan], [0, 1]], [0, 1]), "logits hold NaN in row 0, column 1"),
    "infinite logit": (lambda: Predictions.from_logits([[1.0, 0], [0, np.inf]], [0, 1]), "infinity in row 1, column 1"),
    "NaN in a member": (
        lambda: Predictions.from_logits([[[1.0, 2.0]], [[np.nan, 1.0]]], [0]),
        "NaN in member 1, row 0, column 0",
    ),
    "probability above 1": (lambda: Predictions.from_probs([[0.5, 0.5], [1.2, -0.2]], [0, 1]), r"1.2 in row 1 is outside \[0, 1\]"),
    "NaN probability": (lambda: Predictions.from_probs([[0.5, 0.5], [np.nan, 0.5]], [0, 1]), "nan in row 1 is outside"),
    "probabilities that do not sum to 1": (
        lambda: Predictions.from_probs([[0.5, 0.5], [0.5, 0.4]], [0, 1]),
        "row 1 sum to 0.9; allowed: 1 within 0.001",
    ),
    "label too large": (lambda: Predictions.from_logits(LOGITS, [0, 3]), "label 3 in row 1 is out of range; allowed: 0 to 2"),
    "label negative": (lambda: Predictions.from_logits(LOGITS, [0, -1]), "label -1 in row 1 is out of range"),
    "label not whole": (lambda: Predictions.from_logits(LOGITS, [0, 0.5]), "row 1 are 0.5; allowed: whole numbers"),
    "many-label value": (lambda: Predictions.from_logits(LOGITS, [[0, 1, 2], [0, 0, 0]]), "label 2 in row 0 is out of range; allowed: 0, 1"),
    "lengths": (lambda: Predictions.from_logits(LOGITS, [0]), "1 labels for 2 rows of logits"),
    "shapes": (lambda: Predictions.from_logits(LOGITS, [[0, 1], [0, 1]]), "shapes must be equal"),
    "no rows": (lambda: Predictions.from_logits(np.zeros((0, 3)), []), "no rows"),
    "no rows of probs": (lambda: Predictions.from_probs(np.zeros((0, 3)), []), "no rows"),
    "too large": (lambda: Predictions.from_logits([[1e200, 0.0]], [0]), "allowed: up to 1e\\+100 in size"),
    "groups of lists": (lambda: Predictions.from_logits(LOGITS, [0, 1], groups=[["a"], ["b", "c"]]), "allowed: a list of text or whole numbers"),
    "ragged": (lambda: Predictions.from_logits([[1.0, 2.0], [1.0]], [0, 0]), "rows of different lengths; allowed: a rectangular array"),
    "text logits": (lambda: Predictions.from_logits([["a", "b"]], [0]), "allowed: numbers"),
    "four dimensions": (lambda: Predictions.from_logits(np.zeros((1, 1, 1, 2)), [0]), r"shape \(1, 1, 1, 2\); allowed"),
    "class names": (lambda: Predictions.from_logits(LOGITS, [0, 1], class_names=["a", "b"]), "2 class names for 3 classes"),
    "class names twice": (lambda: Predictions.from_logits(LOGITS, [0, 1], class_names=["a", "b", "a"]), "'a' occurs twice"),
    "groups too short": (lambda: Predictions.from_logits(LOGITS, [0, 1], groups=["a"]), "1 groups for 2 rows"),
    "groups of floats": (lambda: Predictions.from_logits(LOGITS, [0, 1], groups=[0.5, 1]), "groups have type float64"),
    "groups missing": (lambda: Predictions.from_logits(LOGITS, [0, 1], groups=["a", np.nan]), "missing in row 1"),
    "groups None": (lambda: Predictions.from_logits(LOGITS, [0, 1], groups=[None, 1]), "groups are missing in row 0"),
    "ids too long": (lambda: Predictions.from_logits(LOGITS, [0, 1], ids=[1, 2, 3]), "3 ids for 2 rows"),
    "novelty NaN": (lambda: Predictions.from_logits(LOGITS, [0, 1], novelty=[0, np.nan]), "novelty holds NaN in row 1"),
    "attributes too long": (
        lambda: Predictions.from_logits(LOGITS, [0, 1], attributes=pa.table({"a": [1, 2, 3]})),
        "3 attributes for 2 rows",
    ),
    "kind against shape": (lambda: Predictions.from_logits(LOGITS, [0, 1], kind=LabelKind.MANY_LABELS), "kind is many_labels"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("kind", LabelKind)
@pytest.mark.parametrize("members", [2, 7, 32])
def test_averages_are_those_of_torch_whatever_is_read_at_a_time(members, kind, monkeypatch):
    torch = pytest.importorskip("torch")
    from surefoot.lab.training.average import average_members

    logits = torch.randn(members, 901, 11, generator=torch.Generator().manual_seed(members))
    expected = average_members(logits.double(), kind)
    for numbers in (2**10, 2**16):
        monkeypatch.setattr("surefoot.predictions.logits.NUMBERS_AT_ONCE", numbers)
        np.testing.assert_allclose(average(logits.numpy(), kind), expected, rtol=1e-13, atol=1e-14)


def test_rows_may_differ_from_a_sum_of_one_by_a_thousandth():
    Predictions.from_probs([[0.5, 0.5009], [0.5, 0.4991]], [0, 1])
    for row in ([0.5, 0.5011], [0.5, 0.4989]):
        with pytest.raises(InputError, match=r"row 0 sum to .*; allowed: 1 within 0\.001"):
            Predictions.from_probs([row], [0])


def test_tensors_on_a_gpu_are_copied_to_arrays():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    logits, labels = torch.tensor(LOGITS, device="cuda"), torch.tensor([2, 0], device="cuda")
    given = Predictions.from_logits(logits, labels, novelty=logits[:, 0])
    assert given.logits[0].tolist() == logits.tolist()
    assert given.labels.tolist() == [2, 0]
    assert given.novelty.tolist() == logits[:, 0].tolist()
