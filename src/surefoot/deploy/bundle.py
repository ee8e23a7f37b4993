"""Bundles: a method's networks with their calibration and preprocessing, read from a folder."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Generator, Tensor, nn

from surefoot.calibrators import Calibration, load_calibration
from surefoot.calibrators.before_averaging import TemperatureBeforeAveraging
from surefoot.decisions.decision import Familiar, Rule, familiar_from, rule_from
from surefoot.deploy.features import one_pass, projected
from surefoot.deploy.model import (
    CalibratedNetworks,
    Novelty,
    device_of,
    float_type_of,
    from_array,
)
from surefoot.deploy.modules import module_of
from surefoot.deploy.own_code import SOURCE, BundledSource, is_source, not_searched
from surefoot.deploy.rows import rows_of_python
from surefoot.errors import InputError
from surefoot.io import read_bytes, read_json, sha256_of
from surefoot.lab.images.cache import read_pixels, reason_of
from surefoot.lab.images.decode import UNREADABLE, Fit, Size, pixels_of
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.external import Importing
from surefoot.lab.novelty import logits_score
from surefoot.lab.recipes.own_code import is_own_code, refuse_other_code
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.features import Encoding, encoding_from
from surefoot.lab.training.augment import MEAN, SPREAD
from surefoot.lab.training.data import images_from
from surefoot.lab.training.initial import network_options
from surefoot.lab.training.predict import FixedSamples
from surefoot.lab.variants import recipe_from, variant_of
from surefoot.predictions.arguments import checked
from surefoot.predictions.files import read_predictions
from surefoot.predictions.labels import LabelKind, short
from surefoot.predictions.novelty import Scale
from surefoot.predictions.predictions import Predictions
from surefoot.text import count_of

DEFINITION = (
    "upright, 8 bits of red, green and blue; resized (bicubic) so that the short side has short_side pixels, "
    "where that is given; the middle square whose side is view / resize of the short side (at most all of "
    "it) resized (antialiased bilinear) to view x view; (value / 255 - mean) / std per channel"
)


@dataclass(frozen=True)
class Preprocessing:
    """From an image file to the input of a network: the centre crop of the recipe, exactly as in testing."""

    view: int  # pixels a side of the network's input
    resize: int  # the crop has view / resize of the short side
    short_side: int | None  # that files are decoded to; None: their own size

    @property
    def size(self) -> Size:
        """How files are decoded."""
        return Size(self.view, Fit.AS_IT_IS) if self.short_side is None else Size(self.short_side)

    def of_file(self, path: str | Path) -> Tensor | str:
        """The network's input from a file, (3, view, view) in float32; or the reason why there is none."""
        if not Path(path).is_file() and Path(path).exists():
            return "not a regular file"  # opening a pipe would block
        pixels = read_pixels(str(path), self.size)
        return pixels if isinstance(pixels, str) else self.of_pixels(pixels)

    def of_image(self, image: Image) -> Tensor | str:
        """The same from a Pillow image, which is not changed."""
        try:
            return self.of_pixels(pixels_of(image, self.size))
        except UNREADABLE as error:
            return reason_of(error)

    def of_pixels(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The same from decoded pixels (height, width, channels)."""
        images = images_from(pixels[None], view=self.view, resize=self.resize, augmentation="none")
        return images.test_views(images.pixels, torch.tensor([0]))[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with everything that another program needs to do the same."""
        return {**asdict(self), "mean": list(MEAN), "std": list(SPREAD), "definition": DEFINITION}


def preprocessing_from(document: Any) -> Preprocessing:
    """From plain values; those of another normalisation are refused."""
    values = {name: document[name] for name in ("view", "resize", "short_side")}
    for name, value in values.items():
        if not (isinstance(value, int) and value >= 1) and not (name == "short_side" and value is None):
            raise InputError(f"preprocessing has {name} {value!r}; allowed: a whole number from 1")
    if (list(MEAN), list(SPREAD)) != (document["mean"], document["std"]):
        raise InputError("preprocessing has another mean or std than this version's")
    return Preprocessing(**values)


FORMAT = 1
LISTED_COLUMNS = 8
FIXED_ROWS = 2  # of fixed numbers that are predicted when a bundle is read
LARGEST_INPUT = 2**26  # numbers in one sample: they are allocated when a bundle is read
FIXED_LIMIT = 1e-3  # of a probability, between versions and machines
LONGEST = 300  # characters of torch's error message
BUNDLE, WEIGHTS, CALIBRATION = "bundle.json", "weights.safetensors", "calibration.json"
AGAIN = "copy the bundle again, or write it again with 'surefoot bundle'"
THRESHOLDS, METRICS, CARD, REFERENCE = "thresholds.json", "metrics.json", "README.md", "reference.npz"

Samples = Tensor | NDArray[np.floating[Any]]


@checked
@dataclass(frozen=True, eq=False)
class Bundle:
    """A method, ready to use: `model` gives calibrated logits, `probabilities` calibrated probabilities."""

    about: Mapping[str, Any]  # bundle.json
    kind: LabelKind
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one preprocessed sample
    preprocessing: Preprocessing | None  # None: samples are vectors
    networks: nn.ModuleList
    calibration: Calibration | None
    novelty: Novelty
    thresholds: Rule | None
    familiar: Familiar | None  # None: written before bundles had it
    encoding: Encoding | None = None  # from the rows of a table to vectors; None: there is no table
    reference: Predictions | None = None  # of familiar test samples, to compare with; not in every bundle

    @cached_property
    def model(self) -> CalibratedNetworks:
        """Samples to calibrated logits, as one module that includes averaging and calibration."""
        return CalibratedNetworks(list(self.networks), self.outer_calibration, self.novelty, self.kind)

    @property
    def outer_calibration(self) -> Calibration | None:
        """That of the networks' outputs; None where there is none, or where T is inside their samples."""
        return None if _is_inside(self.calibration, self.networks) else self.calibration

    def probabilities(self, samples: Samples) -> Tensor:
        """(n, classes) of preprocessed samples (n, *shape), a tensor or an array."""
        return self.model.probabilities(self._checked(samples))

    def preprocess(self, image: str | Path | Image) -> Tensor:
        """The networks' input from an image file, or from a Pillow image.

        A large JPEG file is decoded at a reduced size, an open image at its full size: pixels may differ
        a little.
        """
        if self.preprocessing is None:
            raise InputError(f"{self.name} takes {self.taken}, not images")
        if isinstance(image, Image):
            pixels = self.preprocessing.of_image(image)
        elif isinstance(image, str | Path):
            pixels = self.preprocessing.of_file(image)
        else:
            raise InputError(f"the image is of type {type(image).__name__}; allowed: a path, or a PIL image")
        if isinstance(pixels, str):
            raise InputError(f"{'the image' if isinstance(image, Image) else image} cannot be read: {pixels}")
        return pixels

    @property
    def taken(self) -> str:
        """What it takes, for messages."""
        if self.preprocessing is not None:
            return "images"
        if self.encoding is None:
            return f"points of shape {self.shape}"
        names = [each.column for each in self.encoding.features]
        listed = ", ".join(names[:LISTED_COLUMNS]) + (", ..." if len(names) > LISTED_COLUMNS else "")
        return f"rows with {listed}"

    def preprocess_rows(self, rows: Any, *, allow_unseen: bool = False) -> Tensor:
        """The networks' inputs (n, *shape) from the rows of a table.

        Rows are a list of mappings, a pyarrow Table, a mapping of columns, or a pandas DataFrame. Values that
        training never had (a category, a missing number) are refused unless `allow_unseen`.
        """
        if self.encoding is None:
            raise InputError(f"{self.name} takes {self.taken}, not rows of a table")
        raw = rows_of_python(self.encoding, rows)
        if not allow_unseen:
            self.encoding.refuse_unseen(raw)
        return torch.from_numpy(self.encoding.encode(raw))

    def predict(self, samples: Samples, *, features: bool = False) -> Predictions:
        """Calibrated predictions of preprocessed samples, with their novelty, in one pass.

        With `features`, also the inputs of the networks' last layers, projected to at most 64 numbers.
        """
        inputs = self._checked(samples)
        with torch.inference_mode():
            passes = [one_pass(network, inputs, features=features) for network in self.networks]
            logits = torch.stack([logits for logits, _ in passes]).float().cpu()
            inner = [found for _, found in passes if found is not None]
        wrong = int((~torch.isfinite(logits)).any(dim=(0, 2)).sum())
        if wrong:
            raise InputError(
                f"the networks' outputs are not finite for {wrong} of {len(inputs)} samples; allowed: "
                "samples closer to those of training"
            )
        novelty = self.novelty.of(logits, self.kind)
        scale = self.novelty.scale
        predictions = Predictions.from_logits(
            logits,
            None,
            kind=self.kind,
            class_names=self.class_names,
            novelty=None if scale is None else scale(novelty),
            features=projected(inner) if inner else None,
        )
        outer = self.outer_calibration
        calibrated = predictions if outer is None else outer(predictions)
        return replace(calibrated, novelty=novelty)

    def fixed_probabilities(self) -> Tensor:
        """Probabilities of fixed numbers, the same on every machine, to recognise the networks by."""
        numbers = np.arange(FIXED_ROWS * math.prod(self.shape), dtype=np.float64)
        samples = torch.from_numpy(2 * np.sin(0.1 * numbers**1.5)).float().reshape(FIXED_ROWS, *self.shape)
        return torch.from_numpy(self.predict(samples).probs())

    def _checked(self, samples: Samples) -> Tensor:
        """Samples on the networks' device, in their weights' type; those of another shape are refused."""
        inputs = from_array(samples, self.networks)
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.shape[1:] == self.shape:
            return inputs.to(device_of(self.networks), float_type_of(self.networks))
        got = f"a {type(samples).__name__}"
        if isinstance(samples, Tensor | np.ndarray):
            got = f"{samples.dtype} of shape {tuple(samples.shape)}".removeprefix("torch.")
        needed = ", ".join(map(str, ("n", *self.shape)))
        raise InputError(f"the samples are {got}; needed: floats of shape ({needed}), a tensor or an array")

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.about['task']['name']}, {self.about['method']['title']}"

    def to(self, device: torch.device | str) -> "Bundle":
        """Itself, moved."""
        self.networks.to(device)
        self.model.to(device)
        return self


