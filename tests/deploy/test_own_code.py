"""No file of a bundle is imported unless own code is allowed; then only as a module that nothing else can name."""

import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import surefoot
from surefoot import InputError
from surefoot.deploy.make_bundle import chosen_method, write_bundle
from surefoot.io import sha256_of
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.tasks.task import Split
from tests import warm
from tests.cli.command import in_a_process
from tests.cli.command import surefoot as surefoot_command
from tests.deploy.made import RECIPE, ran

MARK = "import pathlib\npathlib.Path({!r}).write_text('')\n"
OWN = {
    "mine/__init__.py": "from . import layers\n",
    "mine/nets.py": "import random\nimport torch\nimport mine.layers\nimport mine.layers as again\n"
    "from mine import layers\nfrom .layers import flat\nimport shapes\n"
    "assert random.Random and torch.nn.Linear and mine.layers is again is layers\n"
    "def net(classes):\n    return flat(shapes.LENGTH, classes)\n",
    "mine/layers.py": "from torch import nn\nclass Flat(nn.Module):\n    def __init__(self, n, classes):\n"
    "        super().__init__()\n        self.linear = nn.Linear(n, classes)\n    def forward(self, x):\n"
    "        from parts.later import same\n        return self.linear(same(x.flatten(1)))\n"
    "def flat(n, classes):\n    return Flat(n, classes)\n",
    "shapes.py": "LENGTH = 3 * 12 * 12\n",
    "parts/later.py": "def same(x):\n    return x\n",  # a folder without __init__.py; imported in forward
}


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def reseal(bundle, **changes):
    """Write the digests of the files that are there, as somebody would who wants his own to be loaded."""
    about = json.loads((bundle / "bundle.json").read_text())
    files = [file for file in bundle.rglob("*") if file.is_file() and file.name != "bundle.json"]
    about["files"] = {file.relative_to(bundle).as_posix(): sha256_of(file) for file in files} | changes
    (bundle / "bundle.json").write_text(json.dumps(about))


def named(bundle, network):
    about = json.loads((bundle / "bundle.json").read_text())
    for each in about["networks"]:
        each["recipe"]["network"] = network
    (bundle / "bundle.json").write_text(json.dumps(about))


def without_code(bundle):
    """As if it did not say which source its weights were trained with."""
    about = json.loads((bundle / "bundle.json").read_text())
    about.pop("fixed_probabilities")
    for each in about["networks"]:
        assert each["recipe"].pop("code")
    (bundle / "bundle.json").write_text(json.dumps(about))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An experiment with a network of one's own, and its bundle; its modules are not imported any more."""
    folder = tmp_path_factory.mktemp("own")
    write_files(folder / "code", OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "code")
        made = ran(folder / "run", recipe=replace(RECIPE, network="mine.nets:net"), methods=("single-t",))
        chosen = chosen_method(made.opened, "single-t", task=None, network=None)
        write_bundle(chosen, folder / "bundle", resamples=0, allow_code=True)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "shapes", "parts")]:
        del sys.modules[name]
    return made, folder / "bundle"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    made = ran(folder, methods=("single-t",))
    chosen = chosen_method(made.opened, "single-t", task=None, network=None)
    write_bundle(chosen, folder / "bundle", resamples=0)
    return folder / "bundle"


@pytest.fixture(params=["own", "plain"])
def either(request, tmp_path):
    bundle = request.getfixturevalue(request.param)
    return shutil.copytree(bundle[1] if request.param == "own" else bundle, tmp_path / "bundle")


