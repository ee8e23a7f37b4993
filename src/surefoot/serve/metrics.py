"""What a server has done, in the text format that Prometheus reads (version 0.0.4)."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How many values were at most as large as each of some edges.

    >>> sizes = Histogram((1, 2))
    >>> for size in (1, 2, 2, 9):
    ...     sizes.add(size)
    >>> list(sizes.lines("batch"))[:2]
    ['batch_bucket{le="1"} 1', 'batch_bucket{le="2"} 3']
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterable[str]:
        """As samples."""
        below = 0
        for edge, count in zip((*(f"{edge:g}" for edge in self.edges), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{edge}"}} {below}'
        yield f"{name}_sum {self.total:.9g}"
        yield f"{name}_count {below}"


class Meters:
    """Counted since the start; only the event loop's thread counts."""

    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.images: Counter[Labels] = Counter()
        self.verdicts: Counter[Labels] = Counter()
        self.decisions: Counter[Labels] = Counter()
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(IMAGES)

    def text(self, info: Mapping[str, str], gauges: Mapping[str, tuple[str, float]]) -> str:
        """All of it; `gauges` are what is so right now, with what they mean."""
        lines = ["# HELP surefoot_info What is served.", "# TYPE surefoot_info gauge"]
        lines += [f"surefoot_info{_written(tuple(info.items()))} 1"]
        for name, (meaning, value) in gauges.items():
            lines += [f"# HELP surefoot_{name} {meaning}", f"# TYPE surefoot_{name} gauge"]
            lines += [f"surefoot_{name} {value}"]
        for name, meaning, counter in (
            ("requests_total", "Requests that were answered, by path and status.", self.requests),
            ("images_total", "Images that were predicted, or were not.", self.images),
            ("verdicts_total", "Predictions, by how familiar the image is.", self.verdicts),
            ("decisions_total", "Predictions, by what the thresholds say.", self.decisions),
        ):
            lines += [f"# HELP surefoot_{name} {meaning}", f"# TYPE surefoot_{name} counter"]
            lines += [f"surefoot_{name}{_written(labels)} {n}" for labels, n in sorted(counter.items())]
        for name, meaning, histogram in (
            ("predict_seconds", "From the head of a request for /predict to its answer.", self.seconds),
            ("batch_images", "Images in a pass of the networks.", self.batches),
        ):
            lines += [f"# HELP surefoot_{name} {meaning}", f"# TYPE surefoot_{name} histogram"]
            lines += histogram.lines(f"surefoot_{name}")
        return "\n".join(lines) + "\n"


def _written(labels: Labels) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for name, value in labels
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
