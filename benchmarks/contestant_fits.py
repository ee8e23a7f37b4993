"""The fits: each takes the data and returns a job that returns T."""

import numpy as np
from unpacked import without_init


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
        probs = probs[:, 1]  # its format for two classes

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
    # One batch, without a loader, whose cost is not part of the fit.
    loader = DataLoader(whole, batch_size=None, sampler=[slice(None)])

    def job():
        scaler = TemperatureScaler()
        scaler.fit(loader, progress=False)
        return float(scaler.temperature[0])

    return job


def gpleiss_fit(data):
    """The algorithm of gpleiss/temperature_scaling, reimplemented: it is a file, not a package."""
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
