"""Accuracy without labels, estimated from confidences and a labelled reference."""

from dataclasses import dataclass

import numpy as np

from surefoot.predictions.outcomes import Array

# On unfamiliar data accuracy fell 2 to 10 times as much as the mean confidence; of the factors 1, 2 and 3,
# this one has the lowest error there (benchmarks/results/monitor.md).
FALL_FACTOR = 3.0
DIFFERENCE = "difference of confidences"
SCALED = f"{DIFFERENCE}, a fall counted three times"


@dataclass(frozen=True, eq=False)
class Reference:
    """Confidences of reference rows that have a label, and whether each prediction is correct, 0 or 1."""

    confidence: Array
    correct: Array


def average_confidence(_: Reference, confidence: Array) -> float:
    """The mean confidence: the accuracy of a calibrated classifier.

    >>> average_confidence(Reference(np.ones(1), np.ones(1)), np.array([0.9, 0.7]))
    0.8
    """
    return float(confidence.mean())


def difference_of_confidences(reference: Reference, confidence: Array) -> float:
    """The reference's accuracy plus the change of the mean confidence (DoC; Guillory et al., ICCV 2021)."""
    return float(reference.correct.mean() + confidence.mean() - reference.confidence.mean())


def scaled_difference(reference: Reference, confidence: Array, factor: float = FALL_FACTOR) -> float:
    """The same, but a fall of the mean confidence counts `factor` times: accuracy falls more than confidence.

    >>> reference = Reference(np.array([0.9, 0.9]), np.array([1.0, 0.8]))
    >>> round(scaled_difference(reference, np.array([0.8])), 3)  # 0.9, less 3 times 0.1
    0.6
    """
    fall = float(reference.confidence.mean() - confidence.mean())
    return float(np.clip(reference.correct.mean() - scaled_fall(fall, factor), 0, 1))


def scaled_fall(fall: float, factor: float = FALL_FACTOR) -> float:
    """The fall of the accuracy by that of the mean confidence; a rise counts once."""
    return factor * fall if fall > 0 else fall


def thresholded_confidence(reference: Reference, confidence: Array) -> float:
    """The share of rows above the confidence that as many reference rows exceed as are correct (ATC).

    Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022.

    >>> reference = Reference(np.array([0.5, 0.6, 0.7, 0.8]), np.array([0.0, 1.0, 1.0, 1.0]))
    >>> thresholded_confidence(reference, np.array([0.4, 0.55, 0.65, 0.9]))  # above 0.5: three quarters
    0.75
    """
    wrong = round(float((1 - reference.correct).sum()))
    if not wrong:
        return 1.0
    threshold = np.sort(reference.confidence)[wrong - 1]
    return float((confidence > threshold).mean())


ESTIMATORS = {
    "average confidence": average_confidence,
    DIFFERENCE: difference_of_confidences,
    SCALED: scaled_difference,
    "thresholded confidence": thresholded_confidence,
}
