"""The queue of a Ray cluster's events, which runs as an actor.

In a file of its own, so that its process starts without torch and numpy: events posted before it has started
are lost with a node.
"""

from typing import Any


class EventQueue:
    """Events between the tasks of a Ray cluster, which post them, and the driver, which takes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def post(self, events: list[dict[str, Any]]) -> None:
        """Add events."""
        self.events += events

    def take(self) -> list[dict[str, Any]]:
        """Remove and return all events."""
        events, self.events = self.events, []
        return events
