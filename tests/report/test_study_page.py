"""The page of an experiment: escaped, self-contained, complete, and right in a real browser."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from surefoot import InputError
from surefoot.calibrators import load_calibration
from surefoot.evaluation.comparison import MethodRun
from surefoot.experiments.run import Study, open_folder
from surefoot.experiments.workflow import load_study
from surefoot.predictions.labels import LabelKind
from surefoot.report import study as study_page
from surefoot.report import study_figures, study_gallery
from surefoot.report.study_figures import drawable_methods, e99_picture, part_figures
from surefoot.report.study_gallery import part_gallery
from surefoot.report.study_part import mean_score, subgroups
from surefoot.tasks import task_named
from surefoot.tasks.task import Samples, Split, Task
from tests.browser import CHROMIUM
from tests.conftest import draw_one_label
from tests.report.studies import (
    FEW,
    HOSTILE,
    TESTED,
    UNFAMILIAR,
    Row,
    by_hand,
    drawn_part,
    empty_part,
    hostile,
    trained,
    with_runs,
)

NAME = "script-script-alert-1-script"  # the hostile task's, as part of a path
FIGURES = (
    "cost",
    "e99",
    "error-by-confidence",
    "overview",
    "reliability-methods",
    "risk-coverage-methods",
    "temperature-curves",
)


def write_study(study, folder):
    return study_page.write_study(study, folder).page


@pytest.fixture(scope="module")
def study(made):
    return made.study()


@pytest.fixture(scope="module")
def hostile_study(made):
    """The study under hostile names."""
    return hostile(made).study()


@pytest.fixture(scope="module")
def report(hostile_study, tmp_path_factory):
    return write_study(hostile_study, tmp_path_factory.mktemp("report"))


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes seconds, and is tested once."""
    monkeypatch.setattr(study_page, "part_figures", lambda *_: [])


def test_hostile_names_are_text(report):
    text = report.read_text()
    assert HOSTILE not in text
    assert "<img src=x" not in text
    assert "<script" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert all(path.is_relative_to(report.parent) for path in report.parent.rglob("*"))


def test_the_page_needs_nothing_from_elsewhere_and_its_ids_are_unique(report):
    text = report.read_text()
    plain = re.sub(r'xmlns(:xlink)?="[^"]*"|"http://www.w3.org/2000/svg"', "", text)
    assert "http" not in plain
    assert not re.findall(r'(?:src|href)="(?!#|data:)', plain)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)} <= set(ids)


def test_every_figure_is_there_as_svg_and_png_and_in_the_page(report):
    folder = report.parent / "figures"
    for ending in ("svg", "png"):
        names = sorted(path.name for path in folder.glob(f"*.{ending}"))
        assert names == [f"{NAME}-{name}.{ending}" for name in FIGURES]
    for path in folder.glob("*.svg"):
        ET.parse(path)
    assert report.read_text().count('<svg role="img" aria-label') == len(FIGURES)
    assert report.stat().st_size < 1_000_000


def test_the_json_and_the_calibrations_have_the_numbers_of_the_study(hostile_study, report):
    document = json.loads((report.parent / "report.json").read_text())
    part, part_document = hostile_study.parts[0], document["parts"][0]
    assert part_document["recommended"] in {m.name for m in part.comparison.methods if not m.oracle}
    for method, scored in zip(part_document["methods"], part.comparison.methods, strict=True):
        assert method["scores"]["familiar"]["nll"]["mean"] == scored.cells["familiar", "nll"].mean
    files = {path.name: load_calibration(path) for path in (report.parent / "calibrations").glob("*.json")}
    fitted = {
        f"{NAME}-{method.name}-run{run.run}.json": replace(run.calibration, evidence=None)
        for method in part.comparison.methods
        for run in method.runs
        if run.calibration is not None
    }
    assert files == fitted
    assert document["experiment"]["runs"] == 2
    assert document["reproduce"] == ["surefoot run experiment.toml"]


def test_subgroups_have_the_intervals_of_scipy(study):
    groups = subgroups(study.parts[0], "ensemble")
    assert groups.titles == ("Single", "Ensemble")
    assert {side for side, _ in groups.rows} == {"familiar", "unfamiliar"}
    predictions = study.parts[0].comparison.method("single").runs[0].after[UNFAMILIAR]
    row = next(scores[0] for side, scores in groups.rows if side == "unfamiliar")
    here = predictions.groups == row.group
    p = predictions.probs()[np.arange(predictions.n), predictions.labels][here]
    losses = -np.log(np.clip(p, 0.001, 0.999))
    low, high = stats.t.interval(0.95, len(losses) - 1, losses.mean(), stats.sem(losses))
    score = row.metrics["nll"]
    assert (score.value, score.low, score.high) == pytest.approx((losses.mean(), max(0, low), high))
    error = row.metrics["label_error"]
    wrong = int((predictions.probs().argmax(1) != predictions.labels)[here].sum())
    exact = stats.binomtest(wrong, int(here.sum())).proportion_ci(method="exact")
    assert (error.k, error.n, error.low, error.high) == (wrong, here.sum(), *map(pytest.approx, exact))
    assert subgroups(study.parts[0], None).titles == ("Single",)


