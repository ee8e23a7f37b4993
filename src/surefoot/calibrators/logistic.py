"""Exact fits of logistic models: Newton's method with conjugate gradients, for any number of parameters.

Arrays of rows are (classes, n), so that what is computed for each row is computed for all rows at once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from surefoot.predictions.outcomes import Array

EXACT = 1e-9  # of the largest derivative, in units of the mean NLL's
ROUGH = 1e-5  # for a cross-validation, which only compares held-out NLLs
STEPS = 200
HALVINGS = 40
SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease
ROUNDING = 1e-14  # of the objective


class Design(Protocol):
    """Scores (classes, n) that are linear in the parameters."""

    @property
    def features(self) -> Array: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def scores(self, parameters: Array, out: Array) -> Array: ...

    def adjoint(self, rows: Array) -> Array: ...

    def squared_adjoint(self, rows: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class Full:
    """scores = W f + b: parameters (classes, features + 1), the bias last."""

    features: Array  # (features, n)
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.classes, len(self.features) + 1

    @cached_property
    def _squares(self) -> Array:
        return np.square(self.features)

    def scores(self, parameters: Array, out: Array) -> Array:
        np.matmul(parameters[:, :-1], self.features, out=out)
        out += parameters[:, -1:]
        return out

    def adjoint(self, rows: Array) -> Array:
        return np.column_stack([rows @ self.features.T, rows.sum(axis=1)])

    def squared_adjoint(self, rows: Array) -> Array:
        return np.column_stack([rows @ self._squares.T, rows.sum(axis=1)])


@dataclass(frozen=True, eq=False)
class Separate:
    """scores_k = sum_m w_km f_km + b_k, features of each class; parameters (classes, features + 1)."""

    features: Array  # (features, classes, n)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.features.shape[1], len(self.features) + 1

    @cached_property
    def _squares(self) -> Array:
        return np.square(self.features)

    def scores(self, parameters: Array, out: Array) -> Array:
        np.multiply(self.features[0], parameters[:, :1], out=out)
        for feature, weights in zip(self.features[1:], parameters.T[1:], strict=False):
            out += feature * weights[:, None]
        out += parameters[:, -1:]
        return out

    def adjoint(self, rows: Array) -> Array:
        return np.column_stack([*np.einsum("mkn,kn->mk", self.features, rows), rows.sum(axis=1)])

    def squared_adjoint(self, rows: Array) -> Array:
        return np.column_stack([*np.einsum("mkn,kn->mk", self._squares, rows), rows.sum(axis=1)])


@dataclass(frozen=True, eq=False)
class Penalty:
    """strength * (mean of squares of `squared` + the variance of `pooled` over classes)."""

    strength: float
    squared: Array  # like the parameters: what the square of each counts
    pooled: Array | None = None  # (parameters,) of each class: 1 where its variance over classes counts

    def gradient(self, parameters: Array) -> Array:
        result = 2 * self.strength * self.squared * parameters
        if self.pooled is not None:
            spread = (parameters - parameters.mean(axis=0)) * self.pooled
            result += 2 * self.strength / len(parameters) * spread
        return result

    def diagonal(self) -> Array:
        result = 2 * self.strength * self.squared
        if self.pooled is not None:
            result = result + 2 * self.strength / len(self.squared) * self.pooled
        return result


@dataclass(frozen=True, eq=False)
class Problem:
    """sum of weights * NLL + penalty, for a softmax of exclusive classes or a sigmoid of each.

    Large arrays are written to an `out` that the caller has: to allocate one takes longer than to fill it.
    """

    design: Design
    targets: Array  # (classes, n), between 0 and 1
    weights: Array  # (1, n), or (classes, n) for sigmoids with ignored labels; they decide the units
    exclusive: bool
    penalty: Penalty | None = None

    def value(self, parameters: Array, out: Array) -> float:
        """The objective; `out` becomes the probabilities."""
        penalised = 0.0
        if self.penalty is not None:
            penalised = 0.5 * float(np.vdot(parameters, self.penalty.gradient(parameters)))
        return float(self.losses(parameters, out).sum()) + penalised

    def losses(self, parameters: Array, out: Array | None = None) -> Array:
        """The weighted NLL of each row (1, n), or of each label (classes, n); probabilities in `out`."""
        scores = self.design.scores(parameters, np.empty_like(self.targets) if out is None else out)
        if not self.exclusive:
            each, probabilities = softplus(scores)
            each -= self.targets * scores
            each *= self.weights
            scores[:] = probabilities
            return each
        scores -= scores.max(axis=0)
        true = np.einsum("kn,kn->n", self.targets, scores)
        np.exp(scores, out=scores)
        total = scores.sum(axis=0)
        scores /= total
        losses: Array = (np.log(total) - true) * self.weights
        return losses

    def gradient(self, parameters: Array, probabilities: Array, out: Array) -> Array:
        """Of the objective."""
        np.subtract(probabilities, self.targets, out=out)
        out *= self.weights
        result = self.design.adjoint(out)
        if self.penalty is not None:
            result += self.penalty.gradient(parameters)
        return result

    def curvature(self, probabilities: Array, weighted: Array, direction: Array, out: Array) -> Array:
        """The Hessian times a direction; `weighted` are p, or p (1 - p) of each label, times the weights."""
        moved = self.design.scores(direction, out)
        if self.exclusive:
            moved -= np.einsum("kn,kn->n", probabilities, moved)
        moved *= weighted
        result = self.design.adjoint(moved)
        if self.penalty is not None:
            result += self.penalty.gradient(direction)
        return result

    def diagonal(self, variances: Array) -> Array:
        """Of the Hessian; the variances are p (1 - p) times the weights."""
        result = self.design.squared_adjoint(variances)
        return result if self.penalty is None else result + self.penalty.diagonal()


def softplus(scores: Array) -> tuple[Array, Array]:
    """log(1 + exp(s)) and sigmoid(s), both from one exponential.

    >>> softplus(np.array([0.0, 800.0, -800.0]))
    (array([6.93147181e-01, 8.00000000e+02, 0.00000000e+00]), array([0.5, 1. , 0. ]))
    """
    small = np.abs(scores)
    np.negative(small, out=small)
    np.exp(small, out=small)
    probabilities = np.where(scores >= 0, 1, small)
    probabilities /= 1 + small
    np.log1p(small, out=small)
    small += np.maximum(scores, 0)
    return small, probabilities


@np.errstate(
    over="ignore", invalid="ignore"
)  # extreme logits have curvatures near 0: such steps are not made
def minimised(problem: Problem, start: Array, *, tolerance: float = EXACT) -> Array:
    """The parameters with the least value: a convex problem, so they are the best ones anywhere.

    Newton's steps, each solved by conjugate gradients and halved until the value falls enough. Where there is
    no minimum (labels that are separated perfectly), the end is where derivatives fall below the tolerance.
    """
    probabilities, *scratch = np.empty((3, *problem.targets.shape))
    at, value = start, problem.value(start, probabilities)
    for _ in range(STEPS):
        gradient = problem.gradient(at, probabilities, scratch[0])
        size = float(np.abs(gradient).max())
        if size <= tolerance:
            break
        step = _newton_step(problem, probabilities, gradient, min(0.1, np.sqrt(size)), scratch)
        slope = float(np.vdot(gradient, step))
        visible = -slope > ROUNDING * abs(value)  # else a shorter step is not worth trying
        for halving in range(HALVINGS if visible else 1):
            scale = 0.5**halving
            candidate = at + scale * step
            found = problem.value(candidate, probabilities)
            if found <= value + SUFFICIENT * scale * slope:
                break
        else:
            break  # rounding errors are larger than what is left to gain
        done = not found < value
        at, value = candidate, found
        if done:
            break
    return at


def _newton_step(
    problem: Problem, probabilities: Array, gradient: Array, accuracy: float, scratch: list[Array]
) -> Array:
    """-H^-1 g by conjugate gradients, preconditioned by H's diagonal, to a relative accuracy."""
    weighted, moved = scratch
    np.multiply(probabilities, problem.weights, out=weighted)
    np.subtract(1, probabilities, out=moved)
    moved *= weighted
    diagonal = problem.diagonal(moved)
    if not problem.exclusive:
        weighted[:] = moved
    inverse = 1 / np.maximum(diagonal, 1e-12 * max(float(diagonal.max()), 1e-300))
    step, residual = np.zeros_like(gradient), -gradient
    preconditioned = inverse * residual
    direction, product = preconditioned, float(np.vdot(residual, preconditioned))
    enough = accuracy**2 * product
    for _ in range(min(2 * gradient.size + 10, 250)):
        curved = problem.curvature(probabilities, weighted, direction, moved)
        bend = float(np.vdot(direction, curved))
        if not bend > 0:
            break
        ratio = product / bend
        longer, left = step + ratio * direction, residual - ratio * curved
        if not (np.isfinite(longer).all() and np.isfinite(left).all()):
            break
        step, residual = longer, left
        preconditioned = inverse * residual
        following = float(np.vdot(residual, preconditioned))
        if following <= enough:
            break
        direction, product = preconditioned + following / product * direction, following
    return step if step.any() else -inverse * gradient
