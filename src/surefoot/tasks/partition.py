"""Cutting rows into shares: stratified, with what belongs together kept together."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from surefoot.tasks.base import Split
from surefoot.tasks.draws import shuffled


def partition(
    keys: Sequence[str],
    strata: Sequence[str],
    shares: Mapping[Split, float],
    *,
    seed: int,
    settled: Mapping[str, Split] | None = None,
) -> list[Split]:
    """A split for every row; rows of one key share theirs.

    Within each stratum the keys come in an order drawn by lot, and each goes where most rows are still
    missing. So a split is off its share of a stratum by less than one row where every key is one row, and
    by less than the largest key otherwise. `settled` says where certain keys go whatever the lot says;
    they count. The order of the rows does not matter.

    >>> partition("abcd", "xxxx", {Split.TRAIN: 0.5, Split.VAL: 0.5}, seed=0).count(Split.VAL)
    2
    """
    size = Counter(keys)
    chosen = dict(settled or {})
    overall = {split: share * len(keys) for split, share in shares.items()}  # decides between equals
    for stratum, members in sorted(_members(keys, strata).items()):
        total = sum(size[key] for key in members)
        lacking = {split: share * total for split, share in shares.items()}
        drawn = shuffled(members, random.Random(f"surefoot split {seed} {stratum}"))
        for key in sorted(drawn, key=lambda key: key not in chosen):  # those settled come first
            neediest = max(lacking, key=lambda split: (round(lacking[split], 6), overall[split]))
            split = chosen.setdefault(key, neediest)
            lacking[split] -= size[key]
            overall[split] -= size[key]
    return [chosen[key] for key in keys]


def _members(keys: Sequence[str], strata: Sequence[str]) -> dict[str, list[str]]:
    """The keys of each stratum in the order of their names; a key is where most of its rows are."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for key, stratum in zip(keys, strata, strict=True):
        votes[key][stratum] += 1
    members: dict[str, list[str]] = defaultdict(list)
    for key in sorted(votes):
        winner = min(votes[key], key=lambda stratum: (-votes[key][stratum], stratum))
        members[winner].append(key)
    return members
