"""Frouros' detectors and NannyML's CBPE on the windows of monitoring.py; runs in an environment of its own.

    python -m venv .venv-monitor
    .venv-monitor/bin/pip install frouros==0.9.0 nannyml==0.13.1 statsmodels "pandas<3"
    python benchmarks/monitoring.py STORE --peers .venv-monitor/bin/python --write

Reads and writes .npz files, because its packages need other versions than surefoot.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

import numpy as np

TESTS = ("KSTest", "CVMTest", "MannWhitneyUTest", "AndersonDarlingTest", "WelchTTest", "KuiperTest")
DISTANCES = ("EMD", "EnergyDistance", "HellingerDistance", "JS", "PSI")
MMD_WINDOWS = 10  # of each split: it is slow


def detect(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each detector, its evidence for every window and, of tests, its p-value."""
    from frouros.detectors import data_drift

    found = {}
    reference, windows = values["reference"], values["windows"]
    for name in (*TESTS, *DISTANCES):
        detector = getattr(data_drift, name)()
        detector.fit(X=reference)
        results = [detector.compare(X=window)[0] for window in windows]
        if name in DISTANCES:
            found[name] = np.array([each.distance for each in results])
        else:
            found[f"{name} p"] = np.array([each.p_value for each in results])
            by_statistic = name not in ("MannWhitneyUTest", "WelchTTest")  # whose statistics have a sign
            found[name] = np.array([each.statistic if by_statistic else -each.p_value for each in results])
    detector = data_drift.MMD()
    detector.fit(X=values["reference_logits"])
    some = values["windows_logits"][:MMD_WINDOWS]
    found["MMD"] = np.array([detector.compare(X=window)[0].distance for window in some])
    return found


def estimate(values: dict[str, np.ndarray]) -> np.ndarray:
    """CBPE's estimated accuracy of each window; NannyML calibrates on the reference if it finds it needed."""
    import nannyml
    import pandas as pd

    def frame(probs: np.ndarray) -> "pd.DataFrame":
        columns = {f"p{label}": probs[:, label] for label in range(probs.shape[1])}
        return pd.DataFrame(columns | {"predicted": probs.argmax(axis=1)})

    reference = frame(values["reference"]).assign(true=values["labels"])
    classes = values["reference"].shape[1]
    binary = classes == 2
    found = np.empty(len(values["sizes"]))
    windows = np.split(values["windows"], np.cumsum(values["sizes"])[:-1])
    for size in np.unique(values["sizes"]):
        chosen = np.flatnonzero(values["sizes"] == size)
        estimator = nannyml.CBPE(
            problem_type="classification_binary" if binary else "classification_multiclass",
            y_pred_proba="p1" if binary else {label: f"p{label}" for label in range(classes)},
            y_pred="predicted",
            y_true="true",
            metrics=["accuracy"],
            chunk_size=int(size),
        )
        estimator.fit(reference)
        table = estimator.estimate(frame(np.concatenate([windows[i] for i in chosen]))).to_df()
        analysis = table[table[("chunk", "period")] == "analysis"]
        found[chosen] = analysis[("accuracy", "value")].to_numpy()
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    os.environ["NML_DISABLE_USAGE_LOGGING"] = "1"  # it would send usage data to its makers
    folder = Path(sys.argv[1])
    for path in sorted(folder.glob("detect-*.npz")):
        with np.load(path) as stored:
            np.savez(folder / f"found-{path.name}", **detect(dict(stored)))
    for path in sorted(folder.glob("estimate-*.npz")):
        with np.load(path) as stored:
            np.savez(folder / f"found-{path.name}", accuracy=estimate(dict(stored)))


if __name__ == "__main__":
    main()
