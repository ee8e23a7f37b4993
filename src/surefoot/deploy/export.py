"""A bundle as one graph, ONNX or torch.export, verified against PyTorch before it is written."""

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
from torch import Tensor, nn

from surefoot.deploy.bundle import Bundle
from surefoot.deploy.model import CalibratedModule, probabilities_of
from surefoot.errors import InputError
from surefoot.io import replacing
from surefoot.tasks.features import Encoding

BATCHES = (1, 3, 8)
TRACED = 2  # rows while the graph is traced; its batch may be any other
LIMIT = 1e-4  # of a probability; of a logit, relative to its size where that is above 1
LARGEST_ONNX = 2**31 - 2**20  # bytes that one ONNX file can hold
OUTPUTS = ("probabilities", "logits")
LONGEST = 300  # characters of an exporter's error message
EXTRA = "surefoot.json"  # in a .pt2: what an .onnx has as metadata
INSTALL = "pip install 'surefoot[export]'"

Outputs = tuple[Tensor, Tensor]  # probabilities, logits


@dataclass(frozen=True)
class Parity:
    """The largest difference between the file and PyTorch."""

    batches: tuple[int, ...]
    probabilities: float
    logits: float
    relative: float  # of a logit, by its size where that is above 1


class Graph(nn.Module):
    """The exported module: preprocessed samples to probabilities and calibrated logits."""

    def __init__(self, model: CalibratedModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor) -> Outputs:
        logits = self.model(samples)
        return probabilities_of(logits, self.model.kind), logits


def export_bundle(bundle: Bundle, output: Path) -> Parity:
    """Write the bundle's graph; if its outputs differ from PyTorch's, refuse and write nothing."""
    return export_model(
        bundle.model, bundle.shape, output, name=bundle.about["input"]["name"], facts=facts_of(bundle)
    )


def export_model(
    model: CalibratedModule, shape: tuple[int, ...], output: Path, *, name: str, facts: dict[str, str]
) -> Parity:
    """Any calibrated module; `name` is the graph's input, (batch, *shape), `facts` its metadata."""
    writers = {".onnx": (_write_onnx, _onnx), ".pt2": (_write_pt2, _pt2)}
    if output.suffix.lower() not in writers:
        raise InputError(f"{output}: unknown file type {output.suffix!r}; have: {', '.join(writers)}")
    write, read = writers[output.suffix.lower()]
    graph = Graph(model.to("cpu")).eval()
    with replacing(output) as temporary, _quietly():
        try:
            write(graph, _samples(TRACED, shape), temporary, name, facts)
            parity = compared(graph, read(temporary, name), shape)
        except InputError:
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


def compared(graph: Graph, exported: Callable[[Tensor], Outputs], shape: tuple[int, ...]) -> Parity:
    """Both on the same samples, in batches of several sizes."""
    gaps = []
    for rows in BATCHES:
        samples = _samples(rows, shape)
        with torch.no_grad():
            ours, theirs = graph(samples), exported(samples)
        probabilities, logits = ((a.double() - b.double()).abs() for a, b in zip(ours, theirs, strict=True))
        size = ours[1].double().abs().clamp(min=1)
        gaps.append([float(each.max()) for each in (probabilities, logits, logits / size)])
    return Parity(BATCHES, *np.max(gaps, axis=0).tolist())  # NaN stays NaN, unlike with Python's max


def _write_pt2(graph: Graph, samples: Tensor, path: Path, _name: str, facts: dict[str, str]) -> None:
    program = torch.export.export(graph, (samples,), dynamic_shapes=_dynamic())
    torch.export.save(program, path, extra_files={EXTRA: json.dumps(facts, ensure_ascii=False)})


def _pt2(path: Path, _name: str) -> Callable[[Tensor], Outputs]:
    module = torch.export.load(path).module()
    return lambda samples: module(samples)


def _write_onnx(graph: Graph, samples: Tensor, path: Path, name: str, facts: dict[str, str]) -> None:
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
        (samples,),
        dynamo=True,
        input_names=[name],
        output_names=list(OUTPUTS),
        dynamic_shapes=_dynamic(),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(facts)
    program.save(path, external_data=False)


def _onnx(path: Path, name: str) -> Callable[[Tensor], Outputs]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(samples: Tensor) -> Outputs:
        outputs: list[Any] = session.run(list(OUTPUTS), {name: samples.numpy()})
        probabilities, logits = (torch.from_numpy(np.asarray(each)) for each in outputs)
        return probabilities, logits

    return run


def _dynamic() -> Any:
    return ({0: torch.export.Dim("batch")},)


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
