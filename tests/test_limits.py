"""Limits and defaults that the documentation, or a file format, names: a change must be intended."""

import inspect

import pytest

from surefoot import InputError, Predictions, calibrators
from surefoot.calibrators import budget, temperature
from surefoot.decisions import decision, learn_then_test, thresholds, thresholds_file
from surefoot.evaluation import RESAMPLES, bootstrap, evaluate
from surefoot.lab import novelty
from surefoot.lab.comparison import compare, comparison
from surefoot.lab.experiments import changes
from surefoot.metrics import accumulate, calibration, cells, intervals
from surefoot.monitoring import monitor
from surefoot.predictions import labels, outcomes, validate
from surefoot.predictions import novelty as scale
from surefoot.predictions.paths import is_large

VALUES = {
    "bins of the ECE": (calibration.BINS, 10),
    "resamples of its noise floor": (calibration.FLOOR_RESAMPLES, 200),
    "parts that they are drawn from": (calibration.FLOOR_PARTS, 500),
    "the grid of the smooth ECE": (calibration.SMOOTH_GRID, 2048),
    "bounds on p in the NLL": (outcomes.CLIP, (0.001, 0.999)),
    "decimals of a confidence": (outcomes.DECIMALS, 12),
    "an unknown label": (labels.IGNORE, -100),
    "resamples": (RESAMPLES, 500),
    "blocks that are drawn, cells of confidence": ((bootstrap.BLOCKS, bootstrap.CELLS), (1000, 512)),
    "significance": (comparison.SIGNIFICANCE, 0.05),
    "the level of intervals": (intervals.LEVEL, 0.95),
    "its normal quantile": (intervals.NORMAL, pytest.approx(1.95996398454)),
    "few rows for a fit": (temperature.FEW_ROWS, 200),
    "an ECE that became much worse": (temperature.MUCH_WORSE, 0.05),
    "a wide interval of T": (temperature.WIDE, 1.5),
    "the budget": (budget.BUDGET.default, 0.02),
    "the format of calibrations": (calibrators.FORMAT, 1),
    "the format of thresholds": (thresholds_file.FORMAT, 1),
    "candidate thresholds": (learn_then_test.CANDIDATES, 20),
    "errors that are accepted, rejected": ((thresholds.TARGET_ERROR, thresholds.REJECT_ERROR), (0.01, 0.5)),
    "the level of a guarantee": (thresholds.LEVEL, 0.95),
    "familiar samples called familiar": (decision.SHARE, 0.95),
    "few rows to monitor": (monitor.FEW_ROWS, 50),
    "neighbours": (novelty.NEIGHBOURS, 50),
    "ODIN's temperature": (novelty.TEMPERATURE, 1000),
    "percentiles of the novelty": (scale.PERCENTILES, (5, 95)),
    "how far streamed values may be off": (accumulate.TOLERANCE, 1e-4),
    "readings for that": (accumulate.PASSES, 4),
    "a cell that may be divided": (cells.HEAVY, 1e-5),
    "bits of cells": ((cells.BITS, cells.EVEN, cells.FINEST_BITS, cells.OCTAVES), (12, 35, 12, 27)),
    "most cells": ((cells.CELLS, cells.ZOOMED_CELLS, cells.PRECISION_CELLS), (2**21, 2**19, 2**20)),
    "cells of log odds near 0": (cells.UNIT, 2**20),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_documented(name):
    value, expected = VALUES[name]
    assert value == expected


@pytest.mark.parametrize(
    "function",
    [
        evaluate.evaluate,
        evaluate.paired_differences,
        compare.compare_runs,
        changes.changes,
    ],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
def test_the_seed_is_zero_by_default(function):
    assert inspect.signature(function).parameters["seed"].default == 0


def test_a_file_is_large_from_256_mib(tmp_path):
    path = tmp_path / "p.parquet"
    with path.open("wb") as file:
        file.truncate(256 * 2**20)  # without content, it takes no space
    assert not is_large([path])
    with path.open("ab") as file:
        file.truncate(256 * 2**20 + 1)
    assert is_large([path])


def test_logits_are_up_to_1e100_and_labels_whole_up_to_2_to_the_53():
    Predictions.from_logits([[-1e100, 1e100]], [0])
    for wrong in ([0.0, 1.2e100], [-1.2e100, 0.0]):
        with pytest.raises(InputError, match=r"allowed: up to 1e\+100 in size"):
            Predictions.from_logits([wrong], [0])
    assert validate.as_labels([2.0**53]).tolist() == [2**53]
    with pytest.raises(InputError, match=r"labels in row 0 are .*; allowed: whole numbers"):
        validate.as_labels([2.0**53 + 2])
