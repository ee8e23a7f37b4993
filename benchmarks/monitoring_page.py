"""The page and the figure of monitoring.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date

import numpy as np
from accuracy import (
    AVERAGE,
    CBPE,
    KINDS,
    UNLABELLED,
    Estimate,
    bias,
    error,
    errors_by_task,
    falls,
    of_single,
)
from detectors import DECIDING, HALVES, SEEDS, SHARES, SIZES, WINDOWS, Cell, Sample
from matplotlib import rc_context
from matplotlib.figure import Figure
from rules import SETS
from rules_page import NEAR, Power, best, best_rates, gaps, rules_header, rules_lines, singles, within_reach
from spending import CHECKS, HISTORIES, POWERS, SOON, STARTS, TODAY, spending_answer, spending_words

from surefoot.deploy.accuracy import DIFFERENCE, FALL_FACTOR, SCALED
from surefoot.intervals import Proportion
from surefoot.report.style import METHOD_COLOURS, STYLE

CHOSEN, WITHOUT, BEFORE = SETS
GOAL = ((25, "100%"), (200, "30%"))
DEFAULTS = ((SCALED, "T"), (SCALED, "no T"), (CBPE, "no T"))


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that was measured."""

    power: dict[str, Power]  # by half
    repeated: Power  # the confirming half of some tasks, drawn again
    product: dict[str, dict[Cell, dict[str, Proportion]]]
    histories: dict[str, tuple[int, int]]  # with any false alarm, and all
    frouros: Power
    spending: dict[str, dict[str, float]]
    estimates: dict[str, list[Estimate]]  # by half
    pairs: dict[str, tuple[float, float]]  # two_detectors.simulate
    sample: Sample
    peers: str  # their names and versions
    seconds: float  # of a processor


def table(header: list[str], lines: Iterable[list[str]]) -> str:
    ruled = ["| " + " | ".join(line) + " |" for line in (header, *lines)]
    return "\n".join([ruled[0], "|:--" + "|--:" * (len(header) - 1) + "|", *ruled[1:]])


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}"


def proportion(found: Proportion | None) -> str:
    return (
        "" if found is None else f"{100 * found.value:.0f} ({100 * found.low:.0f} to {100 * found.high:.0f})"
    )


def monte_carlo_errors(study: Study) -> tuple[float, float]:
    """The standard error in points of a rate, and of the gap of two on the same windows, from the repetition.

    With everything that is drawn: splits of the familiar rows, windows, and the critical values.
    """
    first = study.power["confirm"]
    pairs = [
        (first[task][cell], each)
        for task, cells in study.repeated.items()
        for cell, each in cells.items()
        if cell[1] in SHARES and 0.1 < first[task][cell][CHOSEN] < 0.9
    ]
    rates = [b[CHOSEN] - a[CHOSEN] for a, b in pairs]
    apart = [b[CHOSEN] - b["confidence"] - (a[CHOSEN] - a["confidence"]) for a, b in pairs]
    of_rate, of_gap = (float(100 * np.sqrt(np.mean(np.square(each)) / 2)) for each in (rates, apart))
    return of_rate, of_gap


def goal_table(study: Study) -> str:
    lines = []
    for cell in GOAL:
        for task, cells in study.power["confirm"].items():
            each = cells[cell]
            name, value = best(each)
            peers = {k: v for k, v in study.frouros[task].get(cell, {}).items() if not k.endswith("0.05")}
            peer = max(peers, key=lambda key: peers[key]) if peers else ""
            lines.append([
                f"{cell[0]} rows, {cell[1]} unfamiliar: {task}", f"**{percent(each[CHOSEN])}**",
                f"{percent(value)} ({name})", percent(each[WITHOUT]), percent(each[BEFORE]),
                percent(each["BBSD"]),
                f"{percent(peers[peer])} ({peer})" if peer else "",
            ])  # fmt: skip
    header = ["", "monitor", "best single detector", "without features", "before", "BBSD", "best of frouros"]
    return table(header, lines)


