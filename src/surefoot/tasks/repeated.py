"""Pictures that a data set holds more than once: use each once, and where copies disagree, none."""

from collections import defaultdict
from collections.abc import Sequence

from surefoot.decoding.cache import UNOPENED
from surefoot.decoding.images import content_of
from surefoot.decoding.parallel import in_parallel
from surefoot.tasks.base import Samples, Split
from surefoot.tasks.images import ImageFiles

PREFERRED = (Split.TEST_UNFAMILIAR, Split.TEST_FAMILIAR, Split.VAL, Split.TRAIN)


def contents_of(images: ImageFiles) -> list[str]:
    """The sha256 of every file; of those that cannot be opened, a text that no other has."""
    found = in_parallel(content_of, images.files())
    return [f"{each}{row}" if each.startswith(UNOPENED) else each for row, each in enumerate(found)]


def once(
    contents: Sequence[str], places: Sequence[Split | None], ids: Sequence[str], labels: Sequence[bytes]
) -> list[Split | None]:
    """The places of rows with each picture left in one row only: a test keeps it, training gives it up.

    Where copies have different labels, or one is familiar and another is not, no one knows which is right,
    and all are left out.
    """
    copies: dict[str, list[int]] = defaultdict(list)
    for row, place in enumerate(places):
        if place is not None:
            copies[contents[row]].append(row)
    kept = list(places)
    for rows in copies.values():
        if len(rows) > 1:
            found = {places[row] for row in rows}
            disagree = len({labels[row] for row in rows}) > 1
            disagree |= Split.TEST_UNFAMILIAR in found and len(found) > 1
            best = min(rows, key=lambda row: (PREFERRED.index(places[row] or Split.TRAIN), ids[row]))
            for row in rows:
                if disagree or row != best:
                    kept[row] = None
    return kept


def without(samples: Samples, contents: set[str]) -> Samples:
    """The samples whose picture is none of these."""
    assert isinstance(samples.inputs, ImageFiles)
    mine = contents_of(samples.inputs)
    return samples.take([row for row, content in enumerate(mine) if content not in contents])
