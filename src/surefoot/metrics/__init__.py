"""Every metric: a function on Predictions, and a line in METRICS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from surefoot.errors import InputError
from surefoot.intervals import Proportion
from surefoot.metrics.calibration import debiased_l2, ece, ece_floor, ece_floor_95, signed_ece, smooth_ece
from surefoot.metrics.proper import brier, brier_true_class, entropy, nll, nll_minus_entropy, nll_unclipped
from surefoot.metrics.selective import (
    augrc,
    aurc,
    coverage_at_1,
    coverage_at_5,
    coverage_at_risk,
    e99,
    e99_count,
    error_above,
    error_above_count,
    label_error,
    label_error_count,
    mean_average_precision,
    risk_at_80,
    risk_at_90,
    risk_at_coverage,
    risk_at_coverage_count,
)
from surefoot.predictions.outcomes import HasOutcomes
from surefoot.registry import Registry

Better = Literal["lower", "higher", "zero", "neither"]

LI = "Li & Hoiem, CVPR 2020"
UNIT = (0.0, 1.0)
INFINITY = float("inf")


@dataclass(frozen=True)
class Metric:
    """A number about predictions; `count` gives it as k of n where it is a proportion."""

    name: str
    title: str
    formula: str
    reference: str
    function: Callable[[HasOutcomes], float]
    better: Better = "lower"
    bounds: tuple[float, float] = UNIT
    count: Callable[[HasOutcomes], Proportion | None] | None = None
    resampled: bool = True  # False: already about resampling, so it gets no interval of its own


# fmt: off
METRICS: Registry[Metric] = Registry("metric", (
    Metric("nll", "NLL", "mean -log clip(p_true, 0.001, 0.999)", LI, nll, bounds=(0, INFINITY)),
    Metric("nll_unclipped", "NLL, unclipped", "mean -log p_true", "Good 1952", nll_unclipped, bounds=(0, INFINITY)),
    Metric("brier", "Brier", "sqrt mean over samples and classes (p - onehot)^2", f"{LI} (tables)", brier),
    Metric("brier_true_class", "Brier, true class", "sqrt mean (1 - p_true)^2", f"{LI} (formula)", brier_true_class),
    Metric("label_error", "Label error", "1 - accuracy; many labels: 1 - VOC mean AP", LI, label_error, count=label_error_count),
    Metric("ece", "ECE", "sum n_b/n |acc_b - conf_b|, 10 equal-mass bins", "Guo et al., ICML 2017", ece),
    Metric("e99", "E99", "error among confidence > 0.99", LI, e99, count=e99_count),
    Metric("entropy", "Entropy", "mean -sum p log p", LI, entropy, "neither", bounds=(0, INFINITY)),
    Metric("nll_minus_entropy", "NLL - entropy", "nll - entropy; > 0 is overconfident", LI, nll_minus_entropy, "zero", bounds=(-INFINITY, INFINITY)),
    Metric("signed_ece", "Signed ECE", "mean confidence - accuracy; > 0 is overconfident", "Guo et al., ICML 2017", signed_ece, "zero", bounds=(-1, 1)),
    Metric("ece_floor", "ECE if calibrated", "mean ECE with labels drawn from the confidences", "Vaicenavicius et al., AISTATS 2019", ece_floor, "neither", resampled=False),
    Metric("ece_floor_95", "ECE if calibrated, 95%", "95th percentile of the same", "Vaicenavicius et al., AISTATS 2019", ece_floor_95, "neither", resampled=False),
    Metric("debiased_l2", "Debiased L2 error", "sqrt sum n_b/n ((conf_b - acc_b)^2 - acc_b(1-acc_b)/(n_b-1))", "Kumar et al., NeurIPS 2019", debiased_l2),
    Metric("smooth_ece", "Smooth ECE", "the width s at which integral |r_s| = s", "Blasiok & Nakkiran, ICLR 2024", smooth_ece),
    Metric("aurc", "AURC", "1/n sum_i errors(i most confident)/i", "Geifman & El-Yaniv, NeurIPS 2017", aurc),
    Metric("augrc", "AUGRC", "integral over coverage of errors kept / n", "Traub et al., NeurIPS 2024", augrc),
    Metric("risk_at_80", "Risk at 80% coverage", "error among the most confident 80%", "El-Yaniv & Wiener, JMLR 2010", risk_at_80, count=partial(risk_at_coverage_count, coverage=0.8)),
    Metric("risk_at_90", "Risk at 90% coverage", "error among the most confident 90%", "El-Yaniv & Wiener, JMLR 2010", risk_at_90, count=partial(risk_at_coverage_count, coverage=0.9)),
    Metric("coverage_at_1", "Coverage at 1% risk", "largest share answered at error <= 0.01", "Geifman & El-Yaniv, NeurIPS 2017", coverage_at_1, "higher"),
    Metric("coverage_at_5", "Coverage at 5% risk", "largest share answered at error <= 0.05", "Geifman & El-Yaniv, NeurIPS 2017", coverage_at_5, "higher"),
))
# fmt: on


def error_above_metric(threshold: float) -> Metric:
    """The error rate above a confidence threshold, as a metric."""
    if not 0 <= threshold < 1:
        raise InputError(f"confidence threshold {threshold:g}; allowed: at least 0 and below 1")
    return Metric(
        name=f"error_above_{threshold!r}",
        title=f"Error above {threshold!r}",
        formula=f"error among confidence > {threshold!r}",
        reference="Li & Hoiem, CVPR 2020, for other thresholds",
        function=partial(error_above, threshold=threshold),
        count=partial(error_above_count, threshold=threshold),
    )


__all__ = [
    "METRICS",
    "Metric",
    "augrc",
    "aurc",
    "brier",
    "brier_true_class",
    "coverage_at_1",
    "coverage_at_5",
    "coverage_at_risk",
    "debiased_l2",
    "e99",
    "e99_count",
    "ece",
    "ece_floor",
    "ece_floor_95",
    "entropy",
    "error_above",
    "error_above_count",
    "error_above_metric",
    "label_error",
    "label_error_count",
    "mean_average_precision",
    "nll",
    "nll_minus_entropy",
    "nll_unclipped",
    "risk_at_80",
    "risk_at_90",
    "risk_at_coverage",
    "signed_ece",
    "smooth_ece",
]