@pytest.mark.parametrize("network", ["timm:resnet18", "torchvision:resnet18", "mlp"])
@pytest.mark.parametrize("allow_code", [False, True])
def test_source_next_to_a_library_s_network_never_runs(plain, network, allow_code, tmp_path):
    bundle, ran_here = shutil.copytree(plain, tmp_path / "bundle"), tmp_path / "ran"
    names = ("timm", "torchvision", "torch", "safetensors", "sitecustomize", "colorsys")
    write_files(bundle, {f"source/{name}.py": MARK.format(str(ran_here)) for name in names})
    named(bundle, network)
    reseal(bundle)
    searched, modules = list(sys.path), set(sys.modules)
    with suppress(InputError):  # the real one is not installed, or its weights are others
        surefoot.load_bundle(bundle, allow_code=allow_code)
    assert not ran_here.exists()
    assert sys.path == searched
    assert not {name for name in set(sys.modules) - modules if str(bundle) in str(sys.modules[name])}


def test_allowed_source_is_imported_under_no_name_that_others_use(own, tmp_path, monkeypatch):
    """Not sys.path, no plain name, not torch or random of its own; what this process has is not used."""
    made, folder = own
    bundle = shutil.copytree(folder, tmp_path / "bundle")
    ran_here = tmp_path / "ran"
    write_files(bundle, {f"source/{name}.py": MARK.format(str(ran_here)) for name in ("torch", "random")})
    reseal(bundle)
    write_files(tmp_path / "here", {"shapes.py": "LENGTH = 7\n", "mine/__init__.py": "1 / 0"})
    monkeypatch.syspath_prepend(tmp_path / "here")
    stored = made.stored(METHODS.named("single-t")).after[Split.TEST_FAMILIAR]
    searched, modules = list(sys.path), dict(sys.modules)
    first = surefoot.load_bundle(bundle, allow_code=True)
    write_files(bundle, {"source/parts/later.py": "def same(x):\n    return -x\n"})
    without_code(bundle)
    reseal(bundle)
    second = surefoot.load_bundle(bundle, allow_code=True)
    samples = np.stack([first.preprocess(made.images / name).numpy() for name in stored.ids])
    found = [each.probabilities(samples).numpy() for each in (first, second, first)]
    np.testing.assert_allclose(found[0], stored.probs(), atol=1e-5)
    np.testing.assert_array_equal(found[0], found[2])
    assert abs(found[0] - found[1]).max() > 0.01
    assert not ran_here.exists()
    assert sys.path == searched
    assert {name: module for name, module in sys.modules.items() if name in modules} == modules
    new = set(sys.modules) - set(modules)
    assert new
    assert all(name.startswith("_surefoot_bundle_") for name in new)


def test_others_may_read_a_bundle_of_own_code(own):
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in own[1].rglob("*")}
    assert modes == {(True, 0o755), (False, 0o644)}


def linked(bundle, name, away):
    """The file or folder, moved away, with a link in its place."""
    (bundle / name).rename(away / "moved")
    (bundle / name).symlink_to(away / "moved")


@pytest.mark.parametrize(
    "name",
    ["weights.safetensors", "bundle.json", "calibration.json", "README.md", "source", "source/mine", "source/shapes.py"],
)  # fmt: skip
def test_a_link_in_a_bundle_is_refused(own, name, tmp_path):
    bundle = shutil.copytree(own[1], tmp_path / "bundle")
    linked(bundle, name, tmp_path)
    with pytest.raises(InputError, match=rf"{name} is a link; a bundle has no links"):
        surefoot.load_bundle(bundle, allow_code=True)
    (tmp_path / "latest").symlink_to(own[1])  # a link to a whole bundle is the user's own
    surefoot.load_bundle(tmp_path / "latest", allow_code=True)


def test_a_linked_folder_with_code_that_no_digest_covers_is_refused(either, tmp_path):
    write_files(tmp_path / "away", {"evil.py": MARK.format(str(tmp_path / "ran"))})
    (either / "source" / "more").mkdir(parents=True)
    (either / "source" / "more" / "deep").symlink_to(tmp_path / "away")
    with pytest.raises(InputError, match=r"source/more/deep is a link"):
        surefoot.load_bundle(either, allow_code=True)
    (either / "source" / "more" / "deep").unlink()
    (either / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"dangling is a link"):
        surefoot.load_bundle(either, allow_code=True)


