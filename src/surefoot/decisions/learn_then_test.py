"""Which cuts of a score have an error of at most a target above them, at a stated level (Learn then test).

The level is divided between two procedures, and the union of their results holds at that level:
- Fixed-sequence testing. A random tenth of the rows decides where it starts, by the highest expected power.
  The other rows then test ever lower cuts, each at the same level, until the first that fails.
- Twenty candidates at fixed ranks of all rows, tested together by Bonferroni, for errors that are highest at
  the top.
Neither assumes anything about how the error depends on the score; a poor start only costs power.
Both use the exact binomial test. Angelopoulos et al., Annals of Applied Statistics 2025; arXiv:2110.01052.

Rows of one group are not independent. Then a tenth of the groups decides the start and the candidates, and
the other groups are tested by `betting`, for a row drawn at random from a new group. Where nearly all groups
are single rows, the binomial test of a random row of each shows more.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from surefoot.decisions.betting import GroupShares
from surefoot.decisions.groups import number_of_groups, some_of
from surefoot.predictions.outcomes import DECIMALS, Array, Index

CANDIDATES = 20
SEQUENCE_SHARE = 0.8  # of the level, for the sequence
ALL_ROWS_SHARE = 0.1  # for the candidate that accepts all rows; the other candidates share the rest
START_PART = 0.1  # of the rows, to choose the start of the sequence
STEPS = 200  # cuts of the sequence, equally spaced in rank
USUAL_RANK = 0.75  # of wrong rows, on average, from the top: the error grows with the square of the rank
RANK_ROWS = 5  # so many wrong rows is this assumption worth
FEW_PER_GROUP = 1.5  # rows on average: below it, one of each group is used

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ErrorTest:
    """Rows with their score, whether they are wrong, and the error that is tested at that level."""

    score: Array
    wrong: Bools
    most: float
    level: float
    group_of: Index | None = None  # None: rows are independent
    start: "ErrorTest | None" = None  # groups apart from these, that decide what is tested

    @property
    def groups(self) -> int:
        """How many independent groups, or rows, there are."""
        return number_of_groups(len(self.score), self.group_of)

    def above(self, cuts: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many rows are above each cut, and how many of them are wrong."""
        order = np.argsort(-self.score)
        wrong = np.append(0, np.cumsum(self.wrong[order]))
        rows = np.searchsorted(-self.score[order], -cuts, side="left")
        return rows, wrong[rows]

    def take(self, rows: NDArray[np.int64]) -> "ErrorTest":
        """Some of the rows."""
        group_of = some_of(self.group_of, rows)
        return ErrorTest(self.score[rows], self.wrong[rows], self.most, self.level, group_of)

    def in_random_order(self, seed: int) -> "ErrorTest":
        """Groups in the order of the bets, without those that decide the start; or a random row of each."""
        if self.group_of is None:
            return self
        rng = np.random.default_rng([seed, 1])
        if len(self.score) < FEW_PER_GROUP * self.groups:
            rows = rng.permutation(len(self.score))
            return self.take(np.sort(rows[np.unique(self.group_of[rows], return_index=True)[1]]))
        number = rng.permutation(self.groups)[self.group_of]
        shuffled, is_start = replace(self, group_of=number), number < max(1, round(START_PART * self.groups))
        if is_start.all():
            return self
        of_start, of_tests = np.flatnonzero(is_start), np.flatnonzero(~is_start)
        return replace(shuffled.take(of_tests), start=shuffled.take(of_start))

    def reversed(self, most: float) -> "ErrorTest":
        """The least confident first, and a correct prediction counts as an error."""
        start = None if self.start is None else self.start.reversed(most)
        return replace(self, score=-self.score, wrong=~self.wrong, most=most, start=start)

    def candidate_cuts(self) -> Array:
        """The cuts that are tested together."""
        return candidate_cuts(self.score if self.start is None else self.start.score)

    def bounds(self, cuts: Array, tails: Array) -> Array:
        """The upper bound of the error above each cut, which does not hold with a probability of its tail."""
        from scipy.special import betaincinv

        if self.group_of is not None:
            pairs = zip(cuts, tails, strict=True)
            return np.array([self._shares_above(cut).bound(self.most, tail) for cut, tail in pairs])
        rows, wrong = self.above(cuts)
        bounds = betaincinv(wrong + 1, np.maximum(rows - wrong, 1), 1 - tails)
        return np.where(wrong < rows, bounds, 1.0)

    def passing(self, cuts: Array, tail: float) -> int:
        """How many of the cuts have an error of at most `most` above them, up to the first that fails."""
        from scipy.special import bdtr

        if self.group_of is not None:
            shares = map(self._shares_above, cuts)
            passed = (each.refutes(self.most, each.bets(self.most, tail), tail) for each in shares)
            return sum(1 for _ in takewhile(bool, passed))
        rows, wrong = self.above(cuts)
        p = np.where(rows > 0, bdtr(wrong.astype(float), np.maximum(rows, 1), self.most), 1.0)
        return int((p <= tail).argmin()) if (p > tail).any() else len(cuts)

    def _shares_above(self, cut: float) -> GroupShares:
        assert self.group_of is not None
        above = self.score > cut
        size = self._group_sizes
        shares = (
            np.bincount(self.group_of[rows], minlength=len(size)) / size
            for rows in (above, above & self.wrong)
        )
        return GroupShares(*shares)

    @cached_property
    def _group_sizes(self) -> Index:
        assert self.group_of is not None
        return np.bincount(self.group_of)


