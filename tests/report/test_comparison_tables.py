# ruff: noqa: RUF001
import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from surefoot import InputError, Predictions
from surefoot.evaluation.compare import compare_runs, comparison_from_scores
from surefoot.evaluation.comparison import MethodRun, MethodRuns, RunScore
from surefoot.metrics import METRICS
from surefoot.report.study_tables import (
    HEADER,
    TableContext,
    best_difference_table,
    calibration_table,
    comparison_tables,
    complete_table,
    cost_table,
    difference_table,
    entropy_table,
    percent_reduction,
    reduction_table,
    summary_csv,
)
from surefoot.report.tables import TableCell

GENDER = TableContext("gender")
NLL = {  # familiar, then unfamiliar
    "single": ([0.10, 0.12], [0.50, 0.54]),
    "scaled": ([0.088, 0.090], [0.30, 0.31]),
    "ensemble": ([0.080], [0.46]),
    "energy": ([0.0, 0.2], [0.4, 0.4]),
    "oracle": ([0.01, 0.02], [0.1, 0.1]),
    "gone": ([], []),
}
E99 = {
    "single": [(1, 100), (3, 100)],
    "scaled": [(0, 0), (1, 50)],
    "ensemble": [(0, 80)],
    "energy": [(0, 0), (0, 0)],
    "oracle": [(0, 10), (0, 10)],
    "gone": [],
}
ABOUT = [
    MethodRuns("single", "Single", paper="Single Model", seconds_training=120.0, parameters=11e6),
    MethodRuns("scaled", "T-scaled", paper="Single + T-scaling"),
    MethodRuns("ensemble", "Ensemble", paper="Ensemble of T-scaled models", variance_from="single"),
    MethodRuns("energy", "Energy", not_in_paper=True),
    MethodRuns("oracle", "Oracle", oracle=True),
    MethodRuns("gone", "Gone", missing=("seed001", "seed002")),
]


def values():
    result = {}
    for name, (familiar, unfamiliar) in NLL.items():
        scores = {}
        for side, of_side in (("familiar", familiar), ("unfamiliar", unfamiliar)):
            scores[side, "nll"] = [RunScore(run, value) for run, value in enumerate(of_side)]
            scores[side, "entropy"] = [RunScore(run, 0.05) for run in range(len(of_side))]
            scores[side, "nll_minus_entropy"] = [RunScore(run, v - 0.05) for run, v in enumerate(of_side)]
            counts = enumerate(E99[name])
            scores[side, "e99"] = [RunScore(run, k / n if n else math.nan, k, n) for run, (k, n) in counts]
        result[name] = scores
    return result


@pytest.fixture(scope="module")
def comparison():
    return comparison_from_scores(values(), ABOUT)


def row(table, name):
    (cells,) = [row for row in table.rows if row[0].text == name]
    return cells[2:]


def column(table, index):
    return [row[index].text for row in table.rows]


def test_the_marks_the_goldens_rest_on():
    scaled, single = NLL["scaled"], NLL["single"]
    deviation = np.std(single[0], ddof=1)
    against_ensemble = stats.ttest_ind_from_stats(0.08, deviation, 2, 0.089, np.std(scaled[0], ddof=1), 2)
    assert against_ensemble.pvalue > 0.05
    assert stats.ttest_ind(single[1], scaled[1]).pvalue < 0.05


def test_table_1_is_the_baseline_and_percent_reductions(comparison):
    table = reduction_table(comparison, GENDER)
    assert table.heading == "Table 1. Single, and percent reduction by the others: gender, ResNet-18"
    assert table.header == (
        *("method", "runs", "NLL familiar", "NLL unfamiliar", "E99 familiar", "E99 unfamiliar"),
    )
    assert row(table, "Single")[:2] == (
        TableCell("0.110", bold=True, paper="0.083"),
        TableCell("0.520", paper="0.542"),
    )
    assert row(table, "T-scaled")[:2] == (
        TableCell("19%", bold=True, paper="12%"),
        TableCell("41%", bold=True, paper="26%"),
    )
    assert row(table, "Ensemble")[:2] == (
        TableCell("27%", bold=True, paper="24%"),
        TableCell("12%", paper="33%"),
    )
    assert row(table, "Energy")[1].text == "23%"
    assert row(table, "Energy")[2].text == "–"


