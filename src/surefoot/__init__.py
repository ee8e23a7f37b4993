"""Measure how reliable a classifier's confidence is on unfamiliar data, and calibrate it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot import metrics, plots
    from surefoot import sklearn as sklearn
    from surefoot.calibrators import (
        CALIBRATORS,
        Calibration,
        Calibrator,
        fit_calibration,
        load_calibration,
        save_calibration,
    )
    from surefoot.calibrators.temperature import Temperature, fit_member_temperatures, fit_temperature
    from surefoot.decisions.sets import Sets, choose_sets
    from surefoot.decisions.thresholds import Thresholds, Unreachable, choose_thresholds
    from surefoot.decisions.thresholds_file import load_thresholds, save_thresholds
    from surefoot.deploy.bundle import Bundle, load_bundle
    from surefoot.deploy.calibrate import calibrate, predictions_of
    from surefoot.deploy.model import Calibrated, Ensemble
    from surefoot.errors import InputError
    from surefoot.evaluation.evaluate import evaluate, paired_differences
    from surefoot.evaluation.scores import Evaluation
    from surefoot.extend import register
    from surefoot.lab.experiments.changes import ExperimentChange
    from surefoot.lab.experiments.methods import METHODS, Method
    from surefoot.lab.experiments.run import Study
    from surefoot.lab.experiments.workflow import compare, load_study, run
    from surefoot.lab.tasks import TASKS, TaskEntry
    from surefoot.lab.variants import VARIANTS, Variant
    from surefoot.metrics import METRICS, Metric
    from surefoot.monitoring.monitor import Check, monitor
    from surefoot.predictions.files import read_predictions, write_predictions
    from surefoot.predictions.labels import IGNORE, LabelKind
    from surefoot.predictions.predictions import Predictions
    from surefoot.predictions.scanned import ScannedPredictions, scan_predictions

# Loaded on first use, so that `surefoot --help` need not wait for torch.
_HOMES = {
    "Bundle": "surefoot.deploy.bundle",
    "CALIBRATORS": "surefoot.calibrators",
    "Calibrated": "surefoot.deploy.model",
    "Calibration": "surefoot.calibrators",
    "Calibrator": "surefoot.calibrators",
    "Check": "surefoot.monitoring.monitor",
    "Ensemble": "surefoot.deploy.model",
    "Evaluation": "surefoot.evaluation.scores",
    "ExperimentChange": "surefoot.lab.experiments.changes",
    "IGNORE": "surefoot.predictions.labels",
    "InputError": "surefoot.errors",
    "LabelKind": "surefoot.predictions.labels",
    "METHODS": "surefoot.lab.experiments.methods",
    "METRICS": "surefoot.metrics",
    "Method": "surefoot.lab.experiments.methods",
    "Metric": "surefoot.metrics",
    "Predictions": "surefoot.predictions.predictions",
    "ScannedPredictions": "surefoot.predictions.scanned",
    "Sets": "surefoot.decisions.sets",
    "Study": "surefoot.lab.experiments.run",
    "TASKS": "surefoot.lab.tasks",
    "TaskEntry": "surefoot.lab.tasks",
    "Temperature": "surefoot.calibrators.temperature",
    "Thresholds": "surefoot.decisions.thresholds",
    "Unreachable": "surefoot.decisions.thresholds",
    "VARIANTS": "surefoot.lab.variants",
    "Variant": "surefoot.lab.variants",
    "calibrate": "surefoot.deploy.calibrate",
    "choose_sets": "surefoot.decisions.sets",
    "choose_thresholds": "surefoot.decisions.thresholds",
    "compare": "surefoot.lab.experiments.workflow",
    "evaluate": "surefoot.evaluation.evaluate",
    "fit_calibration": "surefoot.calibrators",
    "fit_member_temperatures": "surefoot.calibrators.temperature",
    "fit_temperature": "surefoot.calibrators.temperature",
    "load_bundle": "surefoot.deploy.bundle",
    "load_calibration": "surefoot.calibrators",
    "load_study": "surefoot.lab.experiments.workflow",
    "load_thresholds": "surefoot.decisions.thresholds_file",
    "metrics": "surefoot.metrics",
    "monitor": "surefoot.monitoring.monitor",
    "paired_differences": "surefoot.evaluation.evaluate",
    "plots": "surefoot.plots",
    "predictions_of": "surefoot.deploy.calibrate",
    "read_predictions": "surefoot.predictions.files",
    "register": "surefoot.extend",
    "run": "surefoot.lab.experiments.workflow",
    "save_calibration": "surefoot.calibrators",
    "save_thresholds": "surefoot.decisions.thresholds_file",
    "scan_predictions": "surefoot.predictions.scanned",
    "sklearn": "surefoot.sklearn",  # not in __all__: it needs scikit-learn, an extra
    "write_predictions": "surefoot.predictions.files",
}

__version__ = "0.2.0"

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
    "Check",
    "Ensemble",
    "Evaluation",
    "ExperimentChange",
    "InputError",
    "LabelKind",
    "Method",
    "Metric",
    "Predictions",
    "ScannedPredictions",
    "Sets",
    "Study",
    "TaskEntry",
    "Temperature",
    "Thresholds",
    "Unreachable",
    "Variant",
    "__version__",
    "calibrate",
    "choose_sets",
    "choose_thresholds",
    "compare",
    "evaluate",
    "fit_calibration",
    "fit_member_temperatures",
    "fit_temperature",
    "load_bundle",
    "load_calibration",
    "load_study",
    "load_thresholds",
    "metrics",
    "monitor",
    "paired_differences",
    "plots",
    "predictions_of",
    "read_predictions",
    "register",
    "run",
    "save_calibration",
    "save_thresholds",
    "scan_predictions",
    "write_predictions",
]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            this = import_module("surefoot")  # for "Did you mean" below the traceback
            raise AttributeError(f"module 'surefoot' has no attribute {name!r}", name=name, obj=this)
        try:
            home = import_module(_HOMES[name])
        except ModuleNotFoundError as error:
            from surefoot.errors import missing_torch

            if missing := missing_torch(error):
                raise missing from None
            raise
        return home if _HOMES[name] == f"surefoot.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