def valid_cuts(tested: ErrorTest, *, seed: int) -> list[float]:
    """The cuts above which, with probability `level` for all of them at once, at most `most` are wrong."""
    cuts = tested.candidate_cuts()
    bounds = candidate_bounds(tested, cuts)
    return [float(cut) for cut in cuts[bounds <= tested.most]] + _sequence(tested, seed)


def candidate_cuts(score: Array) -> Array:
    """The score at every twentieth rank from the top; a candidate is all rows above a cut. Last: all rows."""
    ranked = np.sort(score)[::-1]
    ranks = [min(-(-len(ranked) * part // CANDIDATES), len(ranked) - 1) for part in range(1, CANDIDATES)]
    return np.append(ranked[ranks], -np.inf)


def candidate_bounds(tested: ErrorTest, cuts: Array) -> Array:
    """The upper bound of the error above each candidate's cut; all bounds hold together."""
    tails = np.full(len(cuts), (1 - SEQUENCE_SHARE - ALL_ROWS_SHARE) / (CANDIDATES - 1))
    tails[-1] = ALL_ROWS_SHARE
    return tested.bounds(cuts, (1 - tested.level) * tails)


def _sequence(tested: ErrorTest, seed: int) -> list[float]:
    """The cuts from the start of the sequence to the last before the first that fails."""
    for_start, for_tests = tested.start, tested
    if for_start is None:
        n = len(tested.score)
        first = max(1, round(START_PART * n))
        if first >= n:
            return []
        order = np.random.default_rng(seed).permutation(n)
        for_start, for_tests = tested.take(order[:first]), tested.take(order[first:])
    cuts = _ranked_cuts(for_start.score)
    start = _start(for_start, for_tests.groups)
    end = start + for_tests.passing(cuts[start:], SEQUENCE_SHARE * (1 - tested.level))
    return [float(cut) for cut in cuts[start:end]]


def _ranked_cuts(score: Array) -> Array:
    """Cuts at 1/200, 2/200, ... of the ranks from the top, interpolated. Last: all rows."""
    ranks = np.arange(1, STEPS) / STEPS * len(score)
    cuts = np.interp(ranks, np.arange(len(score)) + 0.5, np.sort(score)[::-1])
    return np.append(cuts.round(DECIMALS), -np.inf)


def _start(part: ErrorTest, n: int) -> int:
    """The cut with the highest expected power, if the error above the share u of n rows is error * u^p.

    A row at rank u is then wrong in proportion to u^p, so wrong rows have a mean rank of (p + 1) / (p + 2).
    Ranks, not scores, so that a temperature for two classes changes nothing.
    """
    wrong = int(part.wrong.sum())
    ranked = np.sort(-part.score)
    of_wrong = -part.score[part.wrong]
    ends = np.searchsorted(ranked, of_wrong, "left") + np.searchsorted(ranked, of_wrong, "right")
    total = float(ends.sum()) / 2 / len(ranked)
    rank = (total + RANK_ROWS * USUAL_RANK) / (wrong + RANK_ROWS)
    power = (2 * rank - 1) / (1 - rank) if 0.5 < rank < 1 else 0.0
    error = (wrong + 1) / (len(ranked) + 1 / part.most)
    share = np.arange(1, STEPS + 1) / STEPS
    expected = np.sqrt(share) * (part.most - error * share**power)
    can_pass = (1 - part.most) ** (share * n) <= SEQUENCE_SHARE * (1 - part.level)
    return int(np.where(can_pass, expected, -np.inf).argmax()) if can_pass.any() else STEPS - 1
