"""What a server has done, for Prometheus."""

from collections.abc import Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from surefoot.serve.limits import Capacity

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, capacity: Capacity, info: Mapping[str, str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter would have a second series
        self.registry = CollectorRegistry()
        Info("surefoot", "What is served.", registry=self.registry).info(dict(info))
        waiting = Gauge("surefoot_waiting_images", "Images waiting for a prediction.", registry=self.registry)
        waiting.set_function(lambda: capacity.waiting)
        held = Gauge("surefoot_held_bytes", "Bytes of uploads in memory.", registry=self.registry)
        held.set_function(lambda: capacity.bytes)
        self.requests = self._counter("requests", "Requests, by path and status.", ["path", "code"])
        self.images = self._counter("images", "Images predicted or refused.", ["outcome"])
        self.verdicts = self._counter("verdicts", "Predictions, by how familiar the image is.", ["verdict"])
        self.decisions = self._counter("decisions", "Predictions, by decision.", ["decision"])
        self.predict_seconds = Histogram(
            "surefoot_predict_seconds",
            "Seconds from a request for /predict to its response.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_images = Histogram(
            "surefoot_batch_images",
            "Images per forward pass of the networks.",
            buckets=IMAGES,
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str]) -> Counter:
        return Counter(f"surefoot_{name}", documentation, labels, registry=self.registry)
