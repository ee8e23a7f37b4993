"""Calibrators: each is fitted on validation data and gives a Calibration, a function on Predictions.

Importing this package does not import scipy: the fit functions are imported when they are called.
"""

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot import __version__
from surefoot.arguments import checked
from surefoot.calibrators.calibration import (
    SHARED,
    Calibration,
    Evidence,
    fit_without_zeros,
    naming_classes,
    positive,
)
from surefoot.calibrators.options import BINS, BUDGET, REFERENCE, REGULARISATION, WEIGHTS, Option
from surefoot.errors import InputError, refuse_unknown
from surefoot.io import read_json, replacing
from surefoot.metrics import ece, nll_unclipped
from surefoot.predictions.classes import class_names_from
from surefoot.progress import Progress, progress_of
from surefoot.registry import Registry

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from surefoot.predictions.outcomes import Array, Bools
    from surefoot.predictions.predictions import Predictions
    from surefoot.predictions.scanned import ScannedPredictions

FORMAT = 1
LOGITS_HELD_OUT = 2**20  # above, the effect on rows left out is not computed: the fit has enough rows
DEFINITIONS = {
    "temperature": "calibrated logits = logits / temperature; several members are averaged first",
    "member-temperatures": "each member's logits are divided by its temperature, then probabilities averaged",
    "temperature-before-averaging": "the logits of each member, or of each sample of a Bayesian network, are "
    "divided by temperature, then probabilities averaged",
    "declined": "a fitted temperature that was not used, as it is below 1, its interval spans orders of "
    "magnitude or it raises the ECE, of probabilities with zeros, to ece_declined; the interval is its own",
    "budget": "the largest temperature whose nll is at most (1 + budget) times the lowest; for 'surplus' "
    "at most nll_limit, the lowest nll of a reference model on the same rows",
    "novelty": "calibrated logits = logits / (t0 + t1 * novelty), novelty in [0, 1]; members averaged first",
    "vector": "calibrated logits = weights * (logits - their mean) + bias; for many labels without the mean",
    "matrix": "calibrated logits = weights @ (logits - their mean) + bias; members averaged first",
    "dirichlet": "calibrated logits = weights @ log_softmax(logits) + bias; members averaged first",
    "platt": "log odds of each class against all others = slope * log odds + intercept; two classes have one "
    "curve, that of class 1; the probabilities of more are divided by their sum",
    "beta": "log odds of each class = slope_above * log p - slope_below * log(1 - p) + intercept; as platt",
    "isotonic": "the probability of each class from its log odds, linear between the points; as platt",
    "histogram": "as isotonic; the points are the two ends of each bin",
    "held_out": "each row calibrated by a fit without its fold, five folds; groups are not divided",
    "lowest_probability": "what a probability of exactly 0 is read as before anything else: half the smallest "
    "positive one of the data that was fitted on; only where that data has zeros",
    "class_names": "the classes in the order of the numbers; only where the data that was fitted on names them",
    "interval": "95%, from the sandwich variance of log T, clustered by group where groups were given",
    "nll": "mean of -log p_true, unclipped",
    "ece": "10 equal-mass bins by rank of confidence; tied rows count with their tie's mean accuracy",
}


@checked
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
    options: tuple[Option, ...] = ()  # the keyword arguments that `fit` takes
    one_label_only: bool = False  # whether it needs classes that exclude each other
    one_model: bool = True  # whether the logits of one model are enough: no novelty, no members

    @property
    def option_names(self) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(option.name for option in self.options)

    def fitted(self, val: "Predictions", **options: Any) -> Calibration:
        """`fit`, where probabilities may be exactly 0; the calibration knows the names of the classes."""
        refuse_unknown(f"option of method {self.name}:", options, self.option_names)
        for option in self.options:
            options.setdefault(option.name, option.default)
            option.check(options[option.name])
        return naming_classes(partial(fit_without_zeros, self.fit))(val, **options)


def _later(path: str) -> Callable[..., Any]:
    """A function of a module of this package, which is imported when it is called."""
    module, _, name = path.partition(":")
    return lambda given, **options: attrgetter(name)(import_module(f"surefoot.calibrators.{module}"))(
        given, **options
    )


