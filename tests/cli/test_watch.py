"""`surefoot thresholds` and `surefoot monitor` as they are used: files, exit codes, pages."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

from surefoot import InputError, Predictions, read_predictions, write_predictions
from surefoot.cli.app import app
from surefoot.decisions.thresholds_file import load_thresholds
from tests.cli.command import surefoot as main
from tests.conftest import draw_many_labels, draw_one_label

CHROMIUM = shutil.which("chromium")
NASTY = "<script>alert(1)</script>"
PAGE = Path(__file__).parents[2] / "docs" / "commands" / "thresholds.md"


def surefoot(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Familiar predictions that are mostly right, unfamiliar ones that are not, in a folder of a nasty name."""
    folder = tmp_path_factory.mktemp("files") / "<b>&"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name, n, sharp in (("val", 1500, 6), ("test", 1500, 6), ("strange", 600, 1.5)):
        logits = 3 * rng.standard_normal((n, 3))
        labels = (sharp * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        write_predictions(
            Predictions.from_logits(2.5 * min(sharp, 3) / 3 * logits, labels), folder / f"{name}.npz"
        )
    return folder


def test_thresholds_are_chosen_said_and_written(files, tmp_path):
    file, page = tmp_path / "t.json", tmp_path / "t.html"
    code, printed, notes = surefoot(
        "thresholds", files / "val.npz", "--target-error", 0.02, "--familiar-test", files / "test.npz",
        "--unfamiliar", files / "strange.npz", "-o", file, "--html", page,
    )  # fmt: skip
    assert code == 0
    document = json.loads(file.read_text())
    assert 0.34 < document["accept"] < 1
    assert f"at a confidence of {document['accept']:.6g} or more" in printed
    assert "The guarantee does not cover unfamiliar data: there " in printed
    assert "times the target" in printed
    assert "within the guarantee" in printed
    assert f"thresholds: {file}" in notes
    strange = read_predictions(files / "strange.npz").outcomes
    taken = strange.confidence >= document["accept"]
    assert document["measured"]["unfamiliar"]["error"]["k"] == (taken & ~strange.correct).sum()
    assert document["measured"]["unfamiliar"]["coverage"]["value"] == taken.mean()
    assert document["measured"]["familiar test"]["error"]["high"] < 0.06
    check_page(page, figures=1)


def test_a_split_fits_a_temperature_on_other_rows(files, tmp_path):
    code, printed, _ = surefoot(
        "thresholds", files / "val.npz", "--target-error", 0.1, "--split", 0.4, "-o", tmp_path / "t.json"
    )
    assert code == 0
    assert "calibration: T = " in printed
    found = load_thresholds(tmp_path / "t.json")
    assert (found.n, found.calibration.n) == (900, 600)
    assert f"{found.calibration.temperature:.5g}" in printed
    assert (
        surefoot("monitor", files / "val.npz", files / "test.npz", "--thresholds", tmp_path / "t.json")[0]
        == 0
    )
    surefoot("calibrate", files / "val.npz", "-o", tmp_path / "c.json")
    with pytest.raises(InputError, match="already contain a calibration"):
        surefoot("monitor", files / "val.npz", files / "test.npz", "--thresholds", tmp_path / "t.json",
                 "--calibration", tmp_path / "c.json")  # fmt: skip


def test_too_much_to_ask_is_said_and_exits_with_one(files, tmp_path):
    file = tmp_path / "t.json"
    code, _, notes = surefoot("thresholds", files / "strange.npz", "--target-error", 0.0001, "-o", file)
    assert code == 1
    assert "no threshold can guarantee an error of at most 0.0001 with n = 600 rows" in notes
    assert not file.exists()
    modest = ("thresholds", files / "strange.npz", "--target-error", 0.04, "-o", file)
    code, _, notes = surefoot(*modest, "--min-coverage", 0.8)
    assert code == 1
    assert "less than the requested 80.0%; for 80.0% of them the guaranteed error is " in notes
    assert file.exists()
    assert surefoot(*modest)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--target-error", 1.5], "target error is 1.5; allowed: above 0 and below 1"),
        (["--split", 1], "--split is 1.0; allowed"),
        (["--split", 0.5, "--calibration", "c.json"], "both --calibration and --split"),
        (["-o", "t.csv"], "is a file name for predictions"),
        (["--for-class", "2"], "needs many labels"),
        (["-o", "no/t.json"], "cannot write no/t.json: no folder no"),
        (["-o", "t.json", "--html", "no/t.html"], "cannot write no/t.html: no folder no"),
        (["-o", "t.json", "--html", "."], "cannot write .: it is a folder"),
    ],
)
def test_bad_options_are_one_sentence(arguments, printed, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(printed)):
        surefoot("thresholds", files / "val.npz", *arguments)
    assert list(tmp_path.iterdir()) == []


