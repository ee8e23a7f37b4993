"""What was made for some classes refuses others, follows their order, and says where there are no names."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

import surefoot
from surefoot import InputError, LabelKind, Predictions, fit_calibration, metrics, write_predictions
from surefoot.calibrators import CALIBRATORS, load_calibration, save_calibration
from surefoot.decisions.sets import choose_sets
from surefoot.errors import Remark
from surefoot.predictions.classes import reordered
from surefoot.sklearn import TemperatureScaledClassifier
from tests.cli.command import surefoot as command

NAMES, ORDER = ("cat", "dog", "bird"), (2, 0, 1)
SUFFIXES = (".csv", ".npz", ".parquet")


def drawn(kind=LabelKind.ONE_LABEL, members=1, names=NAMES):
    """Logits that are too large, and too large for cats; the last label is not known."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(members, 300, 3))
    if kind is LabelKind.ONE_LABEL:
        labels = rng.integers(0, 3, 300)
        logits[:, np.arange(300), labels] += 1.5
        labels[-1] = -100
    else:
        labels = rng.integers(0, 2, (300, 3))
        logits += 2 * labels - 1
        labels[-1, 1] = -100
    logits = 2 * logits + [1.0, 0.0, -1.0]
    novelty = rng.random(300)
    return Predictions.from_logits(logits, labels, kind=kind, class_names=names, novelty=novelty)