def test_values_of_one_row_count_together():
    values = np.array([1.0, 2.0, 5.0])
    once = mean_score(values, np.arange(3))
    thrice = mean_score(np.repeat(values, 3), np.repeat(np.arange(3), 3))
    assert (thrice.value, thrice.high) == pytest.approx((once.value, once.high))
    assert np.isnan(mean_score(values, np.zeros(3, dtype=int)).low)


def test_one_run_missing_networks_and_no_network_at_all(made, tmp_path, no_figures):
    plan = replace(made.plan, methods=tuple(replace(p, runs=p.runs[:1]) for p in made.plan.methods[:4]))
    text = write_study(type(made)(made.store, made.experiment, plan).study(), tmp_path / "one").read_text()
    assert "no significance is claimed" in text
    spec = replace(plan.methods[0].runs[0][0], seed=77)
    lacking = replace(plan.methods[0], runs=(*plan.methods[0].runs, (spec,)))
    plan = replace(plan, methods=(lacking, *plan.methods[1:]))
    text = write_study(type(made)(made.store, made.experiment, plan).study(), tmp_path / "less").read_text()
    assert "Single: 1 missing, not averaged in: plain network of toy/small, seed 77." in text
    text = write_study(Study(made.experiment, (empty_part(),)), tmp_path / "none").read_text()
    assert "no method has a finished run" in text


def test_a_report_of_some_methods_does_not_replace_the_full_one(made, no_figures):
    folder = open_folder(made.experiment, [made.plan], made.store)
    assert study_page.report_folder(load_study(folder)) == folder
    full = write_study(load_study(folder), folder)
    text = full.read_text()
    some = load_study(folder, methods=["single", "ensemble"], values={"metrics": ["nll", "aurc"]})
    place = study_page.report_folder(some)
    assert place == folder / "report-methods-single-ensemble-metrics-nll-aurc"
    assert "surefoot report .. --method single --method ensemble --set metrics=nll,aurc" in (
        write_study(some, place).read_text()
    )
    assert full.read_text() == text


def test_many_labels(tmp_path):
    many = trained(tmp_path / "many", LabelKind.MANY_LABELS, methods=("single", "ensemble"))
    text = write_study(many.study(), tmp_path / "report").read_text()
    assert text.count('<svg role="img" aria-label') == len(FIGURES)
    assert "By subgroup" in text


def test_no_unfamiliar_set(tmp_path):
    alone = trained(tmp_path / "alone", methods=FEW, without=(UNFAMILIAR, Split.UNLABELLED))
    text = write_study(alone.study(), tmp_path / "report").read_text()
    assert "There is no unfamiliar test set" in text
    assert "By subgroup" in text


@pytest.fixture
def pictures(monkeypatch):
    """A part of drawn predictions, and a task with an image for each of its samples."""
    part = drawn_part()
    predictions = part.comparison.methods[0].runs[0].after[UNFAMILIAR]
    inputs = np.random.default_rng(0).integers(0, 255, size=(predictions.n, 8, 8, 3), dtype=np.uint8)
    order = np.random.default_rng(1).permutation(predictions.n)
    samples = Samples(predictions.ids.astype(str)[order], predictions.labels[order], inputs[order])
    train = Samples(np.array(list("wxyz")), np.arange(4), inputs[:4])
    task = Task("pictures", LabelKind.ONE_LABEL, tuple("abcd"), {Split.TRAIN: train, UNFAMILIAR: samples})
    monkeypatch.setattr(study_gallery, "task_named", lambda *_, **__: task)
    return replace(part, plan=replace(part.plan, task_identity=task.identity)), inputs