def detectors_table(study: Study) -> str:
    """Every detector: the mean over tasks, cell by cell, of each half."""
    names = dict.fromkeys(
        name
        for half in study.power.values()
        for cells in half.values()
        for each in cells.values()
        for name in each
    )
    lines = []
    for name in sorted(each for each in names if not each.startswith(("set: ", "rule: "))):
        line = [name]
        for half in ("choose", "confirm"):
            for cell in DECIDING:
                found = [
                    cells[cell][name]
                    for cells in study.power[half].values()
                    if cell in cells and name in cells[cell]
                ]
                line.append(f"{percent(np.mean(found))}{_tasks(found)}" if found else "")
        lines.append(line)
    header = [f"{half}: {n} rows, {kind}" for half in ("choose", "confirm") for n, kind in DECIDING]
    return table(["detector", *header], lines)


def rules_table(study: Study, many: bool, features: bool) -> str:
    return table(rules_header(), rules_lines(study.power, many, features))


def pairs_table(study: Study) -> str:
    lines = [
        [name, f"{100 * loss:.0f}", f"{100 * gain:.0f}"]
        for name, (loss, gain) in study.pairs.items()
        if name != "any"
    ]
    return table(["rule", "largest loss, one detector sees it", "largest gain, both see it"], lines)


def _tasks(found: list[float]) -> str:
    return f" ({len(found)})" if len(found) < 4 else ""


def sizes_table(study: Study) -> str:
    """The monitor by size: all kinds."""
    kinds = (*SHARES, "label shift", "other mix")
    lines = [
        [f"{task}, {kind}", *(percent(cells.get((n, kind), {}).get(CHOSEN)) for n in SIZES)]
        for task, cells in study.power["confirm"].items()
        for kind in kinds
        if (25, kind) in cells
    ]
    return table(["", *(f"{n:,}" for n in SIZES)], lines)


def peers_table(study: Study) -> str:
    """Frouros and BBSD, mean over tasks, at 5% false alarms, and the false alarms at their own p <= 0.05."""
    names = dict.fromkeys(n for cells in study.frouros.values() for each in cells.values() for n in each)
    lines = []
    for name in [each for each in names if not each.endswith("0.05")]:
        line = [f"frouros {name}"]
        for cell in DECIDING:
            line.append(_mean(study.frouros, lambda cells, c=cell, n=name: cells.get(c, {}).get(n)))
        own = f"{name} p <= 0.05"
        line.append(_mean(study.frouros, lambda cells, n=own: cells.get((200, "familiar"), {}).get(n)))
        lines.append(line)
    for label, name in (("BBSD", "BBSD"), ("**surefoot monitor**", CHOSEN)):
        cells = [
            _mean(study.power["confirm"], lambda found, c=c, n=name: found.get(c, {}).get(n))
            for c in DECIDING
        ]
        lines.append([label, *cells, ""])
    header = [
        "",
        *(f"{n} rows, {kind}" for n, kind in DECIDING),
        "false alarms at its own p <= 0.05, 200 rows",
    ]
    return table(header, lines)


def _mean(power: Power, value: Callable[[dict[Cell, dict[str, float]]], float | None]) -> str:
    found = [each for each in map(value, power.values()) if each is not None]
    return percent(float(np.mean(found))) if found else ""


def product_table(study: Study) -> str:
    columns = (
        ("familiar, 25 rows", (25, "familiar"), "single check"),
        ("familiar, 200 rows", (200, "familiar"), "single check"),
        ("100%, 25 rows", (25, "100%"), "single check"),
        ("first of a history", (25, "100%"), "first check"),
        ("30%, 200 rows", (200, "30%"), "single check"),
        ("first of a history", (200, "30%"), "first check"),
        ("other mix, 200 rows", (200, "other mix"), "single check"),
        ("and matters", (200, "other mix"), "matters"),
    )
    lines = [
        [task, *(proportion(cells.get(cell, {}).get(what)) for _, cell, what in columns),
         proportion(Proportion.of(*study.histories[task]))]
        for task, cells in study.product.items()
    ]  # fmt: skip
    return table(["", *(name for name, _, _ in columns), f"any alarm in {CHECKS} familiar checks"], lines)


def spending_table(study: Study) -> str:
    parts = ("first check", *(f"from check {start}" for start in STARTS), "mean")
    false = [f"any false alarm, reference of {ratio} windows" for ratio in (5, 2)]
    lines = [
        [
            f"**{name}**" if name == TODAY else name,
            *(f"{100 * row[c]:.1f}" for c in false),
            *(percent(row[c]) for c in parts),
        ]
        for name, row in study.spending.items()
    ]
    return table(["rule", *false, *parts], lines)


