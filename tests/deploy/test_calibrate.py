"""Three lines on a user's own model: the right temperature, the model left as it was, one module in its place."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logsumexp, softmax
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot import InputError, LabelKind
from surefoot.deploy.model import ScikitModel
from tests import warm

CLASSES, WIDTH = 3, 6


def network(outputs=CLASSES, seed=0):
    """With BatchNorm and dropout, which training mode would show; sure of itself."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs)
    )
    with torch.no_grad():
        model[4].weight *= 8
    return model


def drawn(rows=400, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=generator)


def data(model, rows=400, seed=1):
    """Labels drawn from the model at T = 4: the right temperature is about 4."""
    x = drawn(rows, seed)
    with torch.no_grad():
        z = copy.deepcopy(model).eval()(x) / 4
    generator = torch.Generator().manual_seed(seed)
    if z.shape[1] == 1:
        return x, torch.bernoulli(z.sigmoid(), generator=generator)
    return x, torch.multinomial(z.softmax(1), 1, generator=generator).squeeze(1)


def test_the_surplus_over_a_plain_model_is_a_budget():
    """At the T that is found, the NLL is the lowest NLL of the plain model."""
    model = network()
    x, y = data(model)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        plain[0].weight += 0.2 * torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))
    plain_t = surefoot.calibrate(plain, (x, y))
    calibrated = surefoot.calibrate(model, (x, y), method="budget", budget="surplus", reference=plain)
    assert calibrated.report.nll_after == pytest.approx(plain_t.report.nll_after, rel=1e-6)
    assert calibrated.temperature > surefoot.calibrate(model, (x, y)).temperature
    wider = surefoot.calibrate(model, (x, y), method="budget", budget=0.01).report
    least = wider.calibration.nll_best
    assert wider.nll_after == pytest.approx(1.01 * least, rel=1e-6)
    assert calibrated.report.calibration.nll_best == least


def best(nll):
    return float(np.exp(minimize_scalar(nll, bounds=(-4, 6), method="bounded", options={"xatol": 1e-9}).x))


def raw(model, x):
    with torch.no_grad():
        return copy.deepcopy(model).eval()(x).double().numpy()


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def calibrated(model):
    return surefoot.calibrate(model, DataLoader(TensorDataset(*data(model)), batch_size=64))


def test_the_temperature_is_scipy_s(model, calibrated):
    x, y = data(model)
    z, rows = raw(model, x), np.arange(len(y))
    expected = best(lambda t: -log_softmax(z / np.exp(t), axis=1)[rows, y].mean())
    assert float(calibrated.temperature) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(calibrated.probabilities(x), softmax(z / expected, axis=1), atol=1e-5)
    np.testing.assert_allclose(calibrated.logits(x), z / expected, rtol=1e-4, atol=1e-5)
    report = calibrated.report
    assert report.nll_before == pytest.approx(-log_softmax(z, axis=1)[rows, y].mean(), rel=1e-5)
    assert report.nll_after == pytest.approx(-log_softmax(z / expected, axis=1)[rows, y].mean(), rel=1e-5)
    assert report.ece_after < report.ece_before
    assert report.n == 400
    assert "T = " in str(report)
    assert f"NLL {report.nll_before:.4f} -> {report.nll_after:.4f}" in str(report)


def test_the_model_is_left_as_it_was():
    model = network().train()
    model[1].eval()  # a mixture of modes, as in fine-tuning with frozen BatchNorm
    model[4].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    x, y = data(model)
    calibrated = surefoot.calibrate(model, [(x, y)])
    assert calibrated.model is model
    calibrated.probabilities(x)
    calibrated.logits(x)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == [True] * 4 + [False, True]
    assert all(p.grad is None for p in model.parameters())


def test_modes_come_back_when_the_model_fails():
    model = network().train()
    with pytest.raises(RuntimeError):
        surefoot.calibrate(model, [(torch.zeros(4, WIDTH + 1), torch.zeros(4))])
    assert all(module.training for module in model.modules())


def test_answers_are_those_of_evaluation_mode_in_any_mode(calibrated):
    x = drawn()
    expected = calibrated.eval().probabilities(x)
    training = copy.deepcopy(calibrated).train()
    assert torch.equal(training.probabilities(x), expected)
    assert training.training
    assert not torch.equal(training(x).softmax(1), expected), "a plain pass is in the mode the module is in"


