"""The command line as people use it: a process, its output, its exit code."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest

from surefoot import fit_temperature, load_calibration, read_predictions, write_predictions
from surefoot.metrics import METRICS, ece, ece_floor, label_error, nll
from tests.cli.command import in_a_new_process, rows_of, surefoot
from tests.conftest import draw_many_labels, draw_one_label


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    site = {"site": [f"s{i % 5}" for i in range(200)]}
    write_predictions(draw_one_label(200, sharpness=4, seed=0), folder / "val.npz")
    write_predictions(draw_one_label(200, sharpness=4, seed=1, attributes=site), folder / "f.parquet")
    write_predictions(draw_one_label(200, sharpness=9, seed=2, attributes=site), folder / "u.parquet")
    write_predictions(draw_many_labels(200, 3, members=2), folder / "many.npz")
    (folder / "a.pkl").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def calibration(files):
    in_a_new_process("calibrate", files / "val.npz", "-o", files / "c.json")
    return files / "c.json"


def test_calibrate_writes_the_right_temperature(files, calibration):
    expected = fit_temperature(read_predictions(files / "val.npz"))
    assert load_calibration(calibration).temperature == expected.temperature
    done = surefoot("calibrate", files / "val.npz", "-o", files / "again.json")
    assert f"T = {expected.temperature:.5g} (95% interval" in done.stdout
    assert "again.json" in done.stderr


def test_calibrate_each_member(files):
    done = surefoot(
        "calibrate", files / "many.npz", "--method", "member-temperatures", "-o", files / "m.json"
    )
    assert "member 1: T = " in done.stdout
    assert len(load_calibration(files / "m.json").members) == 2


def test_evaluate_json_is_the_library_s_numbers(files, calibration):
    done = surefoot(
        "evaluate",
        files / "f.parquet",
        files / "u.parquet",
        "--calibration",
        calibration,
        "--format",
        "json",
        "--resamples",
        20,
    )
    document = json.loads(done.stdout)
    fitted = load_calibration(calibration)
    for side, name in (("familiar", "f.parquet"), ("unfamiliar", "u.parquet")):
        predictions = fitted(read_predictions(files / name))
        found = document[side]["metrics"]
        assert list(found) == [metric.name for metric in METRICS]
        assert found["nll"]["value"] == pytest.approx(nll(predictions))
        assert found["ece"]["value"] == pytest.approx(ece(predictions))
        assert found["nll"]["low"] < found["nll"]["value"] < found["nll"]["high"]
    assert document["change"]["familiar"]["nll"]["value"] < 0


EIGHT = [
    *("Accuracy, %", "Conf. - accuracy, %", "NLL", "Brier"),
    *("ECE, % (noise floor)", "E99, %", "AURC, %", "Coverage, 1% risk, %"),
]


def test_evaluate_prints_the_verdict_and_then_eight_metrics_in_80_columns(files, calibration):
    sides = [read_predictions(files / name) for name in ("f.parquet", "u.parquet")]
    words = ("evaluate", files / "f.parquet", files / "u.parquet", "--resamples", 50)
    done = surefoot(*words)
    assert done.stdout.startswith("On familiar data the model is wrong ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = rows_of(done.stdout)[:8]
    assert [row[0] for row in rows] == EIGHT
    accuracy = [100 * float((p.probs().argmax(1) == p.labels).mean()) for p in sides]
    assert [cell.split()[0] for cell in rows[0][1:3]] == [f"{value:.1f}" for value in accuracy]
    assert float(rows[0][3].strip("()")) == pytest.approx(accuracy[1] - accuracy[0], abs=0.051)
    assert [cell.split()[0] for cell in rows[2][1:3]] == [f"{nll(p):.3f}" for p in sides]
    assert rows[4][1] == f"{100 * ece(sides[0]):.1f} ({100 * ece_floor(sides[0]):.2f})"
    after = [load_calibration(calibration)(p) for p in sides]
    done = surefoot(*words, "--calibration", calibration)
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = rows_of(done.stdout)[:8]  # one table: before, after and the change of each side
    assert [row[0] for row in rows] == EIGHT
    numbers = [f"{nll(p):.3f}" for pair in zip(sides, after, strict=True) for p in pair]
    assert [rows[2][i] for i in (1, 2, 4, 5)] == numbers
    assert float(rows[2][3]) == pytest.approx(nll(after[0]) - nll(sides[0]), abs=0.0006)
    assert rows[0][3] == "(+0.00)"  # a temperature changes no label


@pytest.mark.parametrize(("mistakes", "said"), [(0, "0 are wrong"), (1, "1 is wrong"), (2, "2 are wrong")])
def test_the_verdict_counts_confident_mistakes_in_words_that_fit(mistakes, said, tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.tile([9.0, 0.0], (20, 1)), labels=np.arange(20) < mistakes)
    printed = " ".join(surefoot("evaluate", *[tmp_path / "p.npz"] * 2, "--resamples", 0).stdout.split())
    assert f"Of 20 unfamiliar predictions with more than 99% confidence, {said} (" in printed


def test_many_labels_have_the_mean_average_precision_instead_of_the_accuracy(files):
    rows = rows_of(surefoot("evaluate", files / "many.npz", "--resamples", 0).stdout)
    assert [row[0] for row in rows[:8]] == ["Mean AP, %", *EIGHT[1:]]
    precision = 1 - label_error(read_predictions(files / "many.npz"))
    assert rows[0][1] == f"{100 * precision:.1f}"


def test_every_format_prints_the_numbers(files):
    value = f"{nll(read_predictions(files / 'f.parquet')):.4f}"
    some = ("--metric", "nll", "--metric", "ece", "--resamples", 5)
    for form in (("--all",), ("--format", "markdown"), ("--format", "latex")):
        done = surefoot("evaluate", files / "f.parquet", *form, *some)
        assert value in done.stdout
        assert "Brier" not in done.stdout
    done = surefoot("evaluate", files / "f.parquet", *some)
    assert [row[0] for row in rows_of(done.stdout)[:2]] == ["NLL", "ECE, %"]
    printed = surefoot("evaluate", files / "f.parquet", "--all", "--resamples", 0).stdout
    assert [row[0] for row in rows_of(printed)] == [metric.title for metric in METRICS]
    printed = surefoot("evaluate", files / "f.parquet", "--format", "csv", "--resamples", 0).stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["metric"] for row in rows] == [metric.name for metric in METRICS]
    assert f"{float(rows[0]['value']):.4f}" == value


def test_evaluate_by_group_with_a_report(files, tmp_path):
    done = surefoot(
        "evaluate", files / "f.parquet", files / "u.parquet", "--group-by", "site", "--report", tmp_path / "r", "--resamples", 10,
        "--error-above", 0.9,
    )  # fmt: skip
    assert "Worst group" in done.stdout
    assert "Error above 0.9" in done.stdout
    assert str(tmp_path / "r" / "report.html") in done.stderr
    assert json.loads((tmp_path / "r" / "report.json").read_text())["familiar"]["groups"][0]["group"] == "s0"


def test_apply_then_evaluate_is_evaluate_with_calibration(files, calibration, tmp_path):
    for suffix in (".npz", ".parquet", ".csv"):
        surefoot("apply", calibration, files / "u.parquet", "-o", tmp_path / f"out{suffix}")
        expected = load_calibration(calibration)(read_predictions(files / "u.parquet"))
        found = read_predictions(tmp_path / f"out{suffix}")
        assert np.array_equal(found.logits, expected.logits)
        assert np.array_equal(found.labels, expected.labels)


def test_apply_needs_no_labels(calibration, tmp_path):
    np.savez(tmp_path / "new.npz", logits=np.eye(4))
    surefoot("apply", calibration, tmp_path / "new.npz", "-o", tmp_path / "out.npz")
    temperature = load_calibration(calibration).temperature
    assert np.allclose(np.load(tmp_path / "out.npz")["logits"][0], np.eye(4) / temperature)


def test_conditions_decide_the_exit_code(files):
    options = ("evaluate", files / "f.parquet", files / "u.parquet", "--resamples", 0)
    surefoot(*options, "--fail-if", "unfamiliar.nll<0", "--fail-if", "gap.ece > 1")
    done = surefoot(*options, "--fail-if", "unfamiliar.nll>0.1", "--fail-if", "familiar.nll<0", check=1)
    assert "failed: unfamiliar.nll>0.1 (it is " in done.stderr
    assert "familiar.nll<0" not in done.stderr


def test_an_undefined_number_fails_no_condition_and_says_so(tmp_path):
    np.savez(tmp_path / "p.npz", probs=[[0.6, 0.4]], labels=[1])
    done = surefoot("evaluate", tmp_path / "p.npz", "--fail-if", "familiar.e99>=0", "--resamples", 0)
    assert "familiar.e99>=0 cannot fail: the number is undefined here" in done.stderr


def test_a_condition_on_any_threshold(files):
    options = ("evaluate", files / "f.parquet", "--resamples", 0, "--error-above", 0.9)
    surefoot(*options, "--fail-if", "familiar.error_above_0.9>=0", check=1)


def test_nothing_is_lost_by_writing_over_the_input(files, calibration):
    before = (files / "u.parquet").read_bytes()
    for arguments in (("apply", calibration, files / "u.parquet"), ("calibrate", files / "u.parquet")):
        surefoot(*arguments, "-o", files / "u.parquet", check=2)
    assert (files / "u.parquet").read_bytes() == before


def test_one_hot_labels_are_remarked_on(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.eye(3), labels=np.eye(3, dtype=int))
    done = surefoot("evaluate", tmp_path / "p.npz", "--resamples", 0, "--format", "json")
    assert "every row has exactly one label" in done.stderr


BAD = {
    "missing file": (["evaluate", "none.npz"], "none.npz: No such file or directory"),
    "unknown type": (["evaluate", "a.pkl"], "a.pkl: unknown file type '.pkl'; have: .npz, .parquet, .csv"),
    "unknown column": (["evaluate", "f.parquet", "--group-by", "breed"], "f.parquet: unknown column 'breed'; have: site"),
    "unknown metric": (["evaluate", "f.parquet", "--metric", "acc"], "unknown metric 'acc'; have: nll"),
    "unknown method": (["calibrate", "val.npz", "-o", "x.json", "--method", "plat"], "unknown method 'plat' (did you mean 'platt'?); have: temperature"),
    "bad condition": (["evaluate", "f.parquet", "--fail-if", "e99>1"], "condition 'e99>1' cannot be read; allowed: SIDE.METRIC>NUMBER"),
    "bad side": (["evaluate", "f.parquet", "--fail-if", "test.e99>1"], "unknown side 'test'; have: familiar, unfamiliar, gap"),
    "bad end": (["evaluate", "f.parquet", "u.parquet", "--fail-if", "gap.e99.mean>1"], "unknown metric 'e99.mean'; have: nll"),
    "bad number": (["evaluate", "f.parquet", "--fail-if", "gap.e99>x"], "'x' is not a number"),
    "bad limit": (["evaluate", "f.parquet", "--fail-if", "gap.e99>nan"], "nothing is above or below 'nan'"),
    "condition on an absent side": (["evaluate", "f.parquet", "--fail-if", "gap.e99>1", "--resamples", "0"], "needs an UNFAMILIAR file"),
    "not a calibration": (["apply", "val.npz", "val.npz", "-o", "x.npz"], "val.npz is not a calibration file"),
    "threshold": (["evaluate", "f.parquet", "--error-above", "2"], "confidence threshold 2; allowed"),
    "unlike sides": (["evaluate", "f.parquet", "many.npz"], "kinds differ: familiar one_label, unfamiliar many_labels"),
    "no folder": (["calibrate", "val.npz", "-o", "no/where.json"], "cannot write no/where.json: no folder no; allowed: a file in an existing folder"),
    "usage": (["evaluate", "f.parquet", "--format", "pdf"], "pdf"),
    "unknown command": (["evaluat"], "evaluat"),
    "nothing to list": (["ls", "everything"], "unknown list 'everything'; have: methods, "),
    "almost a list": (["ls", "metric"], "unknown list 'metric' (did you mean 'metrics'?); have: "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case, files, monkeypatch):
    monkeypatch.chdir(files)
    arguments, message = BAD[case]
    done = surefoot(*arguments, check=2)
    assert message in done.stderr
    assert done.stdout == ""
    if case not in ("usage", "unknown command", "nothing to list"):
        assert done.stderr.strip().count("\n") == 0


def test_bad_input_writes_nothing(files, tmp_path):
    surefoot("evaluate", files / "f.parquet", files / "many.npz", "--report", tmp_path / "r", check=2)
    assert list(tmp_path.iterdir()) == []


def test_lists_and_help_and_version(files):
    metrics = surefoot("ls", "metrics").stdout
    for metric in METRICS:
        assert metric.name in metrics
    assert "member-temperatures" in surefoot("ls", "calibrators").stdout
    for command in ((), ("evaluate",), ("calibrate",), ("apply",), ("ls",)):
        assert "Usage" in surefoot(*command, "--help").stdout
    assert surefoot("--version").stdout.startswith("surefoot 0.")


def loaded_by(*words):
    """What a command said, its exit code, and which modules it loaded of those that take long."""
    heavy = {"torch", "numpy", "scipy", "matplotlib", "pyarrow", "PIL", "ray", "mapie", "fastapi"}
    code = (
        f"import sys; from surefoot.cli import main; sys.argv = {['surefoot', *words]}\n"
        "try: main()\n"
        f"finally: print(*sorted(set(sys.modules) & {heavy}), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *printed, loaded = done.stdout.splitlines()
    return "\n".join(printed) + done.stderr, done.returncode, loaded


def test_a_file_that_is_not_there_is_said_at_once():
    """The same for all commands: tests/cli/test_fast.py."""
    expected = ("surefoot: gone.npz: No such file or directory\n", 2, "")
    assert loaded_by("evaluate", __file__, "gone.npz") == expected


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_a_refusal_that_cannot_be_printed_has_its_exit_code(closed):
    command = f"{sys.executable} -c 'from surefoot.cli import main; main()' evaluate nothing.npz {closed}"
    assert subprocess.run(command, shell=True, check=False).returncode == 2


@pytest.mark.parametrize(
    "command",
    [("monitor", "{file}", "{file}", "-o", "{long}.html"), ("calibrate", "{file}", "-o", "{long}.json")],
    ids=["monitor", "calibrate"],
)
def test_a_name_too_long_is_a_sentence(command, tmp_path, here):
    file = tmp_path / "p.npz"
    write_predictions(draw_one_label(n=60), file)
    places = {"file": file, "long": tmp_path / ("x" * 300)}
    printed = here(*(word.format(**places) for word in command), check=2)
    assert printed.stderr.count("\n") == 1
    assert "File name too long" in printed.stderr
