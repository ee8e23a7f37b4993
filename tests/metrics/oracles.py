"""The metrics again, written as plainly as can be: loops over rows, straight from the definitions."""

import itertools
import math

import numpy as np


def softmax(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def nll(probs, labels):
    return sum(-math.log(min(max(p[y], 0.001), 0.999)) for p, y in zip(probs, labels, strict=True)) / len(
        labels
    )


def brier(probs, labels):
    squares = [(p[k] - (k == y)) ** 2 for p, y in zip(probs, labels, strict=True) for k in range(len(p))]
    return math.sqrt(sum(squares) / len(squares))


def brier_true_class(probs, labels):
    return math.sqrt(sum((1 - p[y]) ** 2 for p, y in zip(probs, labels, strict=True)) / len(labels))


def entropy(probs):
    return sum(-sum(v * math.log(v) for v in p if v > 0) for p in probs) / len(probs)


def with_tie_means(confidence, correct):
    """Each row's correctness replaced by the mean over all rows of the same confidence."""
    confidence, correct = np.asarray(confidence), np.asarray(correct, dtype=float)
    return np.array([correct[confidence == value].mean() for value in confidence])


def ece(confidence, correct, bins=10):
    correct = with_tie_means(confidence, correct)
    order = np.argsort(confidence, kind="stable")
    edges = np.ceil(np.linspace(0, len(order), bins + 1)).astype(int)
    total = 0.0
    for start, end in itertools.pairwise(edges):
        rows = order[start:end]
        if len(rows):
            total += len(rows) * abs(correct[rows].mean() - np.asarray(confidence)[rows].mean())
    return total / len(order)


def aurc(confidence, correct):
    wrong = 1 - with_tie_means(confidence, correct)
    order = np.argsort(-np.asarray(confidence), kind="stable")
    return np.mean([wrong[order[: i + 1]].mean() for i in range(len(order))])


def average_precision(score, positive):
    """Interpolated: at each threshold precision and recall, then the best precision at that recall or more."""
    points = []
    for threshold in sorted(set(score), reverse=True):
        chosen = [y for s, y in zip(score, positive, strict=True) if s >= threshold]
        points.append((sum(chosen) / sum(positive), sum(chosen) / len(chosen)))
    area, previous = 0.0, 0.0
    for index, (recall, _) in enumerate(points):
        area += (recall - previous) * max(precision for _, precision in points[index:])
        previous = recall
    return area


def smooth_ece(confidence, correct, grid=2001):
    """Bisection over the width; the reflected Gaussian as a sum over mirror images, the integral by trapezoid."""
    t = np.linspace(0, 1, grid)
    residual = np.asarray(correct, dtype=float) - confidence

    def smoothed(width):
        density = np.zeros_like(t)
        for image in range(-3, 4):
            for mirrored in (confidence, -np.asarray(confidence)):
                distance = t[:, None] - mirrored - 2 * image
                density += (np.exp(-0.5 * (distance / width) ** 2) * residual).sum(axis=1)
        return np.trapezoid(np.abs(density), t) / (width * math.sqrt(2 * math.pi) * len(residual))

    low, high = 1e-2, 0.5
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if smoothed(middle) > middle else (low, middle)
    return (low + high) / 2
