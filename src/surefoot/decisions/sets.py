"""Conformal prediction sets: the classes that contain the true one with a stated probability."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.calibrators import Calibration, calibration_document
from surefoot.decisions.chunks import identities_of
from surefoot.decisions.groups import (
    group_numbers,
    groups_document,
    number_of_groups,
    proportion_of,
    some_of,
    warn_of_repeated,
)
from surefoot.errors import InputError, require
from surefoot.io import replacing
from surefoot.metrics.intervals import Proportion
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import class_order, in_one_order, with_classes
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import DECIMALS, Index
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result

COVERAGE = 0.9
KIND = "sets"
FORMAT = 1
DEFINITIONS = {
    "set": "every class whose probability, after the calibration if there is one, is at least "
    "'least_probability'; always the most probable class",
    "guarantee": "on data like those the limit was chosen on, and on no others: the true class is in the set "
    "of a new row with probability 'coverage' or more, over the draw of the n rows and of the new one",
    "method": "split conformal prediction, score 1 - p of the true class (Sadinle et al., JASA 2019)",
}
OF_GROUPS = {
    "groups": "of the n rows; the guarantee is for a random row of a new group (1: of this one)",
    "method": "hierarchical conformal prediction (Dunn et al., JASA 2023), score 1 - p of the true class",
}


@dataclass(frozen=True)
class Measured:
    """How often the sets of labelled rows contain the true class, and how large they are."""

    coverage: Proportion
    mean_size: float
    single: Proportion  # sets of one class


@checked
@dataclass(frozen=True)
class Sets(Result):
    """The classes of a row that are at least as probable as the limit, and the most probable one."""

    coverage: float
    least_probability: float
    n: int
    classes: int
    calibration: Calibration | None = None
    measured: Mapping[str, Measured] = field(default_factory=dict)  # on val and on further data
    class_names: tuple[str, ...] | None = None
    groups: int | None = None  # of n rows: the guarantee is for a row of a new one
    repeated: str = ""  # a column that repeats although there are no groups

    @checked
    def of(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Which classes are in each row's set, (n, classes), in the predictions' order; needs no labels."""
        class_order(self.class_names, predictions.class_names, "the sets")
        calibrated = predictions if self.calibration is None else self.calibration(predictions)
        if calibrated.kind is LabelKind.MANY_LABELS or calibrated.classes != self.classes:
            raise InputError(
                f"the sets are for one label of {self.classes} classes, but the predictions are "
                f"{calibrated.kind} with {calibrated.classes} classes"
            )
        probs = _probabilities(calibrated)
        chosen: NDArray[np.bool_] = probs >= self.least_probability
        chosen[np.arange(len(probs)), probs.argmax(axis=1)] = True
        return chosen


@checked
def choose_sets(
    val: Predictions,
    *,
    coverage: float = COVERAGE,
    familiar_test: Predictions | None = None,
    unfamiliar: Predictions | None = None,
    calibration: Calibration | None = None,
) -> Sets:
    """Sets of classes that contain the true one with probability `coverage`, on data like `val`.

    The limit is the ceil((n + 1) coverage)-th largest probability of the true class; with fewer rows than
    that, every class is in every set. Where rows have groups, each group counts as one row that its rows
    share, and the guarantee is for a random row of a new group. `familiar_test` and `unfamiliar` show what
    the sets do elsewhere; `calibration` should be fitted on other rows than `val`.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> choose_sets(val, coverage=0.7).of(val)[0], choose_sets(val, coverage=0.9).of(val)[0]
    (array([ True, False]), array([ True,  True]))
    """
    require(0 < coverage < 1, "coverage", coverage, "above 0 and below 1")
    if calibration is not None:
        val = with_classes(val, calibration.class_names, "the calibration")
    others = {"val": val, "familiar test": familiar_test, "unfamiliar": unfamiliar}
    given = in_one_order({name: each for name, each in others.items() if each is not None})
    calibrated = val if calibration is None else calibration(val)
    if calibrated.kind is LabelKind.MANY_LABELS:
        raise InputError("prediction sets are for one label per row; got many labels")
    true = _of_true_class(calibrated)
    if not len(true):
        raise InputError("no labels to choose sets on; allowed: predictions with at least one label")
    is_one = calibrated.groups is not None and bool((calibrated.groups == calibrated.groups[0]).all())
    known = np.flatnonzero(calibrated.labels >= 0)
    group_of = None if is_one else some_of(group_numbers(calibrated.groups), known)
    groups = number_of_groups(len(true), group_of) if group_of is not None else 1 if is_one else None
    limit = _limit(true, group_of, coverage)
    repeated = warn_of_repeated(identities_of(val))
    sets = Sets(
        coverage,
        limit,
        len(true),
        calibrated.classes,
        calibration,
        class_names=calibrated.class_names,
        groups=groups,
        repeated=repeated,
    )
    return replace(sets, measured={name: measure_sets(sets, each) for name, each in given.items()})


def _limit(true: NDArray[np.float64], group_of: Index | None, coverage: float) -> float:
    """The largest limit that rows of the weight (groups + 1) * coverage reach; each group has a weight of 1.

    Hierarchical conformal prediction (Dunn et al., JASA 2023; Lee et al., 2023): the new group has the weight
    1, too, and may have any probabilities.
    """
    groups = number_of_groups(len(true), group_of)
    weight = np.ones(len(true)) if group_of is None else 1 / np.bincount(group_of)[group_of]
    order = np.argsort(-true, kind="stable")
    reached = np.cumsum(weight[order]) >= (groups + 1) * coverage - 1e-9
    return float(true[order[reached.argmax()]]) if reached.any() else 0.0


def measure_sets(sets: Sets, predictions: Predictions) -> Measured:
    """On the rows that have a label."""
    labels = predictions.labels
    known = np.flatnonzero(labels >= 0)
    chosen = sets.of(predictions)[known]
    size = chosen.sum(axis=1)
    inside = chosen[np.arange(len(known)), labels[known]]
    group_of = some_of(group_numbers(predictions.groups), known)
    return Measured(
        proportion_of(inside, group_of),
        float(size.mean()) if len(known) else math.nan,
        proportion_of(size == 1, group_of),
    )


def sets_document(sets: Sets) -> dict[str, Any]:
    """The limit and what was measured, as plain values."""
    return {
        "surefoot": __version__,
        "format": FORMAT,
        "kind": KIND,
        "coverage": sets.coverage,
        "least_probability": sets.least_probability,
        "n": sets.n,
        **groups_document(sets.groups, sets.repeated),
        "classes": sets.classes,
        "class_names": sets.class_names,
        "calibration": None if sets.calibration is None else calibration_document(sets.calibration),
        "measured": {name: asdict(each) for name, each in sets.measured.items() if each.coverage.n},
        "definitions": DEFINITIONS if sets.groups is None else DEFINITIONS | OF_GROUPS,
    }


def save_sets(sets: Sets, path: str | Path) -> None:
    """Write the limit and what was measured."""
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps(sets_document(sets), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )


def _probabilities(predictions: Predictions) -> NDArray[np.float64]:
    """Rounded, so that equal probabilities tie."""
    return predictions.probs().round(DECIMALS)


def _of_true_class(predictions: Predictions) -> NDArray[np.float64]:
    labels = predictions.labels
    known = np.flatnonzero(labels >= 0)
    of_true: NDArray[np.float64] = _probabilities(predictions)[known, labels[known]]
    return of_true
