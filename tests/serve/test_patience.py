"""A server whose network can be held: time-outs, a full queue, and an end that leaves nobody without answer."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import httpx
import pytest

from tests.deploy.made import RECIPE
from tests.serve.made import PATIENCE, bundled, counts, json_of, picture, served

NETWORK = """
import os, time
from pathlib import Path
from torch import nn

class Held(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, classes))
    def forward(self, images):
        if "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
            Path(os.environ["HOLD"] + ".entered").touch()
            while Path(os.environ["HOLD"]).exists():
                time.sleep(0.005)
            if Path(os.environ["HOLD"] + ".fail").exists():
                raise RuntimeError("by order of " + os.environ["HOLD"])
        return self.layers(images)

def net(classes):
    return Held(classes)
"""
WAITING, MOST = 4, 3000
SMALL = picture(size=(8, 8))
HEAD = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: image/png\r\n"


class Hold:
    """While it is there, the network of a server does not go on."""

    def __init__(self, path):
        self.path = path
        self.entered, self.fail = (path.with_name(f"{path.name}.{end}") for end in ("entered", "fail"))

    def __enter__(self):
        self.entered.unlink(missing_ok=True)
        self.path.touch()
        return self

    def __exit__(self, *_):
        self.path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A bundle with code of its own, and where to import that from."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "held.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        _, bundle = bundled(folder, "single-t", recipe=replace(RECIPE, network="held:net"))
    return folder, bundle


@contextmanager
def serving(slow, hold, *options):
    folder, bundle = slow
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "HOLD": str(hold.path)}
    with served(bundle, "--allow-code", *options, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def hold(tmp_path_factory):
    return Hold(tmp_path_factory.mktemp("hold") / "hold")


@pytest.fixture(scope="module")
def server(slow, hold):
    limits = ("--max-waiting", WAITING, "--max-images", 2, "--max-bytes", MOST, "--max-image-bytes", MOST)
    with serving(slow, hold, *limits) as running:
        yield running


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def until(condition):
    """Wait for it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def post(server, number=1):
    files = [("image", ("a.png", SMALL, "image/png"))] * number
    return httpx.post(f"{server.url}/predict", files=files, timeout=PATIENCE)


def waiting(server):
    return json_of(httpx.get(f"{server.url}/health", timeout=PATIENCE))["waiting"]


def metrics(server):
    return counts(httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text)


def test_a_full_queue_sends_others_away(server, hold, pool):
    with hold:
        taken = [pool.submit(post, server)]
        until(hold.entered.exists)
        taken += [pool.submit(post, server) for _ in range(WAITING - 1)]
        until(lambda: waiting(server) == WAITING)
        refused = post(server)
        assert refused.status_code == 503
        assert json_of(refused)["error"] == "4 images are waiting already; try again in a second"
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(server.url, timeout=PATIENCE).status_code == 200, "the loop is never blocked"
    assert [each.result().status_code for each in taken] == [200] * WAITING
    assert waiting(server) == 0


def test_a_prediction_that_fails_says_so_and_the_next_is_answered(server, hold, pool):
    hold.fail.touch()
    with hold:
        failed = pool.submit(post, server)
        until(hold.entered.exists)
    assert failed.result().status_code == 500
    assert json_of(failed.result()) == {"error": "the prediction failed; see the server's log"}
    hold.fail.unlink()
    assert post(server).status_code == 200


def test_the_bytes_that_are_held_are_limited_too(server):
    """Many large uploads at once: some are sent away, and what the others hold is let go when they leave."""
    refused = ("surefoot_requests_total", (("code", "503"), ("path", "/predict")))
    before = metrics(server).get(refused, 0)
    with ExitStack() as stack:
        for _ in range(20):  # 99% of the most each; sixteen times the most may be held
            raw = stack.enter_context(connected(server))
            raw.sendall(HEAD + b"content-length: %d\r\n\r\n" % MOST + bytes(MOST * 99 // 100))
        until(lambda: metrics(server)["surefoot_held_bytes", ()] == 16 * (MOST * 99 // 100))
        until(lambda: metrics(server).get(refused, 0) == before + 4)
    until(lambda: metrics(server)["surefoot_held_bytes", ()] == 0)


def test_what_is_under_way_at_the_end_is_answered(server, hold, pool):
    with hold:
        last = [pool.submit(post, server, 2)]
        until(hold.entered.exists)
        last.append(pool.submit(post, server))
        until(lambda: waiting(server) == 3)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not accepts(server))
        assert server.process.poll() is None
    assert [each.result().status_code for each in last] == [200, 200]
    code, _, result = server.end(0)
    assert code == 0
    assert result.count("Traceback") == result.count("RuntimeError: by order of"), (
        "of what failed in another test, at most"
    )
    assert result.endswith("stopped; all requests were answered\n")


def accepts(server):
    try:
        connected(server).close()
    except OSError:
        return False
    return True


def test_nobody_is_waited_for_for_ever(slow, hold, pool):
    """All at once: an answer that does not come, and clients that say nothing, half of it, or letter by letter."""
    late = (408, "the request did not arrive within 5 s")
    with serving(slow, hold, "--timeout", 5) as server:
        with hold, ExitStack() as stack:

            def begun(start):  # at once, for the time in which a head must come begins with the connection
                raw = stack.enter_context(connected(server))
                raw.sendall(start)
                return raw

            asked = begun(HEAD + b"content-length: %d\r\n\r\n%s" % (len(SMALL), SMALL))
            half = begun(HEAD + b"content-length: 1000\r\n\r\nx")
            chunks = pool.submit(trickle, begun(HEAD + b"transfer-encoding: chunked\r\n\r\n"), b"1\r\nx\r\n")
            letters = pool.submit(trickle, begun(b"GET /health HTTP/1.1\r\nx: "), b"y")
            silent = begun(b"")
            assert said_by(heard(asked)) == (504, "there was no prediction within 5 s")
            assert said_by(heard(half)) == late
            assert said_by(chunks.result()) == late
            assert (heard(silent), letters.result()) == (b"", b"")
        until(lambda: waiting(server) == 0)
        code, _, result = server.end(signal.SIGINT)
    assert code == 0, "Ctrl-C is how it ends"
    assert "Traceback" not in result


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def heard(raw):
    """All that comes until the other side closes."""
    return b"".join(iter(lambda: raw.recv(4096), b""))


def said_by(response):
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def trickle(raw, drop):
    """Send a little every now and then until the other side has had enough; what it said."""
    raw.settimeout(0.1)
    end, result = time.monotonic() + PATIENCE, b""
    while time.monotonic() < end:
        with suppress(BrokenPipeError, ConnectionResetError):  # what was said before can still be read
            raw.sendall(drop)
        try:
            got = raw.recv(4096)
        except TimeoutError:
            continue
        except ConnectionResetError:
            return result
        if not got:
            return result
        result += got
    raise AssertionError("it was waited for")
