"""A bundle says what the run said, to the last digits, is read without pickle, and refuses what is not sound."""

import hashlib
import json
import math
import pickle
import re
import shutil
import stat
import sys
from dataclasses import replace
from functools import cache
from types import ModuleType

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from PIL.ExifTags import Base
from safetensors.torch import load_file, save_file
from scipy.special import logsumexp

import surefoot
from surefoot import InputError
from surefoot.calibrators import calibration_document
from surefoot.calibrators.novelty import NoveltyScaling
from surefoot.deploy.make_bundle import chosen_method, why_not, write_bundle
from surefoot.deploy.own_code import own_code_of
from surefoot.deploy.predict import images_among, predict_files
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.tasks.task import Split
from surefoot.serve.limits import Watch
from surefoot.serve.window import ShiftWindow
from tests import warm
from tests.cli.command import in_a_process
from tests.deploy.made import COLOURS, RECIPE, ROWS, ran

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
BUNDLED = [m.name for m in METHODS if why_not(m) is None]
REFUSED = [m.name for m in METHODS if why_not(m) is not None]
CLOSE = 1e-5
ORIENTATION = Base.Orientation


@pytest.fixture(scope="module", params=["one label", "many labels"])
def made(request, tmp_path_factory):
    return ran(tmp_path_factory.mktemp("ran"), many=request.param == "many labels")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One label, and a bundle of an ensemble, to break copies of."""
    folder = tmp_path_factory.mktemp("one")
    found = ran(folder, methods=("ensemble-of-t",))
    bundled(
        found, "ensemble-of-t", folder / "bundle", thresholds={"accept": 0.6, "reject": 0.35, "from": "me"}
    )
    return found, folder / "bundle"


@pytest.fixture
def copy(one, tmp_path):
    shutil.copytree(one[1], tmp_path / "bundle")
    return tmp_path / "bundle"


def bundled(made, method, folder, **options):
    chosen = chosen_method(made.opened, method, task=None, network=None)
    write_bundle(chosen, folder, resamples=0, **options)
    return surefoot.load_bundle(folder)


@cache
def view(preprocessing, path):
    return preprocessing.of_file(path)


def views(bundle, made, ids):
    """What the networks see; each file is read once for each way of reading."""
    return torch.stack([view(bundle.preprocessing, made.images / path) for path in ids])


@pytest.mark.parametrize("name", BUNDLED)
def test_it_says_what_the_run_said(made, name, tmp_path):
    """On the same files, through the bundle's own reading of them: as stored, and as one module."""
    bundle = bundled(made, name, tmp_path / "bundle")
    run = made.stored(METHODS.named(name))
    for split in TESTED:
        stored = run.after[split]
        seen = views(bundle, made, stored.ids)
        if "bayesian" in name:  # its samples are drawn once, and not those of the stored predictions
            assert np.abs(bundle.predict(seen).probs() - stored.probs()).max() < 0.25
        else:
            np.testing.assert_allclose(bundle.predict(seen).probs(), stored.probs(), atol=CLOSE)
        np.testing.assert_allclose(bundle.probabilities(seen), bundle.predict(seen).probs(), atol=CLOSE)
        alone = torch.cat([bundle.probabilities(each[None]) for each in seen[:4]])
        np.testing.assert_allclose(alone, bundle.probabilities(seen)[:4], atol=CLOSE)


