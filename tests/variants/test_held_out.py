"""Folds of subgroups: whole groups, every class kept, nothing lost."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.lab.variants.held_out import NEVER, cluster, deal_groups
from surefoot.predictions.labels import LabelKind

ONE, MANY = LabelKind.ONE_LABEL, LabelKind.MANY_LABELS


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 12), st.booleans())
def test_groups_stay_whole_and_no_class_is_emptied(seed, folds, groups, many):
    rng = np.random.default_rng(seed)
    n = 80
    names = rng.integers(groups, size=n).astype(str)
    labels = rng.integers(2, size=(n, 3)) if many else rng.integers(3, size=n)
    trained = rng.random(n) < 0.6
    fold = deal_groups(names, labels, trained, folds, MANY if many else ONE)
    assert set(fold.tolist()) <= {NEVER, *range(folds)}
    for name in set(names.tolist()):
        assert len(set(fold[names == name].tolist())) == 1
    has = labels == 1 if many else labels[:, None] == np.arange(3)
    for each in range(folds):
        left = has[trained & (fold != each)].any(axis=0)
        assert (left | ~has[trained].any(axis=0)).all()


def test_a_class_s_groups_are_spread_over_the_folds():
    names = np.repeat([f"g{i}" for i in range(10)], 4)
    labels = np.repeat([0] * 5 + [1] * 5, 4)
    fold = deal_groups(names, labels, np.ones(40, dtype=bool), 5, ONE)
    for each in range(5):
        assert sorted(set(labels[fold == each].tolist())) == [0, 1]
        assert (fold == each).sum() == 8


def test_the_only_group_of_a_class_is_never_held_out():
    names = np.array(["a"] * 5 + ["b"] * 5 + ["c"] * 5)
    labels = np.array([0] * 5 + [1] * 10)
    fold = deal_groups(names, labels, np.ones(15, dtype=bool), 2, ONE)
    assert set(fold[:5].tolist()) == {NEVER}
    assert set(fold[5:].tolist()) == {0, 1}


def test_clusters_find_clear_clusters_within_classes():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4)) * 50
    of = np.repeat(np.arange(6), 20)
    points = torch.from_numpy(centres[of] + rng.normal(size=(120, 4)))
    labels = of // 3
    names = cluster(points, labels, 3, ONE)
    assert len({(a, b) for a, b in zip(of.tolist(), names.tolist(), strict=True)}) == 6
    assert (cluster(points, labels, 3, ONE) == names).all()
    everywhere = cluster(points, np.zeros((120, 2), dtype=np.int64), 6, MANY)
    assert len(set(everywhere.tolist())) <= 6