def test_the_forward_pass_is_calibrated_logits_with_gradients(calibrated):
    z = calibrated.eval()(drawn())
    assert z.requires_grad
    torch.testing.assert_close(z.softmax(1), calibrated.probabilities(drawn()))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_logit(shape):
    inner = network(outputs=1)
    model = nn.Sequential(inner, nn.Flatten(0)) if shape == (-1,) else inner
    x, y = data(inner)
    calibrated = surefoot.calibrate(model, DataLoader(TensorDataset(x, y.reshape(shape)), batch_size=50))
    z, labels = raw(inner, x)[:, 0], y[:, 0].numpy()
    expected = best(lambda t: np.logaddexp(0, (1 - 2 * labels) * z / np.exp(t)).mean())
    assert float(calibrated.temperature) == pytest.approx(expected, rel=1e-5)
    assert calibrated.logits(x).shape == torch.empty(len(x)).reshape(shape).shape
    p = expit(z / expected)
    np.testing.assert_allclose(calibrated.probabilities(x), np.stack([1 - p, p], axis=1), atol=1e-5)


def test_many_labels():
    model = network(outputs=4)
    x = drawn()
    z = raw(model, x)
    y = (np.random.default_rng(0).random(z.shape) < expit(z / 4)).astype(float)
    y[:30, 1] = surefoot.IGNORE
    calibrated = surefoot.calibrate(model, DataLoader(TensorDataset(x, torch.tensor(y)), batch_size=64))
    known = y != surefoot.IGNORE
    expected = best(lambda t: np.logaddexp(0, (1 - 2 * y) * z / np.exp(t))[known].mean())
    assert calibrated.kind is LabelKind.MANY_LABELS
    assert float(calibrated.temperature) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(calibrated.probabilities(x), expit(z / expected), atol=1e-5)


class HuggingFaceLike(nn.Module):
    """Called by name, answers with an object that has `.logits`."""

    def __init__(self, inner, output):
        super().__init__()
        self.inner, self.output = inner, output

    def forward(self, pixel_values, labels=None):
        assert labels is None, "no loss is wanted"
        return self.output(self.inner(pixel_values))


@pytest.mark.parametrize("output", [lambda z: SimpleNamespace(logits=z, loss=None), lambda z: {"logits": z}])
def test_outputs_and_batches_as_hugging_face_s(model, calibrated, output):
    x, y = data(model)
    batches = [{"pixel_values": x[rows], "labels": y[rows]} for rows in torch.arange(len(x)).split(64)]
    found = surefoot.calibrate(HuggingFaceLike(model, output), batches)
    assert torch.equal(found.temperature, calibrated.temperature)
    assert torch.equal(found.probabilities(pixel_values=x), calibrated.probabilities(x))


def test_an_ensemble_is_the_mean_of_its_calibrated_members():
    models = [network(seed=seed) for seed in range(3)]
    x, y = data(models[0])
    ensemble = surefoot.Ensemble([surefoot.calibrate(each, (x, y)) for each in models])
    members = [raw(each, x) / float(t) for each, t in zip(models, ensemble.temperature, strict=True)]
    expected = np.mean([softmax(z, axis=1) for z in members], axis=0)
    np.testing.assert_allclose(ensemble.probabilities(x), expected, atol=1e-6)
    again = logsumexp([log_softmax(z, axis=1) for z in members], axis=0) - np.log(3)
    np.testing.assert_allclose(ensemble.logits(x), again, atol=1e-4)
    assert len(ensemble.report) == 3
    scaled = surefoot.calibrate(ensemble, (x, y))  # a temperature after the mean
    found = surefoot.fit_temperature(surefoot.Predictions.from_logits(again, y)).temperature
    assert float(scaled.temperature) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize(("outputs", "kind"), [(1, "one_label"), (4, "many_labels")])
def test_an_ensemble_of_sigmoids(outputs, kind):
    models = [network(outputs, seed=seed) for seed in range(2)]
    x = drawn()
    ensemble = surefoot.Ensemble(models, kind=kind)
    p = np.mean([expit(raw(each, x)) for each in models], axis=0)
    expected = np.concatenate([1 - p, p], axis=1) if outputs == 1 else p
    np.testing.assert_allclose(ensemble.probabilities(x), expected, atol=1e-6)
    assert ensemble(x).shape == (len(x), outputs)


