"""Thresholds and shift detection from predictions in memory: what the commands do, as functions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from surefoot.arguments import checked
from surefoot.calibrators import Calibration, fit_calibration
from surefoot.deploy import thresholds as choosing
from surefoot.deploy.groups import split_rows, warn_of_repeated
from surefoot.deploy.history import opened
from surefoot.deploy.monitor import AlphaBudget, Check, Scores, check_shift, fingerprint, scores_of
from surefoot.deploy.thresholds import (
    LEVEL,
    REJECT_ERROR,
    TARGET_ERROR,
    Guarantee,
    Thresholds,
    Unreachable,
)
from surefoot.errors import InputError, require, require_whole
from surefoot.io import all_or_none
from surefoot.predictions.classes import in_one_order, with_classes
from surefoot.predictions.labels import IGNORE
from surefoot.predictions.predictions import Predictions


@checked
def choose_thresholds(
    val: Predictions,
    *,
    target_error: float = TARGET_ERROR,
    reject_error: float = REJECT_ERROR,
    level: float = LEVEL,
    familiar_test: Predictions | None = None,
    unfamiliar: Predictions | None = None,
    calibration: Calibration | None = None,
    split: float | None = None,
    seed: int = 0,
    for_class: str | None = None,
    per: str | None = None,
) -> Thresholds | Unreachable:
    """The lowest confidence to accept and the highest to reject, with a guarantee on data like `val`.

    With probability `level` over the draw of `val`, at most `target_error` of the accepted predictions are
    wrong, on familiar data. `familiar_test` and `unfamiliar` show what the thresholds do elsewhere.
    `calibration` should be fitted on other rows than `val`; `split` fits a temperature on that share of
    `val`, and chooses on the rest. `per` chooses for each predicted class ('class') or each group of a column
    ('groups', or its name); `seed` is that of the random parts of `val`. Where rows have groups, the
    guarantee is for a random row of a new group. `Unreachable` says which error can be guaranteed instead.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> thresholds = choose_thresholds(val, target_error=0.4)
    >>> bool(thresholds.accepted(val).all())  # 25% are wrong, at most 31% with probability 0.95
    True
    >>> choose_thresholds(val, target_error=0.1)
    Confidence thresholds: none
    No threshold can guarantee an error of at most 0.1 ...
    """
    if calibration is not None and split is not None:
        raise InputError("both calibration and split; allowed: one of the two")
    require_whole("seed", seed, 0)
    require(split is None or 0 < split < 1, "split", split, "above 0 and below 1")
    if calibration is not None:
        val = with_classes(val, calibration.class_names, "the calibration")
    others = {"val": val, "familiar test": familiar_test, "unfamiliar": unfamiliar}
    given = in_one_order({name: each for name, each in others.items() if each is not None})
    del given["val"]
    if split is not None:
        first, val = split_rows(val, split, seed)
        calibration = fit_calibration("temperature", first)
    guarantee, repeated = Guarantee(target_error, reject_error, level), warn_of_repeated(val, per=per)
    chosen = choosing.choose_thresholds(
        val, guarantee, calibration=calibration, for_class=for_class, per=per, seed=seed
    )
    chosen = replace(chosen, repeated=repeated)
    if isinstance(chosen, Unreachable):
        return chosen
    return replace(chosen, measured={name: chosen.zones_of(each) for name, each in given.items()})


@checked
def monitor(
    reference: Predictions,
    current: Predictions,
    *,
    calibration: Calibration | None = None,
    thresholds: Thresholds | None = None,
    alpha: float = 0.05,
    bound: float | None = None,
    history: str | Path | None = None,
    first_share: float | None = None,
    source: str = "",
    on_check: Callable[["Checked"], object] = lambda _: None,
) -> Check:
    """Compare predictions with a familiar reference: has the data shifted? Labels of `current` are not used.

    `alpha` is the probability of any false alarm, over all checks of the `history`, a file that is needed if
    you check more than once; `source` names the current data there. `first_share` of it goes to the first
    check of a history (0.61 unless given), the rest to all others. `bound`: alarm only if the estimated
    accuracy has also dropped by at least this much. With `thresholds`, the share accepted is compared too,
    and their calibration is used. Where rows have groups, whole groups are compared. `on_check` is called
    before the check is recorded: if it fails, or a file that it writes, the history is as it was.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> sure = val.with_logits(3 * val.logits)
    >>> monitor(val, val).alarm, monitor(val, sure).alarm
    (False, True)
    """
    require(0 < alpha < 1, "alpha", alpha, "above 0 and below 1")
    require(bound is None or 0 <= bound <= 1, "bound", bound, "0 to 1")
    require(first_share is None or 0 < first_share < 1, "first_share", first_share, "above 0 and below 1")
    if first_share is not None and history is None:
        raise InputError("first_share without a history; allowed: both (a single check has all of alpha)")
    if thresholds is not None and thresholds.calibration is not None:
        if calibration is not None:
            raise InputError("the thresholds already contain a calibration; allowed: no other calibration")
        calibration = thresholds.calibration
    unlabelled = replace(current, labels=np.full_like(current.labels, IGNORE))
    sides = in_one_order({"reference": reference, "current": unlabelled})
    before, after = (
        scores_of(each, calibration=calibration, thresholds=thresholds) for each in sides.values()
    )
    with recorded_check(
        before,
        after,
        alpha=alpha,
        bound=bound,
        history=history,
        source=source,
        first_share=first_share,
        repeated=warn_of_repeated(reference, current),
    ) as checked:
        on_check(checked)
    return checked.check


@dataclass(frozen=True, eq=False)
class Checked:
    """A check with the scores that it compared, and the history with this check at its end."""

    check: Check
    reference: Scores
    current: Scores
    checks: tuple[dict[str, Any], ...]


@contextmanager
def recorded_check(
    reference: Scores,
    current: Scores,
    *,
    alpha: float,
    bound: float | None,
    history: str | Path | None,
    source: str,
    first_share: float | None = None,
    repeated: str = "",
) -> Iterator[Checked]:
    """A check, recorded in the history when everything has succeeded that is done with it.

    Without a history, a single check that may spend all of alpha.
    """
    if history is None:
        budget = AlphaBudget.only(alpha)
        check = check_shift(reference, current, budget=budget, bound=bound, repeated=repeated)
        with all_or_none():
            yield Checked(check, reference, current, ())
        return
    name = fingerprint(reference)
    # Locked until it is written: two checks at once would spend the same budget.
    given = opened(Path(history), alpha=alpha, reference=name, first_share=first_share)
    with given as past, all_or_none():
        budget = AlphaBudget.of_check(past.count + 1, alpha, past.first_share)
        check = check_shift(reference, current, budget=budget, bound=bound, repeated=repeated)
        recorded = past.added(check, reference=name, source=source)
        recorded.write()  # under a temporary name, until everything else has succeeded
        yield Checked(check, reference, current, recorded.checks)
