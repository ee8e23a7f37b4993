"""The families of cases. Each draws one case from a generator: some files, then commands with what must come of them."""

import numpy as np

from tests.fuzz.documents import bundles_damaged, calibrations_damaged, descriptions_damaged, stores_damaged
from tests.fuzz.hostile import (
    labels_that_wrap,
    odd_options,
    predictions_damaged,
    predictions_odd,
    special_files,
)
from tests.fuzz.memory import arrays
from tests.fuzz.own_code import code_in_bundles, code_of_runs
from tests.fuzz.routes import class_orders, groups, zeros
from tests.fuzz.users import ordinary_user
from tests.fuzz.valid import (
    calibrate_valid,
    evaluate_valid,
    monitor_valid,
    names_round_trip,
    refit_valid,
    sets_valid,
    thresholds_valid,
)

FAMILIES = {
    evaluate_valid: 16,
    calibrate_valid: 8,
    names_round_trip: 8,
    refit_valid: 4,
    sets_valid: 3,
    thresholds_valid: 3,
    monitor_valid: 4,
    predictions_damaged: 22,
    predictions_odd: 12,
    labels_that_wrap: 2,
    special_files: 6,
    odd_options: 8,
    calibrations_damaged: 5,
    descriptions_damaged: 5,
    bundles_damaged: 3,
    stores_damaged: 2,
    code_in_bundles: 8,
    code_of_runs: 2,
    ordinary_user: 8,
    zeros: 8,
    class_orders: 10,
    groups: 8,
    arrays: 10,
}


def family_of(rng, name=None):
    """A family, by its weight; or the one of that name."""
    weights = np.array(list(FAMILIES.values()), dtype=float)
    drawn = list(FAMILIES)[int(rng.choice(len(weights), p=weights / weights.sum()))]
    return next(each for each in FAMILIES if each.__name__ == name) if name else drawn
