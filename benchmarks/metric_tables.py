"""Time, memory and accuracy of each metric, ours and the peers': a part of peers.py."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.special import log_softmax
from turns import (
    BUSY,
    GOAL,
    ONE_THREAD,
    Contestant,
    Turns,
    against,
    contestants,
    draw,
    in_both,
    own_best,
    table,
)

BINS = 10
SIZES = ((1_000_000, 10), (100_000, 1000))
FOR_SCALE = "all four, for scale"
READINGS = 2  # passes over the logits that a metric needs: one to check for NaN and infinity, one to score

HEAD = f"""## Metrics

From logits; the time of a peer that takes probabilities includes one float32 softmax by torch. Ours has
only equal-mass bins, whose edges must be computed (it sorts near them), while those of equal-width bins are
known. "off by": the difference from the metric's own definition in float64; if a definition is ambiguous (to
which bin an edge belongs), from the nearest interpretation. Memory is the peak of the process above its
start, including the input. "passes" is the time in units of one pass over all logits in
memory (torch's aminmax). "limit": {GOAL} times as fast is impossible here for code that checks for NaN,
because that takes {READINGS} passes and, except for the label error, a float32 exponential of each logit.
"NO": below {GOAL}, and above that limit; two words where the settings differ. "busy": with default
threads, beside a busy process.

"""

Array = np.ndarray
Definition = Callable[[Array, Array], list[float]]  # of log-probabilities and labels: the accepted values


def nll(log_probs: Array, labels: Array) -> list[float]:
    return [-log_probs[np.arange(len(labels)), labels].mean()]


def error(log_probs: Array, labels: Array) -> list[float]:
    return [(log_probs.argmax(axis=1) != labels).mean()]


def brier_sum(log_probs: Array, labels: Array) -> list[float]:
    off = np.exp(log_probs)
    off[np.arange(len(labels)), labels] -= 1
    return [(off**2).sum(axis=1).mean()]


def brier_root_mean(log_probs: Array, labels: Array) -> list[float]:
    return [np.sqrt(brier_sum(log_probs, labels)[0] / log_probs.shape[1])]


def ece_equal_width(log_probs: Array, labels: Array) -> list[float]:
    """Bins (a, b] or [a, b), and the last one is closed; 0.7 in float32 is on the edge at 0.7."""
    confidence, correct = _decisions(log_probs, labels)
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    rounded = np.round(confidence, 7)
    return [_gap(np.searchsorted(edges, rounded, side), confidence, correct) for side in ("left", "right")]


def ece_equal_mass(log_probs: Array, labels: Array) -> list[float]:
    """Bins by rank, the first ones larger; a tied decision counts with the mean accuracy of its tie."""
    confidence, correct = _decisions(log_probs, labels)
    _, run = np.unique(np.round(confidence, 12), return_inverse=True)
    correct = (np.bincount(run, correct) / np.bincount(run))[run]
    order = np.argsort(confidence, kind="stable")
    edges = np.ceil(np.linspace(0, len(order), BINS + 1)).astype(int)
    places = np.empty(len(order), dtype=int)
    for place, (start, stop) in enumerate(pairwise(edges)):
        places[order[start:stop]] = place
    return [_gap(places, confidence, correct)]


def _decisions(log_probs: Array, labels: Array) -> tuple[Array, Array]:
    return np.exp(log_probs.max(axis=1)), (log_probs.argmax(axis=1) == labels).astype(float)


def _gap(places: Array, confidence: Array, correct: Array) -> float:
    return float(np.abs(np.bincount(places, correct - confidence, minlength=BINS)).sum() / len(confidence))


METRICS: tuple[tuple[str, tuple[tuple[str, str, Definition], ...]], ...] = (
    # metric; then whose, the contestant and its definition, ours first
    (
        "ECE",
        (
            ("surefoot", "surefoot_ece", ece_equal_mass),
            ("netcal, equal mass", "netcal_ece_mass", ece_equal_mass),
            ("torch-uncertainty, equal mass", "torch_uncertainty_ece", ece_equal_mass),
            ("netcal, equal width", "netcal_ece_width", ece_equal_width),
            ("torchmetrics, equal width", "torchmetrics_ece", ece_equal_width),
        ),
    ),
    (
        "NLL",
        (
            ("surefoot", "surefoot_nll", nll),
            ("scikit-learn", "sklearn_nll", nll),
            ("torch-uncertainty", "torch_uncertainty_nll", nll),
            ("torch itself", "torch_nll", nll),
        ),
    ),
    (
        "Brier",
        (
            ("surefoot", "surefoot_brier", brier_root_mean),
            ("scikit-learn", "sklearn_brier", brier_sum),
            ("torch-uncertainty", "torch_uncertainty_brier", brier_sum),
        ),
    ),
    (
        "label error",
        (
            ("surefoot", "surefoot_error", error),
            ("scikit-learn", "sklearn_error", error),
            ("torchmetrics", "torchmetrics_error", error),
        ),
    ),
)


@dataclass(frozen=True)
class Scene:
    """Some logits, and lower bounds of the time of a metric on them."""

    folder: Path
    one_pass: float  # seconds
    exponentials: float

    def least(self, what: str) -> float:
        """Lower bound in seconds for a metric that checks for NaN."""
        return READINGS * self.one_pass + (0.0 if what == "label error" else self.exponentials)

    @cached_property
    def megabytes(self) -> float:
        return np.load(self.folder / "logits.npy", mmap_mode="r").nbytes / 1e6

    @cache  # noqa: B019 - as long as there is a scene
    def right(self, definition: Definition) -> list[float]:
        logits = np.load(self.folder / "logits.npy").astype(np.float64)
        return definition(log_softmax(logits, axis=1), np.load(self.folder / "labels.npy"))

    def off(self, turns: Turns, definition: Definition) -> str:
        value = turns[ONE_THREAD][1].value
        return f"{min(abs(value - answer) for answer in self.right(definition)):.0e}"

    def row(self, what: str, name: str, turns: Turns, off: str = "") -> list[str]:
        """A peer's row, or ours, where both turns of a setting are the same."""
        (mine, its), (busy_mine, busy_its) = turns[ONE_THREAD], turns[BUSY]
        if its.error:
            return [what, name, *[""] * 7, its.error]
        ratio, busy = its.seconds / mine.seconds, busy_its.seconds / busy_mine.seconds
        met = "yes" if ratio >= GOAL else "limit" if its.seconds < GOAL * self.least(what) else "NO"
        busy_met = "yes" if busy >= GOAL else "limit" if met == "limit" else "NO"
        goal = met if met == busy_met else f"{met}, {busy_met}"
        passes, memory = its.seconds / self.one_pass, its.megabytes / self.megabytes
        figures = [
            f"{1000 * its.seconds:.1f}",
            f"{ratio:.2f}",
            f"{1000 * busy_its.seconds:.1f}",
            f"{busy:.2f}",
        ]
        is_judged = name != "surefoot" and what != FOR_SCALE
        return [what, name, *figures, goal if is_judged else "", f"{passes:.1f}", f"{memory:.2f}", off]


def metric_tables(fewer: int) -> list[str]:
    """Time, memory and accuracy of each metric at two sizes."""
    header = ["metric", "whose", "CPU ms", "times ours", "busy, ms", "busy, times ours"]
    header += [f"at least {GOAL}", "passes", "memory / input", "off by"]
    lines = []
    for rows, classes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            draw(Path(folder), rows // fewer, classes, 1.5)
            scene = scene_of(Path(folder))
            bounds = {"one pass": scene.one_pass, "a float32 exponential of each": scene.exponentials}
            body = [["lower bound", name, f"{1000 * bound:.1f}", *[""] * 7] for name, bound in bounds.items()]
            for what, everybody in METRICS:
                body += metric_rows(scene, what, everybody)
            body += together(scene)
        lines += [f"### {rows // fewer:,} x {classes} float32 logits", "", *table(header, body, left=2), ""]
    return lines


def scene_of(folder: Path) -> Scene:
    with Contestant("torch_one_pass") as reading, Contestant("numpy_exponentials") as work:
        one_pass, exponentials = against(reading, work, folder)
    return Scene(folder, one_pass.seconds, exponentials.seconds)


def metric_rows(
    scene: Scene, what: str, everybody: tuple[tuple[str, str, Definition], ...]
) -> list[list[str]]:
    """A metric's rows: ours and each peer's."""
    (_, ours, our_definition), *peers = everybody
    rows, every = [], []
    for name, peer, definition in peers:
        with contestants() as start:
            turns = in_both(start, ours, peer, scene.folder)
        every.append(turns)
        rows.append(scene.row(what, name, turns, scene.off(turns, definition)))
    own = own_best(every)
    rows.insert(0, scene.row(what, "surefoot", own, scene.off(own, our_definition)))
    print(*rows, sep="\n", flush=True)
    return rows


def together(scene: Scene) -> list[list[str]]:
    """The four metrics together, which share work; and one softmax, for scale."""
    peers = {
        "peers_four": ("all four", "scikit-learn and torchmetrics"),
        "torch_softmax": (FOR_SCALE, "one torch softmax, float32"),
    }
    rows, every = [], []
    for peer, (what, name) in peers.items():
        with contestants() as start:
            every.append(in_both(start, "surefoot_four", peer, scene.folder))
        rows.append(scene.row(what, name, every[-1]))
    return [scene.row("all four", "surefoot", own_best(every)), *rows]
