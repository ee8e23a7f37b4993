"""Know when your classifier is on unfamiliar ground: measure its confidence, and mend it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot import metrics
    from surefoot.calibrators import fit_calibration, load_calibration, save_calibration
    from surefoot.calibrators.temperature import Temperature, fit_member_temperatures, fit_temperature
    from surefoot.deploy.bundle import Bundle, load_bundle
    from surefoot.deploy.calibrate import calibrate
    from surefoot.deploy.model import Calibrated, Ensemble
    from surefoot.errors import InputError
    from surefoot.evaluation.evaluate import evaluate, paired_differences
    from surefoot.predictions.files import read_predictions, write_predictions
    from surefoot.predictions.labels import IGNORE, LabelKind
    from surefoot.predictions.predictions import Predictions

# Loaded on first use, so that `surefoot --help` need not wait for torch.
_HOMES = {
    "Bundle": "surefoot.deploy.bundle",
    "Calibrated": "surefoot.deploy.model",
    "Ensemble": "surefoot.deploy.model",
    "IGNORE": "surefoot.predictions.labels",
    "InputError": "surefoot.errors",
    "LabelKind": "surefoot.predictions.labels",
    "Predictions": "surefoot.predictions.predictions",
    "Temperature": "surefoot.calibrators.temperature",
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
    "save_calibration": "surefoot.calibrators",
    "write_predictions": "surefoot.predictions.files",
}

__version__ = "0.1.0"

__all__ = [
    "IGNORE",
    "Bundle",
    "Calibrated",
    "Ensemble",
    "InputError",
    "LabelKind",
    "Predictions",
    "Temperature",
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
