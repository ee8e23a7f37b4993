"""One contestant in its own process: reads a folder name per input line and prints a line of JSON for each.

A contestant takes the data and returns its job, so that untimed work (imports, the probabilities a fit
takes instead of logits) is done before the timer starts. A fit's job returns T, a metric's its value. Metrics
start from the logits: the time of a contestant that needs probabilities includes one float32 softmax by
torch. Started by turns.py.
"""

import gc
import importlib.util
import json
import logging
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

PACKAGES = ("scikit-learn", "netcal", "probmetrics", "torchmetrics", "torch-uncertainty", "torch", "numpy")
BINS = 10


@dataclass(frozen=True)
class Data:
    """The input of every contestant: logits and labels."""

    logits: np.ndarray
    labels: np.ndarray

    @staticmethod
    def load(folder):
        return Data(np.load(folder / "logits.npy"), np.load(folder / "labels.npy"))

    @property
    def classes(self):
        return self.logits.shape[1]

    def scores(self):
        """Logits as a tensor."""
        import torch

        return torch.from_numpy(self.logits)

    def targets(self):
        """Labels as a tensor."""
        import torch

        return torch.from_numpy(self.labels)

    def probs(self):
        """Probabilities as a tensor."""
        return self.scores().softmax(dim=1)


def surefoot_fit(data):
    from surefoot import Predictions, fit_temperature

    return lambda: fit_temperature(Predictions.from_logits(data.logits, data.labels)).temperature


def sklearn_fit(data):
    from sklearn.calibration import _TemperatureScaling  # of CalibratedClassifierCV(method="temperature")

    return lambda: 1 / float(_TemperatureScaling().fit(data.logits, data.labels).beta_)


def netcal_fit(data):
    from netcal.scaling import TemperatureScaling

    logits = data.logits.astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = weights / weights.sum(axis=1, keepdims=True)
    if data.classes == 2:
        probs = probs[:, 1]  # its format for two classes

    def job():
        scaling = TemperatureScaling()
        scaling.fit(probs, data.labels)
        return 1 / float(np.ravel(scaling.temperature)[0])  # it multiplies

    return job


def probmetrics_fit(data):
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    def job():
        calibrator = get_calibrator("temp-scaling")
        calibrator.fit_torch(CategoricalLogits(data.scores()), data.targets())
        return 1 / float(calibrator.invtemp_)

    return job


def torch_uncertainty_fit(data):
    from torch.utils.data import DataLoader, TensorDataset

    without_init("torch_uncertainty", "torch_uncertainty.utils")
    from torch_uncertainty.post_processing.calibration.temperature_scaler import TemperatureScaler

    logging.disable(logging.CRITICAL)
    # One batch, without a loader, whose cost is not part of the fit.
    loader = DataLoader(TensorDataset(data.scores(), data.targets()), batch_size=None, sampler=[slice(None)])

    def job():
        scaler = TemperatureScaler()
        scaler.fit(loader, progress=False)
        return float(scaler.temperature[0])

    return job


def gpleiss_fit(data):
    """The algorithm of gpleiss/temperature_scaling, reimplemented: it is a file, not a package."""
    import torch

    def job():
        logits, labels = data.scores(), data.targets()
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


def _surefoot_metrics(*names):
    def contestant(data):
        from surefoot import Predictions, metrics

        def job():
            predictions = Predictions.from_logits(data.logits, data.labels)
            return [getattr(metrics, name)(predictions) for name in names][-1]

        return job

    return contestant


surefoot_ece = _surefoot_metrics("ece")
surefoot_nll = _surefoot_metrics("nll_unclipped")
surefoot_brier = _surefoot_metrics("brier")
surefoot_error = _surefoot_metrics("label_error")
surefoot_four = _surefoot_metrics("nll_unclipped", "brier", "label_error", "ece")


def netcal_ece_width(data):
    from netcal.metrics import ECE

    return lambda: float(ECE(BINS).measure(data.probs().numpy(), data.labels))


def netcal_ece_mass(data):
    from netcal.metrics import ECE

    return lambda: float(ECE(BINS, equal_intervals=False).measure(data.probs().numpy(), data.labels))


def torchmetrics_ece(data):
    from torchmetrics.functional.classification import multiclass_calibration_error

    options = {"num_classes": data.classes, "n_bins": BINS}
    return lambda: float(multiclass_calibration_error(data.probs(), data.targets(), **options))


def torchmetrics_error(data):
    from torchmetrics.functional.classification import multiclass_accuracy

    options = {"num_classes": data.classes, "average": "micro"}
    return lambda: 1 - float(multiclass_accuracy(data.scores(), data.targets(), **options))


def sklearn_nll(data):
    from sklearn.metrics import log_loss

    return lambda: float(log_loss(data.labels, data.probs(), labels=range(data.classes)))


def sklearn_brier(data):
    from sklearn.metrics import brier_score_loss

    return lambda: float(brier_score_loss(data.labels, data.probs(), labels=range(data.classes)))


def sklearn_error(data):
    from sklearn.metrics import accuracy_score

    return lambda: 1 - float(accuracy_score(data.labels, data.logits.argmax(axis=1)))


def torch_nll(data):
    import torch

    return lambda: float(torch.nn.functional.cross_entropy(data.scores(), data.targets()))


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


def _without_metric_inits():
    name = ""
    for part in ("torch_uncertainty", ".metrics", ".classification", ".calibration"):
        name += part
        without_init(name)


def without_init(*packages):
    """Allow importing single modules of torch-uncertainty: its `__init__` needs torchvision.

    The modules are unchanged; only the other imports of the packages' `__init__` are skipped.
    """
    for name in packages:
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
            sys.modules[name] = package


def peers_four(data):
    """The fastest combination of peers: scikit-learn's proper scores, torchmetrics' ECE, one softmax."""
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


def torch_one_pass(data):
    """Lower bound: every logit is read once."""
    import torch

    return lambda: float(torch.aminmax(data.scores()).max)


def numpy_exponentials(data):
    """Lower bound: as many float32 exponentials, of numbers that stay in the cache."""
    at_once = 50_000
    numbers = np.linspace(-20, 0, at_once, dtype=np.float32)
    found = np.empty_like(numbers)

    def job():
        for _ in range(data.logits.size // at_once):
            np.exp(numbers, out=found)
        return float(found[-1])

    return job


class Memory:
    """Peak memory above that of the process before the data was loaded."""

    def __enter__(self):
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
    """Load, run the job once, and report its time and value, or its error."""
    try:
        with Memory() as memory:
            job = contestant(Data.load(folder))
            wall, cpu = time.perf_counter(), time.process_time()
            value = job()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    except Exception as error:  # noqa: BLE001 - any exception of a peer is its result
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value, "cpu": cpu, "wall": wall, "megabytes": memory.megabytes}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep prints of libraries out of the results
    if sys.argv[1] == "versions":
        answers.write(json.dumps({package: version(package) for package in PACKAGES}) + "\n")
        return
    contestant = globals()[sys.argv[1]]
    random = np.random.default_rng(0)
    contestant(Data(random.random((1000, 4), dtype=np.float32), random.integers(0, 4, 1000)))()  # imports
    gc.collect()
    for line in sys.stdin:
        answers.write(json.dumps(one_turn(contestant, Path(line.strip()))) + "\n")


if __name__ == "__main__":
    main()
