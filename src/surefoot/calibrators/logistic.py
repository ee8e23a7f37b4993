"""Exact fits of logistic models: Newton's method with conjugate gradients, for any number of parameters."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import expit, log_expit, softmax

from surefoot.predictions.outcomes import Array

EXACT = 1e-9  # of the largest derivative, in units of the mean NLL's
ROUGH = 1e-5  # for a cross-validation, which only compares held-out NLLs
STEPS = 200
HALVINGS = 40
SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease


class Design(Protocol):
    """Scores (n, classes) that are linear in the parameters."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def scores(self, parameters: Array) -> Array: ...

    def adjoint(self, rows: Array) -> Array: ...

    def squared_adjoint(self, rows: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class Full:
    """scores = W f + b: parameters (classes, features + 1), the bias last."""

    features: Array  # (n, features)
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.classes, self.features.shape[1] + 1

    @cached_property
    def _squares(self) -> Array:
        return np.square(self.features)

    def scores(self, parameters: Array) -> Array:
        return self.features @ parameters[:, :-1].T + parameters[:, -1]

    def adjoint(self, rows: Array) -> Array:
        return np.column_stack([rows.T @ self.features, rows.sum(axis=0)])

    def squared_adjoint(self, rows: Array) -> Array:
        return np.column_stack([rows.T @ self._squares, rows.sum(axis=0)])


@dataclass(frozen=True, eq=False)
class Separate:
    """scores_k = sum_m w_km f_km: each class has its own features; parameters (classes, features)."""

    features: Array  # (features, n, classes)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.features.shape[2], self.features.shape[0]

    @cached_property
    def _squares(self) -> Array:
        return np.square(self.features)

    def scores(self, parameters: Array) -> Array:
        total: Array = self.features[0] * parameters[:, 0]
        for feature, weights in zip(self.features[1:], parameters.T[1:], strict=True):
            total += feature * weights
        return total

    def adjoint(self, rows: Array) -> Array:
        result: Array = np.einsum("mnk,nk->km", self.features, rows)
        return result

    def squared_adjoint(self, rows: Array) -> Array:
        result: Array = np.einsum("mnk,nk->km", self._squares, rows)
        return result


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
    """sum of weights * NLL + penalty, for a softmax of exclusive classes or a sigmoid of each."""

    design: Design
    targets: Array  # (n, classes), between 0 and 1
    weights: Array  # (n, 1), or (n, classes) for sigmoids with ignored labels; they decide the units
    exclusive: bool
    penalty: Penalty | None = None
    free: Array | None = None  # like the parameters: 0 where one stays as it is

    def with_penalty(self, strength: float) -> "Problem":
        """With another strength."""
        assert self.penalty is not None
        return replace(self, penalty=replace(self.penalty, strength=strength))

    def value(self, parameters: Array) -> float:
        """The objective."""
        penalised = 0.0
        if self.penalty is not None:
            penalised = 0.5 * float(np.vdot(parameters, self.penalty.gradient(parameters)))
        return float(self.losses(parameters).sum()) + penalised

    def losses(self, parameters: Array) -> Array:
        """The weighted NLL of each row (n, 1), or of each label (n, classes)."""
        scores = self.design.scores(parameters)
        if not self.exclusive:
            each: Array = -self.targets * log_expit(scores) - (1 - self.targets) * log_expit(-scores)
            return each * self.weights
        scores -= scores.max(axis=1, keepdims=True)
        total: Array = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        result: Array = (total - (self.targets * scores).sum(axis=1, keepdims=True)) * self.weights
        return result

    def probabilities(self, parameters: Array) -> Array:
        """Of each class."""
        scores = self.design.scores(parameters)
        result: Array = softmax(scores, axis=1) if self.exclusive else expit(scores)
        return result

    def gradient(self, parameters: Array, probabilities: Array) -> Array:
        """Of the objective."""
        result = self.design.adjoint((probabilities - self.targets) * self.weights)
        if self.penalty is not None:
            result += self.penalty.gradient(parameters)
        return self._free(result)

    def curvature(self, probabilities: Array, direction: Array) -> Array:
        """The Hessian times a direction."""
        moved = self.design.scores(direction)
        if self.exclusive:
            moved -= (probabilities * moved).sum(axis=1, keepdims=True)
            moved *= probabilities * self.weights
        else:
            moved *= probabilities * (1 - probabilities) * self.weights
        result = self.design.adjoint(moved)
        if self.penalty is not None:
            result += self.penalty.gradient(direction)
        return self._free(result)

    def diagonal(self, probabilities: Array) -> Array:
        """Of the Hessian."""
        rows = probabilities * (1 - probabilities) * self.weights
        result = self.design.squared_adjoint(rows)
        return result if self.penalty is None else result + self.penalty.diagonal()

    def _free(self, values: Array) -> Array:
        return values if self.free is None else values * self.free


def minimised(problem: Problem, start: Array, *, tolerance: float = EXACT) -> Array:
    """The parameters with the least value: a convex problem, so they are the best ones anywhere.

    Newton's steps, each solved by conjugate gradients and halved until the value falls enough. Where there is
    no minimum (labels that are separated perfectly), the end is where derivatives fall below the tolerance.
    """
    at, value = start, problem.value(start)
    for _ in range(STEPS):
        probabilities = problem.probabilities(at)
        gradient = problem.gradient(at, probabilities)
        size = float(np.abs(gradient).max())
        if size <= tolerance:
            break
        step = _newton_step(problem, probabilities, gradient, min(0.1, np.sqrt(size)))
        slope = float(np.vdot(gradient, step))
        for halving in range(HALVINGS):
            scale = 0.5**halving
            candidate = at + scale * step
            found = problem.value(candidate)
            if found <= value + SUFFICIENT * scale * slope:
                break
        else:
            break  # rounding errors are larger than what is left to gain
        done = not found < value
        at, value = candidate, found
        if done:
            break
    return at


def _newton_step(problem: Problem, probabilities: Array, gradient: Array, accuracy: float) -> Array:
    """-H^-1 g by conjugate gradients, preconditioned by H's diagonal, to a relative accuracy."""
    diagonal = problem.diagonal(probabilities)
    inverse = 1 / np.maximum(diagonal, 1e-12 * max(float(diagonal.max()), 1e-300))
    step, residual = np.zeros_like(gradient), -gradient
    preconditioned = inverse * residual
    direction, product = preconditioned, float(np.vdot(residual, preconditioned))
    enough = accuracy**2 * product
    for _ in range(min(2 * gradient.size + 10, 250)):
        curved = problem.curvature(probabilities, direction)
        bend = float(np.vdot(direction, curved))
        if not bend > 0:
            break
        ratio = product / bend
        step, residual = step + ratio * direction, residual - ratio * curved
        preconditioned = inverse * residual
        following = float(np.vdot(residual, preconditioned))
        if following <= enough:
            break
        direction, product = preconditioned + following / product * direction, following
    return step if step.any() else -inverse * gradient