# fmt: off
CALIBRATORS: Registry[Calibrator] = Registry("method", (
    Calibrator("temperature", "One temperature", "softmax(z / T), members averaged first", "Guo et al., ICML 2017",
               kind="temperature", fit=_later("temperature:fit_temperature"),
               read=_later("temperature:Temperature.from_dict"), options=(WEIGHTS,)),
    Calibrator("member-temperatures", "A temperature per member", "mean over members of softmax(z_m / T_m)",
               "Li & Hoiem, CVPR 2020",
               kind="member-temperatures", fit=_later("temperature:fit_member_temperatures"),
               read=_later("temperature:MemberTemperatures.from_dict"), one_model=False),
    Calibrator("temperature-before-averaging", "One temperature before averaging",
               "mean over members of softmax(z_m / T), one T", "Li & Hoiem, CVPR 2020",
               kind="temperature-before-averaging",
               fit=_later("before_averaging:fit_temperature_before_averaging"),
               read=_later("before_averaging:TemperatureBeforeAveraging.from_dict"), one_model=False),
    Calibrator("softening", "One temperature, of 1 or more", "softmax(z / max(1, T)), members averaged first",
               "Li & Hoiem, CVPR 2020",
               kind="temperature", fit=_later("temperature:fit_temperature_at_least_one"),
               read=_later("temperature:Temperature.from_dict"), options=(WEIGHTS,)),
    Calibrator("budget", "Risk-budget temperature", "largest T with NLL(z / T) <= (1 + budget) min NLL",
               "this package",
               kind="budget", fit=_later("budget:fit_budget_temperature"),
               read=_later("budget:BudgetTemperature.from_dict"),
               options=(BUDGET, REFERENCE)),
    Calibrator("novelty", "Novelty scaling", "softmax(z / (T0 + T1 novelty)), members averaged first",
               "Li & Hoiem, CVPR 2020",
               kind="novelty", fit=_later("novelty:fit_novelty_scaling"),
               read=_later("novelty:NoveltyScaling.from_dict"), one_model=False),
    Calibrator("vector", "Vector scaling", "softmax(w z + b), a weight and a bias for each class",
               "Guo et al., ICML 2017",
               kind="vector", fit=_later("affine:fit_vector_scaling"),
               read=_later("affine:VectorScaling.from_dict"), options=(REGULARISATION, WEIGHTS)),
    Calibrator("matrix", "Matrix scaling", "softmax(W z + b), regularised off the diagonal",
               "Kull et al., NeurIPS 2019",
               kind="matrix", fit=_later("affine:fit_matrix_scaling"),
               read=_later("affine:MatrixScaling.from_dict"), options=(REGULARISATION, WEIGHTS), one_label_only=True),
    Calibrator("dirichlet", "Dirichlet calibration", "softmax(W log p + b), regularised off the diagonal",
               "Kull et al., NeurIPS 2019",
               kind="dirichlet", fit=_later("affine:fit_dirichlet_scaling"),
               read=_later("affine:DirichletScaling.from_dict"), options=(REGULARISATION, WEIGHTS), one_label_only=True),
    Calibrator("platt", "Platt scaling", "sigmoid(a log(p / (1 - p)) + c) of each class, divided by the sum",
               "Platt, 1999",
               kind="platt", fit=_later("one_vs_rest:fit_platt_scaling"),
               read=_later("one_vs_rest:PlattScaling.from_dict"), options=(WEIGHTS,)),
    Calibrator("beta", "Beta calibration", "sigmoid(a log p - b log(1 - p) + c) of each class, divided by the sum",
               "Kull et al., AISTATS 2017",
               kind="beta", fit=_later("one_vs_rest:fit_beta_calibration"),
               read=_later("one_vs_rest:BetaCalibration.from_dict"), options=(WEIGHTS,)),
    Calibrator("isotonic", "Isotonic regression", "a non-decreasing curve of each class's p, divided by the sum",
               "Zadrozny & Elkan, KDD 2002",
               kind="isotonic", fit=_later("pieces:fit_isotonic_calibration"),
               read=_later("pieces:IsotonicCalibration.from_dict"), options=(WEIGHTS,)),
    Calibrator("histogram", "Histogram binning", "the share of each class in bins of equal mass, divided by the sum",
               "Zadrozny & Elkan, ICML 2001",
               kind="histogram", fit=_later("pieces:fit_histogram_calibration"),
               read=_later("pieces:HistogramCalibration.from_dict"), options=(BINS, WEIGHTS)),
))
# fmt: on


