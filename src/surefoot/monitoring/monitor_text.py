"""A check of the monitor in words and as plain data."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from surefoot import __version__
from surefoot.decisions.groups import groups_document, of_groups, plain, repeated_sentences
from surefoot.evaluation.scores import number
from surefoot.monitoring.findings import Finding
from surefoot.monitoring.monitor import DIFFERENCE, FEW_ROWS, POWER, SCALED, TITLES, Check
from surefoot.text import count_of, p_text, percent_range

SHIFTED = "The data has shifted."
DEFINITIONS = {
    "p": "by permutation of the rows (asymptotic if that would take too long): lower confidence, higher "
    "novelty or a smaller share accepted (mean rank; 'tail': Savage scores, which weigh the most "
    "unfamiliar rows; confidence of many labels: label by label, and the energy); a change of the features' "
    "means (Hotelling); for many labels, a lower cosine of a row's features with those of the same most "
    "probable label; without features, any change of the outputs (maximum mean discrepancy)",
    "adjusted": "p of the whole check, if there were no other evidence; 'together': of all evidence, by the "
    "same permutations: the most significant of confidence and novelty, and the features, add up (Fisher); "
    "without features, a change of the outputs counts with a weight of a sixteenth; a shift is detected if "
    "that is at most level",
    "level": "the part of alpha that this check may spend; over all checks of a history the probability of "
    "any false alarm is at most alpha",
    "stranger": "the probability that a current row is more novel than a reference row; 0.5 without shift",
    "accuracy": "estimated: the reference's accuracy (its mean confidence, if it has no labels) less the "
    "fall of the mean confidence; for one label a fall counts three times, as measured on unfamiliar data",
    "typical_error": "of the estimated accuracy: its mean absolute error on unfamiliar data, as measured in "
    "benchmarks/results/monitor.md",
    "smallest_drop": "of the estimated accuracy, that would have been detected with probability 0.8",
    "matters": "the data has shifted, and the 95% interval of the estimated drop is above 0",
    "parts": "predicted classes and groups: confidences compared by Mann-Whitney, corrected by Holm",
    "low, high": "95% interval",
}
OF_GROUPS = {
    "groups": "on each side; these are permuted, and their variance is that of the intervals",
    "parts": "predicted classes (Student's t of the groups' mean ranks) and groups (Mann-Whitney of "
    "their rows): confidences, corrected by Holm",
}
# Mean absolute error on unfamiliar rows in points, by estimator, labels of the reference and calibration:
# the last table of benchmarks/results/monitor.md.
TYPICAL_ERROR = {
    (SCALED, True, True): 10,
    (SCALED, True, False): 12,
    (SCALED, False, True): 10,
    (SCALED, False, False): 13,
    (DIFFERENCE, True, True): 1,
    (DIFFERENCE, True, False): 1,
    (DIFFERENCE, False, True): 1,
    (DIFFERENCE, False, False): 2,
}
SUMMARISED = ("energy tail", "novelty tail")  # in 'together'
PARTS_SHOWN = 5  # in the verdict


def monitor_verdict(check: Check) -> list[str]:
    """Whether a shift is detected, with the evidence, or how large a change would have been."""
    about_rows = [*repeated_sentences(check.repeated), *_groups(check)]
    significant = check.significant
    if not significant:
        return [*_not_detected(check), _estimated(check), *about_rows]
    drop = check.drop
    sentences = [SHIFTED]
    if not check.alarm:
        sentences = [
            f"The data has shifted, but the estimated accuracy has fallen by only {drop.value:.3g} "
            f"({drop.low:.3g} to {drop.high:.3g}), less than the bound {check.bound:g}: no alarm."
        ]
    if check.matters:
        sentences.append(
            f"It matters: the estimated accuracy has fallen by {100 * drop.value:.1f} points "
            f"({100 * drop.low:.1f} to {100 * drop.high:.1f})."
        )
    else:
        sentences.append(
            "The rows look different, but the estimated accuracy has not fallen significantly (change "
            f"{-100 * drop.value:+.1f} points, 95% interval {-100 * drop.high:+.1f} to "
            f"{-100 * drop.low:+.1f})."
        )
    sentences += [_evidence(each) for each in significant if each.name not in SUMMARISED]
    parts = _changed_parts(check)
    if parts:
        sentences.append(f"Confidence has changed most in: {parts}.")
    sentences.append(_estimated(check))
    if drop.value < 0:
        sentences.append("The classifier is more confident than before; it is not necessarily more accurate.")
    return sentences + about_rows


def _groups(check: Check) -> list[str]:
    """What was permuted, where that is not every row."""
    if check.groups is None:
        return []
    sides = zip(("reference", "current"), check.groups, (check.n_reference, check.n_current), strict=True)
    ungrouped = [side for side, groups, rows in sides if groups == rows]
    before, now = check.groups
    sentence = f"Whole groups were compared, {before:,} of the reference and {now:,} current ones"
    if ungrouped:
        sentence += f"; each {ungrouped[0]} row is a group of its own, as if they were independent"
    return [f"{sentence}."]


def _changed_parts(check: Check) -> str:
    """The classes and groups whose confidence has changed significantly, the clearest first."""
    parts = sorted((each for each in check.parts if each.adjusted <= check.budget.level), key=lambda x: x.p)
    names = ", ".join(f"{each.kind} {each.name!r}" for each in parts[:PARTS_SHOWN])
    return names + (f" and {len(parts) - PARTS_SHOWN} more" if len(parts) > PARTS_SHOWN else "")


def _not_detected(check: Check) -> list[str]:
    """What the check did not see, and what it could not have seen."""
    groups = None if check.groups is None else check.groups[1]
    rows = f"{count_of(check.n_current, 'row')}{of_groups(groups)}"
    if check.smallest_p > check.budget.level:
        so_few = "rows" if groups is None else "groups"
        sentences = [
            f"No shift detected, and none could be: with so few {so_few} no p-value is below "
            f"{p_text(check.smallest_p)}, and the level is {check.budget.level:.3g}."
        ]
    elif check.smallest_drop > 1:
        sentences = [f"No shift detected. {rows} are too few for any drop in the estimated accuracy to show."]
    else:
        sentences = [
            f"No shift detected. With {rows}, a drop in the estimated accuracy of "
            f"{100 * check.smallest_drop:.1f} points or more would have been detected with a probability of "
            f"{POWER:.0%}; smaller ones may be missed."
        ]
    smallest = min((each.adjusted for each in check.findings), default=1.0)
    if smallest <= check.budget.alpha:
        sentences.append(
            f"A single check would have detected a shift (corrected p = {p_text(smallest)}, at most "
            f"{check.budget.alpha:g}); as check {check.budget.number} of a history, the limit is "
            f"{check.budget.level:.3g}. Check a larger window."
        )
    apart = [each for each in check.findings if each.change.low > 0 or each.change.high < 0]
    if apart:
        names = " and ".join(TITLES[each.name] for each in apart)
        sentences.append(
            f"The 95% interval of the change in {names} excludes 0, but after correction for "
            f"{len(check.findings)} comparisons and repeated checks this is not evidence of a shift."
        )
    parts = _changed_parts(check)
    if parts:
        smallest = min(each.adjusted for each in check.parts)
        sentences.append(
            f"But confidence has changed in: {parts} (smallest p = {p_text(smallest)}, corrected for "
            f"{len(check.parts)} classes and groups). Look at these rows; single classes and groups raise no "
            "alarm."
        )
    independent = count_of(check.n_current, "row") if groups is None else count_of(groups, "group")
    if (groups or check.n_current) < FEW_ROWS:
        sentences.append(f"Only {independent}: only a large shift would be detected.")
    return sentences


def _evidence(finding: Finding) -> str:
    title = TITLES[finding.name]
    p = p_text(finding.adjusted)
    corrected = f"corrected p {p}" if p.startswith("<") else f"corrected p = {p}"
    if math.isnan(finding.reference):
        return f"{title[0].upper()}{title[1:]}: {corrected}."
    change = (
        f"{finding.change.value:+.3g}, 95% interval {finding.change.low:+.3g} to {finding.change.high:+.3g}"
    )
    return (
        f"{title[0].upper()}{title[1:]}: {finding.reference:.3g} in the reference, {finding.current:.3g} now "
        f"(change {change}), {corrected}."
    )


def _estimated(check: Check) -> str:
    then, now = check.reference_accuracy, check.accuracy
    how = "measured" if check.labelled else "its mean confidence, because it has no labels"
    typical = _typical_error(check)
    return (
        f"Estimated accuracy {now.value:.1%} ({percent_range(now.low, now.high)}; {check.estimator}); "
        f"accuracy of the reference {then.value:.1%} ({percent_range(then.low, then.high)}; {how}). On "
        f"unfamiliar data the estimate was wrong by {count_of(typical, 'point')} on average in our "
        "measurements."
    )


def _typical_error(check: Check) -> int:
    """In points."""
    return TYPICAL_ERROR[check.estimator, check.labelled, check.calibrated]


def monitor_document(check: Check, verdict: Sequence[str]) -> dict[str, Any]:
    """The check as plain data; NaN becomes null."""
    groups = None if check.groups is None else dict(zip(("reference", "current"), check.groups, strict=True))
    return {
        "surefoot": __version__,
        "alarm": check.alarm,
        "verdict": list(verdict),
        "shift": bool(check.significant),
        "matters": check.matters,
        "look": check.budget.number,
        "alpha": check.budget.alpha,
        "level": check.budget.level,
        "bound": check.bound,
        "n": {"reference": check.n_reference, "current": check.n_current},
        **groups_document(groups, check.repeated),
        "accuracy": {
            "reference": plain(check.reference_accuracy),
            "reference_labelled": check.labelled,
            "estimated": plain(check.accuracy),
            "drop": plain(check.drop),
            "estimator": check.estimator,
            "typical_error": _typical_error(check) / 100,
            "smallest_drop": number(check.smallest_drop),
        },
        "findings": [
            {
                **{name: number(getattr(each, name)) for name in ("reference", "current", "distance", "p")},
                "name": each.name,
                "adjusted": each.adjusted,
                "change": plain(each.change),
                "stranger": plain(each.more_novel),
            }
            for each in check.findings
        ],
        "parts": [asdict(each) for each in check.parts],
        "unfamiliar": {"by": check.unfamiliar_by, "rows": [list(each) for each in check.unfamiliar]},
        "definitions": DEFINITIONS if check.groups is None else DEFINITIONS | OF_GROUPS,
    }
