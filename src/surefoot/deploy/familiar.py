"""Familiar or unfamiliar: a sample's novelty held against that of familiar data."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.statistics import Proportion

FAMILIAR, UNFAMILIAR = "familiar", "unfamiliar"
SHARE = 0.95  # of familiar samples that are to be called familiar


@dataclass(frozen=True)
class Familiar:
    """The novelty from above which a sample is called unfamiliar, and how often that is so on the test sets.

    The limit is the ceil(0.95 (n + 1))-th smallest novelty of n validation samples, so that one more familiar
    sample lies above it with a probability of at most 0.05 (Vovk et al. 2005); with n below 19 it is the
    largest, without that promise. Under the paper's protocol the networks that saw the validation samples
    were trained further on them before they were bundled: `alarms` says what became of the promise.
    """

    limit: float
    n: int  # validation samples
    alarms: Proportion  # familiar test samples that are called unfamiliar, by mistake
    found: Proportion | None  # unfamiliar test samples that are

    def verdict(self, novelty: float) -> str:
        """What a sample of that novelty is called."""
        return UNFAMILIAR if novelty > self.limit else FAMILIAR

    def sentences(self) -> tuple[str, ...]:
        """What the verdict is worth, for people."""
        meaning = (
            f"A sample is called unfamiliar if its novelty is above {self.limit:.4g}: that of "
            f"{SHARE:.0%} of {self.n:,} familiar validation samples lies below."
        )
        wrong = f"{_rate(self.alarms)} familiar test samples were called unfamiliar by mistake"
        if self.found is None:
            return meaning, f"{wrong}; there were no unfamiliar ones to try."
        return meaning, f"{wrong}, {_rate(self.found)} unfamiliar ones rightly."

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "share": SHARE}


def fit_familiar(
    validation: NDArray[np.float64], familiar: NDArray[np.float64], unfamiliar: NDArray[np.float64] | None
) -> Familiar:
    """The limit from validation novelty alone; the test sets' only say how good it is."""
    n = len(validation)
    rank = min(n, math.ceil(SHARE * (n + 1)))
    limit = float(np.sort(validation)[rank - 1])
    rates = [
        None if novelty is None else Proportion.of(int((novelty > limit).sum()), len(novelty))
        for novelty in (familiar, unfamiliar)
    ]
    assert rates[0] is not None
    return Familiar(limit, n, rates[0], rates[1])


def familiar_from(document: Mapping[str, Any]) -> Familiar:
    """From plain values; of the rates the counts are read, and the rest follows from them."""
    limit, found = float(document["limit"]), document["found"]
    if not math.isfinite(limit):
        raise InputError(f"the limit of what is familiar is {limit}; allowed: a number")
    return Familiar(
        limit=limit,
        n=int(document["n"]),
        alarms=_rate_from(document["alarms"]),
        found=None if found is None else _rate_from(found),
    )


def _rate_from(document: Mapping[str, Any]) -> Proportion:
    k, n = int(document["k"]), int(document["n"])
    if not 0 <= k <= n:
        raise InputError(f"{k} of {n} samples were called unfamiliar; allowed: 0 to all of them")
    return Proportion.of(k, n)


def _rate(rate: Proportion) -> str:
    ends = f"{rate.low:.1%} to {rate.high:.1%}"
    return f"{rate.value:.1%} ({ends}) of {rate.n:,}"
