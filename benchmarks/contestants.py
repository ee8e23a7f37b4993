"""One contestant, alone in its process: for each folder named on a line of input, a line of JSON.

A contestant takes the data and returns its job, so that what it need not be charged for (imports, the
probabilities a fit takes instead of logits) is done before the clock starts. Metrics start from the logits:
who wants probabilities is charged for one float32 softmax of torch's. Called by the other files here.
"""

import gc
import importlib.util
import json
import os
import resource
import sys
import threading
import time
import types
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

BINS = 10
PACKAGES = ("scikit-learn", "netcal", "probmetrics", "torchmetrics", "torch-uncertainty", "torch", "numpy")


@dataclass(frozen=True)
class Data:
    """What every contestant is given: logits or probabilities, and labels."""

    values: np.ndarray
    labels: np.ndarray
    are_logits: bool = True

    @staticmethod
    def load(folder):
        are_logits = (folder / "logits.npy").exists()
        values = np.load(folder / ("logits.npy" if are_logits else "probs.npy"))
        return Data(values, np.load(folder / "labels.npy"), are_logits)

    @property
    def classes(self):
        return self.values.shape[1]

    def probs(self):
        """Probabilities as a tensor."""
        import torch

        values = torch.from_numpy(self.values)
        return values.softmax(dim=1) if self.are_logits else values

    def targets(self):
        """Labels as a tensor."""
        import torch

        return torch.from_numpy(self.labels)


# The fits: each returns T.


def surefoot_fit(data):
    from surefoot import Predictions, fit_temperature

    return lambda: fit_temperature(Predictions.from_logits(data.values, data.labels)).temperature


def sklearn_fit(data):
    from sklearn.calibration import _TemperatureScaling  # of CalibratedClassifierCV(method="temperature")

    return lambda: 1 / float(_TemperatureScaling().fit(data.values, data.labels).beta_)


def netcal_fit(data):
    return _netcal(data, np.float64)


def netcal_fit_single(data):
    return _netcal(data, np.float32)


def _netcal(data, dtype):
    from netcal.scaling import TemperatureScaling

    logits = data.values.astype(dtype)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = weights / weights.sum(axis=1, keepdims=True)
    if data.classes == 2:
        probs = probs[:, 1]  # how it wants two classes

    def job():
        scaling = TemperatureScaling()
        scaling.fit(probs, data.labels)
        return 1 / float(np.ravel(scaling.temperature)[0])  # it multiplies

    return job


def probmetrics_fit(data):
    import torch
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    def job():
        calibrator = get_calibrator("temp-scaling")
        calibrator.fit_torch(CategoricalLogits(torch.from_numpy(data.values)), data.targets())
        return 1 / float(calibrator.invtemp_)

    return job


def torch_uncertainty_fit(data):
    import logging

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    without_init("torch_uncertainty", "torch_uncertainty.utils")
    from torch_uncertainty.post_processing.calibration.temperature_scaler import TemperatureScaler

    logging.disable(logging.CRITICAL)
    whole = TensorDataset(torch.from_numpy(data.values), data.targets())
    # One batch, handed over as it is: what a loader costs is not the fit's to answer for.
    loader = DataLoader(whole, batch_size=None, sampler=[slice(None)])

    def job():
        scaler = TemperatureScaler()
        scaler.fit(loader, progress=False)
        return float(scaler.temperature[0])

    return job


def gpleiss_fit(data):
    """The algorithm of gpleiss/temperature_scaling, in our words: it is a file, not a package."""
    import torch

    def job():
        logits, labels = torch.from_numpy(data.values), data.targets()
        temperature = torch.full((1,), 1.5, requires_grad=True)
        optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

        def loss():
            optimiser.zero_grad()
            nll = torch.nn.functional.cross_entropy(logits / temperature, labels)
            nll.backward()
            return nll

        optimiser.step(loss)
        return float(temperature)

    return job


# The metrics: each returns its value.


def surefoot_metrics(data, *names):
    from surefoot import Predictions, metrics

    make = Predictions.from_logits if data.are_logits else Predictions.from_probs

    def job():
        predictions = make(data.values, data.labels)
        return [getattr(metrics, name)(predictions) for name in names][-1]

    return job


def surefoot_ece(data):
    return surefoot_metrics(data, "ece")


def surefoot_nll(data):
    return surefoot_metrics(data, "nll_unclipped")


def surefoot_brier(data):
    return surefoot_metrics(data, "brier")


def surefoot_error(data):
    return surefoot_metrics(data, "label_error")


def surefoot_four(data):
    return surefoot_metrics(data, "nll_unclipped", "brier", "label_error", "ece")


def surefoot_paper(data):
    return surefoot_metrics(data, "nll", "brier", "label_error", "ece", "e99", "entropy")


def netcal_ece_width(data):
    from netcal.metrics import ECE

    return lambda: float(ECE(BINS).measure(data.probs().numpy(), data.labels))


