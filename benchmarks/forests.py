"""`python -m benchmarks.forests`: forests on default settings, calibrated or not -> results/forests.md.

Public tables that need no download. Of each, 60% of the rows train a forest and calibrate it by
cross-validation, as `TemperatureScaledClassifier` does; the scores are those of the other 40%, the means of
five splits.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from surefoot import Predictions
from surefoot.metrics import brier, ece, nll_unclipped
from surefoot.sklearn import TemperatureScaledClassifier

SEEDS = 5
RESULT = Path(__file__).parent / "results" / "forests.md"
PENGUINS = Path(__file__).parent.parent / "examples" / "penguins" / "penguins.csv"
METRICS = {"ECE": ece, "NLL": nll_unclipped, "Brier": brier}


def tables() -> Iterator[tuple[str, Any, Any]]:
    for name in ("breast_cancer", "digits", "iris", "wine"):
        yield name, *getattr(datasets, f"load_{name}")(return_X_y=True)
    x, y = datasets.load_diabetes(return_X_y=True)
    yield "diabetes, in thirds", x, np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    frame = pd.read_csv(PENGUINS).dropna()
    numbers = frame.select_dtypes("number")
    yield "penguins: sex", numbers.to_numpy(), pd.factorize(frame["sex"])[0]


def scores(x: Any, y: Any, seed: int) -> list[list[float]]:
    """Of the forest as it is, and with a temperature and isotonic calibration."""
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)
    forest = RandomForestClassifier(random_state=seed)
    models = [forest.fit(x_train, y_train)]
    for method in ("temperature", "isotonic"):
        models.append(TemperatureScaledClassifier(forest, method=method).fit(x_train, y_train))
    tested = [Predictions.from_probs(model.predict_proba(x_test), y_test) for model in models]
    return [[metric(each) for each in tested] for metric in METRICS.values()]


def main() -> None:
    warnings.simplefilter("ignore")
    about = (__doc__ or "").split("\n", 2)[2].strip()
    lines = [f"# Forests on default settings\n\n`python -m benchmarks.forests`: {about}\n"]
    lines.append(
        "| table | " + " | ".join(f"{name}: none | temperature | isotonic" for name in METRICS) + " |"
    )
    lines.append("|---" * (1 + 3 * len(METRICS)) + "|")
    for name, x, y in tables():
        found = np.mean([scores(x, y, seed) for seed in range(SEEDS)], axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in found.ravel()) + " |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
