"""The commands and the code of the tutorials work as they are written there, in small."""

import io
import re
import runpy
import shlex
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from surefoot.lab.experiments.experiment import read_experiment
from surefoot.lab.experiments.run import plans_for, resolved
from tests.cli.command import surefoot

ROOT = Path(__file__).parent.parent
SMALL = ("epochs=1", "runs=2", "members=2", "resamples=20")
FAST = ("--method", "single", "--method", "ensemble-of-t", "--workers", "1", "--train-only")
ELSEWHERE = ("serve", "export")  # tested elsewhere, and slow


def blocks(page, language):
    return re.findall(
        rf"```{language}\n(.*?)```", (ROOT / "docs/tutorials" / page).read_text(), flags=re.DOTALL
    )


def commands(page, program):
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{program} ")]


def run_commands(page, *values, exit_codes=None):
    """Each command of a page, training little: its name and what it wrote."""
    done = []
    for words in commands(page, "surefoot"):
        if words[0] == "run":
            words += [word for value in (*SMALL, *values) for word in ("--set", value)]
            words += FAST
        if words[0] == "evaluate":
            words += ("--resamples", "20")
        if words[0] not in ELSEWHERE:
            done.append((words[0], surefoot(*words, check=(exit_codes or {}).get(words[0], 0))))
    return done


def run_script(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(words[0], run_name="__main__")


def content(toml):
    """Without comments."""
    return tomllib.loads(toml)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_predictions(folder, monkeypatch):
    rng = np.random.default_rng(0)
    (code,) = blocks("predictions.md", "python")
    exec(code, {"logits": rng.standard_normal((20, 4)), "labels": rng.integers(0, 4, 20)})
    assert pyarrow.parquet.read_table("my-val.parquet").num_rows == 20
    (script,) = commands("predictions.md", "python")
    run_script(script, monkeypatch)
    done = run_commands("predictions.md", exit_codes={"monitor": 1})  # 1: it has shifted
    assert [name for name, _ in done] == [
        "evaluate",
        "calibrate",
        "evaluate",
        "apply",
        "thresholds",
        "monitor",
    ]
    text = (ROOT / "docs/tutorials/predictions.md").read_text()
    printed = dict(done)
    assert "T = 3.4" in text
    assert "T = 3.3" in printed["calibrate"].stdout
    assert (folder / "report/report.html").exists()
    assert "data has shifted" in printed["monitor"].stdout


def test_the_model(capsys):
    names = {}
    exec("\n".join(blocks("model.md", "python")), names)
    assert names["probabilities"].shape == (5, 3)
    ensemble, single = map(float, capsys.readouterr().out.splitlines()[-1].split(" instead of "))
    assert ensemble < single < names["result"].uncalibrated["unfamiliar"].metrics["nll"].value


def test_the_images(folder, monkeypatch):
    (script,) = commands("images.md", "python")
    run_script([*script, "90"], monkeypatch)
    task, experiment = blocks("images.md", "toml")
    (folder / "task.toml").write_text(task)
    (folder / "experiment.toml").write_text(experiment)
    done = run_commands("images.md")
    assert [name for name, _ in done] == ["data", "run", "bundle", "predict"]
    table = pyarrow.csv.read_csv("predictions.csv")
    assert table.num_rows == 90
    assert set(table["label"].to_pylist()) <= {"wide", "tall"}


def test_the_table(folder, capsys):
    (task,) = blocks("table.md", "toml")
    assert content(task) == content((folder / "examples/penguins/task.toml").read_text())
    done = run_commands("table.md", "width=8")
    assert [name for name, _ in done] == ["data", "run", "bundle", "predict"]
    assert "no problems, but see the notes" in done[0][1].stdout
    table = pyarrow.csv.read_csv("out.csv")
    assert table.num_rows == 333
    assert {"row", "label", "confidence", "prob_female"} <= set(table.column_names)
    header, first, *_ = (folder / "examples/penguins/penguins.csv").read_text().splitlines()
    (folder / "rows.csv").write_text(f"{header}\n{first.replace('Torgersen', 'Bird')}\n")
    refused = surefoot("predict", "penguins-bundle", "rows.csv", "-o", "o.csv", check=2)
    assert "column 'island' is 'Bird' in row 0, which training never had" in refused.stderr
    assert "--allow-unseen" in refused.stderr
    (code,) = blocks("table.md", "python")
    exec(code, {})
    assert "('female', 'male')" in capsys.readouterr().out


def archive(path, per_source=60):
    """An archive in the layout of the package's, with sentences that are made up."""
    rng = np.random.default_rng(0)
    good, bad, things = (
        ("great", "lovely", "fine"),
        ("awful", "poor", "dull"),
        ("film", "phone", "day", "plan"),
    )
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as data:
        for name in ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets"):
            lines = []
            for row in range(per_source):
                rating = float(rng.choice([-2.0, -0.1, 2.0]))
                words = rng.choice(good if rating > 0 else bad, 2).tolist() + rng.choice(things, 3).tolist()
                lines.append(f"{row // 3}_{row}\t{rating}\ta {' '.join(words)} {row}")
            add(data, f"hutto_ICWSM_2014/{name}_GroundTruth.txt", "\n".join(lines).encode())
    with tarfile.open(path, "w:gz") as package:
        add(package, "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz", inner.getvalue())


def add(file, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    file.addfile(info, io.BytesIO(data))


def test_the_text(folder, monkeypatch, capsys):
    archive(folder / "vaderSentiment-3.3.2.tar.gz")
    run_script(commands("text.md", "python")[0], monkeypatch)
    assert "sentences.parquet: " in capsys.readouterr().out
    (task,) = blocks("text.md", "toml")
    assert content(task) == content((folder / "examples/sentiment/task.toml").read_text())
    table = pyarrow.parquet.read_table("examples/sentiment/data/sentences.parquet")
    training = table.filter(np.asarray(table["split"].to_pylist()) == "train")
    assert set(training["source"].to_pylist()) == {"movies", "products"}
    assert len({(each["document"], each["split"]) for each in table.to_pylist()}) == len(
        set(table["document"].to_pylist())
    )
    experiment = resolved(read_experiment(Path("examples/sentiment/experiment.toml")))
    (plan,) = plans_for(experiment)
    assert not plan.skipped
    assert len(plan.methods) == len(experiment.methods)
    assert plan.encoding.only_vector.length == len(table["embedding"][0])
    done = run_commands("text.md", "width=8")
    assert [name for name, _ in done] == ["data", "run", "bundle", "predict"]
    own = {"ids": ["a", "b"], "labels": [0, 1], "sources": ["x", "y"], "texts": ["good", "bad"]}
    (code,) = blocks("text.md", "python")
    exec(code, {**own, "encoder": Letters()})  # writes sentences.parquet
    refused = surefoot("predict", "sentiment-bundle", "sentences.parquet", "-o", "o.csv", check=2)
    assert refused.stderr == (
        "surefoot: sentences.parquet: the vectors in 'embedding' have 26 numbers; "
        f"needed: {plan.encoding.only_vector.length}, as in training\n"
    )


class Letters:
    """An encoder that counts letters."""

    def encode(self, texts):
        return np.array(
            [[text.count(chr(97 + place)) for place in range(26)] for text in texts], dtype=np.float32
        )
