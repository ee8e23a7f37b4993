"""Measure how reliable a classifier's confidence is on unfamiliar data, and calibrate it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot import metrics
    from surefoot.calibrators import (
        CALIBRATORS,
        Calibration,
        Calibrator,
        fit_calibration,
        load_calibration,
        save_calibration,
    )
    from surefoot.calibrators.temperature import Temperature, fit_member_temperatures, fit_temperature
    from surefoot.deploy.bundle import Bundle, load_bundle
    from surefoot.deploy.calibrate import calibrate
    from surefoot.deploy.model import Calibrated, Ensemble
    from surefoot.errors import InputError
    from surefoot.evaluation.evaluate import evaluate, paired_differences
    from surefoot.experiments.methods import METHODS, Method
    from surefoot.extend import register
    from surefoot.metrics import METRICS, Metric
    from surefoot.predictions.files import read_predictions, write_predictions
    from surefoot.predictions.labels import IGNORE, LabelKind
    from surefoot.predictions.predictions import Predictions
    from surefoot.tasks import TASKS, TaskEntry
    from surefoot.variants import VARIANTS, Variant

# Loaded on first use, so that `surefoot --help` need not wait for torch.
_HOMES = {
    "Bundle": "surefoot.deploy.bundle",
    "CALIBRATORS": "surefoot.calibrators",
    "Calibrated": "surefoot.deploy.model",
    "Calibration": "surefoot.calibrators",
    "Calibrator": "surefoot.calibrators",
    "Ensemble": "surefoot.deploy.model",
    "IGNORE": "surefoot.predictions.labels",
    "InputError": "surefoot.errors",
    "LabelKind": "surefoot.predictions.labels",
    "METHODS": "surefoot.experiments.methods",
    "METRICS": "surefoot.metrics",
    "Method": "surefoot.experiments.methods",
    "Metric": "surefoot.metrics",
    "Predictions": "surefoot.predictions.predictions",
    "TASKS": "surefoot.tasks",
    "TaskEntry": "surefoot.tasks",
    "Temperature": "surefoot.calibrators.temperature",
    "VARIANTS": "surefoot.variants",
    "Variant": "surefoot.variants",
    "calibrate": "surefoot.deploy.calibrate",
    "evaluate": "surefoot.evaluation.evaluate",
    "fit_calibration": "surefoot.calibrators",
    "fit_member_temperatures": "surefoot.calibrators.temperature",
    "fit_temperature": "surefoot.calibrators.temperature",
    "load_bundle": "surefoot.deploy.bundle",
    "load_calibration": "surefoot.calibrators",
    "metrics": "surefoot.metrics",
    "paired_differences": "surefoot.evaluation.evaluate",
    "read_predictions": "surefoot.predictions.files",
    "register": "surefoot.extend",
    "save_calibration": "surefoot.calibrators",
    "write_predictions": "surefoot.predictions.files",
}

__version__ = "0.1.0"

__all__ = [
    "CALIBRATORS",
    "IGNORE",
    "METHODS",
    "METRICS",
    "TASKS",
    "VARIANTS",
    "Bundle",
    "Calibrated",
    "Calibration",
    "Calibrator",
    "Ensemble",
    "InputError",
    "LabelKind",
    "Method",
    "Metric",
    "Predictions",
    "TaskEntry",
    "Temperature",
    "Variant",
    "__version__",
    "calibrate",
    "evaluate",
    "fit_calibration",
    "fit_member_temperatures",
    "fit_temperature",
    "load_bundle",
    "load_calibration",
    "metrics",
    "paired_differences",
    "read_predictions",
    "register",
    "save_calibration",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if _HOMES[name] == f"surefoot.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
