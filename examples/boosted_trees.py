"""XGBoost or LightGBM: the raw scores of boosted trees are logits; calibrate them, and choose a threshold.

python examples/boosted_trees.py xgboost        (needs: pip install xgboost)
python examples/boosted_trees.py lightgbm       (needs: pip install lightgbm)
"""

import sys
from typing import Any

from clusters import CLASSES, draw

import surefoot

SETTINGS: dict[str, Any] = {"n_estimators": 60, "max_depth": 4, "learning_rate": 0.3, "n_jobs": 1}


def raw_scores(library: str) -> Any:
    """A function of points that gives the raw scores of a trained model."""
    if library == "lightgbm":
        from lightgbm import LGBMClassifier

        trees = LGBMClassifier(**SETTINGS, verbosity=-1).fit(*draw("train"))
        return lambda points: trees.predict_proba(points, raw_score=True)
    from xgboost import XGBClassifier

    model = XGBClassifier(**SETTINGS).fit(*draw("train"))
    return lambda points: model.predict(points, output_margin=True)


def main(library: str = "xgboost") -> surefoot.Evaluation:
    """Train, calibrate on validation data, evaluate, choose thresholds."""
    scores = raw_scores(library)

    def predictions(part: str) -> surefoot.Predictions:
        points, labels = draw(part)
        return surefoot.Predictions.from_logits(scores(points), labels, class_names=CLASSES)

    calibration = surefoot.fit_calibration("temperature", predictions("val"))
    result = surefoot.evaluate(
        predictions("familiar"), predictions("unfamiliar"), calibration=calibration, resamples=200
    )
    thresholds = surefoot.choose_thresholds(
        predictions("val"), target_error=0.1, split=0.3, unfamiliar=predictions("unfamiliar")
    )
    print(calibration, result, thresholds, sep="\n\n")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