def test_the_gallery_shows_the_most_confident_mistakes_before_and_after(pictures):
    part, inputs = pictures
    gallery = part_gallery(part, "ensemble")
    before, after = (method.runs[0].after[UNFAMILIAR] for method in part.comparison.methods)
    p, q, labels = before.probs(), after.probs(), before.labels
    wrong = np.flatnonzero(p.argmax(1) != labels)
    most_confident = wrong[np.argsort(-p[wrong].max(1), kind="stable")][:12]
    assert len(gallery.cards) == 12
    assert [card.mistake.before for card in gallery.cards] == pytest.approx(p[most_confident].max(1))
    assert [card.mistake.confidence for card in gallery.cards] == pytest.approx(
        q[most_confident, p[most_confident].argmax(1)]
    )
    image = Image.open(io.BytesIO(base64.b64decode(gallery.cards[0].image.split(",")[1])))
    assert (np.asarray(image) == inputs[most_confident[0]]).all()  # by id, though the task has another order
    assert (gallery.before, gallery.after) == ("Single", "Ensemble")
    assert gallery.png[:4] == b"\x89PNG"
    assert part_gallery(part, "single").cards[0].mistake.before is None


def test_class_names_in_the_gallery_are_text(pictures, study, tmp_path, no_figures):
    text = write_study(Study(study.experiment, (pictures[0],)), tmp_path).read_text()
    assert "<b>a</b>" not in text.replace("<b>&lt;b&gt;a&lt;/b&gt;</b>", "")
    assert "&lt;b&gt;a&lt;/b&gt;" in text
    assert (tmp_path / "figures" / "letters-gallery.png").is_file()


def test_where_the_images_are_gone_or_changed_a_sentence_says_so(
    pictures, study, monkeypatch, tmp_path, no_figures
):
    part, _ = pictures
    changed = replace(part, plan=replace(part.plan, task_identity="other"))
    assert "have changed" in part_gallery(changed, None).absent

    def gone(name, root):
        raise InputError("no such folder <b>")

    monkeypatch.setattr(study_gallery, "task_named", gone)
    text = write_study(Study(study.experiment, (part,)), tmp_path).read_text()
    assert "the images are not available any more: no such folder &lt;b&gt;" in text


def test_the_toy_panels_are_drawn_for_the_whole_plane_only(study):
    assert study_figures.toy_planes(drawable_methods(study.parts[0], None)) is None
    task, part = task_named("toy/rings"), drawn_part()
    predictions = {}
    for split in TESTED:
        samples = task.splits[split]
        predictions[split] = draw_one_label(len(samples), 2, ids=samples.ids.tolist())
    part = with_runs(part, dict.fromkeys(("single", "ensemble"), MethodRun(0, predictions)))
    part = replace(
        part,
        part=replace(part.part, task="toy/rings"),
        plan=replace(part.plan, task="toy/rings"),
    )
    text = study_figures.toy_planes(drawable_methods(part, None)).svg()
    assert all(name in text for name in ("rings", "Single 1", "Ensemble"))
    assert "toy" in [figure.name for draw in part_figures(part, None) if (figure := draw())]


def test_a_figure_is_a_function_and_a_line(monkeypatch):
    def own(drawable):
        picture = e99_picture(drawable.few)
        return replace(picture, name="own", caption=f"Of {', '.join(drawable.methods)}.")

    monkeypatch.setattr(study_figures, "FIGURES", (own, lambda _: None))
    draw, draw_none = part_figures(drawn_part(), None)
    assert draw_none() is None
    figure = draw()
    assert (figure.name, figure.caption) == ("own", "Of single, ensemble.")


def test_a_method_far_above_the_others_does_not_flatten_the_cost_figure():
    part = by_hand({"single": Row((3.5,)), "single-t": Row((0.7,)), "ensemble": Row((0.6,))})
    drawn = {method.name: drawn_part().comparison.methods[0].runs[0] for method in part.comparison.methods}
    figure = study_figures.cost(drawable_methods(with_runs(part, drawn), None))
    assert len(figure.figure.axes[0].lines) == 2
    assert "Too high to draw: Single (NLL 3.50)." in figure.caption


def test_a_temperature_curve_for_each_kind_of_network(study, monkeypatch):
    drawn = []
    drawn_by = study_figures.temperature_picture
    monkeypatch.setattr(study_figures, "temperature_picture", lambda m: drawn.extend(m) or drawn_by(m))
    study_figures.temperature_curves(drawable_methods(study.parts[0], None))
    assert [method.name for method in drawn] == ["single-t", "t-of-ensemble", "g-distill"]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_real_browser(browser, report, width, scheme):
    problems = []
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure > svg, .pictures svg").count() == len(FIGURES)
    if width == 1280:  # the first screen has the verdict, a figure and the short table
        figure, table = (page.locator(f".first > {name}").bounding_box() for name in ("figure", "div"))
        assert figure["y"] == table["y"] < 400
        assert figure["y"] + figure["height"] < 850
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] < brightness[1]) == (scheme == "light")
    page.emulate_media(media="print")
    assert len(page.pdf()) > 10_000
    page.close()
    assert problems == []
