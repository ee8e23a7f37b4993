"""Calibrate a user's own model: fit a temperature on a loader, return both as one module."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.calibrators import CALIBRATORS, fit_calibration
from surefoot.deploy.model import (
    Calibrated,
    CalibratedBy,
    Report,
    ScikitModel,
    as_module,
    logits_of,
    model_outputs,
    moved,
)
from surefoot.errors import InputError, shown
from surefoot.lab.training.predict import evaluating
from surefoot.predictions.arguments import checked
from surefoot.predictions.arrays import as_numpy
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.validate import as_rectangle
from surefoot.text import count_of

LABELS = ("labels", "label")  # their names in a batch that is a mapping
ROWS_AT_ONCE = 256
ROWS_OF_SCIKIT = 2**14  # a forest of 500 trees takes 40 ms a call, however few the rows


@overload
def calibrate(
    model: Any,
    val: Any,
    *,
    method: Literal["temperature", "softening", "budget"] = ...,
    force: bool = ...,
    tick: Callable[[int], None] = ...,
    **options: Any,
) -> Calibrated: ...


@overload
def calibrate(model: Any, val: Any, *, method: str, **options: Any) -> Calibrated | CalibratedBy: ...


@checked
def calibrate(
    model: Any,
    val: Any,
    *,
    method: str = "temperature",
    force: bool = False,
    tick: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> Calibrated | CalibratedBy:
    """The model with the temperature that is best on `val`, as a module that can replace it.

    Other calibrators by `method`: `surefoot ls calibrators`.

    `val` is held-out data drawn like the training data: a loader of (x, y) or of mappings with `labels`, or
    one pair of arrays. Labels (n,) are class indices (of a scikit-learn classifier its own names); labels
    (n, classes) are 0 / 1 / -100 and mean a sigmoid each; one logit a sample is the log odds of class 1.

    Options are those of the method, as in `fit_calibration`; None stands for the default. The `reference` of
    a budget "surplus" is the plain model: it is run on `val` too, so `val` gives the same samples twice, in
    the same order. A T whose interval spans orders of magnitude is not used, T = 1 instead, unless `force`.

    The model runs in evaluation mode, without gradients, on the device of its weights; its modes are restored
    afterwards. `tick` is called with the number of rows of each batch.

    >>> x = torch.tensor([[4.0, 0.0]] * 400)
    >>> calibrated = calibrate(torch.nn.Identity(), (x, torch.tensor([0, 0, 0, 1] * 100)))
    >>> calibrated.probabilities(x)[0]
    tensor([0.7500, 0.2500])
    """
    allowed = [each.name for each in CALIBRATORS if each.one_model]
    if method not in allowed:
        known = any(method == each.name for each in CALIBRATORS)
        wrong = (
            f"method {method!r} needs more than one model's logits" if known else f"unknown method {method!r}"
        )
        raise InputError(f"{wrong}; allowed: {', '.join(allowed)}")
    predictions = predictions_of(model, val, tick)
    options = {name: value for name, value in options.items() if value is not None}
    for option in CALIBRATORS.named(method).options:
        if option.type is Path and option.name in options:
            options[option.name] = predictions_of(options[option.name], val)
    fitted = fit_calibration(method, predictions, force=force, **options)
    report = Report.of(fitted)
    if not (fitted.averages_members and fitted.temperatures):
        return CalibratedBy(model, fitted, report=report)
    lowest, kind = fitted.lowest_probability, predictions.kind
    return Calibrated(model, fitted.temperatures[0], kind=kind, lowest_probability=lowest, report=report)


@checked
def predictions_of(model: Any, val: Any, tick: Callable[[int], None] = lambda _: None) -> Predictions:
    """A model's predictions of held-out data.

    `val` is a loader or a pair of arrays, as for `calibrate`; the model runs in evaluation mode. Text classes
    of a scikit-learn classifier become `class_names`.

    >>> predictions_of(torch.nn.Identity(), (torch.eye(3), torch.tensor([0, 1, 1])))
    Predictions(one_label, members=1, n=3, classes=3)
    """
    logits: list[Tensor] = []
    labels: list[NDArray[Any]] = []
    names: list[str] | None = None
    for inputs, given in _batches(
        val, ROWS_AT_ONCE if isinstance(model, torch.nn.Module) else ROWS_OF_SCIKIT
    ):
        many = given.ndim == 2 and given.shape[1] > 1
        module = as_module(model, LabelKind.MANY_LABELS if many else LabelKind.ONE_LABEL)
        scikit = next((part for part in module.modules() if isinstance(part, ScikitModel)), None)
        with torch.no_grad(), evaluating([module]):
            outputs = logits_of(model_outputs(module, moved(inputs, module))).cpu()
        if len(outputs) != len(given):
            got = f"{count_of(len(given), 'label')} and {count_of(len(outputs), 'logit')}"
            raise InputError(f"a batch has {got}; the numbers must be equal")
        logits.append((outputs if outputs.ndim == 2 else outputs.unsqueeze(1)).clone())
        labels.append(given if scikit is None else scikit.label_indices(given))
        names = None if scikit is None else scikit.class_names
        tick(len(outputs))
    if not logits:
        raise InputError("the loader gave no batch; needed: held-out samples with their labels")
    return Predictions.from_logits(torch.cat(logits), np.concatenate(labels), class_names=names)


def _batches(val: Any, rows: int) -> Iterator[tuple[Any, Any]]:
    """Inputs and labels, batch by batch."""
    if isinstance(val, tuple) and len(val) == 2 and hasattr(val[0], "shape"):
        samples, labels = val[0], _array(val[1])
        for start in range(0, samples.shape[0], rows):
            part = slice(start, start + rows)
            yield samples[part], labels[part]
        return
    if not isinstance(val, Iterable) or isinstance(val, Mapping | str | Tensor | np.ndarray):
        instead = "; for Predictions: fit_calibration" if isinstance(val, Predictions) else ""
        raise InputError(
            f"the validation data have type {type(val).__name__}; allowed: a loader of (x, y) or of mappings "
            f"with 'labels', or one pair of arrays{instead}"
        )
    for batch in val:
        yield _inputs_and_labels(batch)


def _inputs_and_labels(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        named = [name for name in LABELS if name in batch]
        if len(named) == 1:
            return {key: value for key, value in batch.items() if key != named[0]}, _array(batch[named[0]])
        raise InputError(
            f"a batch has {', '.join(map(str, batch)) or 'nothing'}; needed: 'labels' among them"
        )
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], _array(batch[1])
    got = count_of(len(batch), "part") if isinstance(batch, list | tuple) else type(batch).__name__
    raise InputError(f"a batch is {got}; allowed: (x, y), or a mapping with 'labels'")


def _array(labels: Any) -> NDArray[Any]:
    """A copy of labels on the CPU, from a tensor, an array, a list or a column of a table.

    A loader may fill the same memory for the next batch.
    """
    array = np.array(as_rectangle("labels", as_numpy("labels", labels)))
    if not array.ndim:
        raise InputError(f"the labels of a batch are {shown(labels)}; allowed: a label for each row")
    return array
