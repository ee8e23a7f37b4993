"""Predictions with known counts of errors among the sure."""

from surefoot import Predictions


def sure(wrong, of, *, n=400):
    """Of n rows `of` are sure, the first so many of them wrongly; the others are right with 0.9."""
    probabilities = [[0.001, 0.999]] * wrong + [[0.999, 0.001]] * (of - wrong) + [[0.9, 0.1]] * (n - of)
    return Predictions.from_probs(probabilities, [0] * n)


def upper(n):
    """The exact upper end of 0 of n, in closed form."""
    return 1 - 0.025 ** (1 / n)
