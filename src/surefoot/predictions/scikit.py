"""Logits of a scikit-learn classifier, without torch."""

from typing import Any

import numpy as np

from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.predictions.zeros import as_zeros


def logits_of_rows(classifier: Any, rows: Any, kind: LabelKind) -> Array:
    """Logits (n, classes), or (n,) of two classes: `decision_function`, or the logs of `predict_proba`.

    The latter if there is no `decision_function`, or if it scores pairs of classes (one against one): those
    scores are not logits.
    """
    logits = _scores(classifier, rows)
    if logits is None:
        probabilities = _probabilities(classifier, rows)
        logits = np.log(as_zeros(probabilities))
        if kind is LabelKind.MANY_LABELS:
            logits = logits - np.log(as_zeros(1 - probabilities))
    return np.asarray(logits, dtype=np.float64)


def _scores(classifier: Any, rows: Any) -> Array | None:
    if not hasattr(classifier, "decision_function"):
        return None
    scores = np.asarray(classifier.decision_function(rows))
    if scores.ndim == 1:
        return scores
    # With three classes there are three pairs, so the setting decides: its own, or a pipeline step's.
    settings = classifier.get_params() if hasattr(classifier, "get_params") else {}
    of_pairs = "ovo" in [v for name, v in settings.items() if name.endswith("decision_function_shape")]
    return None if of_pairs or scores.shape[1] != len(classifier.classes_) else scores


def _probabilities(classifier: Any, rows: Any) -> Array:
    if not hasattr(classifier, "predict_proba"):
        name = type(classifier).__name__
        raise InputError(f"{name} gives a score for each pair of classes; needed: one for each class")
    probabilities = classifier.predict_proba(rows)
    if isinstance(probabilities, list):  # a table for each label, with a column for each of its values
        values = zip(probabilities, classifier.classes_, strict=True)
        probabilities = np.stack([each[:, known == 1].sum(axis=1) for each, known in values], axis=1)
    return np.asarray(probabilities, dtype=np.float64)
