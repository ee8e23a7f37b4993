"""What metrics add up: functions of the facts of each decision."""

import math

from surefoot.predictions.outcomes import Array, Bools, Outcomes

CLIP = (0.001, 0.999)  # the paper's bounds on p(true), so that one confident mistake is not everything
LOG_CLIP = (math.log(CLIP[0]), math.log(CLIP[1]))
SURE = 0.99  # the paper's threshold of E99


def loss(decisions: Outcomes) -> Array:
    """-log p(true)."""
    return -decisions.log_p_true


def clipped_loss(decisions: Outcomes) -> Array:
    """-log p(true), with p(true) clipped."""
    clipped: Array = decisions.log_p_true.clip(*LOG_CLIP)
    return -clipped


def squared_error(decisions: Outcomes) -> Array:
    """Mean over classes of (p - onehot)^2."""
    return decisions.squared_error


def entropy_of(decisions: Outcomes) -> Array:
    """-sum p log p."""
    return decisions.entropy


def wrong(decisions: Outcomes) -> Bools:
    """Whether the predicted class is not the label."""
    return ~decisions.correct


def is_above(decisions: Outcomes, threshold: float) -> Bools:
    """Whether the confidence is above the threshold."""
    return decisions.confidence > threshold


def is_wrong_above(decisions: Outcomes, threshold: float) -> Bools:
    """Whether it is, and the predicted class is not the label."""
    return is_above(decisions, threshold) & ~decisions.correct
