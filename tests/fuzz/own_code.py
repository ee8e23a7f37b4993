"""Cases of own networks: bundles whose source is hostile, changed or linked, and runs whose code has changed."""

import contextlib
import importlib
import json
import os
import shutil
import sys
from dataclasses import replace

from surefoot.io import sha256_of
from tests.fuzz.inputs import pick
from tests.fuzz.steps import ANY, REFUSED, Step

OWN = {
    "mine/__init__.py": "",
    "mine/nets.py": "import random\nimport torch\nfrom mine import layers\nimport shapes\n"
    "def net(classes):\n    return layers.Flat(shapes.LENGTH, classes)\n",
    "mine/layers.py": "from torch import nn\nclass Flat(nn.Module):\n    def __init__(self, n, classes):\n"
    "        super().__init__()\n        self.linear = nn.Linear(n, classes)\n    def forward(self, x):\n"
    "        from parts.later import same\n        return self.linear(same(x.flatten(1)))\n",
    "shapes.py": "LENGTH = 3 * 12 * 12\n",
    "parts/later.py": "def same(x):\n    return x\n",
}
FORWARD = {"mine/layers.py": ("same(x", "same(-x"), "parts/later.py": ("return x", "return x + 1")}
MARK = "import pathlib\npathlib.Path({!r}).write_text('')\n"
SHADOWS = ("timm", "torch", "torchvision", "numpy", "safetensors", "json", "random", "colorsys", "PIL", "sitecustomize", "onnx",
           "surefoot", "pyarrow", "timm/__init__", "torch/nn", "importlib/metadata", "typing", "os")  # fmt: skip
UNSEALED = ("source/mine/__pycache__/nets.cpython-311.pyc", "source/a.pth", "source/shapes.so", "source/x.py", "__init__.py",
            "source/timm.pyc", "source/torch/__init__.pyc")  # fmt: skip
SEALED = ("source/../x.py", "../source/x.py", "/source/x.py", "source/x.pyc", "source/x.so", "x.py")


def make_own(base):
    """A run of an own network with its bundle."""
    from surefoot.deploy.make_bundle import chosen_method, write_bundle
    from tests.deploy.made import RECIPE, ran

    write_files(base / "run", OWN)
    with on_path(base / "run"):
        made = ran(base / "run", recipe=replace(RECIPE, network="mine.nets:net"), methods=("single",))
        chosen = chosen_method(made.opened, "single", task=None, network=None)
        write_bundle(chosen, base / "bundle", resamples=0, allow_code=True)


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@contextlib.contextmanager
def on_path(folder):
    """The folder's modules are imported first; afterwards they have never been."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "shapes", "parts")]:
            del sys.modules[name]


def reseal(bundle, **changes):
    """Write the digests of the files that are there, as somebody would who wants his own to be loaded."""
    about = json.loads((bundle / "bundle.json").read_text())
    files = [file for file in bundle.rglob("*") if file.is_file() and file.name != "bundle.json"]
    about["files"] = {file.relative_to(bundle).as_posix(): sha256_of(file) for file in files} | changes
    (bundle / "bundle.json").write_text(json.dumps(about))


def code_in_bundles(place, rng):
    """Nothing of a bundle is imported unless own code is allowed, and then only what was bundled."""
    own = rng.random() < 0.6
    bundle = place / "bundle"
    shutil.copytree(place.base / ("own/bundle" if own else "bundle"), bundle)
    expect = _changed(bundle, place, own, rng)
    allowed = rng.random() < 0.6
    expect = REFUSED if own and not allowed else expect
    image, out = place.base / "run/images/part0/000.png", place / "out.csv"
    code = ("--allow-code",) if allowed else ()
    commands = [
        Step(("predict", bundle, image, "-o", out, "--device", "cpu", *code), expect, writes=(out,)),
        Step(("load_bundle", bundle, *code), expect, call=lambda: _probabilities(bundle, allowed)),
        Step(("export", bundle, "-o", place / "out.onnx", *code), expect),
    ]
    yield pick(rng, commands[: 3 if expect == REFUSED else 2])
    inside = [path for path in sys.path if str(bundle) in path]
    searched = f"{inside[0]} is searched for modules" if inside else None
    yield Step(("sys.path",), call=str, check=lambda _: searched)


def _probabilities(bundle, allowed):
    import surefoot

    return str(surefoot.load_bundle(bundle, allow_code=allowed).fixed_probabilities().tolist())


def _changed(bundle, place, own, rng):
    """Change the bundle in one way; what must come of it."""
    how = pick(rng, ["nothing", "shadow", "shadow", "link", "link", "unsealed", "sealed", "source"])
    if how == "nothing" or (how == "source" and not own):
        return place.bundles
    if how == "sealed":
        reseal(bundle, **{pick(rng, SEALED): "0"})
        return REFUSED
    if how == "unsealed":
        path = bundle / pick(rng, UNSEALED)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1 / 0") if rng.random() < 0.8 else os.mkfifo(path)
        return REFUSED
    if how == "source":
        name = pick(rng, list(FORWARD))
        path = bundle / "source" / name
        path.write_text(path.read_text().replace(*FORWARD[name]))
    else:
        (_shadow if how == "shadow" else _link)(bundle, place, rng)
    if rng.random() < 0.6:
        reseal(bundle)
    return ANY if how == "shadow" else REFUSED


def _shadow(bundle, place, rng):
    """Modules with the names of libraries, which must not run, and perhaps a network that is said to be of one."""
    for name in rng.choice(SHADOWS, size=int(rng.integers(1, 5)), replace=False):
        with contextlib.suppress(OSError):  # a module and a package of one name
            write_files(bundle / "source", {f"{name}.py": MARK.format(str(place / "ran"))})
    if rng.random() < 0.5:
        about = json.loads((bundle / "bundle.json").read_text())
        library = pick(rng, ["timm:resnet18", "torchvision:resnet18", "torch:nn", "json:loads"])
        for each in about["networks"]:
            each["recipe"]["network"] = library
        (bundle / "bundle.json").write_text(json.dumps(about))


def _link(bundle, place, rng):
    """One of its files behind a link, or a link to something else."""
    away = place / "away"
    if rng.random() < 0.6:
        path = pick(rng, sorted(bundle.rglob("*")))
        path.rename(away)
        path.symlink_to(away)
        return
    write_files(away, {"evil.py": MARK.format(str(place / "ran")), "timm.py": "1 / 0"})
    target = bundle / pick(rng, ["source", "source/more/deep", "more", "source/timm", "x.py"])
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        (target / "linked").symlink_to(away)
    else:
        target.symlink_to(pick(rng, [away, "/nowhere", away / "evil.py"]))


def code_of_runs(place, rng):
    """Weights are not packed with other code than they were trained with."""
    code, out = place / "code", place / "out"
    write_files(code, OWN)
    how = pick(rng, ["nothing", "beside", *FORWARD])
    if how in FORWARD:
        path = code / how
        path.write_text(path.read_text().replace(*FORWARD[how]))
    elif how == "beside":
        write_files(code, {"other.py": "1 / 0", "parts/README.md": "x"})
    words = ("bundle", "tiny", "single", "-o", out, "--resamples", 0, "--store", place.base / "own/run/store")
    words += ("--allow-code",) if rng.random() < 0.5 else ()
    with on_path(code):
        yield Step(words, REFUSED if how in FORWARD else place.bundles, writes=(out,))
