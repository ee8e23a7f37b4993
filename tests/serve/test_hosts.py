"""A page of another site cannot use a server through a browser; what is at its address can."""

import contextlib
import http.client
import json

import pytest

from surefoot.serve.hosts import Hosts
from tests.serve.made import PATIENCE, picture, served

SERVED = (
    "127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:8000", "localhost.", "a.localhost:80", "[::1]:8000", "[::1]",
    "192.168.1.7:8000", "surefoot", "surefoot:8000", "models.example", "Models.Example:443", "models.example.",
)  # fmt: skip
NOT_SERVED = (
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost.evil.example",
    "evil.example.", "models.example.evil.example", "x.models.example", "a b.c", "[::1", "a/b.c", "", ":8000", "é.example",
    "127.0.0.1:8000.evil.example", "evil.example#localhost",
)  # fmt: skip


def refusal(method="POST", hosts=("a",), names=("models.example",), **headers):
    given = [(b"host", each.encode("latin-1")) for each in hosts]
    given += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    found = Hosts.of("127.0.0.1", *names).refusal(method, given)
    return None if found is None else found.status


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_hosts(method):
    assert {host: refusal(method, (host,)) for host in SERVED} == dict.fromkeys(SERVED)
    assert {host: refusal(method, (host,)) for host in NOT_SERVED} == dict.fromkeys(NOT_SERVED, 421)
    assert refusal(method, ()) is None, "a client of HTTP/1.0, which is no browser"
    assert refusal(method, ("a", "evil.example")) == 421
    assert refusal(method, ("evil.example",), names=("*",)) is None
    named = Hosts.of("Models.example.")
    assert named.refusal(method, [(b"host", b"models.example:8000")]) is None
    assert named.refusal(method, [(b"host", b"evil.example")]) is not None


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", None),
        ("127.0.0.1:8000", "HTTP://127.0.0.1:8000", None),
        ("localhost", "https://localhost", None),
        ("127.0.0.1:8000", "https://models.example", None),
        ("127.0.0.1:8000", "http://127.0.0.1:9000", 403),
        ("127.0.0.1:8000", "http://localhost:8000", 403),
        ("127.0.0.1:8000", "http://evil.example", 403),
        ("127.0.0.1:8000", "http://evil", 403),
        ("127.0.0.1:8000", "null", 403),
        ("127.0.0.1:8000", "", 403),
        ("127.0.0.1:8000", "file://127.0.0.1:8000", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:8000@evil.example", 403),
        ("127.0.0.1:8000", "http://models.example.evil.example", 403),
        ("127.0.0.1:8000", "http://[", 403),
    ],
)
def test_origins_of_posts(host, origin, status):
    assert refusal(hosts=(host,), origin=origin) == status
    assert refusal("GET", hosts=(host,), origin=origin) is None, "without CORS headers no page can read it"


def test_sites_of_posts():
    for site in ("cross-site", "same-site", "unknown"):
        assert refusal(sec_fetch_site=site) == 403
        assert refusal(sec_fetch_site=site, origin="http://a") == 403
    assert refusal(sec_fetch_site="none") is None
    assert refusal(sec_fetch_site="none", origin="http://evil.example") == 403
    assert refusal(sec_fetch_site="same-origin", origin="https://public.example") is None, "behind a proxy"


@pytest.fixture(scope="module")
def server(made):
    with served(made[1], "--allow-host", "models.example") as running:
        yield running


def asked(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.putheader("content-length", str(len(body or b"")))
    connection.endheaders(body)
    response = connection.getresponse()
    with contextlib.closing(connection):
        return response.status, dict(response.getheaders()), response.read()


def test_a_server_refuses_other_hosts_and_origins(server):
    image = {"content_type": "image/png", "body": picture()}
    for path in ("/", "/health", "/metrics", "/nowhere"):
        status, headers, body = asked(server, "GET", path, host="evil.example")
        assert status == 421
        assert json.loads(body)["error"].startswith("the host 'evil.example' is not served here; allowed: ")
        assert "access-control-allow-origin" not in headers
    assert asked(server, "POST", "/predict", host="evil.example", **image)[0] == 421
    assert asked(server, "POST", "/predict", origin="http://evil.example", **image)[0] == 403
    assert asked(server, "POST", "/predict", host="models.example", **image)[0] == 200
    own = f"http://127.0.0.1:{server.port}"
    assert asked(server, "POST", "/predict", origin=own, **image)[0] == 200
    assert asked(server, "POST", "/predict", origin="http://127.0.0.1:1", **image)[0] == 403, (
        "another program"
    )
    assert asked(server, "POST", "/predict", **image)[0] == 200


def test_there_are_no_redirects(server):
    for path in ("/health/", "/predict/", "/metrics/", "//evil.example/", "/%2fevil.example/", "/..//"):
        for method in ("GET", "POST"):
            status, headers, body = asked(server, method, path, host="models.example")
            assert status in (404, 405), path
            assert "location" not in headers
            assert b"models.example" not in body