@contextmanager
def _or_again() -> Iterator[None]:
    """Say how to recover where a part of a bundle is refused."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; {AGAIN}") from error


@checked
def load_bundle(path: str | Path, *, allow_code: bool = False) -> Bundle:
    """Read a bundle; nothing in it is unpickled or run, and every file is verified against its sha256.

    A network that was a user's own function (`package.module:function`) is built by importing and calling it:
    only with `allow_code`.

    >>> load_bundle("pets.bundle").probabilities(images)  # doctest: +SKIP
    """
    folder = Path(path)
    if not (folder / BUNDLE).is_file():
        raise InputError(f"{folder} is not a bundle: it has no {BUNDLE}; 'surefoot bundle' makes one")
    _refuse_links(folder)
    about = _read_json(folder / BUNDLE, "a bundle's description")
    try:
        if about["format"] != FORMAT:
            raise InputError(f"format {about['format']!r} is not one this version reads; allowed: {FORMAT}")
        source = _checked_files(folder, about["files"])
        with not_searched(folder):
            bundle = _bundle(folder, about, BundledSource(source, folder) if allow_code else None)
            _check_outputs(bundle)
        return bundle
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{folder / BUNDLE} is damaged: missing or wrong {error}; {AGAIN}") from error


def _bundle(folder: Path, about: dict[str, Any], source: BundledSource | None) -> Bundle:
    shape = tuple(int(side) for side in about["input"]["shape"])
    names = tuple(str(name) for name in about["class_names"])
    prepared = about["preprocessing"]
    with _or_again():
        kind = LabelKind(about["kind"])
        if not shape or min(shape) < 1:
            raise InputError(f"input has shape {list(shape)}; allowed: whole numbers from 1")
        try:
            weights = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{WEIGHTS} cannot be read: {error}") from error
        recipes = [recipe_from(each["recipe"]) for each in about["networks"]]
        preprocessing = None if prepared is None else preprocessing_from(prepared)
        encoding = encoding_from(about["features"]) if about.get("features") is not None else None
    networks = [
        restored_network(
            recipe,
            {
                name.removeprefix(f"members.{i}."): t
                for name, t in weights.items()
                if name.startswith(f"members.{i}.")
            },
            classes=len(names),
            shape=shape,
            kind=kind,
            key=str(each["key"]),
            source=source,
        )
        for i, (each, recipe) in enumerate(zip(about["networks"], recipes, strict=True))
    ]
    fitted = _read_json(folder / CALIBRATION, "a calibration file")
    calibration = None if fitted["kind"] == "none" else load_calibration(folder / CALIBRATION)
    if calibration is not None and calibration.class_names is None:  # written before it named them
        calibration = replace(calibration, class_names=names)
    if _is_inside(calibration, networks):
        assert calibration is not None
        for network in networks:
            assert isinstance(network, FixedSamples)
            network.scaling = module_of(calibration)
    scale, familiar = fitted["novelty"]["scale"], fitted["novelty"].get("familiar")
    thresholds = None
    if THRESHOLDS in about["files"]:
        document = _read_json(folder / THRESHOLDS, "a thresholds file")
        thresholds = rule_from(document, classes=len(names), class_names=names)
    reference = read_predictions(folder / REFERENCE) if REFERENCE in about["files"] else None
    bundle = Bundle(
        about=about,
        kind=kind,
        class_names=names,
        shape=shape,
        preprocessing=preprocessing,
        networks=nn.ModuleList(networks).eval(),
        calibration=calibration,
        novelty=Novelty(fitted["novelty"]["score"], None if scale is None else Scale(**scale)),
        thresholds=thresholds,
        familiar=None if familiar is None else familiar_from(familiar),
        encoding=encoding,
        reference=reference,
    )
    _check_parts(bundle)
    return bundle


def _is_inside(calibration: Calibration | None, networks: Iterable[nn.Module]) -> bool:
    """Whether the calibration is a T inside the samples of Bayesian networks."""
    return isinstance(calibration, TemperatureBeforeAveraging) and all(
        isinstance(network, FixedSamples) for network in networks
    )


@_or_again()
def _check_parts(bundle: Bundle) -> None:
    """Refuse parts that do not fit together, and a description without the keys that are used later."""
    about, members, fitted, novelty = bundle.about, len(bundle.networks), bundle.calibration, bundle.novelty
    _ = bundle.name, about["surefoot"], about["method"]["name"], about["input"]["name"]
    networks = count_of(members, "network")
    shape, prepared, encoding = bundle.shape, bundle.preprocessing, bundle.encoding
    if prepared is not None and shape != (3, prepared.view, prepared.view):
        raise InputError(f"input has shape {shape}, and preprocessing makes views of {prepared.view} pixels")
    if encoding is not None and shape != (encoding.width,):
        raise InputError(f"input has shape {shape}, and the features make {encoding.width} numbers")
    if not members:
        raise InputError("there are 0 networks; allowed: one or more")
    if fitted is not None and _is_inside(fitted, bundle.networks):
        drawn = {each.samples for each in bundle.networks if isinstance(each, FixedSamples)}
        if drawn != {fitted.needs_members}:
            got = ", ".join(map(str, sorted(drawn)))
            raise InputError(f"T inside {fitted.needs_members} samples for {got}; allowed: as many")
    elif fitted is not None and fitted.needs_members not in (None, members):
        raise InputError(f"a calibration of {fitted.needs_members} members for {networks}; allowed: as many")
    if fitted is not None and fitted.class_names != bundle.class_names:
        classes = short(fitted.class_names), short(bundle.class_names)
        raise InputError(f"{CALIBRATION} is for {classes[0]}, and {BUNDLE} has {classes[1]}; must be equal")
    reference = bundle.reference
    if reference is not None and (reference.kind, reference.class_names) != (bundle.kind, bundle.class_names):
        raise InputError(f"{REFERENCE} has predictions of another classifier")
    logits_score(novelty.score)
    if novelty.scale is not None and not -math.inf < novelty.scale.low <= novelty.scale.high < math.inf:
        raise InputError(f"novelty is scaled by {novelty.scale}; allowed: numbers, low at most as high")
    if fitted is not None and fitted.needs_novelty and (members != 1 or novelty.scale is None):
        raise InputError(
            f"novelty scaling of {networks}, {'without' if novelty.scale is None else 'with'} a "
            "scale; allowed: of one, with a scale"
        )


@_or_again()
def _check_outputs(bundle: Bundle) -> None:
    """Refuse networks that no longer give what they gave when they were bundled; older bundles do not say."""
    recorded = bundle.about.get("fixed_probabilities")
    if recorded is None:
        return
    if math.prod(bundle.shape) > LARGEST_INPUT:
        raise InputError(f"input has shape {bundle.shape}; allowed: at most {LARGEST_INPUT:,} numbers")
    expected = torch.tensor(recorded, dtype=torch.float64)
    if expected.shape != (FIXED_ROWS, len(bundle.class_names)):
        raise InputError(f"{BUNDLE} has fixed_probabilities of another shape than its classes")
    gap = float((expected - bundle.fixed_probabilities()).abs().max())
    if not gap <= FIXED_LIMIT:
        raise InputError(
            f"the networks do not reproduce the bundle's stored predictions: a probability differs by "
            f"{gap:.2g}; allowed: {FIXED_LIMIT:g}; other versions of their libraries, or a damaged {BUNDLE}"
        )


def restored_network(
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    *,
    classes: int,
    shape: tuple[int, ...],
    kind: LabelKind,
    key: str,
    source: BundledSource | None,
) -> nn.Module:
    """A network of that recipe with these weights, as its variant is deployed.

    A user's own function is imported from `source`, if it is the one of the weights; None: it is not allowed.
    """
    importing: Importing = import_module
    if is_own_code(recipe):
        if source is None:
            raise InputError(
                f"network {recipe.network!r} is your own code, and runs when the bundle is loaded; "
                "needed: allow_code=True (--allow-code), if you trust it"
            )
        refuse_other_code(recipe, source.code_of(recipe.network), AGAIN)
        importing = source.import_module
    try:
        options = network_options(recipe, shape)
        start = Generator().manual_seed(0)
        network = build_network(recipe.network, classes, generator=start, importing=importing, **options)
        network.load_state_dict(dict(weights))
    except (RuntimeError, MemoryError) as error:  # also for networks that are far too large
        reason = " ".join(str(error).split())[:LONGEST]
        raise InputError(f"the weights do not fit network {recipe.network!r}: {reason}; {AGAIN}") from error
    for parameter in network.parameters():
        parameter.requires_grad = False
    return variant_of(recipe).deployed(network, kind, key)


def _refuse_links(folder: Path) -> None:
    """Refuse links inside the folder: what they lead to may be anything, and may change later."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                raise InputError(
                    f"{folder}: {path.relative_to(folder)} is a link; a bundle has no links: 'cp -RL' copies "
                    "it with the files that they lead to"
                )


