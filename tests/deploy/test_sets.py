"""Conformal sets: MAPIE chooses the same, the coverage holds on average, and bad input is refused."""

import json

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin

from surefoot import IGNORE, InputError, Predictions, fit_temperature, write_predictions
from surefoot.decisions.sets import choose_sets, measure_sets
from tests.cli.command import surefoot
from tests.conftest import draw_many_labels, draw_one_label


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def fit(self, rows, _):
        self.classes_ = np.arange(rows.shape[1])
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, rows):
        return rows

    def predict(self, rows):
        return rows.argmax(axis=1)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_mapie_chooses_the_same_sets(coverage):
    val, new = draw_one_label(200, 4, sharpness=1), draw_one_label(100, 4, seed=5, sharpness=1)
    sets = choose_sets(val, coverage=coverage)
    before, now = (each.probs() for each in (val, new))
    model = SplitConformalClassifier(
        Given().fit(before, None), confidence_level=coverage, conformity_score="lac", prefit=True
    )
    _, theirs = model.conformalize(before, val.labels).predict_set(now)
    expected = theirs[:, :, 0]
    expected[np.arange(100), now.argmax(axis=1)] = True  # ours are never empty
    assert np.array_equal(sets.of(new), expected)


def test_the_coverage_holds_on_average_and_only_on_familiar_data():
    pool, covered = draw_one_label(40_000, 4, sharpness=1), []
    strange = Predictions.from_logits(3 * pool.logits, pool.labels)
    for turn in range(100):
        rows = np.random.default_rng(turn).permutation(pool.n)
        sets = choose_sets(pool.take(rows[:99]), coverage=0.9)
        covered.append(measure_sets(sets, pool.take(rows[99:1099])).coverage.value)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.012)
    assert measure_sets(choose_sets(pool, coverage=0.9), strange).coverage.value < 0.85


def test_few_rows_take_every_class_and_rows_without_a_label_do_not_count():
    val = draw_one_label(8)
    sets = choose_sets(val, coverage=0.9)
    assert sets.least_probability == 0
    assert sets.of(val).all()
    labels = np.where(np.arange(300) < 200, draw_one_label(300).labels, IGNORE)
    some = Predictions.from_logits(draw_one_label(300).logits, labels)
    assert choose_sets(some, coverage=0.9).n == measure_sets(sets, some).coverage.n == 200
    fitted = fit_temperature(draw_one_label(300))
    calibrated = choose_sets(draw_one_label(300), coverage=0.9, calibration=fitted)
    alone = choose_sets(fitted(draw_one_label(300)), coverage=0.9)
    assert calibrated.least_probability == alone.least_probability


def test_bad_input_is_refused_and_the_command_says_what_is_not_guaranteed(tmp_path):
    with pytest.raises(InputError, match=r"coverage is 1\.0; allowed: above 0 and below 1"):
        choose_sets(draw_one_label(), coverage=1.0)
    with pytest.raises(InputError, match="one label per row; got many labels"):
        choose_sets(draw_many_labels(), coverage=0.9)
    with pytest.raises(InputError, match="for one label of 4 classes, but the predictions are"):
        choose_sets(draw_one_label(), coverage=0.9).of(draw_one_label(classes=3))
    write_predictions(draw_one_label(500, 3, sharpness=1), tmp_path / "val.npz")
    strange = draw_one_label(500, 3, seed=3)
    write_predictions(Predictions.from_logits(4 * strange.logits, strange.labels), tmp_path / "u.npz")
    words = ("sets", tmp_path / "val.npz", "--unfamiliar", tmp_path / "u.npz", "-o", tmp_path / "s.json")
    done = surefoot(*words)
    assert "The guarantee does not cover unfamiliar data" in done.stdout
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["measured"]["val"]["coverage"]["value"] >= 0.9
    done = surefoot("sets", tmp_path / "val.npz", "-o", tmp_path / "s.csv", check=2)
    assert "the sets are JSON" in done.stderr


def test_sets_can_be_looked_at(tmp_path):
    chosen = choose_sets(
        draw_one_label(300), coverage=0.8, unfamiliar=draw_one_label(200, sharpness=0.2, seed=1)
    )
    text = repr(chosen)
    assert text.startswith("Prediction sets\n")
    assert "unfamiliar" in text
    assert len(text.splitlines()) < 40
    assert "<table" in chosen._repr_html_()
    assert chosen.to_dict()["measured"]["val"]["coverage"]["n"] == 300
    assert chosen.save_report(tmp_path / "new").read_text().count("<svg") == 1
