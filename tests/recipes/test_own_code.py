"""The source of a user's own network is known by what defines it, and by nothing else."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot import InputError
from surefoot.deploy.own_code import BundledSource, own_code_of
from surefoot.lab.recipes.own_code import code_of, with_code
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.variants import Distilled, recipe_from

FILES = {
    "mine/__init__.py": "'''Networks.'''\n",
    "mine/nets.py": "import torch\nfrom mine import layers\nfrom .blocks.deep import *\n"
    "def net(classes):\n    '''A network.'''\n    import late.module\n    return layers.Flat(classes)\n",
    "mine/layers.py": "import importlib\nimport shapes as s\nname = 'computed'\nnow = importlib.import_module('plug')\n"
    "x = u'a'  # text\n",
    "mine/computed.py": "A = 1\n",  # a name could be computed in layers.py
    "mine/blocks/__init__.py": "__all__ = ['deep']\n",
    "mine/blocks/deep.py": "from ..up import B\nfrom . import beside\n",
    "mine/blocks/beside.py": "C = 1\n",
    "mine/up.py": "B = 1\n",
    "late/module.py": "D = 1\n",  # no __init__.py
    "shapes.py": "import torch\nE = 1\n",
    "plug.py": "F = 1\n",
}
OTHERS = {
    "unrelated.py": "G = 1\n",
    "mine/notes.txt": "H",
    "late/not_imported.py": "I = 1\n",
    "torch.py": "J = 1\n",
}


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_files(tmp_path, FILES | OTHERS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def bundled(folder):
    """What a bundle knows it by, which has the files only."""
    files = {f"source/{name}": (folder / name).read_bytes() for name in own_code_of("mine.nets:net").files}
    return BundledSource(files, Path("bundle")).code_of("mine.nets:net")


def test_each_file_that_defines_it_counts_and_no_other(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "shapes", json)  # whatever has been imported under that name
    before = code_of("mine.nets:net")
    assert [entry.split()[0] for entry in before] == sorted(FILES)
    assert bundled(folder) == before
    for name in OTHERS:
        (folder / name).write_text("CHANGED = 1\n")
    assert code_of("mine.nets:net") == bundled(folder) == before
    for name, text in FILES.items():
        (folder / name).write_text(f"{text}CHANGED = 1\n")
        changed = code_of("mine.nets:net")
        assert {old.split()[0] for old, new in zip(before, changed, strict=True) if old != new} == {name}
        assert bundled(folder) == changed
        (folder / name).write_text(text)
    assert "mine.nets" not in sys.modules, "nothing was run"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("def f(x):\n    return x + 1\n", True),
        (
            "# -*- coding: utf-8 -*-\n'''About.'''\ndef f( x ) : # one\n    'Adds.'\n\n    return (x+1)\n",
            True,
        ),
        ("def f(x):\n    return x + 1.0\n", False),
        ("def f(x):\n    return x - 1\n", False),
        ("def f(x, y=None):\n    return x + 1\n", False),
        ("def f(x):\n    return x + True\n", False),
        ("def f(x):\n    return 1 + x\n", False),
        ("def f(x):\n    return x + 1\nf = abs\n", False),
        ("@staticmethod\ndef f(x):\n    return x + 1\n", False),
        ("def f(x):\n    return x + ", False),  # not Python
    ],
)
def test_comments_formatting_and_docstrings_change_nothing(text, same, folder):
    (folder / "own.py").write_text("def f(x):\n    return x + 1\n")
    before = code_of("own:f")
    (folder / "own.py").write_text(text)
    assert (code_of("own:f") == before) == same


def test_the_digest_is_the_same_in_every_python(folder):
    text = (
        "import os as o\nclass A(dict, k=1):\n    x: int = -0.5e9\n    async def f(self, /, *a, k=1j, **o):\n"
    )
    text += "        return f'{self!r:>{k}} y' + b'\\xff'[::2], [i async for i in o if i], lambda: ...\n"
    (folder / "own.py").write_text(text)
    assert code_of("own:f") == ("own.py d2656229efaa",)


def test_a_network_of_a_package_or_of_nowhere(folder):
    (version,) = code_of("numpy.linalg:net")
    assert version.startswith(f"numpy=={sys.modules['numpy'].__version__} ")
    for network in ("no_such_module:net", "os:system", "surefoot:net", "..:net", ":"):
        assert code_of(network) == ()
    write_files(folder, {f"many/m{i}.py": "" for i in range(80)})
    (folder / "many" / "__init__.py").write_text("\n".join(f"from . import m{i}" for i in range(80)))
    (entry,) = code_of("many:net")
    assert entry.startswith("81 files of many ")
    (folder / "many" / "m79.py").write_text("x = 1")
    assert code_of("many:net") != (entry,)


def test_a_recipe_has_the_source_and_refuses_another(folder):
    plain = Recipe(network="mlp")
    assert with_code(plain) == plain
    own = with_code(Recipe(network="mine.nets:net"))
    student = Recipe(
        network="mlp", variant=Distilled(teachers=Teachers(Recipe(network="mine.nets:net"), (0,)))
    )
    assert own.digest != Recipe(network="mine.nets:net").digest
    assert with_code(student).variant.teachers.recipe == own
    assert with_code(own) == own == recipe_from(own.as_dict())
    assert recipe_from({"network": "other:net"}, base=own).code == ()
    (folder / "shapes.py").write_text("E = 2\n")
    (folder / "plug.py").unlink()
    (folder / "mine" / "up.py").write_text("import unrelated\n")
    said = r"do not fit network 'mine.nets:net': since they were trained, its source has changed \(mine/up.py is "
    said += r"another, shapes.py is another, unrelated.py is new, plug.py is missing\); restore it"
    for old in (own, with_code_of(student, own)):
        with pytest.raises(InputError, match=said):
            with_code(old)
    with pytest.raises(InputError, match="code is 'text'; allowed: a list of texts"):
        replace(own, code="text")


def with_code_of(student, own):
    return replace(student, variant=Distilled(teachers=Teachers(own, (0,))))