def test_a_bayesian_network_s_fixed_samples_are_as_good_as_fresh_ones(made, tmp_path):
    """The mean over many networks' worth of fixed samples is the mean over fresh ones."""
    from surefoot.lab.training.predict import FixedSamples, Sampled

    bundle = bundled(made, "bayesian", tmp_path / "bundle")
    window = ShiftWindow(bundle, Watch())  # of `serve`
    assert window.document()["state"] == "off"
    (sentence,) = window.document()["verdict"]
    assert sentence.startswith(
        "Shift is not checked: the bundle of a Bayesian method (bayesian) has no reference"
    )
    assert {each.name: each.samples[0].value for each in window.collect()} == {"surefoot_shift_checked": 0.0}
    seen = views(bundle, made, made.stored(METHODS.named("bayesian")).after[TESTED[0]].ids[:8])
    network = bundle.networks[0].network

    def probs(logits):
        return logits.softmax(1) if bundle.kind == "one_label" else logits.sigmoid()

    with torch.no_grad():
        fixed = probs(FixedSamples(network, 4000, bundle.kind, torch.Generator().manual_seed(1))(seen))
        fresh = probs(Sampled(bundle.kind, 4000, torch.Generator().manual_seed(2))(network, seen))
    np.testing.assert_allclose(fixed, fresh, atol=0.03)


