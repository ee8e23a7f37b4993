"""How commands end: 1 is a command's own decision, 2 a refusal, 3 an unexpected error with its traceback in a file."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surefoot import Predictions, write_predictions
from tests.cli.command import surefoot
from tests.conftest import draw_one_label

LS = f"{sys.executable} -c 'from surefoot.cli import main; main()' ls metrics"


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no text")


class OddError(BaseException):
    """No Exception, as an error of a user's library may be."""


UNEXPECTED = {
    "TypeError: a": TypeError("a\nb"),
    "EOFError: Ran out of input": EOFError("Ran out of input"),
    "SystemExit: 1": SystemExit(1),
    "OSError: could not get source code": OSError("could not get source code"),
    "RecursionError: too deep": RecursionError("too deep"),
    "MuteError": MuteError(),
    "OddError: x": OddError("x"),
    "AssertionError": AssertionError(),
}
OTHERS = {
    2: [MemoryError(), OSError(errno.ENOSPC, "No space left on device"), FileNotFoundError(2, "gone", "a")],
    130: [KeyboardInterrupt()],
    141: [BrokenPipeError(errno.EPIPE, "Broken pipe")],
}


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """A command that raises an error; its traceback would be in this folder."""
    write_predictions(draw_one_label(60), tmp_path / "p.npz")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error, code):
        def raising(*_, **__):
            raise error

        monkeypatch.setattr("surefoot.predictions.files.read_predictions", raising)
        return surefoot("evaluate", tmp_path / "p.npz", check=code)

    return run


@pytest.mark.parametrize("reason", UNEXPECTED)
def test_an_unexpected_error_is_a_sentence_that_names_its_traceback(reason, failing):
    said = failing(UNEXPECTED[reason], 3).stderr
    found = re.fullmatch(
        r"surefoot: unexpected (.*); its traceback is in (\S+); unless .* please report it.*\n", said
    )
    assert found[1] == reason
    text = Path(found[2]).read_text()
    assert text.startswith("surefoot 0.")
    assert "in raising" in text
    assert type(UNEXPECTED[reason]).__name__ in text


@pytest.mark.parametrize("code", OTHERS)
def test_an_interrupt_a_closed_pipe_and_a_full_disk_have_their_own_codes(code, failing, tmp_path):
    for error in OTHERS[code]:
        said = failing(error, code).stderr
        assert said.count("\n") == (code == 2)
        assert "Traceback" not in said
    assert not list(tmp_path.glob("surefoot-*"))


def test_the_environment_asks_for_tracebacks_of_refusals_too(failing, monkeypatch, tmp_path):
    monkeypatch.setenv("SUREFOOT_TRACEBACK", "1")
    said = failing(TypeError("a"), 3).stderr
    assert said.startswith("Traceback")
    assert "surefoot: unexpected TypeError: a; SUREFOOT_TRACEBACK=1 prints its traceback; unless" in said
    assert "Traceback" in surefoot("evaluate", "none.npz", check=2).stderr
    (tmp_path / "bad.py").write_text("def broken():\n    raise KeyError('a')\nbroken()\n")
    said = surefoot("--plugin", tmp_path / "bad.py", "ls", "metrics", check=2).stderr
    assert "in broken" in said
    assert not list(tmp_path.glob("surefoot-*"))


def test_a_plugin_that_exits_is_refused(tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit(1)\n")
    said = surefoot("--plugin", tmp_path / "bad.py", "ls", "metrics", check=2).stderr
    assert "(SystemExit: 1); needed: a module that imports" in said


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">/dev/full", 2, "surefoot: No space left on device\n"),
        (">&- <&-", 0, ""),
        (">/dev/full 2>&-", 2, ""),
        ("| true", 141, ""),
        ("2>/dev/full | true", 141, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_alarm(streams, code, said):
    done = subprocess.run(
        ["bash", "-c", f"{LS} {streams}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_features_of_another_width_are_refused_and_no_alarm(tmp_path):
    rng = np.random.default_rng(0)
    for width in (1, 7):
        features = rng.normal(size=(60, width)).astype(np.float32)
        given = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
        write_predictions(Predictions.from_logits(*given, features=features), tmp_path / f"{width}.npz")
    history = tmp_path / "h.jsonl"
    said = surefoot("monitor", tmp_path / "1.npz", tmp_path / "7.npz", "--history", history, check=2).stderr
    assert "the reference has 1 feature per row, the current predictions 7; must be equal" in said
    assert not history.exists()


def test_help_lists_the_exit_codes():
    assert "3 an unexpected error" in " ".join(surefoot("--help").stdout.split())


ODD_COLUMNS = {
    "bytes": pa.array([b"\xff"] * 60),
    "bytes of a category": pa.array([b"\xff"] * 60).dictionary_encode(),
    "a structure": pa.array([{"a": 1}] * 60),
    "a map": pa.array([[("a", 1)]] * 60, pa.map_(pa.string(), pa.int64())),
    "text of a newer type": pa.array(["a"] * 60, pa.string_view()),
    "the year 36,000": pa.array([2**60] * 60, pa.timestamp("us")),
}


@pytest.mark.parametrize("kind", ODD_COLUMNS)
def test_odd_columns_are_used_or_refused(kind, tmp_path):
    """In a task's manifest, and beside predictions: as groups, and written to a .csv."""
    table = {"y": list("ab") * 30, "x": [float(i) for i in range(60)], "age": list(range(60))}
    pq.write_table(pa.table({**table, "odd": ODD_COLUMNS[kind]}), tmp_path / "m.parquet")
    (tmp_path / "t.toml").write_text(
        '[task]\nname = "t"\nmanifest = "m.parquet"\nlabel = "y"\nfeatures = ["x"]\n'
        "[familiar]\nage = { below = 40 }\n[splits]\nval = 0.2\ntest = 0.3\n"
    )
    surefoot("data", "check", tmp_path / "t.toml", "--resolved", tmp_path / "r.csv")
    surefoot("data", "check", tmp_path / "r.toml")
    scores = {"logit_a": np.arange(60.0), "logit_b": np.ones(60), "label": table["y"]}
    pq.write_table(pa.table({**scores, "odd": ODD_COLUMNS[kind]}), tmp_path / "p.parquet")
    surefoot("calibrate", tmp_path / "p.parquet", "-o", tmp_path / "c.json")
    is_text = kind in ("text of a newer type", "the year 36,000")
    code = 0 if is_text else 2
    surefoot("apply", tmp_path / "c.json", tmp_path / "p.parquet", "-o", tmp_path / "a.csv", check=code)
    surefoot("evaluate", tmp_path / "p.parquet", "--resamples", 2, "--group-by", "odd", check=code)
    per = ("--per", "odd", "--target-error", 0.9, "-o", tmp_path / "t.json")
    surefoot("thresholds", tmp_path / "p.parquet", *per, check=code)