def test_saved_and_loaded_with_safetensors(tmp_path):
    models = [network(seed=seed) for seed in range(2)]
    x, y = data(models[0])
    ensemble = surefoot.Ensemble([surefoot.calibrate(each, (x, y)) for each in models])
    save_model(ensemble, str(tmp_path / "ensemble.safetensors"))
    blank = surefoot.Ensemble([network(seed=7), network(seed=8)], kind="one_label")
    load_model(blank, str(tmp_path / "ensemble.safetensors"))
    assert torch.equal(blank.probabilities(x), ensemble.probabilities(x))
    assert torch.equal(blank.temperature, ensemble.temperature)


def test_it_moves_and_keeps_its_temperature_in_half_precision(calibrated):
    moved = copy.deepcopy(calibrated).to(torch.bfloat16)
    assert moved.model[0].weight.dtype is torch.bfloat16
    assert torch.equal(moved.temperature, calibrated.temperature)
    assert copy.deepcopy(calibrated).to("meta").temperature.is_meta
    assert copy.deepcopy(calibrated).double()(drawn().double()).dtype is torch.float64


def test_weights_that_are_nowhere_leave_the_temperature_its_value():
    """Offloaded ones are on meta; that T goes with those on a GPU is tried by tests/test_gpu.py."""
    calibrated = surefoot.Calibrated(network().to("meta"), 2.0)
    assert float(calibrated.temperature) == 2.0


def test_autocast_gives_full_precision_probabilities(calibrated):
    x = drawn()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p, z = calibrated.probabilities(x), calibrated.eval()(x)
        is_ensemble = surefoot.Ensemble([calibrated, calibrated]).probabilities(x)
    assert p.dtype is z.dtype is is_ensemble.dtype is torch.float32
    torch.testing.assert_close(p.sum(1), torch.ones(len(x)))
    torch.testing.assert_close(p, calibrated.probabilities(x), atol=0.05, rtol=0)


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "as_array",
    [
        lambda x: x,
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x[::-1].copy()[::-1],
        lambda x: read_only(x.copy()),
    ],
    ids=["float32", "float64", "big-endian", "backwards", "read-only"],
)
def test_arrays_are_asked_and_calibrated_as_tensors_are(model, calibrated, as_array):
    x, y = data(model)
    array = as_array(x.numpy())
    assert torch.equal(calibrated.probabilities(array), calibrated.probabilities(x))
    assert torch.equal(calibrated.logits(input=array), calibrated.logits(x))
    both = surefoot.Ensemble([calibrated, calibrated])
    assert torch.equal(both.probabilities(array), both.probabilities(x))
    again = surefoot.calibrate(model, (array, y.numpy()))
    assert float(again.temperature) == pytest.approx(float(calibrated.temperature), rel=1e-5)


def test_arrays_go_where_the_weights_are_and_take_their_type(calibrated):
    x = drawn().numpy()
    assert copy.deepcopy(calibrated).double().probabilities(x).dtype is torch.float64
    assert copy.deepcopy(calibrated).to(torch.bfloat16).probabilities(x).dtype is torch.float32
    assert copy.deepcopy(calibrated).to("meta").probabilities(x).is_meta
    words = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(10, CLASSES))
    whole = np.array([[0, 6], [3, 1]])
    asked = surefoot.Calibrated(words).probabilities
    assert torch.equal(asked(whole), asked(torch.from_numpy(whole))), "whole numbers stay whole"


def test_compiled(calibrated):
    x = drawn()
    for module in (calibrated, surefoot.Ensemble([calibrated, copy.deepcopy(calibrated)])):
        module.eval()
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), module(x))
        asked = torch.compile(module.probabilities, backend="eager", fullgraph=True)
        torch.testing.assert_close(asked(x), module.probabilities(x))


def scikit(name):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    return {
        "logistic": LogisticRegression(C=100),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
        "margins": SVC(),
        "pairs": SVC(decision_function_shape="ovo"),
        "naive": GaussianNB(),
        "forest": RandomForestClassifier(10, random_state=0),
    }[name]