def test_t_is_inside_the_samples_of_a_bayesian_bundle(made, tmp_path):
    """The mean of softmax(z_s / T) over the fixed samples, by numpy; not T after averaging, nor T twice."""
    bundle = bundled(made, "bayesian-t", tmp_path / "bundle")
    seen = views(bundle, made, made.stored(METHODS.named("bayesian-t")).after[TESTED[0]].ids)
    fixed, fitted = bundle.networks[0], surefoot.load_calibration(tmp_path / "bundle" / "calibration.json")
    assert fitted == made.stored(METHODS.named("bayesian-t")).calibration
    head = fixed.network.head
    with torch.no_grad():
        features = fixed.network.features(seen).double().numpy()
    logits = []
    for mask, noise in zip(fixed.mask.double().numpy(), fixed.noise.double().numpy(), strict=True):
        mean, spread = (
            (features * mask) @ layer.weight.double().numpy().T + layer.bias.double().numpy()
            for layer in (head, head.variance)
        )
        logits.append(mean + np.sqrt(np.log1p(np.exp(spread)) + 1e-6) * noise)
    z = np.stack(logits)

    def probs(scaled):
        if bundle.kind == "many_labels":
            return 1 / (1 + np.exp(-scaled))
        e = np.exp(scaled - scaled.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    inside = probs(z / fitted.temperature).mean(0)
    np.testing.assert_allclose(bundle.predict(seen).probs(), inside, atol=CLOSE)
    np.testing.assert_allclose(bundle.probabilities(seen), inside, atol=CLOSE)
    assert np.abs(inside - probs(z).mean(0)).max() > 100 * CLOSE, "T does something"
    metrics = json.loads((tmp_path / "bundle" / "metrics.json").read_text())
    after = made.stored(METHODS.named("bayesian-t")).after[TESTED[0]]
    assert metrics["familiar"]["metrics"]["nll"]["value"] == pytest.approx(surefoot.metrics.nll(after))


def test_t_inside_needs_as_many_samples(made, tmp_path):
    bundled(made, "bayesian-t", tmp_path / "bundle")
    path = tmp_path / "bundle" / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "members": 7}))
    about = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    about["files"]["calibration.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "bundle" / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="T inside 7 samples for 100; allowed: as many"):
        surefoot.load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("score", ["energy", "max-probability"])
def test_novelty_scaling_in_a_module_is_the_calibrator_s(made, score, tmp_path):
    """Whatever weight the fit gave novelty, here it has some."""
    bundle = weighty(bundled(made, f"novelty-{score}", tmp_path / "bundle"))
    seen = views(bundle, made, made.stored(METHODS.named("single")).after[TESTED[0]].ids)
    plain = replace(bundle, calibration=None).probabilities(seen)
    np.testing.assert_allclose(bundle.probabilities(seen), bundle.predict(seen).probs(), atol=CLOSE)
    assert float((bundle.probabilities(seen) - plain).abs().max()) > 0.05


@pytest.mark.parametrize("made", ["one label"], indirect=True)
def test_novelty_scaling_of_a_network_in_half_precision_keeps_its_numbers(made, tmp_path):
    bundle = weighty(bundled(made, "novelty-energy", tmp_path / "bundle"))
    calibration, scale = bundle.calibration, bundle.novelty.scale
    model = bundle.model.half()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    expected = (calibration.t0, calibration.t1, scale.low, scale.high)
    fitted = (model.calibration.t0, model.calibration.t1, model.novelty.low, model.novelty.high)
    assert {each.dtype for each in fitted} == {torch.float32}
    assert [float(each) for each in fitted] == pytest.approx(expected, rel=1e-6)
    assert model.probabilities(torch.zeros(2, *bundle.shape, dtype=torch.float16)).dtype == torch.float32


def weighty(bundle):
    return replace(bundle, calibration=replace(bundle.calibration, t0=0.7, t1=1.5))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bundled_says_why(made, name):
    with pytest.raises(InputError, match=f"'{name}' (is tuned on the test sets|needs )"):
        chosen_method(made.opened, name, task=None, network=None)


def test_dropout_in_every_layer_cannot_be_bundled():
    from surefoot.lab.recipes.recipe import Recipe, Spec
    from surefoot.lab.variants import Bayesian

    spec = Spec("t", "i", Recipe(variant=Bayesian(sampled="network"), network="densenet161"), 0)
    assert "samples dropout in every layer" in why_not(METHODS.named("bayesian"), [spec])


def test_all_that_is_needed_is_there(one):
    made, folder = one
    assert {file.name for file in folder.iterdir()} == {
        "bundle.json", "weights.safetensors", "calibration.json", "thresholds.json", "metrics.json", "README.md",
        "reference.npz",
    }  # fmt: skip
    assert all(file.stat().st_mode & stat.S_IROTH for file in folder.iterdir())
    bundle = surefoot.load_bundle(folder)
    assert bundle.class_names == COLOURS
    assert (bundle.thresholds.accept, bundle.thresholds.reject) == (0.6, 0.35)
    fitted = surefoot.load_calibration(folder / "calibration.json")
    temperatures = bundle.model.calibration.temperature.flatten()
    np.testing.assert_allclose([t.temperature for t in fitted.members], temperatures, rtol=1e-6)
    metrics = json.loads((folder / "metrics.json").read_text())
    after = made.stored(METHODS.named("ensemble-of-t")).after
    for side, split in zip(("familiar", "unfamiliar"), TESTED, strict=True):
        assert metrics[side]["n"] == after[split].n
        assert metrics[side]["metrics"]["nll"]["value"] == pytest.approx(surefoot.metrics.nll(after[split]))
    final = made.store.weights(made.stored(METHODS.named("ensemble-of-t")).specs[1])
    ours = load_file(folder / "weights.safetensors")
    assert all(torch.equal(ours[f"members.1.{name}"], tensor) for name, tensor in final.items())


def test_the_card_is_plain_text_for_people(one):
    card = (one[1] / "README.md").read_text()
    assert "<b>" not in card
    assert "&lt;b&gt;blue\\|s&lt;/b&gt;" in card
    assert "(Li & Hoiem, CVPR 2020)" in card
    assert "accepted at a confidence of 0.6 or more, rejected below 0.35" in card
    assert "| NLL | " in card


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_card_s_own_words_need_no_escape(method):
    """They are written as they are."""
    assert not set(method.title + method.reference + method.origin + method.fitted_on) & set("<>\\`*_{}[]|#~")


@pytest.mark.parametrize(
    ("task", "network", "says"),
    [
        (None, None, "has several tasks; choose one with --task: colours with mlp, colours with resnet18, sounds with mlp"),
        (None, "mlp", "has several tasks; choose one with --task: colours with mlp, sounds with mlp"),
        ("colours", None, "has several networks; choose one with --network: colours with mlp, colours with resnet18"),
        ("sounds", "resnet18", "has no network 'resnet18' for 'sounds'; choose one with --network: sounds with mlp"),
        (None, "vgg", "has no network 'vgg'; choose one with --network: colours with mlp, colours with resnet18, sounds with mlp"),
        ("smells", "mlp", "has no task 'smells'; choose one with --task: colours with mlp, colours with resnet18, sounds with mlp"),
    ],
)  # fmt: skip
def test_where_there_are_several_what_is_wrong_is_named(one, task, network, says):
    opened = one[0].opened
    (part,), (plan,) = opened.experiment.parts, opened.plans
    other = replace(plan.recipe, network="resnet18")
    several = replace(
        opened,
        experiment=replace(
            opened.experiment, parts=(part, replace(part, recipe=other), replace(part, task="sounds"))
        ),
        plans=(plan, replace(plan, recipe=other), replace(plan, task="sounds")),
    )
    with pytest.raises(InputError, match=f"experiment 'tiny' {says}$"):
        chosen_method(several, "ensemble-of-t", task=task, network=network)
    chosen = chosen_method(several, "ensemble-of-t", task="colours", network="mlp")
    assert chosen.plan is plan


def test_predictions_of_files_are_the_stored_ones(one, tmp_path):
    made, folder = one
    bundle = surefoot.load_bundle(folder)
    stored = made.stored(METHODS.named("ensemble-of-t")).after[TESTED[0]]
    bad = made.images / "part0" / "broken.png"
    bad.write_bytes(b"not an image")
    try:
        paths = images_among([str(made.images)])
        counted = predict_files(bundle, paths, tmp_path / "out.parquet", probabilities=True)
    finally:
        bad.unlink()
    rows = {row["path"]: row for row in pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()}
    assert len(rows) == counted.images == ROWS + 1
    assert counted.unreadable == (f"{bad} (not an image)",)
    assert rows[str(bad)]["error"] == "not an image"
    assert {rows[str(bad)][name] for name in ("label", "confidence", "decision", "prob_red")} == {None}
    probs = stored.probs()
    for path, p in zip(stored.ids, probs, strict=True):
        row = rows[str(made.images / path)]
        assert row["label"] == COLOURS[p.argmax()]
        assert row["confidence"] == pytest.approx(p.max(), abs=CLOSE)
        assert row["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        assert [row[f"prob_{name}"] for name in COLOURS] == pytest.approx(p, abs=CLOSE)
        decision = "accept" if p.max() >= 0.6 else "reject" if p.max() < 0.35 else "review"
        assert row["decision"] == decision
        assert row["error"] is None
    before = made.stored(METHODS.named("ensemble-of-t")).before[TESTED[0]].logits.astype(np.float64)
    energy = -logsumexp(before, axis=2).mean(axis=0)
    assert [rows[str(made.images / path)]["novelty"] for path in stored.ids] == pytest.approx(
        energy.tolist(), abs=1e-4
    )


def test_many_labels_in_a_row(tmp_path, tmp_path_factory):
    made = ran(tmp_path_factory.mktemp("many"), many=True, methods=("single",))
    bundle = bundled(made, "single", tmp_path / "bundle")
    predict_files(
        bundle, images_among([str(made.images / "part0")]), tmp_path / "out.csv", probabilities=True
    )
    table = pyarrow.csv.read_csv(tmp_path / "out.csv").to_pylist()
    assert len(table) == ROWS // 2
    assert "decision" not in table[0], "no thresholds, no decision"
    for row in table:
        p = np.array([row[f"prob_{name}"] for name in bundle.class_names])
        assert row["label"] == ";".join(n for n, has in zip(bundle.class_names, p >= 0.5, strict=True) if has)
        assert row["confidence"] == pytest.approx(np.maximum(p, 1 - p).min())
        assert row["entropy"] == pytest.approx(-(p * np.log(p) + (1 - p) * np.log(1 - p)).sum())


def test_points_have_a_bundle_and_no_images(tmp_path):
    from surefoot.lab.recipes.recipe import Recipe
    from surefoot.lab.tasks import task_named

    recipe = Recipe(network="mlp", width=8, epochs=1, learning_rate=0.05)
    made = ran(tmp_path, task="toy", recipe=recipe, methods=("single-t",))
    bundle = bundled(made, "single-t", tmp_path / "bundle")
    stored = made.stored(METHODS.named("single-t")).after[TESTED[0]]
    points = torch.from_numpy(task_named("toy").splits[TESTED[0]].inputs)
    np.testing.assert_allclose(bundle.probabilities(points), stored.probs(), atol=CLOSE)
    with pytest.raises(InputError, match=r"takes points of shape \(2,\), not images"):
        predict_files(bundle, [], tmp_path / "out.csv")


def test_images_made_in_memory_are_not_resized_as_files_are():
    """Built-in pictures were never decoded to the recipe's size, so those of a file must not be either."""
    from surefoot.deploy.bundle import Preprocessing
    from surefoot.lab.training.data import images_from

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    whole = images_from(pixels, view=16, resize=16, augmentation="none")
    expected = whole.test_views(whole.pixels, torch.arange(3))
    ours = torch.stack([Preprocessing(16, 16, None).of_pixels(each) for each in pixels])
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("samples", "got"),
    [
        (torch.zeros(3, 12, 12), r"float32 of shape \(3, 12, 12\)"),
        (torch.zeros(2, 3, 16, 16), r"float32 of shape \(2, 3, 16, 16\)"),
        (torch.zeros(2, 3, 12, 12, dtype=torch.uint8), r"uint8 of shape \(2, 3, 12, 12\)"),
        (np.zeros((2, 12, 12, 3)), r"float64 of shape \(2, 12, 12, 3\)"),
        (np.array(["a.jpg"]), r"<U5 of shape \(1,\)"),
        ([[0.0]], "a list"),
    ],
)
def test_samples_that_the_networks_cannot_see_are_one_sentence(one, samples, got):
    bundle = surefoot.load_bundle(one[1])
    for ask in (bundle.probabilities, bundle.predict):
        with pytest.raises(
            InputError, match=rf"samples are {got}; needed: floats of shape \(n, 3, 12, 12\), "
        ):
            ask(samples)


def test_samples_may_be_arrays_and_of_any_float_type(one):
    bundle = surefoot.load_bundle(one[1])
    seen = torch.rand(4, *bundle.shape, generator=torch.Generator().manual_seed(0))
    for samples in (seen.numpy(), seen.double(), seen.double().numpy()):
        assert torch.equal(bundle.probabilities(samples), bundle.probabilities(seen))
        assert np.array_equal(bundle.predict(samples).logits, bundle.predict(seen).logits)


def saved(folder, mode):
    """An image file of that mode, wider than high, to be turned by its EXIF orientation."""
    pixels = np.random.default_rng(0).integers(0, 255, (20, 31, 4), dtype=np.uint8)
    image = Image.fromarray(pixels).convert("RGB" if mode == "P" else mode).convert(mode)
    exif = image.getexif()
    exif[ORIENTATION] = 6
    image.save(folder / "image.png", exif=exif)
    return folder / "image.png"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_an_open_image_is_seen_as_its_file_is(one, mode, tmp_path):
    bundle, path = surefoot.load_bundle(one[1]), saved(tmp_path, mode)
    with Image.open(path) as image:
        seen = bundle.preprocess(image)
        assert (image.mode, image.size) == (mode, (31, 20)), "left as it was"
    assert torch.equal(seen, bundle.preprocess(path))


def test_images_that_cannot_be_seen_are_one_sentence(one, tmp_path):
    bundle, path = surefoot.load_bundle(one[1]), saved(tmp_path, "RGB")
    path.write_bytes(path.read_bytes()[:-500])
    with Image.open(path) as half, pytest.raises(InputError, match=r"the image cannot be read: .*truncated"):
        bundle.preprocess(half)
    for image, says in (
        (Image.new("RGB", (0, 9)), "the image cannot be read: 0 x 9 pixels"),
        (
            Image.new("F", (9, 9)),
            "the image cannot be read: the white level of floating-point pixels is unknown",
        ),
        (np.zeros((9, 9, 3), dtype=np.uint8), "is of type ndarray; allowed: a path, or a PIL image"),
        (b"image.png", "is of type bytes; allowed"),
        (tmp_path / "gone.png", "gone.png cannot be read: no such file"),
    ):
        with pytest.raises(InputError, match=says):
            bundle.preprocess(image)


def test_a_bundle_is_never_unpickled(copy, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'boom')!r}, 'w')",))

    about = json.loads((copy / "bundle.json").read_text())
    payload = pickle.dumps(Bomb())
    (copy / "weights.safetensors").write_bytes(payload)
    about["files"]["weights.safetensors"] = hashlib.sha256(payload).hexdigest()
    (copy / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"weights.safetensors cannot be read"):
        surefoot.load_bundle(copy)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda about: about.pop("networks"), "is damaged: missing or wrong 'networks'"),
        (lambda about: about.update(format=9), "format 9 is not one this version reads"),
        (lambda about: about.update(kind="some"), "kind is 'some'; allowed: one_label, many_labels; copy the bundle again"),
        (lambda about: about["files"].update({"../../etc/passwd": "0"}), "which is not part of a bundle"),
        (lambda about: about["files"].pop("weights.safetensors"), "does not name weights.safetensors"),
        (lambda about: about["class_names"].pop(), "the weights do not fit network 'mlp'"),
        (lambda about: about["preprocessing"].update(view=99), "preprocessing makes views of 99 pixels"),
        (lambda about: about["preprocessing"].update(resize=-1), "resize -1; allowed"),
        (lambda about: about["preprocessing"].update(mean=[0, 0, 0]), "another mean or std"),
        (lambda about: about["networks"][0]["recipe"].update(network="os:system"), "is your own code"),
        (lambda about: about["networks"][0]["recipe"].update(network="none"), "unknown network 'none'"),
        (lambda about: about.update(networks=[]), "there are 0 networks; allowed"),
        (lambda about: about["networks"].pop(), "a calibration of 2 members for 1 network; allowed: as many"),
        (lambda about: about.pop("method"), "is damaged: missing or wrong 'method'"),
        (lambda about: about["method"].pop("name"), "is damaged: missing or wrong 'name'"),
        (lambda about: about.update(task="colours"), "is damaged: missing or wrong string indices"),
        (lambda about: about["input"].update(shape=[math.inf, 12, 12]), "Infinity is not a number of JSON"),
        (lambda about: about["input"].update(shape=[3, 0, 12]), r"shape \[3, 0, 12\]; .*; copy the bundle again"),
    ],
)  # fmt: skip
def test_a_changed_description_is_one_sentence(copy, change, says):
    about = json.loads((copy / "bundle.json").read_text())
    change(about)
    (copy / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=says):
        surefoot.load_bundle(copy)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fitted: fitted["members"].append(fitted["members"][0]), "a calibration of 3 members for 2 networks"),
        (lambda fitted: fitted["members"][0].update(temperature=10**400), "is too large; allowed: 64 bits"),
        (lambda fitted: fitted["novelty"].update(score="foo"), "unknown novelty score 'foo'; have: energy"),
        (lambda fitted: fitted["novelty"].update(scale={"low": 2, "high": 1}), "novelty is scaled by "),
        (lambda fitted: fitted["novelty"].update(scale={"low": 0, "high": math.nan}), "NaN is not a number of JSON"),
        (lambda fitted: fitted.update(scaling()), "novelty scaling of 2 networks, without a scale; allowed"),
        (lambda fitted: fitted["novelty"]["familiar"].update(n=math.inf), "Infinity is not a number of JSON"),
        (lambda fitted: fitted["novelty"]["familiar"].update(limit=math.nan), "NaN is not a number of JSON"),
        (lambda fitted: fitted["novelty"]["familiar"]["alarms"].update(k=5, n=3), "5 of 3 samples were"),
        (lambda fitted: fitted["novelty"]["familiar"]["found"].update(k=-1), "-1 of .* samples were"),
        (lambda fitted: fitted["class_names"].reverse(), "is for <b>blue.s</b>, green, red, and bundle.json has red, "),
    ],
)  # fmt: skip
def test_a_changed_calibration_is_one_sentence(copy, change, says):
    """Even where its sha256 is right: what cannot work is not found out later."""
    about, fitted = (json.loads((copy / name).read_text()) for name in ("bundle.json", "calibration.json"))
    change(fitted)
    (copy / "calibration.json").write_text(json.dumps(fitted))
    digest = hashlib.sha256((copy / "calibration.json").read_bytes()).hexdigest()
    about["files"]["calibration.json"] = digest
    (copy / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=says) as refused:
        surefoot.load_bundle(copy)
    assert "\n" not in str(refused.value)


