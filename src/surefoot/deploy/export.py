"""A bundle as one graph, ONNX or torch.export, verified against PyTorch before it is written."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from surefoot.deploy.bundle import Bundle, Preprocessing
from surefoot.deploy.export_images import ImageGraph, noise_images
from surefoot.deploy.model import CalibratedModule, probabilities_of
from surefoot.errors import InputError
from surefoot.io import all_or_none, read_text, replacing
from surefoot.lab.tasks.features import Encoding

BATCHES = (1, 3, 8)
TRACED = 2  # rows while the graph is traced; its batch may be any other
LIMIT = 1e-4  # of a probability; of a logit, relative to its size where that is above 1
LARGEST_ONNX = 2**31 - 2**20  # bytes that one ONNX file can hold
OUTPUTS = ("probabilities", "logits")
LONGEST = 300  # characters of an exporter's error message
EXTRA = "surefoot.json"  # in a .pt2: what an .onnx has as metadata
INSTALL = "pip install 'surefoot[export]'"
PROGRAM = Path(__file__).with_name("predict_onnx.py")  # needs nothing of this package

IMAGE_INPUT = "image: uint8 (height, width, 3), red, green and blue, upright, of any size"
PREPROCESSED_INPUT = "float32 (batch, ...), preprocessed"

Outputs = tuple[Tensor, Tensor]  # probabilities, logits
Run = Callable[[Tensor], Outputs]


@dataclass(frozen=True)
class Parity:
    """The largest difference between the file and PyTorch, and on what they were compared."""

    compared: str
    probabilities: float
    logits: float
    relative: float  # of a logit, by its size where that is above 1


@dataclass(frozen=True, eq=False)
class Input:
    """The input of a graph: its name, an example to trace it with, and which of its sides are dynamic."""

    name: str
    example: Tensor
    dynamic: dict[int, str]  # axis and name
    samples: tuple[Tensor, ...]  # on which the file is compared with PyTorch
    compared: str  # these samples in words


class Graph(nn.Module):
    """The exported module: preprocessed samples to probabilities and calibrated logits."""

    def __init__(self, model: CalibratedModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor) -> Outputs:
        logits = self.model(samples)
        return probabilities_of(logits, self.model.kind), logits


def export_bundle(bundle: Bundle, output: Path) -> Parity:
    """Write the bundle's graph with its preprocessing, and next to an .onnx the program that uses it.

    The graph takes one image; that of a bundle without images is `export_preprocessed`. If its outputs
    differ from those of PyTorch and Pillow, refuse and write nothing.
    """
    if bundle.preprocessing is None:
        return export_preprocessed(bundle, output)
    with all_or_none():
        if (program := program_of(bundle, output)) is not None:
            _write_program(program)
        return _export_images(bundle, bundle.preprocessing, output)


def program_of(bundle: Bundle, output: Path) -> Path | None:
    """Where `export_bundle` writes the program that uses the graph; None where it writes none."""
    is_onnx = output.suffix.lower() == ".onnx"
    return output.with_name(PROGRAM.name) if is_onnx and bundle.preprocessing is not None else None


def _write_program(path: Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    title = text.splitlines()[0]
    if path.exists() and not read_text(path).startswith(title):
        raise InputError(f"{path} exists and was not written by this command; allowed: another folder")
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _export_images(bundle: Bundle, preprocessing: Preprocessing, output: Path) -> Parity:
    images = noise_images()
    sizes = ", ".join(f"{image.shape[1]} x {image.shape[0]}" for image in images)
    given = Input(
        name="image",
        example=torch.from_numpy(images[0]),
        dynamic={0: "height", 1: "width"},
        samples=tuple(map(torch.from_numpy, images)),
        compared=f"images of {sizes} pixels",
    )
    plain = Graph(bundle.model.to("cpu")).eval()

    def predicted(image: Tensor) -> Outputs:
        view = preprocessing.of_image(Image.fromarray(image.numpy()))
        assert isinstance(view, Tensor)
        probabilities, logits = plain(view[None])
        return probabilities[0], logits[0]

    graph = ImageGraph(plain.model, preprocessing).eval()
    return _export(graph, predicted, given, output, facts_of(bundle) | {"input": IMAGE_INPUT})


def export_preprocessed(bundle: Bundle, output: Path) -> Parity:
    """Write the bundle's graph without its preprocessing: it takes a batch of preprocessed samples."""
    name, facts = bundle.about["input"]["name"], facts_of(bundle) | {"input": PREPROCESSED_INPUT}
    return export_model(bundle.model, bundle.shape, output, name=name, facts=facts)


def export_model(
    model: CalibratedModule, shape: tuple[int, ...], output: Path, *, name: str, facts: dict[str, str]
) -> Parity:
    """Any calibrated module; `name` is the graph's input, (batch, *shape), `facts` its metadata."""
    given = Input(
        name=name,
        example=_samples(TRACED, shape),
        dynamic={0: "batch"},
        samples=tuple(_samples(rows, shape) for rows in BATCHES),
        compared=f"batches of {', '.join(map(str, BATCHES))}",
    )
    graph = Graph(model.to("cpu")).eval()
    return _export(graph, graph, given, output, facts)


