"""`surefoot serve` before it serves: what cannot be served is one sentence."""

import socket
import sys

import pytest

from surefoot.cli import main
from surefoot.deploy.make_bundle import chosen_method, write_bundle
from surefoot.lab.recipes.recipe import Recipe
from tests.deploy.made import ran
from tests.serve.made import bundled


@pytest.fixture
def refused(capfd, monkeypatch):
    """What the command says when it refuses, with exit code 2."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["surefoot", "serve", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert (ended.value.code, out) == (2, ""), err
        assert err.count("\n") == 1
        return err

    return run


def test_without_the_extra(refused, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("surefoot.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    (tmp_path / "bundle.json").touch()
    assert refused(tmp_path) == "surefoot: serving needs fastapi; install it: pip install 'surefoot[serve]'\n"


def test_points_cannot_be_served(refused, tmp_path):
    recipe = Recipe(network="mlp", width=8, epochs=1, learning_rate=0.05)
    made = ran(tmp_path, task="toy", recipe=recipe, methods=("single",))
    write_bundle(
        chosen_method(made.opened, "single", task=None, network=None), tmp_path / "bundle", resamples=0
    )
    assert "takes points of shape (2,), not images" in refused(tmp_path / "bundle")


def test_where_it_cannot_listen(refused, tmp_path):
    _, bundle = bundled(tmp_path, "single")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        printed = refused(bundle, "--port", port)
        assert printed == f"surefoot: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    assert "cannot listen on no such host port 8000: " in refused(bundle, "--host", "no such host")
    assert "timeout is 0.0; allowed: a positive number" in refused(bundle, "--timeout", 0)
    (tmp_path / "thresholds.json").write_text('{"accept": 2, "reject": 0}')
    assert "accept is 2; allowed" in refused(bundle, "--thresholds", tmp_path / "thresholds.json")


def test_what_is_no_bundle(refused, tmp_path):
    assert "is not a bundle: it has no bundle.json" in refused(tmp_path)