@pytest.mark.parametrize(
    "name",
    ["source/mine/__pycache__/nets.cpython-312.pyc", "source/a.pth", "source/shapes.so", "source/shapes.pyc", "source/x.py"],
)  # fmt: skip
def test_a_file_in_source_that_no_digest_covers_is_refused(either, name):
    write_files(either, {name: ""})
    with pytest.raises(InputError, match="is not a file that was bundled"):
        surefoot.load_bundle(either, allow_code=True)
    (either / name).unlink()
    os.mkfifo(either / name)
    with pytest.raises(InputError, match="is not a file that was bundled"):
        surefoot.load_bundle(either, allow_code=True)


@pytest.mark.parametrize(
    "name", ["source/../x.py", "../source/x.py", "/source/x.py", "source/x.pyc", "source/x.so"]
)
def test_a_name_that_is_no_source_file_is_refused(either, name):
    reseal(either, **{name: "0"})
    with pytest.raises(InputError, match="which is not part of a bundle"):
        surefoot.load_bundle(either, allow_code=True)


@pytest.mark.parametrize("installed", [True, False])
def test_commands_in_a_bundle_s_folder_import_nothing_from_it(plain, installed, tmp_path):
    """Its README says to run them there, and the current folder is searched for a user's own modules."""
    bundle, ran_here = shutil.copytree(plain, tmp_path / "bundle"), tmp_path / "ran"
    for name in ("timm", "torchvision", "onnx", "pyarrow", "typer"):
        write_files(bundle, {f"{name}.py": MARK.format(str(ran_here))})
    named(bundle, "timm:resnet18")
    write_files(tmp_path / "bin", {"surefoot": "from surefoot.cli import main\nmain()"})
    start = [str(tmp_path / "bin" / "surefoot")] if installed else ["-m", "surefoot"]
    command = [sys.executable, *start, "predict", ".", "photo.jpg", "-o", "out.csv"]
    done = subprocess.run(command, cwd=bundle, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert not ran_here.exists()


@pytest.mark.parametrize("inside", ["", ".", "source"])
def test_python_in_a_bundle_s_folder_imports_nothing_from_it(plain, inside, tmp_path, monkeypatch):
    bundle = shutil.copytree(plain, tmp_path / "bundle")
    for name in ("timm", "torchvision"):
        write_files(bundle, {f"{name}.py": MARK.format(str(tmp_path / "ran"))})
        monkeypatch.delitem(sys.modules, name, raising=False)
    named(bundle, "timm:resnet18")
    monkeypatch.chdir(bundle)
    searched = [*sys.path[:1], inside, *sys.path[1:], str(bundle)]
    monkeypatch.setattr(sys, "path", searched.copy())
    with suppress(InputError):  # its weights are others
        surefoot.load_bundle(".")
    assert not (tmp_path / "ran").exists()
    assert sys.path == searched


def test_training_in_a_folder_imports_nothing_from_it_that_python_has(tmp_path, monkeypatch):
    """Its processes neither, which are new ones."""
    for name in ("json", "torch", "random"):
        write_files(tmp_path, {f"{name}.py": MARK.format(str(tmp_path / "ran"))})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("surefoot.registry._folders", {})
    monkeypatch.setattr(subprocess, "Popen", warm.Popen.__base__)  # started from nothing
    surefoot_command("train", "toy/wave", "--set", "epochs=1", "--set", "network=mlp", "--workers", "1")
    assert not (tmp_path / "ran").exists()


def test_a_bundle_that_is_a_package_is_refused(either):
    write_files(either, {"__init__.py": ""})
    with pytest.raises(InputError, match="makes the folder a Python package"):
        surefoot.load_bundle(either)


def test_source_that_cannot_be_imported_is_one_sentence(own, tmp_path):
    bundle = shutil.copytree(own[1], tmp_path / "bundle")
    without_code(bundle)
    for text, says in (
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("x = (", "never closed"),
    ):
        write_files(bundle, {"source/mine/nets.py": text})
        reseal(bundle)
        with pytest.raises(InputError, match=f"cannot import 'mine.nets': .*{says}"):
            surefoot.load_bundle(bundle, allow_code=True)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("mine/layers.py", OWN["mine/layers.py"].replace("same(x.", "same(-x.")),
        ("parts/later.py", "def same(x):\n    return x + 1e-6\n"),
        ("mine/__init__.py", ""),
    ],
)
def test_a_bundle_whose_source_is_not_that_of_its_weights_is_refused(own, file, text, tmp_path):
    bundle = shutil.copytree(own[1], tmp_path / "bundle")
    write_files(bundle / "source", {file: text})
    reseal(bundle)
    with pytest.raises(
        InputError, match=rf"weights do not fit .* its source has changed \({file} is another\)"
    ):
        surefoot.load_bundle(bundle, allow_code=True)


