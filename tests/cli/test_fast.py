"""Commands that list, show or refuse answer at once: they import nothing that takes long.

benchmarks/results/commands.md has the times.
"""

import ast
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import surefoot
from surefoot.lab.experiments.experiment import experiment_named
from surefoot.lab.experiments.run import open_folder, plans_for, resolved
from surefoot.lab.store.store import Store

# Packages outside the standard library that take little time to import, and those that typer needs.
QUICK = {"surefoot", "numpy", "tomli_w", "rich", "markdown_it", "mdurl", "pygments"}
QUICK |= {"typer", "click", "shellingham", "annotated_doc", "pydantic", "pydantic_core", "annotated_types"}
QUICK |= {"typing_extensions", "typing_inspection", "pydantic_settings", "markupsafe", "cloudpickle"}
QUICK |= {"attr", "attrs", "safetensors"}
OF_TASKS = {"pyarrow", "PIL"}

# A process that has imported the command line and quick packages, and runs each command in a fork of it. What the
# process has imported counts for each command.
FORKING = """
import json, os, sys
import numpy, rich.table, rich.console, safetensors, tomli_w, typer.rich_utils
import surefoot.cli.app
from surefoot.cli import main

for line in iter(sys.stdin.readline, ""):
    folder, *words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        with open("said.txt", "w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = ["surefoot", *words]
        code = 1
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.stdout.flush()
            with open("imported.json", "w") as file:
                json.dump([code, sorted(sys.modules)], file)
            os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


@pytest.fixture(scope="module")
def forking():
    """The process; started once, for starting Python takes longer than what is tested."""
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKING], text=True, env=environment, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store `runs` that has one run without any network, and one with its report."""
    folder = tmp_path_factory.mktemp("fast")
    experiment = resolved(experiment_named("quickstart"))
    plans = plans_for(experiment)
    store = Store(folder / "runs")
    open_folder(experiment, plans, store)
    store.request([plan.spec(job) for plan in plans for job in plan.jobs()])
    shutil.copytree(folder / "runs", folder / "reported")
    fitted = [{"parameters": None}, {"parameters": {"T": [2.5]}}, {"parameters": {"T": [3.0]}}]
    document = {"parts": [{"name": "pets", "methods": [{"name": "single-t", "fitted": fitted}]}]}
    (folder / "reported/experiments/quickstart/report.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def installed():
    """The names of all packages outside the standard library; a leading underscore is the environment's."""
    return {name for name in importlib.metadata.packages_distributions() if not name.startswith("_")}


@pytest.fixture
def ran(folder, forking, installed):
    """Run a command: what it printed, its exit code, packages that it imported (not quick ones), all modules."""

    def run(words):
        forking.stdin.write(json.dumps([str(folder), *words.split()]) + "\n")
        forking.stdin.flush()
        forking.stdout.readline()
        code, imported = json.loads((folder / "imported.json").read_text())
        packages = {name.partition(".")[0] for name in imported}
        return (folder / "said.txt").read_text(), code, packages & installed - QUICK, set(imported)

    return run


FAST = {
    "--version": "surefoot 0.",
    "--help": "Usage",
    "run --help": "--oracle",
    "calibrate --help": "--regularisation",
    "ls metrics": "nll",
    "ls tasks": "toy",
    "ls methods": "ensemble",
    "ls calibrators": "member-temperatures",
    "ls experiments": "quickstart",
    "ls runs": "quickstart",
    "ls networks": "missing",
    "ls tasks toy": "toy/wave",
    "ls methods ensemble": "networks to train",
    "ls experiments quickstart": "[parts.recipe]",
    "ls runs quickstart": "0 done",
    "ls runs quickstart --store reported": "2.5, 3",
    "data show animals": "ImageNet",
    "data check toy": "no problems",
}


@pytest.mark.parametrize("words", FAST)
def test_lists_and_pages_import_little(words, ran):
    printed, code, imported, _ = ran(words)
    assert FAST[words] in printed
    assert code == 0
    assert imported <= OF_TASKS
    if words in ("--version", "--help", "run --help", "ls metrics", "ls networks"):
        assert not imported


REFUSED = {
    "evaluate gone.npz": "gone.npz: No such file",
    "calibrate gone.npz -o c.json": "gone.npz: No such file",
    "thresholds gone.npz": "gone.npz: No such file",
    "monitor gone.npz gone.npz": "gone.npz: No such file",
    "evaluate runs gone.npz": "gone.npz: No such file",
    "apply runs gone.npz -o p.npz": "gone.npz: No such file",
    "thresholds runs --unfamiliar gone.npz --target-error 0.1 -o t.json": "gone.npz: No such file",
    "monitor runs gone.npz": "gone.npz: No such file",
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
    "ls networks --store gone": "no store at gone",
    "ls runs --store gone": "no store at gone",
    "data check gone.toml": "gone.toml: No such file",
    "run gone.toml": "cannot read gone.toml: No such file",
    "ls experiments gone.toml": "cannot read gone.toml: No such file",
    "ls methods gone": "unknown method 'gone'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_missing_file_is_refused_at_once(words, ran):
    printed, code, imported, _ = ran(words)
    assert REFUSED[words] in printed
    assert printed.startswith("surefoot: ")
    assert code == 2
    assert imported <= OF_TASKS


def test_a_slow_import_would_be_noticed(ran, folder):
    (folder / "plugin.py").write_text("import h5py\n")
    assert ran("--plugin plugin.py ls metrics")[2] == {"h5py"}


NOT_TO_EVALUATE = {
    "matplotlib",
    "jinja2",
    "pandas",
    "sklearn",
    "ray",
    "mapie",
    "fastapi",
    "h5py",
    "scipy.stats",
    "scipy.optimize",
    "pyarrow.parquet",
}


def test_evaluate_imports_nothing_for_reports_or_statistics(ran, folder):
    rng = np.random.default_rng(0)
    np.savez(folder / "p.npz", logits=rng.normal(size=(50, 3)), labels=rng.integers(0, 3, 50))
    printed, code, _, modules = ran("evaluate p.npz p.npz --resamples 2")
    assert "NLL" in printed
    assert code == 0
    assert not NOT_TO_EVALUATE & modules


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text()) for path in Path(surefoot.__file__).parent.rglob("*.py")}


def test_no_module_imports_statistics_when_it_is_imported(trees):
    """`scipy.stats` takes most of a second, also in every training process: import it in the function."""
    for path, tree in trees.items():
        for node in tree.body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(("scipy.stats", "scipy.optimize")) for name in names), path


def test_no_decorator_loads_the_compiler(trees):
    """`torch._dynamo` takes more than a second, before a bundle is opened: call `torch.compiler` when needed."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for decorator in getattr(node, "decorator_list", ()):
                assert "torch.comp" not in ast.unparse(decorator), path
