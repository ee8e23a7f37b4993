"""Every metric: an entry in METRICS, which declares all that is read of it.

Its function is given Predictions, or the Outcomes of a resample, and may read only their `outcomes`.
"""

from functools import partial

from surefoot.errors import InputError
from surefoot.metrics.calibration import (
    debiased_l2,
    debiased_squared_of,
    ece,
    ece_floor,
    ece_floor_95,
    ece_of,
    ece_range,
    known_at_bin_edges,
    overconfidence,
    signed_ece,
    signed_of,
    smooth_ece,
    smooth_eces,
    streamed_smooth_ece,
)
from surefoot.metrics.metric import IDENTITY, ROOT, Better, Exactly, Metric, Transform
from surefoot.metrics.proper import (
    brier,
    brier_true_class,
    entropy,
    loss_minus_entropy,
    nll,
    nll_minus_entropy,
    nll_unclipped,
    true_class_error,
)
from surefoot.metrics.selective import (
    augrc,
    augrc_of,
    aurc,
    aurc_of,
    coverage_at_1,
    coverage_at_5,
    coverage_at_risk,
    coverage_of,
    coverage_range,
    e99,
    e99_count,
    error_above,
    error_above_count,
    grows_with_errors,
    label_error,
    label_error_count,
    mean_average_precision,
    precision_error_of,
    risk_at_80,
    risk_at_90,
    risk_at_coverage,
    risk_at_coverage_count,
    risk_of,
    streamed_precision_error,
)
from surefoot.predictions.arguments import checked
from surefoot.predictions.outcomes import (
    SURE,
    clipped_loss,
    entropy_of,
    is_above,
    is_wrong_above,
    loss,
    squared_error,
    wrong,
)
from surefoot.registry import Registry

INFINITY = float("inf")
LI = "Li & Hoiem, CVPR 2020"
GUO = "Guo et al., ICML 2017"
VAICENAVICIUS = "Vaicenavicius et al., AISTATS 2019"
GEIFMAN = "Geifman & El-Yaniv, NeurIPS 2017"
EL_YANIV = "El-Yaniv & Wiener, JMLR 2010"

# fmt: off
METRICS: Registry[Metric] = Registry("metric", (
    Metric("nll", "NLL", "mean -log clip(p_true, 0.001, 0.999)", LI, nll, bounds=(0, INFINITY), numerator=clipped_loss),
    Metric("nll_unclipped", "NLL, unclipped", "mean -log p_true", "Good 1952", nll_unclipped, bounds=(0, INFINITY), numerator=loss),
    Metric("brier", "Brier", "sqrt mean over samples and classes (p - onehot)^2", f"{LI} (tables)", brier, numerator=squared_error, transform=ROOT),
    Metric("brier_true_class", "Brier, true class", "sqrt mean (1 - p_true)^2", f"{LI} (formula)", brier_true_class, numerator=true_class_error, transform=ROOT),
    Metric("label_error", "Label error", "1 - accuracy; many labels: 1 - VOC mean AP", LI, label_error, numerator=wrong, count=label_error_count,
        many_labels=Metric("label_error", "Label error", "1 - VOC mean AP", LI, label_error, curve=precision_error_of, by_score=True, streamed=streamed_precision_error)),
    Metric("ece", "ECE", "sum n_b/n |acc_b - conf_b|, 10 equal-mass bins", GUO, ece, curve=ece_of, cells_range=ece_range),
    Metric("e99", "E99", "error among confidence > 0.99", LI, e99, count=e99_count,
        numerator=partial(is_wrong_above, threshold=SURE), denominator=partial(is_above, threshold=SURE)),
    Metric("entropy", "Entropy", "mean -sum p log p", LI, entropy, "neither", bounds=(0, INFINITY), numerator=entropy_of),
    Metric("nll_minus_entropy", "NLL - entropy", "nll - entropy; > 0 is overconfident", LI, nll_minus_entropy, "zero", bounds=(-INFINITY, INFINITY), numerator=loss_minus_entropy),
    Metric("signed_ece", "Signed ECE", "mean confidence - accuracy; > 0 is overconfident", GUO, signed_ece, "zero", bounds=(-1, 1), numerator=overconfidence,
        many_labels=Metric("signed_ece", "Signed ECE", "mean confidence - accuracy; > 0 is overconfident", GUO, signed_ece, "zero", bounds=(-1, 1), curve=signed_of, streamed=Exactly(signed_ece))),
    Metric("ece_floor", "ECE if calibrated", "mean ECE with labels drawn from the confidences", VAICENAVICIUS, ece_floor, "neither", resampled=False, streamed=Exactly(ece_floor)),
    Metric("ece_floor_95", "ECE if calibrated, 95%", "95th percentile of the same", VAICENAVICIUS, ece_floor_95, "neither", resampled=False, streamed=Exactly(ece_floor_95)),
    Metric("debiased_l2", "Debiased L2 error", "sqrt sum n_b/n ((conf_b - acc_b)^2 - acc_b(1-acc_b)/(n_b-1))", "Kumar et al., NeurIPS 2019", debiased_l2,
        curve=debiased_squared_of, transform=ROOT, cells_range=known_at_bin_edges),
    Metric("smooth_ece", "Smooth ECE", "the width s at which integral |r_s| = s", "Blasiok & Nakkiran, ICLR 2024", smooth_ece, of_residuals=smooth_eces, streamed=streamed_smooth_ece),
    Metric("aurc", "AURC", "1/n sum_i errors(i most confident)/i", GEIFMAN, aurc, curve=aurc_of, pooled=True, cells_range=grows_with_errors),
    Metric("augrc", "AUGRC", "integral over coverage of errors accepted / n", "Traub et al., NeurIPS 2024", augrc, curve=augrc_of, pooled=True, cells_range=grows_with_errors),
    Metric("risk_at_80", "Risk at 80% coverage", "error among the most confident 80%", EL_YANIV, risk_at_80, count=partial(risk_at_coverage_count, coverage=0.8),
        curve=partial(risk_of, coverage=0.8), pooled=True, cells_range=grows_with_errors),
    Metric("risk_at_90", "Risk at 90% coverage", "error among the most confident 90%", EL_YANIV, risk_at_90, count=partial(risk_at_coverage_count, coverage=0.9),
        curve=partial(risk_of, coverage=0.9), pooled=True, cells_range=grows_with_errors),
    Metric("coverage_at_1", "Coverage at 1% risk", "largest share accepted at error <= 0.01", GEIFMAN, coverage_at_1, "higher",
        curve=partial(coverage_of, risk=0.01), pooled=True, cells_range=partial(coverage_range, risk=0.01)),
    Metric("coverage_at_5", "Coverage at 5% risk", "largest share accepted at error <= 0.05", GEIFMAN, coverage_at_5, "higher",
        curve=partial(coverage_of, risk=0.05), pooled=True, cells_range=partial(coverage_range, risk=0.05)),
))
# fmt: on


@checked
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
        numerator=partial(is_wrong_above, threshold=threshold),
        denominator=partial(is_above, threshold=threshold),
    )


__all__ = [
    "IDENTITY",
    "METRICS",
    "ROOT",
    "Better",
    "Metric",
    "Transform",
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


def __dir__() -> list[str]:
    return __all__