@checked
def fit_calibration(
    name: str,
    val: "Predictions | ScannedPredictions",
    *,
    weights: "ArrayLike | str | None" = None,
    force: bool = False,
    progress: bool | Progress = False,
    **options: Any,
) -> Calibration:
    """Fit the named calibrator on `val`, in memory or scanned, with its effect on `val` as evidence.

    `weights` are those of the rows, or the name of the column that has them. Options are those of the
    calibrator: for "budget" the `budget`, a number or "surplus", and for "surplus" the `reference`, the plain
    model's predictions of the same rows; for "vector", "matrix" and "dirichlet" the `regularisation`, chosen
    by cross-validation by default; for "histogram" the number of `bins`.

    A T whose interval spans orders of magnitude is declined, and T = 1 used instead, unless `force`.
    `progress` shows a bar.

    >>> from surefoot import Predictions
    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> calibration = fit_calibration("temperature", val)
    >>> calibration.lines()
    ['T = 1.8205 (95% interval 1.357 to 2.4423), n = 200']
    >>> calibration(val).probs()[0].round(4)
    array([0.75, 0.25])
    """
    from surefoot.predictions.scanned import ScannedPredictions

    given = [*options, *(() if weights is None else ("weights",))]
    calibrator = CALIBRATORS.named(name)
    refuse_unknown(f"option of method {name}:", given, calibrator.option_names)
    shown = progress_of(progress)
    if isinstance(val, ScannedPredictions):
        from surefoot.calibrators.streamed import fit_files

        return fit_files(name, val, given, force=force, shown=shown)
    with shown.busy("fitting"):
        if weights is not None:
            from surefoot.calibrators.temperature import weighted_rows

            of_rows = _column_of_weights(val, weights) if isinstance(weights, str) else weights
            val, options["weights"] = weighted_rows(val, of_rows)
        if force:
            fitted = _with_effect(calibrator.fitted(val, **options), val)
        else:
            fitted = cautious_fit(calibrator, val, **options)
        return replace(fitted, evidence=_with_held_out(calibrator, fitted, val, options))


def cautious_fit(calibrator: Calibrator, val: "Predictions", **options: Any) -> Calibration:
    """The fit with its effect on `val`; T = 1 where the data do not support the fitted T."""
    fitted = _with_effect(calibrator.fitted(val, **options).cautious(), val)
    if options.get("weights") is not None:  # the ECE counts every row once
        return fitted
    checked_fit = fitted.cautious()
    if getattr(checked_fit, "ece_declined", None) is None or checked_fit.evidence is None:
        return checked_fit
    return replace(checked_fit, evidence=replace(checked_fit.evidence, remarks=_better_remarks(val)))


def _better_remarks(val: "Predictions") -> tuple[str, ...]:
    """Whether isotonic calibration is better than none, on rows left out of its fit."""
    held_out = _without_folds(CALIBRATORS.named("isotonic"), val, {})
    if held_out is None:
        return ()
    nlls, eces = ([metric(each) for each in (val, held_out)] for metric in (nll_unclipped, ece))
    if nlls[1] >= nlls[0] or eces[1] >= eces[0]:
        return ()
    return (
        f"on rows left out of the fit, the method 'isotonic' lowers the NLL from {nlls[0]:.4g} to "
        f"{nlls[1]:.4g} and the ECE from {eces[0]:.4g} to {eces[1]:.4g}",
    )


def _with_effect(fitted: Calibration, val: "Predictions") -> Calibration:
    after = fitted(val)
    return replace(fitted, evidence=Evidence(nll_unclipped(val), nll_unclipped(after), ece(val), ece(after)))


