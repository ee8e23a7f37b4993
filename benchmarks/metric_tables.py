"""The metrics part of `peers.py`: time, memory and accuracy of our metrics and the peers'."""

import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from oracles import METRICS, right_answers
from turns import (
    BUSY,
    GOAL,
    ONE_THREAD,
    Contestant,
    Setting,
    Turn,
    against,
    contestants,
    draw,
    in_both,
    table,
)

SIZES = ((1_000_000, 10), (100_000, 1000))
READINGS = 2  # passes over the logits that a metric needs: one to check for NaN and infinity, one to score

HEAD = f"""## Metrics

From logits; the time of a peer that takes probabilities includes one float32 softmax by torch. Ours has
only equal-mass bins, whose edges must be computed (it sorts near them), while those of equal-width bins are
known. "off by": the difference from the metric's own definition in float64. Memory is the peak of the
process above its start, including the input. "passes" is the time in units of one pass over all logits in
memory (torch's aminmax). "limit": {GOAL} times as fast is impossible here for code that checks for NaN,
because that takes {READINGS} passes and, except for the label error, a float32 exponential of each logit.
"NO": below {GOAL}, and above that limit; two words where the settings differ. "busy": with default
threads, beside a busy process.

"""


Turns = dict[Setting, tuple[Turn, Turn]]  # ours and the peer's


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
    def right(self, definition: str) -> list[float]:
        values, labels = np.load(self.folder / "logits.npy"), np.load(self.folder / "labels.npy")
        return right_answers(definition, values, labels, are_logits=True)

    def row(self, what: str, name: str, turns: Turns, off: str = "") -> list[str]:
        """A peer's row, or ours, where both turns of a setting are the same."""
        (mine, its), (busy_mine, busy_its) = turns[ONE_THREAD], turns[BUSY]
        if its.error:
            return [what, name, *[""] * 7, its.error]
        ratio, busy = its.seconds / mine.seconds, busy_its.seconds / busy_mine.seconds
        met = "yes" if ratio >= GOAL else "limit" if its.seconds < GOAL * self.least(what) else "NO"
        busy_met = "yes" if busy >= GOAL else "limit" if met == "limit" else "NO"
        passes, memory = its.seconds / self.one_pass, its.megabytes / self.megabytes
        goal = "" if name == "surefoot" else met if met == busy_met else f"{met}, {busy_met}"
        figures = [
            f"{1000 * its.seconds:.1f}",
            f"{ratio:.2f}",
            f"{1000 * busy_its.seconds:.1f}",
            f"{busy:.2f}",
        ]
        return [what, name, *figures, goal, f"{passes:.1f}", f"{memory:.2f}", off]


def metric_tables(fewer: int) -> list[str]:
    """Time, memory and accuracy of each metric at two sizes."""
    header = [
        "metric",
        "whose",
        "CPU ms",
        "times ours",
        "busy, ms",
        "busy, times ours",
        f"at least {GOAL}",
        "passes",
        "memory / input",
        "off by",
    ]
    lines = []
    for rows, classes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            draw(Path(folder), rows // fewer, classes, 1.5)
            with Contestant("torch_one_pass") as reading, Contestant("numpy_exponentials") as work:
                one_pass, exponentials = against(reading, work, Path(folder))
            scene = Scene(Path(folder), one_pass.seconds, exponentials.seconds)
            body = [
                ["lower bound", "one pass", f"{1000 * scene.one_pass:.1f}", *[""] * 4, "1.0", "", ""],
                [
                    "lower bound",
                    "a float32 exponential of each",
                    f"{1000 * scene.exponentials:.1f}",
                    *[""] * 7,
                ],
            ]
            for metric in METRICS:
                body += metric_rows(scene, *metric)
            body += is_ensemble(scene)
        lines += [f"### {rows // fewer:,} x {classes} float32 logits", "", *table(header, body, left=2), ""]
    return lines


def metric_rows(scene: Scene, what: str, ours: tuple[str, str], peers: tuple) -> list[list[str]]:
    """A metric's rows: ours and each peer's."""
    rows, every = [], []
    for name, runs, definition in peers:
        with contestants() as start:
            turns = in_both(start, ours[0], runs, scene.folder)
        every.append(turns)
        rows.append(scene.row(what, name, turns, _off(turns[ONE_THREAD][1], scene.right(definition))))
    own = _own(every)
    rows.insert(0, scene.row(what, "surefoot", own, _off(own[ONE_THREAD][1], scene.right(ours[1]))))
    print(*rows, sep="\n", flush=True)
    return rows


def is_ensemble(scene: Scene) -> list[list[str]]:
    """The four metrics together, which share work; and one softmax, for scale."""
    rows, every = [], []
    for name, runs in (
        ("scikit-learn and torchmetrics", "peers_four"),
        ("one torch softmax, float32", "torch_softmax"),
    ):
        with contestants() as start:
            turns = in_both(start, "surefoot_four", runs, scene.folder)
        every.append(turns)
        rows.append(scene.row("all four", name, turns))
        rows[-1][6] = rows[-1][6] if runs == "peers_four" else ""
    return [scene.row("all four", "surefoot", _own(every)), *rows]


def _own(every: list[Turns]) -> Turns:
    """Our own best turns, as if they were a peer's."""
    best = {
        setting: min((turns[setting][0] for turns in every), key=lambda turn: turn.seconds)
        for setting in (ONE_THREAD, BUSY)
    }
    return {setting: (turn, turn) for setting, turn in best.items()}


def _off(turn: Turn, answers: list[float]) -> str:
    return f"{min(abs(turn.value - answer) for answer in answers):.0e}"
