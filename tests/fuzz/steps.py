"""What a case consists of: commands, and what must come of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VALID, EITHER, ANY, REFUSED = "valid", "either", "any", "refused"
SUFFIXES = (".npz", ".parquet", ".csv")
TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Step:
    """A command, or a call from Python that `words` name, and what must come of it.

    `expect`: valid input must succeed; `either` may be refused, but not misunderstood; `any` may do either;
    what is `refused` must be. `check` returns what is wrong with the output, if it succeeded. A call returns its
    output, and is refused by an InputError.
    """

    words: tuple
    expect: str = VALID
    check: Callable[[str], str | None] = lambda _: None
    may_fail: bool = False  # exit code 1 is an answer, such as an alarm
    writes: tuple | None = ()  # outputs; None is anything
    caches: tuple = ()  # outputs that a refusal may leave, too
    says: tuple = ()  # a refusal has one of these, such as how to recover
    notes: tuple = ()  # the output has one of these, if the command succeeded
    call: Callable[[], str] | None = None
    umask: int | None = None  # run as an ordinary user, whose new files have these modes


def may_fail(words):
    """Whether exit code 1 is an answer of this command."""
    return words[0] in ("monitor", "thresholds", "data", "predict", "doctor") or "--fail-if" in words


@dataclass(frozen=True)
class Place:
    """Where a case runs, and what was prepared for all cases: a bundle, a store, a task."""

    folder: Path
    base: Path

    def __truediv__(self, name):
        return self.folder / name

    @property
    def bundles(self):
        """What comes of a valid bundle here: safetensors reads no path that is not UTF-8."""
        return EITHER if "\udcff" in str(self.folder) else VALID
