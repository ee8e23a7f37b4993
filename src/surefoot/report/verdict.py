"""What the numbers say, in a few plain sentences."""

import math

from surefoot.evaluation.scores import Evaluation, Score, SetScores

FEW_GROUPS = 20


def verdict(evaluation: Evaluation) -> list[str]:
    """A sentence per side, one on confident mistakes, one on what calibration did."""
    sentences = [_side_sentence(side, scores) for side, scores in evaluation.sides.items()]
    if "unfamiliar" in evaluation.sides:
        sentences.append(_confident_sentence("unfamiliar", evaluation.sides["unfamiliar"]))
    if evaluation.change:
        sentences.append(_calibration_sentence(evaluation))
    sentences.append(_few_groups_sentence(evaluation))
    return [sentence for sentence in sentences if sentence]


def _few_groups_sentence(evaluation: Evaluation) -> str:
    few = {
        side: s.independent for side, s in evaluation.sides.items() if s.groups and s.independent < FEW_GROUPS
    }
    if not few:
        return ""
    counts = " and ".join(f"{count} {side} group{'' if count == 1 else 's'}" for side, count in few.items())
    return f"The intervals rest on only {counts}, so they are rough; where there is one group there are none."


def _side_sentence(side: str, scores: SetScores) -> str:
    error, signed = scores.metrics.get("label_error"), scores.metrics.get("signed_ece")
    if error is None or signed is None or math.isnan(error.value):
        return ""
    mistakes = (
        f"is wrong {error.value:.1%} of the time"
        if error.n is not None
        else f"has a mean average precision of {1 - error.value:.3f}"
    )
    return f"On {side} data the model {mistakes} and {_confidence_clause(signed)}."


def _confidence_clause(signed: Score) -> str:
    points = 100 * abs(signed.value)
    if signed.low <= 0 <= signed.high or points < 0.05:
        return "its confidence is right on average, as far as these samples can tell"
    direction = "too high" if signed.value > 0 else "too low"
    return f"its confidence is {points:.1f} points {direction} on average"


def _confident_sentence(side: str, scores: SetScores) -> str:
    e99 = scores.metrics.get("e99")
    if e99 is None or not e99.n:
        return ""
    allowed = "the 1% this allows"
    if e99.low > 0.01:
        judgement = f"more than {allowed}"
    elif e99.high < 0.01:
        judgement = f"fewer than {allowed}"
    else:
        judgement = f"these samples cannot tell whether that is more than {allowed}"
    return (
        f"Of {e99.n:,} {side} answers given with over 99% confidence, {e99.k:,} are wrong "
        f"({e99.value:.1%}, interval {e99.low:.1%} to {e99.high:.1%}): {judgement}."
    )


def _calibration_sentence(evaluation: Evaluation) -> str:
    parts = []
    for side, change in evaluation.change.items():
        if "nll" not in change:
            return ""
        before, after = (s[side].metrics["nll"].value for s in (evaluation.uncalibrated, evaluation.sides))
        noise = ", within the noise" if change["nll"].low <= 0 <= change["nll"].high else ""  # NaN: unknown
        parts.append(f"{side} NLL from {before:.3f} to {after:.3f}{noise}")
    return f"Calibration moved {' and '.join(parts)}."
