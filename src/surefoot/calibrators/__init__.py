"""Ways to mend confidence: each is fitted on validation data and is then a function on Predictions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from surefoot.calibrators.files import Calibration, calibration_document, load_calibration, save_calibration
from surefoot.calibrators.novelty import NoveltyScaling, fit_novelty_scaling
from surefoot.calibrators.temperature import (
    BudgetTemperature,
    Evidence,
    MemberTemperatures,
    Temperature,
    TemperatureModule,
    fit_budget_temperature,
    fit_member_temperatures,
    fit_temperature,
    fit_temperature_at_least_one,
)
from surefoot.metrics import ece, nll_unclipped
from surefoot.predictions.predictions import Predictions
from surefoot.registry import Registry


@dataclass(frozen=True)
class Calibrator:
    """A way to fit a calibration."""

    name: str
    title: str
    formula: str
    reference: str
    fit: Callable[[Predictions], Calibration]


# fmt: off
CALIBRATORS: Registry[Calibrator] = Registry("method", (
    Calibrator("temperature", "One temperature", "softmax(z / T), members averaged first", "Guo et al., ICML 2017", fit_temperature),
    Calibrator("member-temperatures", "A temperature per member", "mean over members of softmax(z_m / T_m)", "Li & Hoiem, CVPR 2020", fit_member_temperatures),
    Calibrator("softening", "One temperature, of 1 or more", "softmax(z / max(1, T)), members averaged first", "Li & Hoiem, CVPR 2020", fit_temperature_at_least_one),
    Calibrator("budget", "Risk-budget temperature", "largest T with NLL(z / T) <= 1.02 min NLL", "this package", fit_budget_temperature),
    Calibrator("novelty", "Novelty scaling", "softmax(z / (T0 + T1 novelty)), members averaged first", "Li & Hoiem, CVPR 2020", fit_novelty_scaling),
))
# fmt: on


def fit_calibration(name: str, val: Predictions) -> Calibration:
    """Fit the named calibrator and keep, as evidence, what it did to `val`."""
    fitted = CALIBRATORS.named(name).fit(val)
    after = fitted(val)
    return replace(fitted, evidence=Evidence(nll_unclipped(val), nll_unclipped(after), ece(val), ece(after)))


__all__ = [
    "CALIBRATORS",
    "BudgetTemperature",
    "Calibration",
    "Calibrator",
    "Evidence",
    "MemberTemperatures",
    "NoveltyScaling",
    "Temperature",
    "TemperatureModule",
    "calibration_document",
    "fit_budget_temperature",
    "fit_calibration",
    "fit_member_temperatures",
    "fit_novelty_scaling",
    "fit_temperature",
    "fit_temperature_at_least_one",
    "load_calibration",
    "save_calibration",
]