@_or_again()
def _checked_files(folder: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Verify every file against its sha256; returns the source files, as they were verified."""
    source = {}
    for name, digest in digests.items():
        known = (WEIGHTS, CALIBRATION, THRESHOLDS, METRICS, CARD, REFERENCE)
        if name not in known and not is_source(name):
            raise InputError(f"{BUNDLE} names {name!r}, which is not part of a bundle")
        if is_source(name):
            source[name] = read_bytes(folder / name)
            found = hashlib.sha256(source[name]).hexdigest()
        elif name != CARD:
            found = sha256_of(folder / name)
        if name != CARD and found != digest:
            raise InputError(f"{name} is not the file that was bundled: damaged, or changed since")
    for file in (folder / SOURCE).rglob("*"):
        if not file.is_dir() and file.relative_to(folder).as_posix() not in source:
            raise InputError(f"{file.relative_to(folder)} is not a file that was bundled")
    if (folder / "__init__.py").exists():
        raise InputError(
            "__init__.py makes the folder a Python package; allowed: the files that were bundled"
        )
    for name in (WEIGHTS, CALIBRATION, METRICS):
        if name not in digests:
            raise InputError(f"{BUNDLE} does not name {name}")
    return source


@_or_again()
def _read_json(path: Path, what: str) -> dict[str, Any]:
    document = read_json(path, what)
    if not isinstance(document, dict):
        raise InputError(f"{path} is not {what}: a JSON object is needed")
    return document