def test_percent_reductions():
    assert percent_reduction(0.10, 0.09) == "10%"  # the paper's own example
    assert percent_reduction(0.2, 0.3) == "-50%"
    assert percent_reduction(0.2, 0.2001) == "0%"
    assert (
        percent_reduction(0.0, 0.1)
        == percent_reduction(math.nan, 0.1)
        == percent_reduction(1.0, math.nan)
        == "–"
    )


def test_rows_stand_in_their_sections_with_their_runs(comparison):
    table = complete_table(comparison, GENDER)
    assert [section.label for section in table.sections] == [
        None,
        "not in the paper",
        "oracle: tuned on unfamiliar data",
    ]
    names = [[cells[0].text for cells in section.rows] for section in table.sections]
    assert names == [["Single", "T-scaled", "Ensemble", "Gone"], ["Energy"], ["Oracle"]]
    assert column(table, 1) == ["2", "2", "1", "0, 2 missing", "2", "2"]
    assert "Gone: 2 missing, not averaged in: seed001, seed002." in table.notes
    assert "Ensemble was run once; its variance is taken from Single, as in the paper." in table.notes
    assert not any(cell.bold or cell.star for cell in row(table, "Oracle"))


def test_table_4_is_complete(comparison):
    table = complete_table(comparison, GENDER)
    assert table.heading == "Table 4. All methods: gender, ResNet-18"
    nll, _, e99, _ = row(table, "Single")
    assert nll == TableCell("0.11000", bold=True, detail="±0.01414", paper="0.08324")
    assert (e99.text, e99.detail, e99.paper) == ("0.02000", "±0.01414, 4/200", "0.00470")
    assert row(table, "T-scaled")[2].detail == "1/50, 1 of 2 runs"
    assert row(table, "Energy")[2] == TableCell("–", detail="0/0, 0 of 2 runs")
    assert {cell.text for cell in row(table, "Gone")} == {"–"}
    assert row(table, "Ensemble")[2].bold  # by the variance of its lender
    assert not row(table, "T-scaled")[2].bold
    assert "Too few runs to be tested everywhere: T-scaled." in table.notes


def test_one_run_each_is_starred_and_never_bold():
    single, scaled = ({("familiar", "nll"): [RunScore(0, value)]} for value in (0.2, 0.1))
    table = complete_table(comparison_from_scores({"single": single, "scaled": scaled}, ABOUT[:2]), GENDER)
    assert row(table, "Single") == (TableCell("0.20000", paper="0.08324"),)
    assert row(table, "T-scaled") == (TableCell("0.10000", star=True, paper="0.07348"),)
    assert [note[:1] for note in table.notes] == ["*", "p"]


def test_table_5_is_the_same_for_another_backbone(comparison):
    table = complete_table(comparison, TableContext("gender", "densenet161"))
    assert table.heading == "Table 5. All methods: gender, DenseNet-161"
    assert row(table, "Single")[0].paper not in (None, "0.08324")
    elsewhere = complete_table(comparison, TableContext("letters"))
    assert all(cell.paper is None for cells in elsewhere.sections[0].rows for cell in cells)
    assert not any("Hoiem" in note for note in elsewhere.notes)


def test_table_2_and_3_hold_the_papers_rows(comparison):
    table = calibration_table(comparison, GENDER)
    assert column(table, 0) == ["Single", "T-scaled", "Ensemble"]
    assert table.groups == (("", 1), ("", 1), ("NLL", 2))
    table = entropy_table(comparison, GENDER)
    assert table.groups[2:] == (("NLL", 2), ("Entropy", 2), ("NLL - entropy", 2))
    assert [cell.text for cell in row(table, "Ensemble")] == [
        "0.080",
        "0.460",
        "0.050",
        "0.050",
        "0.030",
        "0.410",
    ]
    papers = [cell.paper for cell in row(table, "Ensemble")]
    assert papers == ["0.063", "0.363", "0.079", "0.158", "-0.016", "0.205"]
    assert not any(cell.bold for cell in row(table, "Single")[2:])