def test_a_calibration_without_class_names_is_for_those_of_its_bundle(copy):
    """As older versions wrote it."""
    about, fitted = (json.loads((copy / name).read_text()) for name in ("bundle.json", "calibration.json"))
    assert fitted.pop("class_names") == about["class_names"]
    (copy / "calibration.json").write_text(json.dumps(fitted))
    about["files"]["calibration.json"] = hashlib.sha256((copy / "calibration.json").read_bytes()).hexdigest()
    (copy / "bundle.json").write_text(json.dumps(about))
    bundle = surefoot.load_bundle(copy)  # which predicts, without a remark
    assert bundle.calibration.class_names == bundle.class_names


def scaling():
    """What novelty scaling writes."""
    fitted = NoveltyScaling(t0=1.0, t1=1.0, n=9, label_kind="one_label", classes=3)
    return calibration_document(fitted)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "calibration.json", "thresholds.json", "metrics.json"]
)
def test_a_changed_or_missing_file_is_named(copy, name):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1] + b"?")
    with pytest.raises(InputError, match=f"{name} is not the file that was bundled"):
        surefoot.load_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(InputError, match=f"cannot read .*{name}: No such file"):
        surefoot.load_bundle(copy)


def test_no_bundle_is_one_sentence(tmp_path):
    with pytest.raises(
        InputError, match=r"is not a bundle: it has no bundle\.json; .surefoot bundle. makes one"
    ):
        surefoot.load_bundle(tmp_path)
    (tmp_path / "bundle.json").write_text("[1]")
    with pytest.raises(InputError, match="a JSON object is needed"):
        surefoot.load_bundle(tmp_path)


