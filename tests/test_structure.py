"""Imports point one way, and the public names are the documented ones."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import surefoot

SOURCE = Path(surefoot.__file__).parent

# A package may import from its own level's line only itself, and from the levels above it.
LEVELS = (
    {"errors", "runtime", "text"},
    {"io", "progress", "registry"},
    {"predictions"},
    {"metrics", "results"},
    {"calibrators"},
    {"evaluation"},
    {"decisions"},
    {"monitoring", "plots", "sklearn"},
    # The border: what is above works without torch, and imports nothing below.
    {"lab", "lab.images", "lab.networks", "lab.recipes"},
    {"lab.store", "lab.tasks"},
    {"lab.comparison", "lab.training"},
    {"lab.novelty", "lab.variants"},
    {"lab.workers"},
    {"lab.experiments"},
    {"deploy", "extend"},
    {"report"},  # of the core, but for studies, which are the lab's
    {"serve"},
    {"cli"},
    {"__main__"},
)


def package_of(module):
    """`tasks` of the lab are a package of their own."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "lab" and len(parts) > 1 else parts[0]


def level(package):
    found = [number for number, packages in enumerate(LEVELS) if package in packages]
    assert found, f"package {package!r} has no place in LEVELS"
    return found[0]


def module_name(path):
    parts = ["surefoot", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(path):
    """All of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path):
    return list(_imported(path))


def _imported(path):
    """Every module of ours that a file imports, also inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "surefoot":
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                if alias.name == "__version__":
                    continue
                module = f"{node.module}.{alias.name}"
                yield (
                    module
                    if (SOURCE.parent / module.replace(".", "/")).with_suffix(".py").exists()
                    else node.module
                )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "surefoot")


def test_imports_point_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        module = module_name(path)
        if module == "surefoot":
            continue
        package = package_of(module)
        for other in imported(path):
            face = SOURCE / package.replace(".", "/") / "__init__.py"
            own_package = other == f"surefoot.{package}" != module and face.exists() and any(imported(face))
            if other == "surefoot" or own_package or level(package_of(other)) > level(package):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_packages_of_one_level_do_not_import_each_other():
    for path in SOURCE.rglob("*.py"):
        module = module_name(path)
        if module != "surefoot":
            package = package_of(module)
            neighbours = LEVELS[level(package)] - {package}
            assert not [
                other for other in imported(path) if other.split(".")[1:2] and package_of(other) in neighbours
            ]


def test_reports_of_results_import_nothing_of_the_lab():
    """Those of studies and of their changes show what the lab has made."""
    for path in (SOURCE / "report").glob("*.py"):
        if not path.stem.startswith(("study", "change")):
            assert not [
                other for other in imported(path) if other.startswith(("surefoot.lab", "surefoot.deploy"))
            ]


def test_every_module_imports():
    names = [found.name for found in pkgutil.walk_packages([str(SOURCE)], prefix="surefoot.")]
    assert len(names) > 25
    for name in names:
        importlib.import_module(name)


def test_public_names_are_these_and_load():
    assert set(surefoot.__all__) == {
        "Bundle",
        "CALIBRATORS",
        "Calibrated",
        "Calibration",
        "Calibrator",
        "Check",
        "Ensemble",
        "Evaluation",
        "ExperimentChange",
        "IGNORE",
        "InputError",
        "LabelKind",
        "METHODS",
        "METRICS",
        "Method",
        "Metric",
        "Predictions",
        "ScannedPredictions",
        "Sets",
        "Study",
        "TASKS",
        "TaskEntry",
        "Temperature",
        "Thresholds",
        "Unreachable",
        "VARIANTS",
        "Variant",
        "__version__",
        "calibrate",
        "choose_sets",
        "choose_thresholds",
        "compare",
        "evaluate",
        "fit_calibration",
        "fit_member_temperatures",
        "fit_temperature",
        "load_bundle",
        "load_calibration",
        "load_study",
        "load_thresholds",
        "metrics",
        "monitor",
        "paired_differences",
        "plots",
        "predictions_of",
        "read_predictions",
        "register",
        "run",
        "save_calibration",
        "save_thresholds",
        "scan_predictions",
        "write_predictions",
    }
    for name in surefoot.__all__:
        assert getattr(surefoot, name) is not None
    assert dir(surefoot) == sorted(surefoot.__all__)


def test_every_public_function_has_an_example():
    for home in (surefoot, surefoot.plots):
        for name in home.__all__:
            if inspect.isfunction(getattr(home, name)):
                assert ">>>" in getattr(home, name).__doc__, name


def test_every_public_function_is_defined_once():
    """Commands are called as their functions."""
    homes = {}
    for path in SOURCE.rglob("*.py"):
        if path.parent.name != "cli":
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef):
                    homes.setdefault(node.name, set()).add(module_name(path))
    functions = [name for name in surefoot.__all__ if inspect.isfunction(getattr(surefoot, name))]
    assert len(functions) > 15
    assert {name: homes[name] for name in functions if len(homes[name]) > 1} == {}


def test_metrics_are_there_without_asking_twice():
    code = (
        "import surefoot; surefoot.sklearn.TemperatureScaledClassifier; print(surefoot.metrics.nll.__name__)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"nll\n"


def test_help_does_not_load_torch():
    code = "import sys; import surefoot.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_is_loaded_by_pickle():
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "joblib", "dill", "cloudpickle"}
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is (node.arg == "weights_only")


def test_mutants_that_change_nothing_are_of_lines_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(SOURCE.parents[1] / "benchmarks")
    importlib.import_module("mutants").check_equivalent()
