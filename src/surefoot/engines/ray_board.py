"""Where tasks post what they have to tell. Without torch, for it has a process of its own."""

from surefoot.engines.orders import Event


class Board:
    """Where tasks post what they have to tell; an actor beside the driver."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, events: list[Event]) -> None:
        """Keep them until they are taken."""
        self.events += events

    def take(self) -> list[Event]:
        """All that was posted since."""
        taken, self.events = self.events, []
        return taken