OWN = {
    "mine/__init__.py": "",
    "mine/nets.py": "from shapes import LENGTH\nfrom mine.layers import flat\n"
    "def net(classes):\n    return flat(LENGTH, classes)\n",
    "mine/layers.py": "from torch import nn\n"
    "def flat(n, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(n, classes))\n",
    "shapes.py": "LENGTH = 3 * 12 * 12\n",
    "unrelated.py": "",
}


def code_blocks(card):
    """The command, and the Python, of a card."""
    (command,) = re.findall(r"```sh\n(.*?)```", card, re.S)
    (python,) = re.findall(r"```python\n(.*?)```", card, re.S)
    return command.split(), python


def test_a_user_s_own_network_travels_and_its_readme_works(tmp_path, monkeypatch):
    """From a copy in another folder, where the user's modules cannot be imported, and only if allowed."""
    for name, text in OWN.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(text)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "code")
        made = ran(tmp_path / "run", recipe=replace(RECIPE, network="mine.nets:net"), methods=("single-t",))
        chosen = chosen_method(made.opened, "single-t", task=None, network=None)
        write_bundle(chosen, tmp_path / "bundle", resamples=0, allow_code=True)
        assert json.loads((tmp_path / "bundle" / "bundle.json").read_text())["checked"]["rows"] == 8
        (tmp_path / "code" / "shapes.py").write_text("LENGTH = 5\n")
        with pytest.raises(InputError, match=r"the weights do not fit network 'mine\.nets:net'"):
            write_bundle(chosen, tmp_path / "changed", resamples=0, allow_code=True)
        (tmp_path / "code" / "shapes.py").write_text(OWN["shapes.py"])
    carried = {
        path.relative_to(tmp_path / "bundle" / "source").as_posix()
        for path in (tmp_path / "bundle" / "source").rglob("*.py")
    }
    assert carried == set(OWN) - {"unrelated.py"}
    stale = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.startswith("mine") or name == "shapes"
    }
    new = shutil.copytree(tmp_path / "bundle", tmp_path / "elsewhere")
    (tmp_path / "bundle").rename(tmp_path / "gone")
    with pytest.raises(InputError, match=r"'mine\.nets:net' is your own code"):
        surefoot.load_bundle(new)
    stored = made.stored(METHODS.named("single-t")).after[TESTED[0]]
    shutil.copy(made.images / stored.ids[0], new / "photo.jpg")
    command, python = code_blocks((new / "README.md").read_text())
    assert command.pop(0) == "surefoot"
    in_a_process(*command, "--probabilities", cwd=new)
    found = pyarrow.csv.read_csv(new / "predictions.csv").select(f"prob_{name}" for name in COLOURS)
    np.testing.assert_allclose([column[0].as_py() for column in found.columns], stored.probs()[0], atol=1e-4)
    done = warm.run(f"{python}\nprint(probabilities.tolist()[0])", cwd=new)
    assert json.loads(done.stdout) == pytest.approx(stored.probs()[0].tolist(), abs=CLOSE), done.stderr
    assert not list(new.rglob("__pycache__"))
    other = ModuleType("shapes")  # another module of that name is neither used nor replaced
    monkeypatch.setitem(sys.modules, "shapes", other)
    bundle = surefoot.load_bundle(new, allow_code=True)
    assert sys.modules["shapes"] is other
    assert stale["mine.nets"] is not sys.modules.get("mine.nets")
    np.testing.assert_allclose(
        bundle.probabilities(views(bundle, made, stored.ids)), stored.probs(), atol=CLOSE
    )
    (new / "source" / "torch.py").write_text("")
    with pytest.raises(InputError, match=r"source/torch\.py is not a file that was bundled"):
        surefoot.load_bundle(new)
    (new / "source" / "torch.py").unlink()
    (new / "source" / "shapes.py").write_text("LENGTH = 0\n")
    with pytest.raises(InputError, match=r"source/shapes\.py is not the file that was bundled"):
        surefoot.load_bundle(new, allow_code=True)
    (new / "source" / "shapes.py").unlink()
    with pytest.raises(InputError, match=r"source/shapes\.py"):
        surefoot.load_bundle(new)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("numpy.linalg:net", f"Install it first: `pip install 'numpy=={np.__version__}'`"),
        ("no_such_module:net", "is not in this bundle. Put its source into a folder, and name the folder"),
        ("os:system", "is not in this bundle"),
    ],
)
def test_where_source_cannot_travel_it_says_how_to_import_it(network, says):
    code = own_code_of(network)
    assert says in code.sentence
    assert not code.files


def test_a_folder_that_holds_something_is_left_alone(one, tmp_path):
    made, _ = one
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already; allowed: a new folder"):
        bundled(made, "ensemble-of-t", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_weights_of_another_shape_are_one_sentence(copy):
    tensors = load_file(copy / "weights.safetensors")
    about = json.loads((copy / "bundle.json").read_text())
    tensors.pop("members.1.output.bias")
    save_file(tensors, copy / "weights.safetensors")
    about["files"]["weights.safetensors"] = hashlib.sha256(
        (copy / "weights.safetensors").read_bytes()
    ).hexdigest()
    (copy / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="the weights do not fit network 'mlp'"):
        surefoot.load_bundle(copy)
