"""Commands that list, show or refuse answer at once: they import nothing that takes long."""

import json
import os
import subprocess
import sys

import pytest

from surefoot.experiments.experiment import experiment_named
from surefoot.experiments.run import open_folder, plans_for, resolved
from surefoot.store.store import Store

# numpy is fast enough to import; pyarrow is needed by tasks (surefoot.tasks imports it).
SLOW = {"torch", "scipy", "matplotlib", "ray", "mapie", "fastapi", "sklearn", "onnx", "pandas", "h5py"}
SECONDS = 1.5  # of processor time: about one on an idle core, and tests share theirs

CODE = f"""
import json, sys, time
from surefoot.cli import main
code = 0
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
slow = sorted({SLOW | {"pyarrow"}} & set(sys.modules))
sys.stderr.write("\\n" + json.dumps([code, slow, time.process_time()]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store `runs` that has one run without any network."""
    folder = tmp_path_factory.mktemp("fast")
    experiment = resolved(experiment_named("quickstart"))
    plans = plans_for(experiment)
    store = Store(folder / "runs")
    open_folder(experiment, plans, store)
    store.request([plan.spec(job) for plan in plans for job in plan.jobs()])
    return folder


def ran(folder, *words):
    """The command in a process: what it printed, its exit code, slow modules that it imported, seconds."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    printed, _, facts = done.stderr.rpartition("\n")
    return done.stdout + printed, *json.loads(facts)


FAST = {
    "--version": "surefoot 0.",
    "--help": "Usage",
    "run --help": "--oracle",
    "ls metrics": "nll",
    "ls tasks": "toy",
    "ls methods": "ensemble",
    "ls calibrators": "member-temperatures",
    "ls experiments": "quickstart",
    "ls runs": "quickstart",
    "status": "missing",
    "show toy": "toy/wave",
    "show ensemble --as method": "networks to train",
    "show quickstart --as experiment": "[parts.recipe]",
    "show quickstart --as run": "0 done",
    "data show animals": "ImageNet",
    "data check toy": "no problems",
}


@pytest.mark.parametrize("words", FAST)
def test_lists_and_pages_take_no_second(words, folder):
    printed, code, slow, seconds = ran(folder, *words.split())
    assert FAST[words] in printed
    assert code == 0
    assert set(slow) <= {"pyarrow"}
    assert seconds < SECONDS
    if words in ("--version", "--help", "run --help", "ls metrics", "status"):
        assert slow == []


REFUSED = {
    "evaluate gone.npz": "gone.npz: No such file",
    "calibrate gone.npz -o c.json": "gone.npz: No such file",
    "thresholds gone.npz": "gone.npz: No such file",
    "monitor gone.npz gone.npz": "gone.npz: No such file",
    "evaluate runs --calibration gone.json": "gone.json: No such file",
    "apply gone.json gone.npz -o p.npz": "gone.json: No such file",
    "run toy --weights gone.pth": "gone.pth: No such file",
    "train gone.toml": "gone.toml: No such file",
    "train toy --recipe gone.toml": "gone.toml: No such file",
    "tune toy -o r.toml --weights gone.pth": "gone.pth: No such file",
    "report gone.csv": "gone.csv: No such file",
    "report gone": "no experiment 'gone' was run in runs; have: quickstart",
    "compare gone gone": "no experiment 'gone' was run in runs; have: quickstart",
    "bundle gone ensemble -o b": "no experiment 'gone' was run in runs; have: quickstart",
    "predictions gone ensemble -o b": "no experiment 'gone' was run in runs; have: quickstart",
    "predict gone a.png -o p.csv": "gone is not a bundle: it has no bundle.json",
    "serve gone": "gone is not a bundle: it has no bundle.json",
    "export gone -o e.onnx": "gone is not a bundle: it has no bundle.json",
    "status --store gone": "no store at gone",
    "ls runs --store gone": "no store at gone",
    "data check gone.toml": "gone.toml: No such file",
    "run gone.toml": "cannot read gone.toml: No such file",
    "show gone.toml": "cannot read gone.toml: No such file",
    "show gone": "nothing is called 'gone'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_missing_file_is_refused_at_once(words, folder):
    printed, code, slow, seconds = ran(folder, *words.split())
    assert REFUSED[words] in printed
    assert printed.startswith("surefoot: ")
    assert code == 2
    assert set(slow) <= {"pyarrow"}
    assert seconds < SECONDS