def _with_held_out(
    calibrator: Calibrator, fitted: Calibration, val: "Predictions", options: dict[str, Any]
) -> Evidence:
    """The evidence with the effect on rows left out, where it takes little time, and with remarks on it and on the data."""
    from surefoot.calibrators.advice import data_remarks, effect_remarks

    evidence, held_out = fitted.evidence, None
    assert evidence is not None
    is_declined = getattr(fitted, "declined", None) is not None
    if val.logits.size <= LOGITS_HELD_OUT and not is_declined and options.get("reference") is None:
        chosen = dict(options)
        if REGULARISATION in calibrator.options:
            chosen["regularisation"] = getattr(fitted, "regularisation", None)
        held_out = _without_folds(calibrator, val, chosen)
    remarks = [*evidence.remarks, *data_remarks(val)]
    if "weights" in options:
        remarks += ["the rows were weighted in the fit; its effect on NLL and ECE counts every row once"]
    if held_out is not None:
        evidence = replace(evidence, nll_held_out=nll_unclipped(held_out), ece_held_out=ece(held_out))
        remarks += [] if "weights" in options else effect_remarks(val, held_out)
    return replace(evidence, remarks=tuple(remarks))


def _without_folds(
    calibrator: Calibrator, val: "Predictions", options: dict[str, Any]
) -> "Predictions | None":
    """Every row calibrated by a fit without its fold; None where some fit has too few rows."""
    from surefoot.calibrators.folds import out_of_fold

    def fit(rows: "Bools") -> Calibration:
        weights = {"weights": options["weights"][rows]} if "weights" in options else {}
        return calibrator.fitted(val.take(rows), **(options | weights))

    return out_of_fold(val, fit)


def _column_of_weights(val: "Predictions", name: str) -> "Array":
    """The numbers of an attribute column."""
    import pyarrow as pa

    column = val.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"column {name!r} of weights has type {column.type}; allowed: numbers")
    numbers: Array = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


@checked
def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write the calibration as JSON, which people and programs can read.

    >>> save_calibration(calibration, "calibration.json")  # doctest: +SKIP
    """
    text = json.dumps(calibration_document(calibration), indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@checked
def load_calibration(path: str | Path) -> Calibration:
    """Read what `save_calibration` wrote; anything else is refused.

    >>> calibrated = load_calibration("calibration.json")(test)  # doctest: +SKIP
    """
    document = read_json(path, "a calibration file")
    try:
        return calibration_from(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a calibration file: missing or wrong {error}") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is not a calibration file: {error}") from error


def calibration_document(calibration: Calibration | None) -> dict[str, Any]:
    """The calibration as plain values; without one, a document of kind 'none'."""
    values: dict[str, Any] = {"kind": "none"} if calibration is None else calibration.to_dict()
    shared = {name: getattr(calibration, name, None) for name in SHARED}
    values |= {name: value for name, value in shared.items() if value is not None}
    return {"surefoot": __version__, "format": FORMAT, **values, "definitions": DEFINITIONS}


def calibration_from(document: dict[str, Any]) -> Calibration:
    """From plain values; ValueError, KeyError, TypeError or AttributeError if they are wrong."""
    if document.get("format", FORMAT) != FORMAT:
        raise ValueError(f"format {document['format']!r} is not one this version reads; allowed: {FORMAT}")
    readers = {calibrator.kind: calibrator.read for calibrator in CALIBRATORS}
    kind = document.get("kind")
    if kind not in readers:
        raise ValueError(f"kind is {kind!r}; allowed: {', '.join(readers)}")
    read = readers[kind](document)
    names = class_names_from(document)
    if names is not None and len(names) != read.classes:
        raise ValueError(f"{len(names)} class names for {read.classes} classes; the numbers must be equal")
    read = replace(read, class_names=names)
    if document.get("lowest_probability") is None:
        return read
    lowest = positive(document, "lowest_probability")
    if lowest >= 0.5:
        raise ValueError(f"lowest_probability is {lowest}; allowed: a number above 0 and below 0.5")
    return replace(read, lowest_probability=lowest)


__all__ = [
    "CALIBRATORS",
    "DEFINITIONS",
    "FORMAT",
    "Calibration",
    "Calibrator",
    "Evidence",
    "Option",
    "calibration_document",
    "calibration_from",
    "fit_calibration",
    "load_calibration",
    "save_calibration",
]
