"""What describes the package agrees with it. `make package` builds it and tries it in clean environments."""

import re
import tomllib
from pathlib import Path

import yaml

import surefoot
from tests.package import EXTRAS, NEEDED
from tests.smoke import PARTS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()
}


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == surefoot.__version__
    assert " AND ".join(cited["license"]) == PROJECT["license"]


def test_every_extra_is_tried():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"dev", "docs", "recipes"}
    assert set(PARTS) == {"core", *EXTRAS}
    for name in NEEDED:
        assert (ROOT / "src" / name).is_file()


def test_the_workflows_run_what_the_makefile_has_on_every_python():
    """The README's test command, the checks, the docs: the same commands as here."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    supported = {each.split(" :: ")[-1] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    for workflow in WORKFLOWS.values():
        for job in workflow["jobs"].values():
            assert set(job.get("strategy", {}).get("matrix", {}).get("python", supported)) == supported
            for step in job["steps"]:
                words = step.get("run", "").split()
                assert words[:1] != ["make"] or set(words[1:]) <= targets
    runs = [step.get("run") for job in WORKFLOWS["check"]["jobs"].values() for step in job["steps"]]
    assert {"make check test", "make docs"} <= set(runs)
