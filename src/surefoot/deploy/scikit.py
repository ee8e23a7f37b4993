"""A scikit-learn classifier as a torch module that gives logits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.kinds import LabelKind


def is_scikit_classifier(model: object) -> bool:
    """Whether it is fitted and says scores or probabilities, as scikit-learn's classifiers do."""
    says = hasattr(model, "decision_function") or hasattr(model, "predict_proba")
    return says and hasattr(model, "classes_") and not isinstance(model, nn.Module)


class ScikitModel(nn.Module):
    """Arrays or tensors to logits, on the host: `decision_function`, or the logs of `predict_proba`.

    The latter where there is no `decision_function`, or where it scores pairs of classes (one against one):
    those scores are no logits.
    """

    def __init__(self, classifier: Any, kind: LabelKind) -> None:
        super().__init__()
        self.classifier = classifier
        self.kind = kind

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, samples: ArrayLike | Tensor) -> Tensor:
        """Logits (n, classes), or (n,) of two classes."""
        rows = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else samples
        scores = self._scores(rows)
        logits = _log(self._probabilities(rows), self.kind) if scores is None else scores
        device = samples.device if isinstance(samples, Tensor) else None
        return torch.as_tensor(np.asarray(logits), dtype=torch.float32, device=device)

    def _scores(self, rows: Any) -> NDArray[np.float64] | None:
        if not hasattr(self.classifier, "decision_function"):
            return None
        scores = np.asarray(self.classifier.decision_function(rows))
        if scores.ndim == 1:
            return scores
        as_wide = scores.shape[1] == len(self.classifier.classes_)
        return scores if as_wide and not _scores_pairs(self.classifier) else None

    def _probabilities(self, rows: Any) -> NDArray[np.float64]:
        if not hasattr(self.classifier, "predict_proba"):
            name = type(self.classifier).__name__
            raise InputError(f"{name} gives a score for each pair of classes; needed: one for each class")
        found = self.classifier.predict_proba(rows)
        if isinstance(found, list):  # a table for each label, with a column for each value that it had
            values = zip(found, self.classifier.classes_, strict=True)
            found = np.stack([each[:, known == 1].sum(axis=1) for each, known in values], axis=1)
        return np.asarray(found, dtype=np.float64)

    def label_indices(self, labels: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels as the classifier names them, as indices of its classes; labels in columns as they are."""
        given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if self.kind is LabelKind.MANY_LABELS:
            return given
        given = given.reshape(-1)
        places = {name: place for place, name in enumerate(np.asarray(self.classifier.classes_).tolist())}
        unknown = [name for name in given.tolist() if name not in places]
        if unknown:
            have = ", ".join(map(str, list(places)[:10]))
            raise InputError(f"label {unknown[0]!r} is no class of the classifier; have: {have}")
        return np.asarray([places[name] for name in given.tolist()], dtype=np.int64)


def _scores_pairs(classifier: Any) -> bool:
    """Whether it, or the last step of a pipeline, is set to score pairs: of three classes there are three."""
    settings = classifier.get_params() if hasattr(classifier, "get_params") else {}
    shapes = [value for name, value in settings.items() if name.endswith("decision_function_shape")]
    return "ovo" in shapes


def _log(probabilities: NDArray[np.float64], kind: LabelKind) -> NDArray[np.float64]:
    """Logs, or log odds where each column is a label of its own; 0 is read as the smallest float32."""
    tiny = float(np.finfo(np.float32).tiny)
    logs = np.log(np.maximum(probabilities, tiny))
    if kind is LabelKind.MANY_LABELS:
        logs = logs - np.log(np.maximum(1 - probabilities, tiny))
    return np.asarray(logs)
