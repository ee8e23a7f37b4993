"""Features in predictions: stored exactly, taken with the rows, and refused where they are wrong."""

import numpy as np
import pytest

from surefoot import InputError, Predictions, read_predictions, write_predictions


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_read_as_they_were_written(suffix, dtype, tmp_path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((7, 64)).astype(dtype)
    given = Predictions.from_logits(rng.standard_normal((2, 7, 3)), np.arange(7) % 3, features=features)
    write_predictions(given, tmp_path / f"p.{suffix}")
    again = read_predictions(tmp_path / f"p.{suffix}")
    assert again.features.dtype == given.features.dtype
    assert np.array_equal(again.features, given.features)
    assert again.attributes is None
    assert np.array_equal(again.take([5, 2]).features, features[[5, 2]])
    assert np.array_equal(again.with_logits(2 * again.logits).features, given.features)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((7, 65)), r"features have shape \(7, 65\); allowed: \(n, 1 to 64\)"),
        (np.zeros(7), r"features have shape \(7,\)"),
        (np.zeros((6, 2)), "6 features for 7 rows of logits"),
        (np.full((7, 2), np.nan), "features hold NaN in row 0, column 0"),
        (np.full((7, 2), 1e200), r"features up to 1e\+200"),
        (np.full((7, 2), "x"), "features have type text"),
    ],
)
def test_wrong_features_are_refused(features, message):
    with pytest.raises(InputError, match=message):
        Predictions.from_logits(np.zeros((7, 3)), np.zeros(7, int), features=features)


def test_a_csv_holds_no_features_and_a_column_of_that_name_is_an_attribute(tmp_path):
    given = Predictions.from_logits(np.zeros((7, 3)), np.zeros(7, int), features=np.zeros((7, 2)))
    with pytest.raises(InputError, match=r"a \.csv holds no features; allowed: \.npz or \.parquet"):
        write_predictions(given, tmp_path / "p.csv")
    column = {"features": np.arange(7)}
    for suffix in ("csv", "parquet"):
        plain = Predictions.from_logits(np.zeros((7, 3)), np.zeros(7, int), attributes=column)
        write_predictions(plain, tmp_path / f"p.{suffix}")
        again = read_predictions(tmp_path / f"p.{suffix}")
        assert again.features is None
        assert again.attributes["features"].to_pylist() == list(range(7))
