"""An upper bound of the error, from groups of rows that may depend on each other in any way.

For a row drawn from a group drawn at random, w is the probability that it is accepted and wrong, and a that
it is accepted; the error among the accepted is E[w] / E[a]. Each group g has its own shares of rows w_g and
a_g. If the error is e or more, then w_g - e a_g, which lies between -e and 1 - e, has a mean of 0 or more, so
a bet against it cannot be expected to win: the wealth, the product of 1 - bet_g (w_g - e a_g) where each bet
depends on earlier groups only, exceeds 1 / p at any time with a probability of at most p (Ville 1939).

Waudby-Smith & Ramdas, JRSS B 2024; the bets are theirs for a fixed number of groups.
"""

import math
from dataclasses import dataclass

import numpy as np

from surefoot.predictions.outcomes import Array

MOST_BET = 0.9  # of the wealth that one group can cost
STEPS = 40  # of a bisection


@dataclass(frozen=True, eq=False)
class GroupShares:
    """The shares of each group's rows that are accepted, and accepted and wrong; in the order of the bets."""

    accepted: Array
    wrong: Array

    def bets(self, most: float, p: float) -> Array:
        """Against each group's w - most * a, from the variance of those before it."""
        values = self.wrong - most * self.accepted
        n, seen = len(values), np.arange(1, len(values) + 1)
        mean = np.cumsum(values) / (seen + 1)
        # At first the variance of single rows that are all accepted; it counts as one group.
        squares = most * (1 - most) + np.append(0.0, np.cumsum((values - mean) ** 2)[:-1])
        bets: Array = np.sqrt(2 * -math.log(p) * seen / (n * np.maximum(squares, np.finfo(float).tiny)))
        return np.minimum(bets, MOST_BET / (1 - most))

    def refutes(self, error: float, bets: Array, p: float) -> bool:
        """Whether the error is below this, but for a probability p."""
        wealth = np.cumsum(np.log1p(-bets * (self.wrong - error * self.accepted)))
        return bool(wealth.max() >= -math.log(p))

    def bound(self, most: float, p: float) -> float:
        """The error is at most this, but for a probability p; with bets against an error of `most`."""
        bets = self.bets(most, p)
        # Below this, a bet could cost more than there is. Wealth grows with the error that is bet against.
        low, high = max(0.0, 1 - (1 - most) / MOST_BET), 1.0
        if self.refutes(most, bets, p):
            high = most
        elif self.refutes(1.0, bets, p):
            low = most
        else:
            return 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.refutes(middle, bets, p) else (middle, high)
        return high
