"""The metrics: each takes the data and returns a job that returns its value."""

import numpy as np
from unpacked import without_init

BINS = 10


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

    return lambda: float(ECE(BINS).measure(data.probs(), data.labels))


def netcal_ece_mass(data):
    from netcal.metrics import ECE

    return lambda: float(ECE(BINS, equal_intervals=False).measure(data.probs(), data.labels))


def torchmetrics_ece(data):
    from torchmetrics.functional.classification import multiclass_calibration_error

    options = {"num_classes": data.classes, "n_bins": BINS, "ignore_index": data.ignored()}
    return lambda: float(multiclass_calibration_error(data.probs(), data.targets(), **options))


def torchmetrics_error(data):
    from torchmetrics.functional.classification import multiclass_accuracy

    options = {"num_classes": data.classes, "average": "micro", "ignore_index": data.ignored()}
    given = data.probs() if not data.are_logits else None  # an argmax needs no softmax

    def job():
        import torch

        scores = torch.from_numpy(data.values) if given is None else given
        return 1 - float(multiclass_accuracy(scores, data.targets(), **options))

    return job


def sklearn_nll(data):
    from sklearn.metrics import log_loss

    return lambda: float(log_loss(data.labels, data.probs(), labels=range(data.classes)))


def sklearn_brier(data):
    from sklearn.metrics import brier_score_loss

    return lambda: float(brier_score_loss(data.labels, data.probs(), labels=range(data.classes)))


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

    return lambda: float(torch.aminmax(torch.from_numpy(data.values)).max)


def numpy_exponentials(data):
    """Lower bound: as many float32 exponentials, of numbers that stay in the cache."""
    at_once = 50_000
    numbers = np.linspace(-20, 0, at_once, dtype=np.float32)
    found = np.empty_like(numbers)

    def job():
        for _ in range(data.values.size // at_once):
            np.exp(numbers, out=found)
        return float(found[-1])

    return job


def numpy_log_softmax(data):
    def job():
        below = data.values - data.values.max(axis=1, keepdims=True)
        return float((below - np.log(np.exp(below).sum(axis=1, keepdims=True)))[0, 0])

    return job


def _without_metric_inits():
    name = ""
    for part in ("torch_uncertainty", ".metrics", ".classification", ".calibration"):
        name += part
        without_init(name)
