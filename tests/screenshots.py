"""The pictures of pages in docs/images: makes each page by its commands, and takes its picture.

    python -m tests.screenshots [--folder FOLDER] [--out docs/images] [NAME ...]

FOLDER keeps networks and files, so that the next time is faster. The figures in docs/images are drawn by
examples/plots_gallery.py.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from surefoot.lab.tasks import TASKS
from surefoot.lab.tasks.task import Split
from tests.browser import ARGUMENTS, CHROMIUM

ROOT = Path(__file__).parent.parent
SUREFOOT = (sys.executable, "-m", "surefoot")
LETTERS = (
    "--set",
    "runs=1",
    "--set",
    "members=2",
    "--set",
    "epochs=6",
    "--method",
    "single-t",
    "--train-only",
)
SAVED = ("predictions/familiar.parquet", "predictions/unfamiliar.parquet")


def report(folder: Path, page: Page, picture: Path) -> None:
    """The quickstart's first screen."""
    surefoot(folder, "run", "quickstart")
    show(page, folder / "runs/experiments/quickstart/report.html", picture, height=800)


def evaluation(folder: Path, page: Page, picture: Path) -> None:
    """Predictions before and after calibration."""
    save_predictions(folder)
    surefoot(folder, "evaluate", *SAVED, "--calibration", "calibration.json", "--report", "evaluation")
    show(page, folder / "evaluation/report.html", picture)


def thresholds(folder: Path, page: Page, picture: Path) -> None:
    """Thresholds, and what they do on unfamiliar data."""
    save_predictions(folder)
    words = ("--calibration", "calibration.json", "--unfamiliar", SAVED[1], "--target-error", "0.05")
    surefoot(folder, "thresholds", SAVED[0], *words, "--html", "thresholds.html")
    show(page, folder / "thresholds.html", picture, height=1040)


def monitor(folder: Path, page: Page, picture: Path) -> None:
    """A check that finds a shift."""
    save_predictions(folder)
    surefoot(folder, "monitor", *SAVED, "-o", "monitor.html", exit_code=1)
    show(page, folder / "monitor.html", picture)


def serve(folder: Path, page: Page, picture: Path) -> None:
    """Two letters, predicted: one in a familiar face, one in an unfamiliar face."""
    if not (folder / "letters-bundle").exists():
        surefoot(folder, "run", "letters", *LETTERS)
        surefoot(folder, "bundle", "letters", "single-t", "-o", "letters-bundle")
    task = TASKS.named("letters").load(Path(), "")
    files = []
    for split, row in ((Split.TEST_FAMILIAR, 100), (Split.TEST_UNFAMILIAR, 900)):
        files.append(folder / f"{split.value}.png")
        Image.fromarray(task.splits[split].inputs[row]).resize((192, 192)).save(files[-1])
    command = (*SUREFOOT, "serve", "letters-bundle", "--port", "0")
    server = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        address = next(found for line in server.stdout if (found := re.search(r"http://[\d.:]+", line)))
        page.set_viewport_size({"width": 900, "height": 900})
        page.goto(address.group())
        page.locator("#file").set_input_files(files)
        page.get_by_text("2 images predicted.").wait_for()
        page.screenshot(path=picture, full_page=True)
    finally:
        server.terminate()
        server.wait()


PAGES = {make.__name__: make for make in (report, evaluation, thresholds, monitor, serve)}


def save_predictions(folder: Path) -> None:
    """Of the tutorial, and their calibration."""
    if not (folder / "calibration.json").exists():
        script = ROOT / "examples/save_predictions.py"
        subprocess.run((sys.executable, script, "predictions"), cwd=folder, check=True)
        surefoot(folder, "calibrate", "predictions/val.parquet", "-o", "calibration.json")


def surefoot(folder: Path, *words: str, exit_code: int = 0) -> None:
    """Run a command."""
    code = subprocess.run((*SUREFOOT, *words), cwd=folder, check=False).returncode
    if code != exit_code:
        raise SystemExit(f"surefoot {' '.join(words)} ended with {code}; expected: {exit_code}")


def show(page: Page, path: Path, picture: Path, height: int = 900) -> None:
    """Open a page and take the picture of its first screen."""
    page.set_viewport_size({"width": 1280, "height": height})
    page.goto(path.as_uri())
    page.screenshot(path=picture)


def main() -> None:
    """Take the pictures of the named pages, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAGES)}; all by default")
    parser.add_argument("--folder", type=Path, default=Path("screenshots"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(PAGES):
        parser.error(f"unknown page {min(unknown)!r}; have: {', '.join(PAGES)}")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name in chosen.names or PAGES:
            PAGES[name](chosen.folder.resolve(), browser.new_page(), chosen.out / f"{name}.png")


if __name__ == "__main__":
    main()
