"""Drawing by lot, the same on every machine and in every version of Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """A permutation by Fisher and Yates, from the one stream that Python promises never to change.

    `random.shuffle` makes no such promise. The steps are those that it took in the authors' time, so that
    their seed gives their draw.

    >>> shuffled("abcde", random.Random(1234))
    ['c', 'd', 'a', 'b', 'e']
    """
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result
