"""Bundles: a method's networks with their calibration and preprocessing, read from a folder."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
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
from surefoot.deploy.decision import Familiar, Rule, familiar_from, rule_from
from surefoot.deploy.model import (
    CalibratedNetworks,
    Novelty,
    device_of,
    float_type_of,
    from_array,
)
from surefoot.errors import InputError
from surefoot.images.cache import read_pixels, reason_of
from surefoot.images.decode import UNREADABLE, Fit, Size, pixels_of
from surefoot.io import read_json, refuse_special
from surefoot.networks.backbones import build_network
from surefoot.novelty import Scale, logits_score
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.recipes.recipe import Recipe
from surefoot.text import count_of
from surefoot.training.augment import MEAN, SPREAD
from surefoot.training.data import images_from
from surefoot.training.initial import network_options
from surefoot.variants import recipe_from, variant_of

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
LONGEST = 300  # characters of torch's error message
BUNDLE, WEIGHTS, CALIBRATION = "bundle.json", "weights.safetensors", "calibration.json"
THRESHOLDS, METRICS, CARD = "thresholds.json", "metrics.json", "README.md"
LIBRARIES = ("timm", "torchvision")  # their networks are built by name; any other name is a user's own code

Samples = Tensor | NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Bundle:
    """A method, ready to use: `model` gives calibrated logits, `probabilities` calibrated probabilities."""

    about: Mapping[str, Any]  # bundle.json
    kind: LabelKind
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one preprocessed sample
    preprocessing: Preprocessing | None  # None: samples are points, which need none
    networks: nn.ModuleList
    calibration: Calibration | None
    novelty: Novelty
    thresholds: Rule | None
    familiar: Familiar | None  # None: written before bundles had it

    @cached_property
    def model(self) -> CalibratedNetworks:
        """Samples to calibrated logits, as one module that includes averaging and calibration."""
        return CalibratedNetworks(list(self.networks), self.calibration, self.novelty, self.kind)

    def probabilities(self, samples: Samples) -> Tensor:
        """(n, classes) of preprocessed samples (n, *shape), a tensor or an array."""
        return self.model.probabilities(self._checked(samples))

    def preprocess(self, image: str | Path | Image) -> Tensor:
        """The networks' input from an image file, or from a Pillow image.

        A large JPEG file is decoded at a reduced size, an open image at its full size: pixels may differ
        a little.
        """
        if self.preprocessing is None:
            raise InputError(f"{self.name} takes points of shape {self.shape}, not images")
        if isinstance(image, Image):
            pixels = self.preprocessing.of_image(image)
        elif isinstance(image, str | Path):
            pixels = self.preprocessing.of_file(image)
        else:
            raise InputError(f"the image is of type {type(image).__name__}; allowed: a path, or a PIL image")
        if isinstance(pixels, str):
            raise InputError(f"{'the image' if isinstance(image, Image) else image} cannot be read: {pixels}")
        return pixels

    def predict(self, samples: Samples) -> Predictions:
        """Calibrated predictions of preprocessed samples, with their novelty, in one pass."""
        inputs = self._checked(samples)
        with torch.inference_mode():
            logits = torch.stack([network(inputs) for network in self.networks]).float().cpu()
        novelty = self.novelty.of(logits, self.kind)
        scale = self.novelty.scale
        predictions = Predictions.from_logits(
            logits,
            None,
            kind=self.kind,
            class_names=self.class_names,
            novelty=None if scale is None else scale(novelty.numpy()),
        )
        calibrated = predictions if self.calibration is None else self.calibration(predictions)
        return replace(calibrated, novelty=novelty)

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


def load_bundle(path: str | Path, *, allow_code: bool = False) -> Bundle:
    """Read a bundle; nothing in it is unpickled or run, and every file is verified against its sha256.

    A network that was a user's own function (`package.module:function`) is built by importing and calling it:
    only with `allow_code`.
    """
    folder = Path(path)
    if not (folder / BUNDLE).is_file():
        raise InputError(f"{folder} is no bundle: it has no {BUNDLE}; 'surefoot bundle' makes one")
    about = _read_json(folder / BUNDLE, "a bundle's description")
    try:
        if about["format"] != FORMAT:
            raise InputError(f"format {about['format']!r} is not one this version reads; allowed: {FORMAT}")
        _check_files(folder, about["files"])
        return _bundle(folder, about, allow_code=allow_code)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{folder / BUNDLE} is damaged: missing or wrong {error}") from error


def _bundle(folder: Path, about: dict[str, Any], *, allow_code: bool) -> Bundle:
    kind, shape = LabelKind(about["kind"]), tuple(int(side) for side in about["input"]["shape"])
    names = tuple(str(name) for name in about["class_names"])
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{WEIGHTS} cannot be read: {error}") from error
    networks = [
        restored_network(
            recipe_from(each["recipe"]),
            {
                name.removeprefix(f"members.{i}."): t
                for name, t in weights.items()
                if name.startswith(f"members.{i}.")
            },
            classes=len(names),
            shape=shape,
            kind=kind,
            key=str(each["key"]),
            allow_code=allow_code,
        )
        for i, each in enumerate(about["networks"])
    ]
    fitted = _read_json(folder / CALIBRATION, "a calibration file")
    scale, familiar = fitted["novelty"]["scale"], fitted["novelty"].get("familiar")
    prepared = about["preprocessing"]
    if prepared is not None and shape != (3, prepared["view"], prepared["view"]):
        raise InputError(
            f"input has shape {shape}, and preprocessing makes views of {prepared['view']} pixels"
        )
    thresholds = None
    if THRESHOLDS in about["files"]:
        thresholds = rule_from(_read_json(folder / THRESHOLDS, "a thresholds file"), classes=len(names))
    bundle = Bundle(
        about=about,
        kind=kind,
        class_names=names,
        shape=shape,
        preprocessing=None if prepared is None else preprocessing_from(prepared),
        networks=nn.ModuleList(networks).eval(),
        calibration=None if fitted["kind"] == "none" else load_calibration(folder / CALIBRATION),
        novelty=Novelty(fitted["novelty"]["score"], None if scale is None else Scale(**scale)),
        thresholds=thresholds,
        familiar=None if familiar is None else familiar_from(familiar),
    )
    _check_parts(bundle)
    return bundle


def _check_parts(bundle: Bundle) -> None:
    """Refuse parts that do not fit together, and a description without the keys that are used later."""
    about, members, fitted, novelty = bundle.about, len(bundle.networks), bundle.calibration, bundle.novelty
    _ = bundle.name, about["surefoot"], about["method"]["name"], about["input"]["name"]
    networks = count_of(members, "network")
    if not members:
        raise InputError("there are 0 networks; allowed: one or more")
    if fitted is not None and fitted.needs_members not in (None, members):
        raise InputError(f"a calibration of {fitted.needs_members} members for {networks}; allowed: as many")
    logits_score(novelty.score)
    if novelty.scale is not None and not -math.inf < novelty.scale.low <= novelty.scale.high < math.inf:
        raise InputError(f"novelty is scaled by {novelty.scale}; allowed: numbers, low at most as high")
    if fitted is not None and fitted.needs_novelty and (members != 1 or novelty.scale is None):
        raise InputError(
            f"novelty scaling of {networks}, {'without' if novelty.scale is None else 'with'} a "
            "scale; allowed: of one, with a scale"
        )


def restored_network(
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    *,
    classes: int,
    shape: tuple[int, ...],
    kind: LabelKind,
    key: str,
    allow_code: bool,
) -> nn.Module:
    """A network of that recipe with these weights, as its variant is deployed."""
    source, colon, _ = recipe.network.partition(":")
    if colon and source not in LIBRARIES and not allow_code:
        raise InputError(
            f"network {recipe.network!r} is code of your own, and runs when the bundle is read; "
            "needed: allow_code=True (--allow-code), if you trust it"
        )
    try:
        options = network_options(recipe, shape)
        network = build_network(recipe.network, classes, generator=Generator().manual_seed(0), **options)
        network.load_state_dict(dict(weights))
    except (RuntimeError, MemoryError) as error:  # also for networks that are far too large
        reason = " ".join(str(error).split())[:LONGEST]
        raise InputError(f"the weights do not fit network {recipe.network!r}: {reason}") from error
    for parameter in network.parameters():
        parameter.requires_grad = False
    return variant_of(recipe).deployed(network, kind, key)


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _check_files(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if name not in (WEIGHTS, CALIBRATION, THRESHOLDS, METRICS, CARD):
            raise InputError(f"{BUNDLE} names {name!r}, which is no part of a bundle")
        if name != CARD and sha256_of(folder / name) != digest:
            raise InputError(f"{name} is not the file that was bundled: damaged, or changed since")
    for name in (WEIGHTS, CALIBRATION, METRICS):
        if name not in digests:
            raise InputError(f"{BUNDLE} does not name {name}")


def _read_json(path: Path, what: str) -> dict[str, Any]:
    document = read_json(path, what)
    if not isinstance(document, dict):
        raise InputError(f"{path} is not {what}: a JSON object is needed")
    return document
