"""One contestant, alone in its process: prints a line of JSON. Called by the other files here."""

import json
import resource
import sys
import threading
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")


def timed(job, turns):
    """Seconds of the best turn, and what the last turn returned."""
    best = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        result = job()
        best = min(best, time.perf_counter() - start)
    return best, result


def surefoot_fit(logits, labels, turns):
    from surefoot import Predictions, fit_temperature

    seconds, fitted = timed(lambda: fit_temperature(Predictions.from_logits(logits, labels)), turns)
    return {"seconds": seconds, "temperature": fitted.temperature}


def sklearn_fit(logits, labels, turns):
    from sklearn.calibration import (
        _TemperatureScaling,
    )  # what CalibratedClassifierCV(method="temperature") fits

    seconds, fitted = timed(lambda: _TemperatureScaling().fit(logits, labels), turns)
    return {"seconds": seconds, "temperature": 1 / float(fitted.beta_)}


def netcal_fit(logits, labels, turns):
    return _netcal(_softmax(logits), labels, turns)


def netcal_fit_double(logits, labels, turns):
    return _netcal(_softmax(logits.astype(np.float64)), labels, turns)


def _netcal(probs, labels, turns):
    from netcal.scaling import TemperatureScaling

    def fit():
        scaling = TemperatureScaling()
        scaling.fit(probs, labels)
        return scaling

    seconds, fitted = timed(fit, turns)
    return {"seconds": seconds, "temperature": 1 / float(np.ravel(fitted.temperature)[0])}  # it multiplies


def probmetrics_fit(logits, labels, turns):
    import torch
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    def fit():
        calibrator = get_calibrator("temp-scaling")
        calibrator.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels))
        return calibrator

    seconds, fitted = timed(fit, turns)
    return {"seconds": seconds, "temperature": 1 / float(fitted.invtemp_)}


def numpy_log_softmax(logits, _labels, turns):
    def job():
        below = logits - logits.max(axis=1, keepdims=True)
        return below - np.log(np.exp(below).sum(axis=1, keepdims=True))

    return {"seconds": timed(job, turns)[0]}


def surefoot_metrics(logits, labels, turns):
    from surefoot import Predictions, metrics

    names = ("nll", "brier", "label_error", "ece", "e99", "entropy")

    def job():
        predictions = Predictions.from_logits(logits, labels)
        return [getattr(metrics, name)(predictions) for name in names]

    return {"seconds": timed(job, turns)[0]}


def _softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


class Memory:
    """The most memory held beyond what the process had before the data came."""

    def __enter__(self):
        import gc

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


def main():
    what, folder, turns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if what == "versions":
        packages = ("scikit-learn", "netcal", "probmetrics", "torch", "numpy")
        print(json.dumps({package: version(package) for package in packages}))
        return
    contestant = globals()[what]
    contestant(np.eye(4, dtype=np.float32).repeat(8, axis=0), np.arange(32) // 8, 1)  # imports and warm-up
    with Memory() as memory:
        logits, labels = np.load(folder / "logits.npy"), np.load(folder / "labels.npy")
        result = contestant(logits, labels, turns)
    print(json.dumps({**result, "peak_megabytes": memory.megabytes}))


if __name__ == "__main__":
    main()
