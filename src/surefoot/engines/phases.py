"""Which splits a network is trained on, and which it predicts."""

from dataclasses import dataclass

from surefoot.errors import InputError
from surefoot.recipes import Protocol
from surefoot.tasks.base import Split, Task

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@dataclass(frozen=True)
class Phase:
    """Train on some splits, then predict others."""

    name: str
    trained: tuple[Split, ...]
    predicted: tuple[Split, ...]
    weights: str = "weights"  # what its weights are called

    @property
    def parts(self) -> tuple[str, ...]:
        """The files that it makes."""
        return (f"{self.weights}.safetensors", *(f"{split}.npz" for split in self.predicted))


def phases(protocol: Protocol, task: Task) -> tuple[Phase, ...]:
    """The paper's two trainings, or one that never sees val."""
    if Split.VAL not in task.splits:
        raise InputError(f"task {task.name!r} has no val split; needed: one, to calibrate on")
    tested = tuple(split for split in TESTED if split in task.splits)
    if protocol is Protocol.HOLDOUT:
        return (Phase("train", (Split.TRAIN,), (Split.VAL, *tested)),)
    return (
        Phase("train", (Split.TRAIN,), (Split.VAL,), "weights_train"),
        Phase("final", (Split.TRAIN, Split.VAL), tested),
    )