def renamed(predictions, names):
    return replace(predictions, class_names=names)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same predictions in every file type: as they are, in another order, unnamed, and of other classes."""
    folder, val = tmp_path_factory.mktemp("files"), drawn()
    versions = {
        "val": val,
        "other": reordered(val, ORDER),
        "bare": renamed(val, None),
        "wrong": renamed(val, ("lion", "dog", "bird")),
    }
    for name, predictions in versions.items():
        for suffix in SUFFIXES if name != "bare" else SUFFIXES[1:]:  # a .csv names them 0, 1, 2
            write_predictions(predictions, folder / f"{name}{suffix}")
    return folder


@pytest.mark.parametrize("kind", LabelKind)
@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda each: each.name)
def test_every_calibration_follows_the_names_of_the_classes(calibrator, kind, tmp_path):
    if calibrator.one_label_only and kind is LabelKind.MANY_LABELS:
        pytest.skip("for classes that exclude each other")
    is_of_members = not calibrator.one_model and calibrator.name != "novelty"
    val = drawn(kind, members=2 if is_of_members else 1)
    fitted = fit_calibration(calibrator.name, val)
    assert fitted.class_names == NAMES
    save_calibration(fitted, tmp_path / "c.json")
    loaded = load_calibration(tmp_path / "c.json")
    assert loaded == fitted
    expected = fitted(val)
    other = reordered(val, ORDER)
    assert other.class_names == ("bird", "cat", "dog")
    assert other.labels.tolist() == (
        [[row[i] for i in ORDER] for row in val.labels.tolist()]
        if kind is LabelKind.MANY_LABELS
        else [label if label < 0 else ORDER.index(label) for label in val.labels.tolist()]
    )
    found = loaded(other)
    assert found.class_names == other.class_names
    assert np.array_equal(found.labels, other.labels)
    np.testing.assert_allclose(found.probs(), expected.probs()[:, list(ORDER)], rtol=1e-12)
    with pytest.raises(InputError, match="have a class 'lion'; the classes of the calibration are cat, dog"):
        loaded(renamed(val, ("lion", "dog", "bird")))
    with pytest.warns(Remark, match="no class names in the predictions: .* in the calibration: cat, dog, bi"):
        unnamed = loaded(renamed(val, None))
    assert np.array_equal(unnamed.logits, expected.logits)
    assert unnamed.class_names is None
    document = json.loads((tmp_path / "c.json").read_text())
    assert document.pop("class_names") == list(NAMES)
    (tmp_path / "c.json").write_text(json.dumps(document))  # as older versions wrote it
    with pytest.warns(Remark, match="no class names in the calibration"):
        assert np.array_equal(load_calibration(tmp_path / "c.json")(val).logits, expected.logits)


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_streamed_as_in_memory(method, suffix, files):
    fitted = fit_calibration(method, drawn())
    expected = metrics.nll(fitted(drawn()))

    def streamed(name):
        scanned = surefoot.scan_predictions(files / f"{name}{suffix}")
        done = surefoot.evaluate(scanned, calibration=fitted, metrics=["nll"], resamples=0)
        return done.sides["familiar"].metrics["nll"].value

    assert streamed("val") == pytest.approx(expected, rel=1e-9)
    assert streamed("other") == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputError, match="have a class 'lion'"):
        streamed("wrong")
    if suffix == ".parquet":
        with pytest.warns(Remark, match="no class names in the predictions") as remarks:
            assert streamed("bare") == pytest.approx(expected, rel=1e-9)
        assert len(remarks) == 1


def test_a_streamed_fit_knows_its_classes(files):
    for method in ("temperature", "softening"):
        fitted = fit_calibration(method, surefoot.scan_predictions(files / "val.csv"))
        assert fitted.class_names == NAMES


def test_a_reference_in_another_order_is_the_same_reference():
    val, plain = drawn(), drawn().with_logits(3 * drawn().logits)
    options = {"budget": "surplus", "reference": plain}
    fitted = fit_calibration("budget", val, **options)
    other = fit_calibration("budget", val, **options | {"reference": reordered(plain, ORDER)})
    assert other.temperature == pytest.approx(fitted.temperature, rel=1e-9)
    with pytest.raises(InputError, match="have a class 'lion'"):
        fit_calibration("budget", val, budget="surplus", reference=renamed(plain, ("lion", "dog", "bird")))


@pytest.mark.parametrize(("per", "target"), [(None, 0.15), ("class", 0.3)])
def test_thresholds_know_their_classes(per, target, tmp_path):
    val = drawn()
    chosen = surefoot.choose_thresholds(val, target_error=target, per=per)
    surefoot.save_thresholds(chosen, tmp_path / "t.json")
    loaded = surefoot.load_thresholds(tmp_path / "t.json")
    assert loaded.class_names == chosen.class_names == NAMES
    expected = chosen.accepted(val)
    assert 0 < expected.sum() < len(expected)
    np.testing.assert_array_equal(loaded.accepted(reordered(val, ORDER)), expected)
    with pytest.raises(InputError, match="have a class 'lion'; the classes of the thresholds are cat, dog"):
        loaded.accepted(renamed(val, ("lion", "dog", "bird")))
    with pytest.warns(Remark, match="no class names in the predictions: .* in the thresholds: cat, dog"):
        np.testing.assert_array_equal(loaded.accepted(renamed(val, None)), expected)
    unnamed = surefoot.choose_thresholds(renamed(val, None), target_error=target, per=per)
    with pytest.warns(Remark, match="no class names in the thresholds"):
        np.testing.assert_array_equal(unnamed.accepted(val), expected)


def test_thresholds_per_class_of_an_older_file_accept_by_name_or_refuse(tmp_path):
    val = drawn()
    chosen = surefoot.choose_thresholds(val, target_error=0.3, per="class")
    old = replace(chosen, class_names=None)
    with pytest.warns(Remark, match="no class names in the thresholds"):
        np.testing.assert_array_equal(old.accepted(reordered(val, ORDER)), chosen.accepted(val))
    with pytest.raises(
        InputError, match=r"thresholds are for the classes bird, cat, dog, and .* have 0, 1, 2"
    ):
        old.accepted(renamed(val, None))


def test_thresholds_for_a_class_of_many_labels_find_it_without_names():
    val = drawn(LabelKind.MANY_LABELS)
    chosen = surefoot.choose_thresholds(val, target_error=0.3, for_class="dog")
    with pytest.warns(Remark, match="no class names in the predictions"):
        np.testing.assert_array_equal(chosen.accepted(renamed(val, None)), chosen.accepted(val))


def test_thresholds_of_an_unnamed_file_have_the_names_of_their_calibration():
    val = drawn()
    vector = fit_calibration("vector", val)
    with pytest.warns(Remark, match="no class names in the predictions"):
        chosen = surefoot.choose_thresholds(
            renamed(val, None), target_error=0.3, per="class", calibration=vector
        )
    assert chosen.class_names == NAMES
    assert set(chosen.parts) == set(NAMES)
    np.testing.assert_array_equal(chosen.accepted(reordered(val, ORDER)), chosen.accepted(val))


def test_sets_are_in_the_order_of_the_predictions():
    val = drawn()
    chosen = choose_sets(val, calibration=fit_calibration("vector", val), familiar_test=reordered(val, ORDER))
    assert chosen.measured["familiar test"] == chosen.measured["val"]
    np.testing.assert_array_equal(chosen.of(reordered(val, ORDER)), chosen.of(val)[:, list(ORDER)])
    with pytest.raises(InputError, match="have a class 'lion'; the classes of the sets are cat, dog, bird"):
        chosen.of(renamed(val, ("lion", "dog", "bird")))
    with pytest.warns(Remark, match="no class names in the predictions"):
        np.testing.assert_array_equal(chosen.of(renamed(val, None)), chosen.of(val))


def test_the_monitor_compares_the_same_classes():
    reference = drawn()
    current = reference.with_logits(1.3 * reference.logits)
    vector = fit_calibration("vector", reference)
    expected = surefoot.monitor(reference, current, calibration=vector)
    found = surefoot.monitor(reference, reordered(current, ORDER), calibration=vector)
    assert [each.p for each in found.findings] == pytest.approx([each.p for each in expected.findings])
    assert [each.name for each in found.parts] == [each.name for each in expected.parts]
    assert found.accuracy.value == pytest.approx(expected.accuracy.value)
    with pytest.raises(InputError, match="have a class 'lion'"):
        surefoot.monitor(reference, renamed(current, ("lion", "dog", "bird")))
    with pytest.warns(Remark, match="no class names in the predictions"):
        surefoot.monitor(reference, renamed(current, None))


def test_numbered_columns_are_classes_called_by_their_places():
    numbered = fit_calibration("vector", drawn(names=("0", "1", "2")))
    numbered(drawn(names=None))  # without a remark
    with pytest.raises(InputError, match="have a class 'cat'; the classes of the calibration are 0, 1, 2"):
        numbered(drawn())


def test_every_command_notes_missing_names_and_refuses_other_ones(files, tmp_path):
    calibration, thresholds = tmp_path / "c.json", tmp_path / "t.json"
    command("calibrate", files / "val.csv", "--method", "vector", "-o", calibration)
    command("thresholds", files / "val.csv", "--per", "class", "--target-error", 0.3, "-o", thresholds)

    def every_route(name, suffix):
        file = files / f"{name}{suffix}"
        yield "apply", calibration, file, "-o", tmp_path / f"out{suffix}"
        yield "evaluate", file, "--calibration", calibration, "--resamples", 0
        yield "thresholds", file, "--calibration", calibration, "--target-error", 0.3, "-o", tmp_path / "o"
        yield "sets", file, "--calibration", calibration
        yield "monitor", files / "val.npz", file, "--calibration", calibration
        yield "monitor", file, file, "--thresholds", thresholds

    for arguments in every_route("bare", ".npz"):
        said = command(*arguments).stderr
        assert said.count("note: no class names in the predictions: the order is taken as in ") == 1
    for suffix in SUFFIXES:
        for arguments in every_route("wrong", suffix):
            said = command(*arguments, check=2).stderr
            assert "surefoot: the predictions have a class 'lion'; the classes of " in said
        for arguments in every_route("other", suffix):
            assert "no class names" not in command(*arguments).stderr
    command("apply", calibration, files / "other.csv", "-o", tmp_path / "a.csv")
    command("apply", calibration, files / "val.csv", "-o", tmp_path / "b.csv")
    after = {name: surefoot.read_predictions(tmp_path / f"{name}.csv") for name in ("a", "b")}
    assert np.array_equal(after["a"].logits, after["b"].logits[:, :, list(ORDER)])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", "dog"], "2 class names for 3 classes"),
        (["cat", "dog", 1], "class_names are not a list of texts"),
        ("cat", "class_names are not a list of texts"),
        (["cat", "dog", "dog"], "class name 'dog' occurs twice"),
    ],
)
def test_wrong_names_in_a_file_are_one_sentence(names, message, tmp_path):
    save_calibration(fit_calibration("temperature", drawn()), tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(document | {"class_names": names}))
    with pytest.raises(InputError, match=f"c.json is not a calibration file: {message}"):
        load_calibration(tmp_path / "c.json")


def test_the_estimator_s_calibration_has_its_classes():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 2)), rng.choice(["dog", "cat"], 200)
    model = TemperatureScaledClassifier(method="vector").fit(x, y)
    assert model.calibration_.class_names == ("cat", "dog")
    assert model.predict_proba(x).shape == (200, 2)  # without a remark
    spaced = TemperatureScaledClassifier(method="vector").fit(x, np.where(y == "cat", " a cat", "dog"))
    assert spaced.calibration_.class_names is None  # no file of predictions can hold this name
    spaced.predict_proba(x)


def test_names_in_the_metadata_of_a_parquet_file_must_be_those_of_its_columns(tmp_path):
    table = pyarrow.table({"logit_cat": [1.0, 2.0], "logit_dog": [0.0, 3.0], "label": ["cat", "dog"]})

    def written(names):
        stored = {b"surefoot": json.dumps({"class_names": names})}
        pyarrow.parquet.write_table(table.replace_schema_metadata(stored), tmp_path / "p.parquet")
        return tmp_path / "p.parquet"

    assert surefoot.read_predictions(written(["cat", "dog"])).class_names == ("cat", "dog")
    for names in (["dog", "cat"], ["cat", "dog", "bird"], ["a", "b"]):
        path = written(names)
        sentence = f"the classes are {', '.join(names)} in the metadata 'surefoot', and cat, dog in"
        with pytest.raises(InputError, match=sentence):
            surefoot.read_predictions(path)
        with pytest.raises(InputError, match=sentence):
            surefoot.scan_predictions(path).classes  # noqa: B018
        assert sentence in command("evaluate", path, check=2).stderr
