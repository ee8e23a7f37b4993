"""Logistic curves, many at once: sigmoid(w f + b) with a few features and parameters each.

Newton's method with the exact Hessian of each curve. Arrays of rows are (curves, n).
"""

from dataclasses import dataclass

import numpy as np

from surefoot.calibrators.logistic import EXACT, HALVINGS, ROUNDING, STEPS, SUFFICIENT
from surefoot.predictions.outcomes import Array, Bools

PART = 8  # one of this many rows is fitted first, and all rows from there
ENOUGH = 1000  # rows in that part; with fewer, all rows are fitted from the start
ROUGH = 1e-4
NUMBERS_AT_ONCE = 2**16  # rows times curves that are fitted together
RIDGE = 1e-10  # of the Hessian's diagonal: features that are equal for all rows leave it without an inverse


@dataclass(frozen=True, eq=False)
class Curves:
    """sum of weights * NLL of each curve, for targets between 0 and 1."""

    features: Array  # (features, curves, n)
    weights: Array  # (curves, n), or (1, n) if all have the same
    weighted_targets: Array  # (curves, n)

    @classmethod
    def of(cls, features: Array, targets: Array, weights: Array) -> "Curves":
        """From targets as they are."""
        return cls(features, weights, weights * targets)

    def every(self, step: int) -> "Curves":
        """One of `step` rows."""
        parts = (self.features, self.weights, self.weighted_targets)
        return Curves(*(np.ascontiguousarray(each[..., ::step]) for each in parts))

    def some(self, curves: slice | Bools) -> "Curves":
        """Of these curves."""
        weights = self.weights if len(self.weights) == 1 else self.weights[curves]
        return Curves(self.features[:, curves], weights, self.weighted_targets[curves])

    def minimised(self, start: Array, free: Array | None = None) -> Array:
        """The parameters (curves, features + 1), the intercept last; those that are not `free` stay.

        A few curves at a time, whose numbers stay in the cache, and which do not wait for the slowest of all.
        """
        free = np.ones_like(start) if free is None else free
        count, rows = self.weighted_targets.shape
        step = max(1, NUMBERS_AT_ONCE // max(1, rows))
        groups = [slice(first, first + step) for first in range(0, count, step)]
        return np.concatenate([self.some(group)._minimised(start[group], free[group]) for group in groups])

    def _minimised(self, start: Array, free: Array) -> Array:
        if self.weighted_targets.shape[1] >= PART * ENOUGH:
            start = self.every(PART)._newton(start, free, ROUGH)
        return self._newton(start, free, EXACT)

    def losses(self, parameters: Array) -> Array:
        """The weighted NLL of each curve, (curves,)."""
        return self._evaluated(parameters, self._linear(), *np.empty((3, *self.weighted_targets.shape)))

    def _linear(self) -> Array:
        """The weighted targets times the features: the part of the NLL that is linear in the parameters."""
        return self._moments(self.weighted_targets)

    def _moments(self, rows: Array) -> Array:
        return np.stack([*(np.vecdot(rows, feature) for feature in self.features), rows.sum(axis=1)], axis=1)

    def _evaluated(
        self, parameters: Array, linear: Array, scores: Array, probabilities: Array, scratch: Array
    ) -> Array:
        """The NLL of each curve; of the last three arrays, which are overwritten, the second has a result."""
        np.multiply(self.features[0], parameters[:, :1], out=scores)
        for feature, slopes in zip(self.features[1:], parameters.T[1:], strict=False):
            scores += np.multiply(feature, slopes[:, None], out=scratch)
        scores += parameters[:, -1:]
        # log(1 + exp(s)) and sigmoid(s), both from one exponential
        np.negative(np.abs(scores, out=scratch), out=scratch)
        np.exp(scratch, out=probabilities)
        np.log1p(probabilities, out=scratch)
        is_positive = scores >= 0
        scratch += np.maximum(scores, 0, out=scores)
        np.add(probabilities, 1, out=scores)
        np.copyto(probabilities, 1, where=is_positive)
        probabilities /= scores
        return np.asarray(np.vecdot(self.weights, scratch) - np.vecdot(linear, parameters))

    def _newton(self, at: Array, free: Array, tolerance: float) -> Array:
        """Newton's steps, those of each curve halved until its value falls enough."""
        linear = self._linear()
        space = np.empty((3, *self.weighted_targets.shape))  # to fill it takes less time than to allocate it
        weighted, probabilities, scratch = space
        values = self._evaluated(at, linear, *space)
        for _ in range(STEPS):
            np.multiply(self.weights, probabilities, out=weighted)
            gradients = (self._moments(weighted) - linear) * free
            if np.abs(gradients).max() <= tolerance:
                break
            np.subtract(1, probabilities, out=probabilities)
            weighted *= probabilities
            steps = -np.linalg.solve(self._hessians(weighted, free, scratch), gradients[:, :, None])[:, :, 0]
            slopes = np.vecdot(gradients, steps)
            visible = -slopes > ROUNDING * np.abs(values)  # else a shorter step is not worth trying
            scale = np.ones(len(at))
            for _ in range(HALVINGS):
                found = self._evaluated(at + scale[:, None] * steps, linear, *space)
                rising = visible & (found > values + SUFFICIENT * scale * slopes)
                if not rising.any():
                    break
                scale[rising] /= 2
            at = at + scale[:, None] * steps
            if not (found < values).any():
                break
            values = found
        return at

    def _hessians(self, variances: Array, free: Array, scratch: Array) -> Array:
        """Of each curve, (curves, parameters, parameters); the variances are p (1 - p) times the weights."""
        rows = [self._moments(np.multiply(variances, feature, out=scratch)) for feature in self.features]
        total = variances.sum(axis=1)
        last = np.column_stack([*(row[:, -1] for row in rows), total])
        hessians: Array = np.stack([*rows, last], axis=1) * free[:, :, None] * free[:, None, :]
        places = np.arange(free.shape[1])
        hessians[:, places, places] = hessians[:, places, places] * (1 + RIDGE) + np.where(
            free > 0, 1e-300, 1
        )
        return hessians