def netcal_ece_mass(data):
    from netcal.metrics import ECE

    return lambda: float(ECE(BINS, equal_intervals=False).measure(data.probs().numpy(), data.labels))


def torchmetrics_ece(data):
    from torchmetrics.functional.classification import multiclass_calibration_error

    options = {"num_classes": data.classes, "n_bins": BINS, "ignore_index": -100}
    return lambda: float(multiclass_calibration_error(data.probs(), data.targets(), **options))


def torchmetrics_error(data):
    from torchmetrics.functional.classification import multiclass_accuracy

    options = {"num_classes": data.classes, "average": "micro", "ignore_index": -100}
    given = data.probs() if not data.are_logits else None  # an argmax needs no softmax

    def job():
        import torch

        scores = torch.from_numpy(data.values) if given is None else given
        return 1 - float(multiclass_accuracy(scores, data.targets(), **options))

    return job


def sklearn_nll(data):
    from sklearn.metrics import log_loss

    return lambda: float(log_loss(data.labels, data.probs().numpy(), labels=range(data.classes)))


def sklearn_brier(data):
    from sklearn.metrics import brier_score_loss

    return lambda: float(brier_score_loss(data.labels, data.probs().numpy(), labels=range(data.classes)))


def sklearn_error(data):
    from sklearn.metrics import accuracy_score

    return lambda: 1 - float(accuracy_score(data.labels, data.values.argmax(axis=1)))


def torch_nll(data):
    import torch

    def job():
        values = torch.from_numpy(data.values)
        score = torch.nn.functional.cross_entropy if data.are_logits else torch.nn.functional.nll_loss
        return float(score(values if data.are_logits else values.log(), data.targets()))

    return job


def torch_uncertainty_ece(data):
    _without_metric_inits()
    from torch_uncertainty.metrics.classification.calibration.adaptive_calibration_error import (
        AdaptiveCalibrationError,
    )

    return lambda: _collected(
        AdaptiveCalibrationError("multiclass", num_bins=BINS, num_classes=data.classes), data
    )


def torch_uncertainty_nll(data):
    _without_metric_inits()
    from torch_uncertainty.metrics.classification.categorical_nll import CategoricalNLL

    return lambda: _collected(CategoricalNLL(), data)


def torch_uncertainty_brier(data):
    _without_metric_inits()
    from torch_uncertainty.metrics.classification.brier_score import BrierScore

    return lambda: _collected(BrierScore(num_classes=data.classes), data)


def _collected(metric, data):
    metric.update(data.probs(), data.targets())
    return float(metric.compute())


def peers_four(data):
    """The quickest mix of peers we found: scikit-learn's proper scores, torchmetrics' ECE, one softmax."""
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
    from torchmetrics.functional.classification import multiclass_calibration_error

    def job():
        probs = data.probs()
        given, classes = probs.numpy(), range(data.classes)
        log_loss(data.labels, given, labels=classes)
        brier_score_loss(data.labels, given, labels=classes)
        accuracy_score(data.labels, given.argmax(axis=1))
        return float(multiclass_calibration_error(probs, data.targets(), len(classes), BINS))

    return job


def torch_softmax(data):
    return lambda: float(data.probs()[0, 0])


def numpy_log_softmax(data):
    def job():
        below = data.values - data.values.max(axis=1, keepdims=True)
        return float((below - np.log(np.exp(below).sum(axis=1, keepdims=True)))[0, 0])

    return job


def without_init(*packages):
    """Let modules of torch-uncertainty be imported one by one: its `__init__` wants torchvision.

    The modules are its own, unchanged; only what the packages' `__init__` would import besides is left out.
    """
    for name in packages:
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
            sys.modules[name] = package


def _without_metric_inits():
    names = "torch_uncertainty.metrics.classification.calibration".split(".")
    without_init(*(".".join(names[: depth + 1]) for depth in range(len(names))))


class Memory:
    """The most memory held beyond what the process had before the data came."""

    def __enter__(self):
        gc.collect()
        self.start = self.peak = _resident()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self):
        while not self.stop.wait(0.002):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    @property
    def megabytes(self):
        return (self.peak - self.start) / 1e6


def _resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def one_turn(contestant, folder):
    """Load, do the job once, and say how long it took and what came out; or how it failed."""
    try:
        with Memory() as memory:
            job = contestant(Data.load(folder))
            start = time.perf_counter()
            value = job()
            seconds = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value, "seconds": seconds, "megabytes": memory.megabytes}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    if sys.argv[1] == "versions":
        answers.write(json.dumps({package: version(package) for package in PACKAGES}) + "\n")
        return
    contestant = globals()[sys.argv[1]]
    random = np.random.default_rng(0)
    contestant(Data(random.random((1000, 4), dtype=np.float32), random.integers(0, 4, 1000)))()  # imports
    for line in sys.stdin:
        answers.write(json.dumps(one_turn(contestant, Path(line.strip()))) + "\n")


if __name__ == "__main__":
    main()
