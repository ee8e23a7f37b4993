"""Sums of facts over rows, and of their products: all that a mean and its standard error need."""

from dataclasses import dataclass

import numpy as np

from surefoot.outcomes import Array


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of some facts and of all their products; the sums are carried in two float64, head and rest."""

    head: Array  # (facts,)
    rest: Array  # what was rounded off the head
    products: Array  # (facts, facts)

    @staticmethod
    def empty(facts: int) -> "Sums":
        return Sums(np.zeros(facts), np.zeros(facts), np.zeros((facts, facts)))

    @staticmethod
    def of(facts: Array) -> "Sums":
        """Of facts (facts, rows)."""
        return Sums(facts.sum(axis=1), np.zeros(len(facts)), facts @ facts.T)

    @property
    def total(self) -> Array:
        return self.head + self.rest

    def merged(self, other: "Sums") -> "Sums":
        """Both together; Knuth's two-sum keeps what the addition rounds off."""
        head = self.head + other.head
        of_other = head - self.head
        lost = (self.head - (head - of_other)) + (other.head - of_other)
        return Sums(head, self.rest + other.rest + lost, self.products + other.products)
