"""An evaluation as plain data for JSON: NaN becomes null, so that any reader can read it."""

import math
from typing import Any

from surefoot.scores import GROUP_METRICS, Evaluation, Score, SetScores
from surefoot.statistics import LEVEL
from surefoot.version import VERSION


def evaluation_document(evaluation: Evaluation) -> dict[str, Any]:
    """{"familiar": {"n": .., "metrics": {"nll": {"value": .., "low": .., "high": ..}, ..}}, ..}."""
    document: dict[str, Any] = {"surefoot": VERSION, "level": LEVEL, "resamples": evaluation.resamples}
    document |= {side: _set_document(scores) for side, scores in evaluation.sides.items()}
    if evaluation.gap:
        document["gap"] = _scores_document(evaluation.gap)
    if evaluation.change:
        document["uncalibrated"] = {s: _set_document(scores) for s, scores in evaluation.uncalibrated.items()}
        document["change"] = {side: _scores_document(scores) for side, scores in evaluation.change.items()}
    return document


def number(value: float) -> float | None:
    """The number, or None where it is undefined or infinite."""
    return value if math.isfinite(value) else None


def _set_document(scores: SetScores) -> dict[str, Any]:
    document: dict[str, Any] = {
        "n": scores.n,
        "members": scores.members,
        "classes": scores.classes,
        "kind": str(scores.kind),
        "independent": scores.independent,
        "metrics": _scores_document(scores.metrics),
    }
    if scores.groups:
        document["worst_group"] = {
            name: {"group": worst.group, "group_n": worst.n, **_score_document(worst.metrics[name])}
            for name in GROUP_METRICS
            if name in scores.metrics and (worst := scores.worst(name)) is not None
        }
        document["groups"] = [
            {"group": g.group, "n": g.n, "metrics": _scores_document(g.metrics)} for g in scores.groups
        ]
    return document


def _scores_document(scores: Any) -> dict[str, Any]:
    return {name: _score_document(score) for name, score in scores.items()}


def _score_document(score: Score) -> dict[str, Any]:
    document: dict[str, Any] = {
        "value": number(score.value),
        "low": number(score.low),
        "high": number(score.high),
    }
    if score.n is not None:
        document |= {"k": score.k, "n": score.n}
    if score.bound is not None:
        document["bound"] = number(score.bound)
    return document