def accuracy_table(study: Study, many: bool) -> str:
    groups: dict[tuple[str, str, str], dict[str, list[Estimate]]] = {}
    for half, found in study.estimates.items():
        for each in found:
            if (each.task == "objects96") == many:
                key = each.network, each.calibration, each.estimator
                groups.setdefault(key, {}).setdefault(half, []).append(each)
    kinds = [kind for kind in KINDS if not (many and kind == "other mix")]
    lines = []
    for (network, calibration, estimator), halves in sorted(groups.items()):
        line = [network, calibration, estimator]
        for half in ("choose", "confirm"):
            found = halves.get(half, [])
            line += [
                f"{error([e for e in found if e.cell[1] == kind]):.1f}" if found else "" for kind in kinds
            ]
        strange = [e for e in halves.get("confirm", []) if e.cell[1] == "100%"]
        lines.append([*line, f"{bias(strange):+.1f}" if strange else ""])
    header = [f"{half}: {kind}" for half in ("choose", "confirm") for kind in kinds]
    return table(["network", "calibration", "estimator", *header, "bias at 100%"], lines)


def typical(study: Study, half: str, estimator: str, calibration: str, kind: str) -> float:
    """The error for one label; NaN if it was not run."""
    found = of_single(study.estimates[half], estimator, calibration, kind)
    return error(found) if found else float("nan")


def printed_table(study: Study) -> str:
    """The error that `surefoot monitor` prints with an estimate: the mean of both halves."""
    lines = []
    for many, with_labels, without in ((False, SCALED, UNLABELLED), (True, DIFFERENCE, AVERAGE)):
        for reference, estimator in (("with labels", with_labels), ("without labels", without)):
            line = ["many labels" if many else "one label", f"reference {reference}"]
            for calibration in ("T", "no T"):
                halves = [
                    error(of_single(study.estimates[half], estimator, calibration, "100%", many=many))
                    for half in HALVES
                ]
                line.append(f"{np.mean(halves):.0f}")
            lines.append(line)
    return table(["printed, in points", "", "with T", "without T"], lines)