def test_which_tables_there_are(comparison):
    assert [table.number for table in comparison_tables(comparison, GENDER)] == [1, 2, 3, 4, None]
    without = comparison_from_scores({"b": values()["scaled"]})
    assert [table.number for table in comparison_tables(without, GENDER)] == [4]
    with pytest.raises(InputError, match="the baseline is not among the methods"):
        reduction_table(without, GENDER)


def test_cost(comparison):
    table = cost_table(comparison, GENDER)
    (only,) = table.sections
    assert [[cell.text for cell in cells] for cells in only.rows] == [["Single", "2", "120", "–", "1.1e+07"]]


def resampled():
    def drawn_run(run, sharpness):
        rng = np.random.default_rng(0)
        logits = 2 * rng.standard_normal((120, 2))
        labels = (logits + rng.gumbel(size=(120, 2))).argmax(axis=1)
        noise = np.random.default_rng(run).standard_normal((120, 2))
        predictions = Predictions.from_logits(sharpness * (logits + 0.2 * noise), labels)
        return MethodRun.of_sides(run, predictions, predictions)

    methods = [
        replace(ABOUT[i], runs=tuple(drawn_run(run, s) for run in range(3))) for i, s in ((0, 6.0), (1, 1.0))
    ]
    return compare_runs(methods, [METRICS.named("nll"), METRICS.named("ece")], resamples=40)


def test_differences_are_shown_with_their_intervals():
    comparison = resampled()
    table = difference_table(comparison, GENDER)
    assert row(table, "Single")[0] == TableCell("baseline")
    gap = comparison.method("scaled").cells["familiar", "nll"].from_baseline
    assert gap.high < 0
    cell = row(table, "T-scaled")[0]
    assert cell == TableCell(f"{gap.value:.4f}", True, detail=f"[{gap.low:.4f}, {gap.high:.4f}]")
    best = best_difference_table(comparison, GENDER)
    assert row(best, "T-scaled")[0] == TableCell("best")
    assert row(best, "Single")[0].text == f"{-gap.value:+.4f}"
    assert best.notes[0].startswith("Paired bootstrap over rows")
    assert [table.number for table in comparison_tables(comparison, GENDER)] == [1, 2, 3, 4, None, None, None]


def test_summary_is_numeric_and_whole(comparison):
    lines = list(csv.DictReader(io.StringIO(summary_csv(comparison, GENDER))))
    assert len(lines) == len(ABOUT) * 4 * 2
    assert tuple(lines[0]) == HEADER
    by_place = {(line["method"], line["side"], line["metric"]): line for line in lines}
    line = by_place["single", "familiar", "e99"]
    assert {name: line[name] for name in ("mean", "deviation", "k", "n", "runs", "defined", "paper")} == {
        "mean": "0.02",
        "deviation": repr(float(np.std([0.01, 0.03], ddof=1))),
        "k": "4",
        "n": "200",
        "runs": "2",
        "defined": "2",
        "paper": "0.0047",
    }
    assert (line["seconds_training"], line["parameters"], line["seconds_per_sample"]) == (
        "120.0",
        "11000000.0",
        "",
    )
    assert by_place["energy", "familiar", "e99"]["mean"] == ""
    assert by_place["gone", "familiar", "nll"]["missing"] == "seed001; seed002"
    assert by_place["ensemble", "familiar", "nll"]["variance_of"] == "single"
    assert by_place["oracle", "familiar", "nll"]["cheating"] == "yes"
    comparison = resampled()
    gap = comparison.method("scaled").cells["familiar", "ece"].from_baseline
    lines = list(csv.DictReader(io.StringIO(summary_csv(comparison, GENDER))))
    (line,) = [x for x in lines if (x["method"], x["side"], x["metric"]) == ("scaled", "familiar", "ece")]
    ends = [line[f"from_baseline{end}"] for end in ("", "_low", "_high", "_pairs", "_resampled")]
    assert ends == [repr(gap.value), repr(gap.low), repr(gap.high), "3", "3"]
    assert line["from_best"] == ""
