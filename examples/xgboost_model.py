"""XGBoost: the raw scores of a boosted model are logits; calibrate them, and choose a threshold.

python examples/xgboost_model.py        (needs: pip install xgboost)
"""

from clusters import CLASSES, draw
from xgboost import XGBClassifier

import surefoot


def main() -> surefoot.Evaluation:
    """Train, calibrate on validation data, evaluate, choose thresholds."""
    model = XGBClassifier(n_estimators=60, max_depth=4, learning_rate=0.3, n_jobs=1)
    model.fit(*draw("train"))

    def predictions(part: str) -> surefoot.Predictions:
        points, labels = draw(part)
        raw = model.predict(points, output_margin=True)
        return surefoot.Predictions.from_logits(raw, labels, class_names=CLASSES)

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
    main()
