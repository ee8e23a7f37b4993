"""Exact fits of logistic models: Newton's method with conjugate gradients, for any number of parameters.

Arrays of rows are (classes, n), so that what is computed for each row is computed for all rows at once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from surefoot.predictions.logits import spans
from surefoot.predictions.outcomes import Array

EXACT = 1e-9  # of the largest derivative, in units of the mean NLL's
ROUGH = 1e-5  # for a cross-validation, which only compares held-out NLLs
STEPS = 200
HALVINGS = 40
SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease
ROUNDING = 1e-14  # of the objective
PRODUCTS_OF_A_THREAD = 2**18  # for more OpenBLAS starts threads, which wait longer than they compute
FEWEST_ROWS = 256


@dataclass(frozen=True, eq=False)
class Design(ABC):
    """Scores (classes, n) that are linear in the parameters, and sums of rows over their features."""

    features: Array  # (features, n)
    classes: int

    @cached_property
    def single(self) -> Self:
        """In float32, where the squares of features neither overflow nor vanish."""
        size = float(np.abs(self.features).max(initial=0.0))
        return replace(self, features=self.features.astype(np.float32)) if 1e-15 < size < 1e15 else self

    @cached_property
    def squares(self) -> Self:
        """Of the features."""
        return replace(self, features=np.square(self.features))

    @abstractmethod
    def start(self) -> Array:
        """Parameters with which scores are the features."""

    @abstractmethod
    def scores(self, parameters: Array, out: Array) -> Array:
        """In `out`."""

    @abstractmethod
    def adjoint(self, rows: Array) -> Array:
        """The derivative of a sum of rows times scores, like the parameters."""


class Full(Design):
    """scores = W f, the last feature 1: parameters (classes, features), the bias last."""

    def start(self) -> Array:
        return np.eye(self.classes, len(self.features))

    @cached_property
    def _parts(self) -> list[slice]:
        """Rows whose product with parameters is too small for threads, where these would be many rows."""
        features, n = self.features.shape
        rows = PRODUCTS_OF_A_THREAD // (self.classes * features)
        return spans(n, rows if rows >= FEWEST_ROWS else max(1, n))

    def scores(self, parameters: Array, out: Array) -> Array:
        for part in self._parts:
            np.matmul(parameters, self.features[:, part], out=out[:, part])
        return out

    def adjoint(self, rows: Array) -> Array:
        result = np.zeros((self.classes, len(self.features)))
        for part in self._parts:
            result += rows[:, part] @ self.features[:, part].T
        return result


class Diagonal(Design):
    """scores_k = w_k f_k + b_k: parameters (classes, 2)."""

    def start(self) -> Array:
        return np.tile([1.0, 0.0], (self.classes, 1))

    def scores(self, parameters: Array, out: Array) -> Array:
        np.multiply(self.features, parameters[:, :1], out=out)
        out += parameters[:, 1:]
        return out

    def adjoint(self, rows: Array) -> Array:
        return np.stack([np.vecdot(self.features, rows), rows.sum(axis=1)], axis=1, dtype=np.float64)


def with_bias(features: Array) -> Array:
    """The features (features, n) and a last one that is 1."""
    return np.concatenate([features, np.ones((1, features.shape[1]))])


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
        """The Hessian times a direction; `weighted` are p, or p (1 - p) of each label, times the weights.

        In the precision of `out`: Newton's steps are exact enough in float32, which takes half the time.
        """
        moved = self.design.single.scores(direction.astype(out.dtype), out)
        if self.exclusive:
            moved -= np.einsum("kn,kn->n", probabilities, moved)
        moved *= weighted
        result = self.design.single.adjoint(moved)
        if self.penalty is not None:
            result += self.penalty.gradient(direction)
        return result

    def diagonal(self, variances: Array) -> Array:
        """Of the Hessian; the variances are p (1 - p) times the weights."""
        result = self.design.single.squares.adjoint(variances)
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
    probabilities, differences = np.empty((2, *problem.targets.shape))
    scratch = list(np.empty((2, *problem.targets.shape), problem.design.single.features.dtype))
    at, value = start, problem.value(start, probabilities)
    for _ in range(STEPS):
        gradient = problem.gradient(at, probabilities, differences)
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
    probabilities = probabilities.astype(weighted.dtype, copy=False)
    np.multiply(probabilities, problem.weights, out=weighted, casting="same_kind")
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