def renamed(path, names, to):
    write_predictions(replace(read_predictions(path), class_names=tuple(names)), to)
    return to


def test_predictions_of_other_classes_are_refused(files, tmp_path):
    val = renamed(files / "val.npz", "abc", tmp_path / "val.npz")
    file = tmp_path / "t.json"
    other = renamed(files / "test.npz", "xyz", tmp_path / "xyz.npz")
    for option in ("--unfamiliar", "--familiar-test"):
        with pytest.raises(InputError, match="have a class 'x'; the classes of 'val' are a, b, c, and must"):
            surefoot("thresholds", val, option, other, "-o", file)
    assert not file.exists()
    unnamed = files / "test.npz"
    assert surefoot("thresholds", val, "--target-error", 0.1, "--unfamiliar", unnamed, "-o", file)[0] == 0


def test_the_rows_of_a_given_calibration_are_a_condition(files, tmp_path):
    surefoot("calibrate", files / "test.npz", "-o", tmp_path / "c.json")
    given = ("--calibration", tmp_path / "c.json", "--target-error", 0.1, "-o", tmp_path / "t.json")
    _, _, notes = surefoot("thresholds", files / "val.npz", *given)
    assert "the guarantee holds only if the calibration was fitted on other rows than these" in notes


def application(file, logits):
    """What the page's snippet does with every row of (members, n, classes)."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    code = compile(code.replace("thresholds.json", str(file)), str(PAGE), "exec")
    done = []
    for row in range(logits.shape[1]):
        taken = []
        known = {"json": json, "Path": Path, "np": np, "softmax": softmax, "answer": row}
        acts = {"take": taken.append, "ask_a_person": lambda _: None}
        exec(code, known | acts | {"logits": logits[:, row]})
        done.append(bool(taken))
    return np.array(done)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("method", [None, "temperature", "budget", "member-temperatures"])
def test_the_page_s_snippet_accepts_what_the_thresholds_do(method, members, tmp_path):
    """`ensemble-of-t` is members with member-temperatures."""
    rng = np.random.default_rng(0)
    ours = draw_one_label(1500, 3, sharpness=3)
    unlike = np.array([0.5, 1.0, 2.0])[:members].reshape(-1, 1, 1)
    logits = unlike * ours.logits + rng.standard_normal((members, ours.n, 3))
    val, file = tmp_path / "val.npz", tmp_path / "t.json"
    write_predictions(Predictions.from_logits(logits, ours.labels), val)
    options = []
    if method is not None:
        surefoot("calibrate", val, "--method", method, "-o", tmp_path / "c.json")
        options = ["--calibration", tmp_path / "c.json"]
    surefoot("thresholds", val, "--target-error", 0.2, *options, "-o", file)
    expected = load_thresholds(file).accepted(read_predictions(val))
    assert 0 < expected.sum() < len(expected)
    assert np.array_equal(application(file, logits), expected)


def test_a_broken_promise_is_said(files, tmp_path):
    _, printed, _ = surefoot(
        "thresholds", files / "val.npz", "--target-error", 0.05, "--familiar-test", files / "strange.npz",
        "-o", tmp_path / "t.json",
    )  # fmt: skip
    assert "more than guaranteed. These rows have another distribution than val" in printed


def test_thresholds_per_class_are_printed_written_and_applied(files, tmp_path):
    file, page = tmp_path / "t.json", tmp_path / "t.html"
    words = ("thresholds", files / "val.npz", "--target-error", 0.05, "--per", "class", "-o", file)
    code, printed, _ = surefoot(*words, "--html", page, "--min-coverage", 0.999)
    assert code == 1  # fewer are accepted
    parts = json.loads(file.read_text())["parts"]
    assert set(parts) == {"0", "1", "2"}
    for part in parts.values():
        assert (f"{part['accept']:.6g} or more" if part["accept"] else "everything") in printed
    assert "Guaranteed for each on its own" in printed
    assert "Thresholds per class" in page.read_text()
    code, printed, _ = surefoot("monitor", files / "val.npz", files / "test.npz", "--thresholds", file)
    share = load_thresholds(file).accepted(read_predictions(files / "val.npz")).mean()
    assert f"{share:.3f}" in printed or f"{share:.4g}" in printed


def test_many_labels_need_a_class(tmp_path):
    write_predictions(
        draw_many_labels(2000, 3, sharpness=3, class_names=[NASTY, "b", "c"]), tmp_path / "v.npz"
    )
    with pytest.raises(InputError, match="one class at a time"):
        surefoot("thresholds", tmp_path / "v.npz")
    file, page = tmp_path / "t.json", tmp_path / "t.html"
    code, printed, _ = surefoot("thresholds", tmp_path / "v.npz", "--for-class", NASTY, "--target-error", 0.2,
                             "-o", file, "--html", page)  # fmt: skip
    assert code == 0
    assert f"for '{NASTY}'" in printed
    assert load_thresholds(file).for_class == NASTY
    check_page(page, figures=1)
    assert surefoot("monitor", tmp_path / "v.npz", tmp_path / "v.npz", "--thresholds", file)[0] == 0


def without_labels(path, to):
    given = read_predictions(path)
    columns = {f"logit_{i}": given.logits[0, :, i].tolist() for i in range(given.classes)}
    import pyarrow as pa
    import pyarrow.csv

    pyarrow.csv.write_csv(pa.table(columns), to)
    return to


def test_monitor_without_labels(files, tmp_path):
    known, fresh, strange = (
        without_labels(files / f"{name}.npz", tmp_path / f"{name}.csv") for name in ("val", "test", "strange")
    )
    code, printed, _ = surefoot("monitor", known, fresh)
    assert code == 0
    assert "No shift detected. With 1,500 rows, a drop in the estimated accuracy" in printed
    assert "because it has no labels" in printed
    code, printed, _ = surefoot("monitor", files / "val.npz", strange, "--format", "json")
    assert code == 1
    document = json.loads(printed)
    assert document["verdict"][0] == "The data has shifted."
    assert document["accuracy"]["reference_labelled"]


def test_a_novelty_that_cannot_be_compared_is_said(tmp_path):
    write_predictions(draw_one_label(novelty=np.arange(300.0)), tmp_path / "has.npz")
    write_predictions(draw_one_label(), tmp_path / "has-not.npz")
    write_predictions(
        Predictions.from_probs(draw_one_label().probs(), draw_one_label().labels), tmp_path / "p.npz"
    )
    assert surefoot("monitor", tmp_path / "has.npz", tmp_path / "has.npz")[2] == ""
    assert (
        "only one file has novelty" in surefoot("monitor", tmp_path / "has.npz", tmp_path / "has-not.npz")[2]
    )
    assert "energy is constant" in surefoot("monitor", tmp_path / "p.npz", tmp_path / "p.npz")[2]


def test_one_row_is_refused_and_nothing_else_said_of_it(files, tmp_path):
    write_predictions(read_predictions(files / "test.npz").take([0]), tmp_path / "one.npz")
    done = main("monitor", files / "val.npz", tmp_path / "one.npz", check=2)
    assert done.stderr == "surefoot: the current predictions have 1 row; allowed: two or more\n"


def test_the_labels_of_what_is_watched_are_never_used(files, tmp_path):
    strange = read_predictions(files / "strange.npz")
    wrong = Predictions.from_logits(strange.logits, (strange.labels + 1) % 3)
    write_predictions(wrong, tmp_path / "wrong.npz")
    printed = [
        surefoot("monitor", files / "val.npz", path)[1]
        for path in (files / "strange.npz", tmp_path / "wrong.npz")
    ]
    assert printed[0] == printed[1]


def test_a_history_goes_on_and_the_page_shows_it(files, tmp_path):
    page, history = tmp_path / "m.html", tmp_path / "h.jsonl"
    surefoot("thresholds", files / "val.npz", "--target-error", 0.05, "-o", tmp_path / "t.json")
    for number, name in enumerate(("test", "test", "strange"), start=1):
        code, printed, _ = surefoot(
            "monitor", files / "val.npz", files / f"{name}.npz", "--history", history, "-o", page,
            "--thresholds", tmp_path / "t.json", "--bound", 0.02,
        )  # fmt: skip
        assert code == (name == "strange")
        assert "share accepted" in printed
        assert len(history.read_text().splitlines()) == number
    assert [json.loads(line)["alarm"] for line in history.read_text().splitlines()] == [False, False, True]
    text = check_page(page, figures=4)
    assert "The most unfamiliar rows" in text
    assert "Classes and groups" in text
    assert "The data has shifted." in text
    with pytest.raises(InputError, match="checks against another reference"):
        surefoot("monitor", files / "test.npz", files / "val.npz", "--history", history)


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--alpha", 0], "--alpha is 0.0; allowed: above 0 and below 1"),
        (["--bound", 2], "--bound is 2.0; allowed: 0 to 1"),
        (["-o", "same", "--history", "same"], "two outputs are the same file, same;"),
        (["--thresholds", "gone.json"], "gone.json: No such file"),
        (["--thresholds", "t.json", "-o", "t.json"], "the output t.json is the input"),
        (["--calibration", "c.json", "--history", "c.json"], "the output c.json is the input"),
        (["--history", "h.jsonl", "-o", "no/m.html"], "cannot write no/m.html: no folder no"),
        (["--history", "no/h.jsonl"], "cannot write no/h.jsonl: no folder no"),
        (["--history", "."], "cannot write .: it is a folder"),
    ],
)
def test_bad_options_of_the_monitor_are_one_sentence(arguments, printed, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(printed)):
        surefoot("monitor", files / "val.npz", files / "test.npz", *arguments)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="is the input"):
        surefoot("monitor", files / "val.npz", files / "test.npz", "-o", files / "test.npz")
    write_predictions(draw_one_label(classes=5), tmp_path / "five.npz")
    with pytest.raises(InputError, match="classes differ: reference 3, current 5; must be equal"):
        surefoot("monitor", files / "val.npz", tmp_path / "five.npz")


def check_page(path, *, figures):
    """Escaped, self-contained, its ids its own, its pictures sound."""
    text = path.read_text()
    assert "<b>&" not in text
    assert NASTY not in text
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    found = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(found) == figures
    for figure in found:
        ET.fromstring(figure)
    assert len(text) < 100_000
    return text


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_both_pages_fit_a_telephone_and_a_small_window(files, tmp_path):
    from playwright.sync_api import sync_playwright

    surefoot("thresholds", files / "val.npz", "--target-error", 0.05, "-o", tmp_path / "t.json", "--html",
             tmp_path / "t.html")  # fmt: skip
    for _ in range(2):
        surefoot("monitor", files / "val.npz", files / "strange.npz", "-o", tmp_path / "m.html",
                 "--thresholds", tmp_path / "t.json", "--history", tmp_path / "h.jsonl")  # fmt: skip
    problems = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        for name, figures in (("t.html", 1), ("m.html", 4)):
            page.goto((tmp_path / name).as_uri())
            assert page.locator("figure svg").count() == figures
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.locator("#verdict p").first.bounding_box()["width"] > 250
        for number in range(2):
            page.locator("summary").nth(number).click()
        for width in (390, 720, 1000, 1300):
            page.set_viewport_size({"width": width, "height": 800})
            boxes = "boxes => boxes.map(box => box.scrollWidth - box.clientWidth)"
            chosen = ".scroll:has(.compared), .scroll:has(.checks)"
            assert page.eval_on_selector_all(chosen, boxes) == [0, 0, 0]
        browser.close()
    assert problems == []
