"""What must work after an installation: `python -P smoke.py PART ...` in the environment to test.

Parts are `core` and the names of the extras. It needs nothing but the installed package, and works in a new
folder. `make package` runs it in clean environments (tests/package.py).
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

EXPERIMENT = """
name = "tiny"
task = "letters"
methods = ["ensemble-of-t"]
members = 2
runs = 1
resamples = 20
[recipe]
network = "mlp"
width = 32
epochs = 2
learning_rate = 0.1
view = 32
resize = 32
"""
SCRIPT = Path(sys.executable).with_name("surefoot")  # not there where only an extra was installed
SUREFOOT = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-P", "-m", "surefoot"]
RUN = ("run", "tiny.toml", "--workers", "1", "--device", "cpu")


def surefoot(*arguments: str, code: int = 0) -> str:
    """What the command prints; its exit code is as expected."""
    done = subprocess.run([*SUREFOOT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"surefoot {' '.join(arguments)}: {done.returncode}\n{done.stderr}"
    return done.stdout + done.stderr


def core() -> None:
    """The package is complete; predictions are evaluated; what needs torch says so."""
    import numpy as np

    import surefoot as package

    home = Path(package.__file__).parent
    assert home.parent.name == "site-packages", f"{home} is not the installed package"
    assert (home / "py.typed").is_file()
    assert SCRIPT.is_file()
    assert (
        surefoot("--version").split()
        == ["surefoot", version("surefoot")]
        == ["surefoot", package.__version__]
    )
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    logits = 6 * np.eye(3)[labels] + random.normal(0, 4, (600, 3))
    for name, rows in (("val", slice(300)), ("test", slice(300, None))):
        np.savez(f"{name}.npz", logits=logits[rows], labels=labels[rows])
    surefoot("calibrate", "val.npz", "-o", "calibration.json")
    printed = surefoot("evaluate", "test.npz", "--calibration", "calibration.json", "--report", "report")
    assert "NLL" in printed
    assert Path("report/report.html").stat().st_size > 10_000
    assert "pets" in surefoot("ls", "tasks")
    assert surefoot("data", "check", "pets", code=0)
    assert "pip install 'surefoot[torch]'" in surefoot("doctor")
    Path("tiny.toml").write_text(EXPERIMENT)
    assert "this needs torch, which is not installed: pip install 'surefoot[torch]'" in surefoot(*RUN, code=2)


def torch() -> None:
    """A comparison is run and bundled."""
    import numpy as np

    import surefoot as package

    Path("tiny.toml").write_text(EXPERIMENT)
    surefoot(*RUN)
    assert Path("runs/experiments/tiny/report.html").is_file()
    _bundle()
    bundle = package.load_bundle("bundle")
    assert bundle.probabilities(np.zeros((2, 3, 32, 32), np.float32)).shape == (2, 26)
    for extra, command in (("export", ("export", "bundle", "-o", "m.onnx")), ("serve", ("serve", "bundle"))):
        if find_spec("onnx" if extra == "export" else "fastapi") is None:
            assert f"pip install 'surefoot[{extra}]'" in surefoot(*command, code=2)


def _bundle() -> None:
    if not Path("bundle").exists():
        Path("tiny.toml").write_text(EXPERIMENT)
        surefoot(*RUN, "--train-only")
        surefoot("bundle", "tiny", "ensemble-of-t", "-o", "bundle", "--resamples", "0")


def export() -> None:
    """An .onnx, and the program beside it."""
    from PIL import Image

    _bundle()
    surefoot("export", "bundle", "-o", "letters.onnx")
    Image.new("RGB", (50, 40), "white").save("white.png")
    command = [sys.executable, "predict_onnx.py", "letters.onnx", "white.png"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(printed.split("\t")) == 27


def serve() -> None:
    """A server that answers."""
    _bundle()
    command = [*SUREFOOT, "serve", "bundle", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            url = next(word for word in words if word.startswith("http"))
            with urllib.request.urlopen(f"{url.rstrip('/')}/health") as answer:
                assert json.load(answer)
        finally:
            process.terminate()
    assert process.returncode == 0


def sklearn() -> None:
    """A calibrated classifier."""
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    from surefoot.sklearn import TemperatureScaledClassifier

    x, y = load_iris(return_X_y=True)
    model = TemperatureScaledClassifier(LogisticRegression(max_iter=1000)).fit(x, y)
    assert model.predict_proba(x).shape == (150, 3)


def ray() -> None:
    """A comparison on a cluster of this machine."""
    Path("tiny.toml").write_text(EXPERIMENT)
    surefoot("run", "tiny.toml", "--engine", "ray", "--store", "by-ray", "--train-only", "--device", "cpu")
    assert list(Path("by-ray/networks").iterdir())


def backbones() -> None:
    """A network of timm, and one of torchvision."""
    import torch

    from surefoot.lab.networks.backbones import build_network

    for name in ("timm:resnet10t", "torchvision:resnet18"):
        network = build_network(name, 2, generator=torch.Generator().manual_seed(0)).eval()
        assert network(torch.zeros(1, 3, 64, 64)).shape == (1, 2)


PARTS = {part.__name__: part for part in (core, torch, export, serve, sklearn, ray, backbones)}


def main() -> None:
    """Run the named parts in a new folder."""
    import os

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in sys.argv[1:]:
            PARTS[name]()
            print(f"{name}: works")
        os.chdir("/")


if __name__ == "__main__":
    main()
