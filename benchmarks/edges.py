"""The value of each metric in known edge cases, compared with its own definition."""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from oracles import METRICS, right_answers
from turns import Contestant, Turn, table

HEAD = """## Edge cases

Each metric is compared with its own definition, computed in float64; for equal-width bins an edge may
belong to either bin. An ECE with equal-mass bins must not depend on the order of rows: a tied row counts
with the mean accuracy of its tie. For NaN, the correct result is NaN or an error. torchmetrics gets
`ignore_index=-100`, scikit-learn the list of classes; scikit-learn's label error uses numpy's argmax. At p
= 0 ours is finite, as documented: 0 is replaced by the smallest positive number of its type; scikit-learn
documents its clipping, too.

"""


def edge_cases() -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Small data sets for known edge cases: probabilities or logits, and labels."""
    rng = np.random.default_rng(1)
    plain = rng.dirichlet((1.0, 1.0, 1.0), 40)
    labels = rng.integers(0, 3, 40)
    tied = np.repeat([[0.45, 0.35, 0.2], [0.72, 0.18, 0.1]], 20, axis=0)
    tied_labels = np.array([0] * 6 + [1] * 14 + [0] * 15 + [2] * 5)
    edges = np.array([[k / 10, (10 - k) / 10, 0.0] for k in (6, 7, 8, 9)] * 10)
    top = rng.uniform(0.92, 0.99, 20)
    sure = np.stack([top, (1 - top) * 0.6, (1 - top) * 0.4], axis=1)
    certain = np.concatenate([[[1.0, 0.0, 0.0]] * 5, sure[:15]])
    huge = np.array([[1e4, 0.0, -1e4]] * 10 + [[0.0, 1.0, 2.0]] * 10, dtype=np.float32)
    missing, ignored = plain.copy(), labels.copy()
    missing[3] = np.nan
    ignored[::4] = -100
    return {
        "nothing unusual": ("probs", plain, labels),
        "ties": ("probs", tied, tied_labels),
        "the same, rows reversed": ("probs", tied[::-1], tied_labels[::-1]),
        "labels of two classes of three": ("probs", plain, np.minimum(labels, 1)),
        "labels of one class only": ("probs", plain, np.ones(40, dtype=np.int64)),
        "confidence on a bin's edge": ("probs", edges, np.array(([0] * 3 + [1]) * 9 + [0, 0, 1, 2])),
        "confidence exactly 1, and wrong": ("probs", certain, np.array([1, 1, 1, 2, 2] + [0] * 15)),
        "all but one bin empty": ("probs", sure, np.array([0] * 15 + [1] * 3 + [2] * 2)),
        "a single row": ("probs", plain[:1], labels[:1]),
        "a row of NaN": ("probs", missing, labels),
        "logits of 1e4, some wrong": ("logits", huge, np.array([0, 1] * 9 + [2, 2])),
        "ignored labels (-100)": ("probs", plain, ignored),
    }


def edge_tables() -> list[str]:
    """The value of each metric in each case, compared with the definition."""
    cases = edge_cases()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folders = {}
        for number, (case, (kind, values, labels)) in enumerate(cases.items()):
            folders[case] = Path(name) / str(number)
            folders[case].mkdir()
            np.save(folders[case] / f"{kind}.npy", np.ascontiguousarray(values, dtype=np.float32))
            np.save(folders[case] / "labels.npy", np.ascontiguousarray(labels))
        for what, ours, peers in METRICS:
            everybody = (("surefoot", *ours), *peers)
            columns = [answers(runs, definition, folders, cases) for _, runs, definition in everybody]
            body = [list(row) for row in zip(cases, *columns, strict=True)]
            header = [what, *(name for name, _, _ in everybody)]
            lines += [*table(header, body, left=len(header)), ""]
    return lines


def answers(runs: str, definition: str, folders: dict[str, Path], cases: dict) -> list[str]:
    """A contestant's result in every case, as text."""
    found = []
    with Contestant(runs) as contestant:
        for case, (kind, values, labels) in cases.items():
            turn = contestant.turn(folders[case])
            single = values.astype(np.float32)
            found.append(verdict(turn, lambda d=(single, labels, kind): _right(definition, *d)))
    return found


def _right(definition: str, values: np.ndarray, labels: np.ndarray, kind: str) -> list[float]:
    return right_answers(definition, values, labels, are_logits=kind == "logits")


def verdict(turn: Turn, right: Callable[[], list[float]]) -> str:
    """Correct, an error, or the wrong value and the correct one."""
    if turn.error:
        return f"error ({turn.error.split(':')[0]})"
    correct = right()
    if any(np.isclose(turn.value, value, rtol=1e-4, atol=1e-6, equal_nan=True) for value in correct):
        return "NaN, correct" if math.isnan(turn.value) else "correct"
    return f"{turn.value:.4g}, not {correct[0]:.4g}"