def answers(study: Study) -> list[str]:
    """The results in sentences, one for each question."""
    confirmed = study.power["confirm"]
    against = best_rates(confirmed)
    found = gaps(confirmed, CHOSEN, against)
    gap, task, (rows, share) = found[0]
    far = [each for each in found if each[0] < -NEAR]
    earlier = gaps(confirmed, BEFORE, against)
    picked = gaps(confirmed, CHOSEN, best_rates(confirmed, picked=True))
    where = ", ".join(
        f"{name} {sum(each[1] == name for each in far)}" for name in {each[1]: 0 for each in far}
    )
    itself = [
        f"{cell[0]} rows with {cell[1]} unfamiliar: "
        + ", ".join(
            f"{name} {proportion(each[cell]['single check'])}" for name, each in study.product.items()
        )
        for cell in GOAL
    ]
    goals = []
    for cell in GOAL:
        reached = sum(cells[cell][CHOSEN] >= 0.6 for cells in confirmed.values())
        possible = sum(best(cells[cell])[1] >= 0.6 for cells in confirmed.values())
        goals.append(
            f"{cell[0]} rows with {cell[1]} unfamiliar on {reached} of {len(confirmed)} tasks "
            f"(some single detector: on {possible})"
        )
    alarms, histories = (sum(each[i] for each in study.histories.values()) for i in (0, 1))
    errors = {
        kind: [typical(study, "confirm", name, calibration, kind) for name, calibration in DEFAULTS]
        for kind in ("100%", "familiar")
    }
    ratios = "; ".join(
        f"{half}: " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in falls(study.estimates[half]).items())
        for half in HALVES
    )
    worse = [
        f"{name} ({with_factor:.0f} points, without {without:.0f})"
        for name, (with_factor, without) in errors_by_task(study.estimates["confirm"], (SCALED, DIFFERENCE))
        if with_factor > without
    ]
    detectors_in_all = len(
        set.intersection(*(set(singles(c)) for t in confirmed.values() for c in t.values()))
    )
    return [
        f"**At least 60% detected:** {'; '.join(goals)}. `check_shift` itself, in percent: "
        f"{'; '.join(itself)}.",
        f"**Never more than {NEAR} points below the best single detector:** true in "
        f"{len(found) - len(far)} of {len(found)} cells (task, rows, share of unfamiliar rows); before, in "
        f"{sum(each[0] >= -NEAR for each in earlier)}. The others: {where or 'none'}; the largest gap is "
        f"{max(0.0, -gap):.0f} points ({task}, {rows} rows, {share}); before, {-earlier[0][0]:.0f}. The best "
        f"of {detectors_in_all} noisy rates is itself too high: with the best detector picked on other "
        f"splits, {sum(each[0] < -NEAR for each in picked)} cells and {max(0.0, -picked[0][0]):.0f} points.",
        f"**What is possible:** {within_reach(confirmed)} Where only one of two independent kinds of "
        f"evidence shows a shift, every rule loses {100 * study.pairs['any'][0]:.0f} points or more for some "
        "shifts (see below), so this goal cannot be promised.",
        f"**False alarms:** {alarms} of {histories} histories of {CHECKS} checks of familiar data contain an "
        f"alarm ({proportion(Proportion.of(alarms, histories))}%); at most 5% is stated. The histories of a "
        "task share its familiar rows, so the interval is too narrow.",
        spending_answer(study.spending),
        f"**Accuracy without labels:** the reference's accuracy less {FALL_FACTOR:g} times the fall of the "
        f"mean confidence. Its error on unfamiliar windows is {errors['100%'][0]:.0f} points with T and "
        f"{errors['100%'][1]:.0f} without; CBPE's is {errors['100%'][2]:.0f}. On familiar windows: "
        f"{errors['familiar'][0]:.1f}, {errors['familiar'][1]:.1f} and {errors['familiar'][2]:.1f}. The "
        "factor was chosen on the choosing half: on other networks and groups, but of the same tasks. How "
        f"many times as much as confidence (with T) accuracy fell: {ratios}. So no factor is right for all. "
        f"Worse than without it in the confirming half: {', '.join(worse) or 'none'}.",
    ]