def _export(graph: nn.Module, reference: Run, given: Input, output: Path, facts: dict[str, str]) -> Parity:
    """Write the graph and compare it with the reference; nothing is left if they differ."""
    writers = {".onnx": (_write_onnx, _onnx), ".pt2": (_write_pt2, _pt2)}
    if output.suffix.lower() not in writers:
        raise InputError(f"{output}: unknown file type {output.suffix!r}; have: {', '.join(writers)}")
    write, read = writers[output.suffix.lower()]
    with replacing(output) as temporary, _quietly():
        try:
            write(graph, given, temporary, facts)
            parity = compared(reference, read(temporary, given.name), given)
        except (InputError, OSError):  # the latter: a full disk
            raise
        except Exception as error:  # exporters and runtimes raise errors of any type
            reason = " ".join(str(error).split())[:LONGEST]
            raise InputError(f"no {output.suffix} can be made of this model: {reason}") from error
        if not (parity.probabilities <= LIMIT and parity.relative <= LIMIT):
            raise InputError(
                f"the exported graph differs from PyTorch by up to {parity.probabilities:.1e} of a "
                f"probability and {parity.logits:.1e} of a logit; allowed: {LIMIT:g}; nothing was written"
            )
    return parity


def facts_of(bundle: Bundle) -> dict[str, str]:
    """The metadata that users of the graph need, as text."""
    about, fitted = bundle.about, bundle.calibration
    return {
        "surefoot": str(about["surefoot"]),
        "task": str(about["task"]["name"]),
        "method": str(about["method"]["name"]),
        "kind": str(bundle.kind),
        "class_names": json.dumps(bundle.class_names, ensure_ascii=False),
        "preprocessing": json.dumps(about["preprocessing"]),
        **({} if bundle.encoding is None else {"features": _features(bundle.encoding)}),
        "temperature": "none" if fitted is None else "; ".join(fitted.lines()),
        "outputs": "probabilities: calibrated; logits: calibrated, their softmax (or sigmoid) is the former",
    }


def _features(encoding: Encoding) -> str:
    return json.dumps(encoding.as_dict(), ensure_ascii=False)


def compared(reference: Run, exported: Run, given: Input) -> Parity:
    """Both on the same samples."""
    gaps = []
    for samples in given.samples:
        with torch.no_grad():
            ours, theirs = reference(samples), exported(samples)
        probabilities, logits = ((a.double() - b.double()).abs() for a, b in zip(ours, theirs, strict=True))
        size = ours[1].double().abs().clamp(min=1)
        gaps.append([float(each.max()) for each in (probabilities, logits, logits / size)])
    return Parity(given.compared, *np.max(gaps, axis=0).tolist())  # NaN stays NaN, unlike with Python's max


def _write_pt2(graph: nn.Module, given: Input, path: Path, facts: dict[str, str]) -> None:
    program = torch.export.export(graph, (given.example,), dynamic_shapes=_dynamic(given))
    written = io.BytesIO()  # torch ends the whole process where it cannot write to a file
    torch.export.save(program, written, extra_files={EXTRA: json.dumps(facts, ensure_ascii=False)})
    path.write_bytes(written.getbuffer())


def _pt2(path: Path, _name: str) -> Run:
    module = torch.export.load(path).module()
    return lambda samples: module(samples)


def _write_onnx(graph: nn.Module, given: Input, path: Path, facts: dict[str, str]) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(module)
        except ImportError as error:
            raise InputError(f"an .onnx needs {module}, got: {error}; install it: {INSTALL}") from error
    size = sum(t.numel() * t.element_size() for t in graph.state_dict().values())
    if size > LARGEST_ONNX:
        raise InputError(f"the weights are {size / 1e9:.1f} GB, and an .onnx holds 2; allowed: .pt2")
    program = torch.onnx.export(
        graph,
        (given.example,),
        dynamo=True,
        input_names=[given.name],
        output_names=list(OUTPUTS),
        dynamic_shapes=_dynamic(given),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(facts)
    program.save(path, external_data=False)


def _onnx(path: Path, name: str) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(samples: Tensor) -> Outputs:
        outputs: list[Any] = session.run(list(OUTPUTS), {name: samples.numpy()})
        probabilities, logits = (torch.from_numpy(np.asarray(each)) for each in outputs)
        return probabilities, logits

    return run


def _dynamic(given: Input) -> Any:
    return ({axis: torch.export.Dim(name) for axis, name in given.dynamic.items()},)


def _samples(rows: int, shape: tuple[int, ...]) -> Tensor:
    """About as large as preprocessed samples are; the same every time."""
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(rows))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporters' warnings: the result is verified."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