def flowers(classes, rows=300, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(len(classes), size=rows)
    return rng.standard_normal((rows, 4)) + y[:, None], np.asarray(classes)[y]


@pytest.mark.parametrize("name", ["logistic", "pipeline", "margins", "naive", "forest"])
@pytest.mark.parametrize("classes", [("no", "yes"), (3, 1, 7)])
def test_scikit_learn_s_classifiers(name, classes):
    x, y = flowers(classes)
    classifier = scikit(name).fit(x[:100], y[:100])
    calibrated = surefoot.calibrate(classifier, (x[100:], y[100:]))
    index = np.searchsorted(classifier.classes_, y[100:])
    scores = classifier.decision_function(x) if name in ("logistic", "pipeline", "margins") else None
    if scores is None:
        probabilities = classifier.predict_proba(x)
        held_out = probabilities[100:]
        lowest = held_out[held_out > 0].min() / 2 if (held_out == 0).any() else 2.0**-126
        scores = np.log(np.maximum(probabilities, lowest))
    if scores.ndim == 1:
        scores = np.stack([0 * scores, scores], axis=1)
    expected = best(lambda t: -log_softmax(scores[100:] / np.exp(t), axis=1)[np.arange(200), index].mean())
    assert calibrated.report.calibration.temperature == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(calibrated.probabilities(x), softmax(scores / expected, axis=1), atol=1e-5)
    assert torch.equal(calibrated.probabilities(torch.tensor(x)), calibrated.probabilities(x))
    both = surefoot.Ensemble([calibrated, calibrated])
    torch.testing.assert_close(both.probabilities(x), calibrated.probabilities(x))


def test_a_forest_is_asked_in_large_batches_and_its_text_classes_are_kept(tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    class Counted(RandomForestClassifier):
        calls = 0

        def predict_proba(self, X):  # noqa: N803
            self.calls += 1
            return super().predict_proba(X)

    x, y = flowers(("no", "yes"), rows=3000)
    forest = Counted(5, random_state=0).fit(x[:100], y[:100])
    predictions = surefoot.predictions_of(forest, (x, y))
    assert forest.calls == 1
    assert predictions.class_names == ("no", "yes")
    surefoot.write_predictions(predictions, tmp_path / "val.npz")
    assert surefoot.read_predictions(tmp_path / "val.npz").class_names == ("no", "yes")
    numbered = Counted(5, random_state=0).fit(x[:100], y[:100] == "yes")
    assert surefoot.predictions_of(numbered, (x, y == "yes")).class_names is None


class Watched:
    """A classifier that shows whether `torch.compile` traced it instead of calling it."""

    classes_ = (0, 1, 2)

    def decision_function(self, rows):
        self.traced = torch.compiler.is_compiling()
        return rows[:, :3]


def test_a_classifier_in_a_compiled_model_is_called():
    x = drawn()
    model = ScikitModel(Watched(), LabelKind.ONE_LABEL)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), x[:, :3].double())
    assert model.classifier.traced is False


def test_scikit_learn_s_many_labels():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4))
    y = (x[:, :3] + 0.5 * rng.standard_normal((300, 3)) > 0).astype(int)
    rest = OneVsRestClassifier(LogisticRegression()).fit(x, y)
    calibrated = surefoot.calibrate(rest, (x, y))
    z = rest.decision_function(x) / float(calibrated.temperature)
    np.testing.assert_allclose(calibrated.probabilities(x), expit(z), atol=1e-5)
    forest = RandomForestClassifier(10, random_state=0).fit(x, np.column_stack([y[:, :2], np.zeros(300)]))
    p = surefoot.Calibrated(forest, kind="many_labels").probabilities(x)
    np.testing.assert_allclose(p[:, 0], forest.predict_proba(x)[0][:, 1], atol=1e-6)
    assert (p[:, 2] < 1e-6).all(), "a label that never occurred"


def test_scikit_learn_s_words_stay_words():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    x = np.array([["a", "x"], ["b", "y"], ["a", "y"], ["b", "x"]] * 9, dtype=object)
    y = np.arange(len(x)) * 7 % 2
    classifier = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(x, y)
    calibrated = surefoot.calibrate(classifier, (x, y))
    z = classifier.decision_function(x) / float(calibrated.temperature)
    np.testing.assert_allclose(calibrated.probabilities(x)[:, 1], expit(z), atol=1e-6)


@pytest.mark.parametrize("classes", ["abc", "abcd"])
def test_scores_of_pairs_of_classes_are_refused(classes):
    """Also of three classes, which have three pairs."""
    x, y = flowers(tuple(classes))
    with pytest.raises(InputError, match="SVC gives a score for each pair of classes"):
        surefoot.calibrate(scikit("pairs").fit(x, y), (x, y))


