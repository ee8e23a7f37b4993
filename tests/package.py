"""`make package`: build the wheel and the sdist, and try them in clean environments (tests/smoke.py).

    python -m tests.package --python python3.11 --python python3.13 --extra serve --uv

Each extra gets an environment of its own, on top of one that has the package alone, or with the extra `torch`. The
files are in dist/.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOKE = ROOT / "tests" / "smoke.py"
EXTRAS = ("sklearn", "torch", "export", "serve", "ray", "backbones")
NEEDED = (
    "surefoot/py.typed",
    "surefoot/report/templates/study.html",
    "surefoot/lab/tasks/pets_data/pets.parquet",
    "surefoot/lab/tasks/pets_data/LICENSE.txt",
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the program that installs into it."""

    folder: Path
    uv: bool

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def install(self, *what: str) -> None:
        """Install with the versions of constraints.txt."""
        command = ["uv", "pip", "install", "--quiet", "--python", self.python]
        if not self.uv:
            command = [self.python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        run(*command, "-c", str(ROOT / "constraints.txt"), *what)

    def smoke(self, *parts: str) -> None:
        """Try these parts."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run(self.python, "-P", str(SMOKE), *parts, env=environment)


def run(*command: str, **options: object) -> None:
    """Run a command; it must succeed."""
    subprocess.run(command, check=True, **options)


def new_environment(folder: Path, python: str, *below: Environment, uv: bool) -> Environment:
    """An environment that has what others have."""
    run(python, "-m", "venv", str(folder))
    made = Environment(folder, uv)
    site, *bases = (next(each.folder.glob("lib/python*/site-packages")) for each in (made, *below))
    (site / "below.pth").write_text("".join(f"{base}\n" for base in bases))
    return made


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, in dist/; the sdist gives the same wheel."""
    venv.create(folder, with_pip=True)
    builder = Environment(folder, uv=False)
    builder.install("hatchling>=1.26")
    run(builder.python, "-m", "hatchling", "build", "-d", str(ROOT / "dist"), cwd=ROOT)
    release = version()
    wheel = ROOT / "dist" / f"surefoot-{release}-py3-none-any.whl"
    sdist = ROOT / "dist" / f"surefoot-{release}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    again = folder / "again"
    source = folder / "sdist" / f"surefoot-{release}"
    run(builder.python, "-m", "hatchling", "build", "-t", "wheel", "-d", str(again), cwd=source)
    assert names(wheel) == names(again / wheel.name), "the sdist gives another wheel"
    return wheel, sdist


def names(wheel: Path) -> list[str]:
    """The files in a wheel; those that the package needs are among them, and nothing else is."""
    with zipfile.ZipFile(wheel) as archive:
        found = sorted(archive.namelist())
    missing = [name for name in NEEDED if name not in found]
    assert not missing, f"the wheel lacks {', '.join(missing)}"
    others = [
        name for name in found if not name.startswith(("surefoot/", f"surefoot-{version()}.dist-info/"))
    ]
    assert not others, f"the wheel has {', '.join(others)}"
    return found


def version() -> str:
    """The version of the source."""
    (line,) = (
        line
        for line in (ROOT / "src" / "surefoot" / "__init__.py").read_text(encoding="utf-8").splitlines()
        if line.startswith("__version__")
    )
    return line.split('"')[1]


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(prog="make package", description=__doc__)
    parser.add_argument(
        "--python", action="append", help="a Python to try; repeat for more; default: this one"
    )
    parser.add_argument("--extra", action="append", choices=(*EXTRAS, "none"), help="default: all")
    parser.add_argument(
        "--uv", action="store_true", help="install by uv, which must be on the PATH, not by pip"
    )
    given = parser.parse_args()
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(optional) - {"dev", "docs", "recipes"}, f"extras: {sorted(optional)}"
    with tempfile.TemporaryDirectory(prefix="surefoot-package-") as scratch:
        wheel, sdist = build(Path(scratch, "builder"))
        for number, python in enumerate(given.python or [sys.executable]):
            print(f"{python}: core", flush=True)
            core = new_environment(Path(scratch, f"{number}-core"), python, uv=given.uv)
            core.install(str(wheel))
            core.smoke("core")
            below, chosen = [core], {*(given.extra or EXTRAS)} - {"none"}
            if chosen - {"sklearn"}:
                chosen.add("torch")
            for extra in sorted(chosen, key=EXTRAS.index):
                print(f"{python}: {extra}", flush=True)
                folder = Path(scratch, f"{number}-{extra}")
                environment = new_environment(folder, python, *below, uv=given.uv)
                environment.install(f"{wheel}[{extra}]")
                environment.smoke(extra)
                if extra == "torch":
                    below.append(environment)
    print(f"{wheel.name} and {sdist.name} are in dist/")


if __name__ == "__main__":
    main()
