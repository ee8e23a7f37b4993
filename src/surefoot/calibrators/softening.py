"""Temperature scaling that only ever makes a model less sure."""

from dataclasses import replace

from surefoot.calibrators.temperature import Temperature, fit_temperature
from surefoot.predictions import Predictions


def fit_softening(val: Predictions) -> Temperature:
    """The T of `fit_temperature` where it is 1 or more; else 1, with the T that was declined.

    T = max(1, argmin_T NLL(z / T)). Li & Hoiem, CVPR 2020, for networks distilled from an ensemble, which
    may be underconfident on familiar data: to sharpen them would do harm on unfamiliar data.

    >>> fitted = fit_softening(Predictions.from_logits([[0.1, 0.0]] * 4, [0, 0, 0, 1]))
    >>> fitted.temperature, fitted.declined
    (1.0, 0.0910239...)
    """
    return softened(fit_temperature(val))


def softened(fitted: Temperature) -> Temperature:
    """A fitted T where it is 1 or more; else 1, with the T that was declined."""
    if fitted.temperature >= 1:
        return fitted
    return replace(fitted, temperature=1.0, declined=fitted.temperature)