def page(study: Study) -> str:
    sample = study.sample
    first_seed, *_, last_seed = SEEDS["confirm"]
    of_rate, of_gap = monte_carlo_errors(study)
    powers = ", ".join(f"{power:.0%}" for power in POWERS)
    tasks = ", ".join(sorted({each.task for each in study.estimates["confirm"]} - {"objects96"}))
    points = "\n".join(f"- {each}" for each in answers(study))
    return f"""# How well `surefoot monitor` detects shift

{date.today()}, `python benchmarks/monitoring.py STORE --peers PYTHON --write`,
{study.seconds / 60:.0f} minutes of one processor. The
[protocol](../monitoring_protocol.md) was written first; this is its fourth round, with all networks trained
again. Numbers are those of the confirming half (seeds {first_seed} to {last_seed}, and other unfamiliar
groups), unless marked *choose*; familiar rows are the same in both halves, and so is the network of pets. The
odd groups had been seen before, with other networks. Rates are in percent, from
{sample.splits * WINDOWS} windows of each kind in {sample.splits} splits (choosing half:
{sample.choosing}). Drawn again with another seed (cat-dog), they have a standard error of
{of_rate:.0f} points in the middle of the range, and differences of two detectors one of {of_gap:.0f}.

{points}

## Power at 5% false alarms

{goal_table(study)}

*monitor*: its set of detectors at the study's critical values; what `check_shift` itself detects is
further below, from {sample.checked} windows. All tasks have features, projected to 64 numbers; *without
features*: the monitor for files that have none. *before*: the rule of the third round, with features. *BBSD*
(Rabanser et al., NeurIPS 2019): the largest Kolmogorov-Smirnov distance of a class's probability. Every
detector has the critical value that gives exactly 5% false alarms on the same windows; frouros on the first
{sample.peers * WINDOWS} of them.

![Detection by window size](monitor.png)

By rows in the window. *label shift*: the first class three times as frequent. *other mix*: familiar rows of a
random half of the familiar groups. Neither need matter for the accuracy.

{sizes_table(study)}

## All detectors

The mean over tasks; in brackets the number of tasks, where few have it.

{detectors_table(study)}

## Rules

Mean power over {len(DECIDING)} deciding cells and the tasks, and the gap to the best single detector in
points, over all sizes and shares of unfamiliar rows. A rule combines evidence of the outputs (the smallest
p-value of several scores, or their sum) and of the features; after the brackets, detectors of any change with
their weights. *choice 1, 2, ...*: first by the protocol's criteria on the choosing half, in this run.
*oracle*: the smallest largest gap on the confirming half. The decision was made with more splits of the
choosing half than this run has (protocol).

One label, with features:

{rules_table(study, False, True)}

Many labels (objects96), with features:

{rules_table(study, True, True)}

One label, without features; the best single detector is one without them:

{rules_table(study, False, False)}

Many labels, without features:

{rules_table(study, True, False)}

**What any rule can do.** Simulated: two independent detectors, of which a shift moves one (largest loss
against that one, in points) or both (largest gain). No rule can lose less than
{100 * study.pairs["any"][0]:.1f} points: that is the mean loss of the likelihood ratio test for a shift in
either, which is optimal (Neyman & Pearson 1933).

{pairs_table(study)}

## Peers in the same run

Mean over tasks. Peers: {study.peers}. Frouros on the confidence; its MMD on the logits.

{peers_table(study)}

## The monitor itself

`check_shift` with its permutations and T of val; exact 95% intervals. *familiar*: false alarms. *and
matters*: it also says that the estimated accuracy has fallen. The rates above have other critical values,
from the same few splits, so both differ by chance, too: `check_shift_steps.py` draws them again.

{product_table(study)}

## Spending alpha over a history

Simulated: {HISTORIES:,} histories of {CHECKS} checks with one reference of five windows (standard error below
{50 / np.sqrt(HISTORIES):.1g} points). Detection at the first check, and within {SOON} checks of a shift that
begins at a check and stays: the mean over shifts that one check at 5% detects in {powers} of the cases.

{spending_table(study)}

{spending_words(study.spending)}

## Accuracy without labels

Mean absolute error in points over windows of 25, 100 and 500 rows; tasks and sizes weigh the same. *bias*:
the mean of the estimate less the truth. Single networks, and ensembles of five. GDE does not change with T.

One label ({tasks}):

{accuracy_table(study, False)}

Many labels (objects96; a row's accuracy is the share of its labels that are right; CBPE does not apply):

{accuracy_table(study, True)}

What the monitor prints with its estimate (`TYPICAL_ERROR` in `src/surefoot/deploy/monitor_text.py`): the mean
error of single networks on fully unfamiliar windows, of both halves.

{printed_table(study)}
"""


def figure(study: Study) -> Figure:
    """Detection by window size, a panel for each task: the monitor, the best single detector and BBSD."""
    confirmed = study.power["confirm"]
    with rc_context(STYLE):
        drawing = Figure(figsize=(12, 3.2), layout="constrained")
        panels = drawing.subplots(1, len(confirmed), sharey=True)
        colours = dict(zip(SHARES, METHOD_COLOURS[1 : 1 + len(SHARES)], strict=True))
        for panel, (task, cells) in zip(panels, confirmed.items(), strict=True):
            for share, colour in colours.items():
                sizes = [n for n in SIZES if (n, share) in cells]
                lines = {
                    "-": [cells[n, share][CHOSEN] for n in sizes],
                    ":": [best(cells[n, share])[1] for n in sizes],
                    "--": [cells[n, share]["BBSD"] for n in sizes],
                }
                for style, values in lines.items():
                    label = f"{share} unfamiliar" if style == "-" else None
                    panel.plot(sizes, values, style, color=colour, label=label, lw=2 if style == "-" else 1.2)
            panel.axhline(0.05, color="0.6", lw=0.8)
            panel.set(xscale="log", title=task, xlabel="rows in the window", ylim=(0, 1.02), xlim=(22, 2300))
            panel.set_xticks([25, 100, 500, 2000], ["25", "100", "500", "2,000"], fontsize=8)
            panel.minorticks_off()
        panels[0].set_ylabel("detected")
        for style, name in (("-", "monitor"), (":", "best single detector"), ("--", "BBSD")):
            panels[-1].plot([], [], style, color="0.3", label=name)
        panels[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return drawing