X, Y = torch.zeros(4, WIDTH), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("val", "says"),
    [
        ([], "the loader gave no batch"),
        ([(X, Y, Y)], "a batch is 3 parts; allowed"),
        ([X], "a batch is Tensor; allowed"),
        ([{"x": X}], "a batch has x; needed: 'labels'"),
        ([(X, Y[:3])], "a batch has 3 labels and 4 logits"),
        ([(X, Y[:1])], "a batch has 1 label and 4 logits"),
        ([(X,)], "a batch is 1 part; allowed"),
        ((X, ["a", "b", "c", "d"]), "labels are text, and no classes are named"),
        (X, "the validation data have type Tensor; allowed"),
        ([(X, torch.tensor([0, 1, 2, 9]))], "label 9 in row 3 is out of range"),
    ],
)
def test_bad_data_are_refused_in_a_sentence(model, val, says):
    with pytest.raises(InputError, match=says):
        surefoot.calibrate(model, val)


def test_bad_models_are_refused_in_a_sentence(model):
    from sklearn.linear_model import LogisticRegression

    for wrong in (lambda x: x, LogisticRegression(), "resnet18"):
        with pytest.raises(InputError, match="or a fitted scikit-learn"):
            surefoot.calibrate(wrong, (X, Y))
    with pytest.raises(InputError, match=r"shape \(4, 1, 6\); allowed"):
        surefoot.calibrate(nn.Unflatten(1, (1, WIDTH)), (X, Y))
    with pytest.raises(InputError, match="returned tuple; allowed: logits"):
        surefoot.calibrate(HuggingFaceLike(nn.Identity(), lambda z: (z,)), [{"pixel_values": X, "labels": Y}])
    with pytest.raises(InputError, match="'novelty' needs more than one model's logits"):
        surefoot.calibrate(model, (X, Y), method="novelty")
    with pytest.raises(
        InputError, match="unknown method 'foo'; allowed: temperature, softening, budget, vector"
    ):
        surefoot.calibrate(model, (X, Y), method="foo")
    with pytest.raises(InputError, match="unknown option of method temperature: 'budget'; have: weights"):
        surefoot.calibrate(model, (X, Y), budget=0.05)
    with pytest.raises(InputError, match="budget is 'surplus' without a reference"):
        surefoot.calibrate(model, (X, Y), method="budget", budget="surplus")
    with pytest.raises(InputError, match="temperature is -1"):
        surefoot.Calibrated(model, -1)
    with pytest.raises(InputError, match="kind is 'softmax'; allowed: one_label, many_labels"):
        surefoot.Calibrated(model, kind="softmax")


def test_bad_ensembles_are_refused_in_a_sentence(model, calibrated):
    with pytest.raises(InputError, match="0 members"):
        surefoot.Ensemble([])
    with pytest.raises(InputError, match="a member is not calibrated; needed"):
        surefoot.Ensemble([calibrated, model])
    with pytest.raises(InputError, match="kinds many_labels, one_label; allowed: one kind"):
        surefoot.Ensemble([calibrated], kind="many_labels")
    wider = surefoot.Ensemble([calibrated, network(outputs=5)], kind="one_label")
    with pytest.raises(InputError, match=r"shapes \(4, 3\), \(4, 5\)"):
        wider.probabilities(X)


def test_a_scikit_model_is_no_guess():
    assert not isinstance(surefoot.Calibrated(network()).model, ScikitModel)


def test_the_example_runs():
    """From training to a saved and loaded ensemble, in a process of its own."""
    script = Path(__file__).parents[2] / "examples" / "calibrate_your_model.py"
    done = warm.run(script.read_text())
    assert done.returncode == 0, done.stderr
    lines = {line.rsplit(maxsplit=2)[0]: line.split()[-2:] for line in done.stdout.splitlines() if line}
    before, after = ([float(n) for n in lines[name]] for name in ("the model as it is", "calibrated"))
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert done.stdout.endswith("saved, loaded, and the same: True\n")


def test_what_the_page_says_runs(tmp_path, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "your-model.md").read_text()
    model = network()
    x, y = data(model)
    table = {"x": x.numpy(), "y": y.numpy(), "x_val": x.numpy(), "y_val": y.numpy(), "x_test": x.numpy()}
    models = [network(seed=seed) for seed in range(5)]
    names = {"model": model, "models": models, "val_loader": [(x, y)], "x": x, "build_model": network}
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(
            code,
            names
            | (table if "LogisticRegression" in code else {})
            | {"LogisticRegression": LogisticRegression},
            names,
        )
    assert torch.equal(names["again"].probabilities(x), names["ensemble"].probabilities(x))
