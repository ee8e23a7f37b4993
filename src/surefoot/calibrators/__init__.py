"""Calibrators: each is fitted on validation data and gives a Calibration, a function on Predictions.

Importing this package does not import torch: the fit functions are imported when they are called.
"""

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot import __version__
from surefoot.calibrators.calibration import Calibration, Evidence
from surefoot.errors import InputError, refuse_unknown
from surefoot.io import read_json, replacing
from surefoot.metrics import ece, nll_unclipped
from surefoot.registry import Registry

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

FORMAT = 1
DEFINITIONS = {
    "temperature": "calibrated logits = logits / temperature; several members are averaged first",
    "member-temperatures": "each member's logits are divided by its temperature, then probabilities averaged",
    "temperature-before-averaging": "the logits of each member, or of each sample of a Bayesian network, are "
    "divided by temperature, then probabilities averaged",
    "declined": "a fitted temperature below 1 that was not used; the interval is then its own",
    "budget": "the largest temperature whose nll is at most (1 + budget) times the least; for 'surplus' "
    "at most nll_limit, the least nll of a reference model on the same rows",
    "novelty": "calibrated logits = logits / (t0 + t1 * novelty), novelty in [0, 1]; members averaged first",
    "interval": "95%, from the sandwich variance of log T, clustered by group where groups were given",
    "nll": "mean of -log p_true, unclipped",
    "ece": "10 equal-mass bins by rank of confidence; tied rows count with their tie's mean accuracy",
}


@dataclass(frozen=True)
class Calibrator:
    """A way to fit a calibration, and to read what was saved."""

    name: str
    title: str
    formula: str
    reference: str
    _: KW_ONLY
    kind: str  # of its calibrations, in files
    fit: Callable[..., Calibration]  # of Predictions, and of `options` by name
    read: Callable[[dict[str, Any]], Calibration]  # `from_dict` of its class
    one_temperature: bool = False  # whether it fits one T for all logits
    options: tuple[str, ...] = ()  # the keyword arguments that `fit` takes


def _later(path: str) -> Callable[..., Any]:
    """A function of a module of this package that imports torch; imported when it is called."""
    module, _, name = path.partition(":")
    return lambda given, **options: attrgetter(name)(import_module(f"surefoot.calibrators.{module}"))(
        given, **options
    )


# fmt: off
CALIBRATORS: Registry[Calibrator] = Registry("method", (
    Calibrator("temperature", "One temperature", "softmax(z / T), members averaged first", "Guo et al., ICML 2017",
               kind="temperature", fit=_later("temperature:fit_temperature"),
               read=_later("temperature:Temperature.from_dict"), one_temperature=True),
    Calibrator("member-temperatures", "A temperature per member", "mean over members of softmax(z_m / T_m)",
               "Li & Hoiem, CVPR 2020",
               kind="member-temperatures", fit=_later("temperature:fit_member_temperatures"),
               read=_later("temperature:MemberTemperatures.from_dict")),
    Calibrator("temperature-before-averaging", "One temperature before averaging",
               "mean over members of softmax(z_m / T), one T", "Li & Hoiem, CVPR 2020",
               kind="temperature-before-averaging",
               fit=_later("before_averaging:fit_temperature_before_averaging"),
               read=_later("before_averaging:TemperatureBeforeAveraging.from_dict")),
    Calibrator("softening", "One temperature, of 1 or more", "softmax(z / max(1, T)), members averaged first",
               "Li & Hoiem, CVPR 2020",
               kind="temperature", fit=_later("temperature:fit_temperature_at_least_one"),
               read=_later("temperature:Temperature.from_dict"), one_temperature=True),
    Calibrator("budget", "Risk-budget temperature", "largest T with NLL(z / T) <= (1 + budget) min NLL",
               "this package",
               kind="budget", fit=_later("budget:fit_budget_temperature"),
               read=_later("budget:BudgetTemperature.from_dict"), one_temperature=True,
               options=("budget", "reference")),
    Calibrator("novelty", "Novelty scaling", "softmax(z / (T0 + T1 novelty)), members averaged first",
               "Li & Hoiem, CVPR 2020",
               kind="novelty", fit=_later("novelty:fit_novelty_scaling"),
               read=_later("novelty:NoveltyScaling.from_dict")),
))
# fmt: on


def fit_calibration(name: str, val: "Predictions", **options: Any) -> Calibration:
    """Fit the named calibrator on `val`, with its effect on `val` as evidence.

    Options are those of the calibrator: for "budget" the `budget`, a number or "surplus", and for "surplus"
    the `reference`, the plain model's predictions of the same rows.
    """
    calibrator = CALIBRATORS.named(name)
    refuse_unknown(f"option of method {name}:", options, calibrator.options)
    fitted = calibrator.fit(val, **options)
    after = fitted(val)
    return replace(fitted, evidence=Evidence(nll_unclipped(val), nll_unclipped(after), ece(val), ece(after)))


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write the calibration as JSON, which people and programs can read."""
    text = json.dumps(calibration_document(calibration), indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def load_calibration(path: str | Path) -> Calibration:
    """Read what `save_calibration` wrote; anything else is refused."""
    document = read_json(path, "a calibration file")
    try:
        return calibration_from(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a calibration file: missing or wrong {error}") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is not a calibration file: {error}") from error


def calibration_document(calibration: Calibration | None) -> dict[str, Any]:
    """The calibration as plain values; without one, a document of kind 'none'."""
    values = {"kind": "none"} if calibration is None else calibration.to_dict()
    return {"surefoot": __version__, "format": FORMAT, **values, "definitions": DEFINITIONS}


def calibration_from(document: dict[str, Any]) -> Calibration:
    """From plain values; ValueError, KeyError, TypeError or AttributeError if they are wrong."""
    if document.get("format", FORMAT) != FORMAT:
        raise ValueError(f"format {document['format']!r} is not one this version reads; allowed: {FORMAT}")
    readers = {calibrator.kind: calibrator.read for calibrator in CALIBRATORS}
    kind = document.get("kind")
    if kind not in readers:
        raise ValueError(f"kind is {kind!r}; allowed: {', '.join(readers)}")
    return readers[kind](document)


__all__ = [
    "CALIBRATORS",
    "DEFINITIONS",
    "FORMAT",
    "Calibration",
    "Calibrator",
    "Evidence",
    "calibration_document",
    "calibration_from",
    "fit_calibration",
    "load_calibration",
    "save_calibration",
]