def test_comments_in_a_bundle_s_source_change_nothing(own, tmp_path):
    bundle = shutil.copytree(own[1], tmp_path / "bundle")
    write_files(
        bundle / "source", {"shapes.py": "# sides\nLENGTH = (3 * 12\n  * 12)\n", "mine/unused.py": "1"}
    )
    reseal(bundle)
    surefoot.load_bundle(bundle, allow_code=True)


CODE = "import torch\nfrom parts import SIGN\n\nclass Net(torch.nn.Module):\n    def __init__(self, classes):\n        super().__init__()\n" \
       "        self.layer = torch.nn.Linear(4, classes)\n\n    def forward(self, x):\n        return SIGN * self.layer(x)\n\ndef net(classes):\n    return Net(classes)\n"  # fmt: skip
TASK = """[task]
name = "rows"
manifest = "rows.csv"
label = "label"
features = ["a", "b"]
[familiar]
place = { in = ["here"] }
[splits]
val = 0.3
test = 0.3
"""
EXPERIMENT = """name = "own"
task = "task.toml"
methods = ["single-t"]
runs = 1
members = 1
resamples = 0
[recipe]
network = "nets:net"
epochs = 1
protocol = "holdout"
"""


def test_a_changed_network_returns_no_stored_numbers_and_is_not_packed_with_old_weights(tmp_path):
    places = ("here", "there")
    rows = "".join(f"{i % 7},{i % 5},{'no' if i % 3 else 'yes'},{places[i % 4 == 3]}\n" for i in range(80))
    write_files(tmp_path, {"rows.csv": f"a,b,label,place\n{rows}", "task.toml": TASK, "own.toml": EXPERIMENT})
    write_files(tmp_path, {"nets.py": CODE, "parts.py": "SIGN = 1\n"})

    def command(text, check=0):
        done = in_a_process(*text.split(), cwd=tmp_path, check=check)
        return done.stdout, done.stderr

    def networks():
        return sorted((tmp_path / "runs" / "networks").glob("*/*/*/done.json"))

    _, said = command("run own.toml")
    assert "the source of network" not in said
    trained = networks()
    assert len(trained) == 1
    (tmp_path / "nets.py").write_text(f"# a comment\n{CODE}")
    command("run own.toml")
    command("bundle own single-t -o kept")
    assert networks() == trained
    (tmp_path / "parts.py").write_text("SIGN = -1\n")
    _, refused = command("bundle own single-t -o new", check=2)
    assert "since they were trained, its source has changed (parts.py is another); restore it" in refused
    assert not (tmp_path / "new").exists()
    _, said = command("run own.toml")
    assert "(parts.py is another): new ones are trained; restore it to use those" in said
    assert len(networks()) == 2
    (finished,) = (tmp_path / "runs" / "experiments").glob("own-*")
    command(f"bundle {finished.name} single-t -o new --allow-code")
    (tmp_path / "parts.py").write_text("SIGN = 1\n")
    _, refused = command(f"run {finished}/experiment.toml", check=2)
    assert "(parts.py is another); restore it to keep these networks, or train new ones with" in refused
    command("bundle own single-t -o old")
