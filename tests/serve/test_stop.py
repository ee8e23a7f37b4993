"""SIGTERM while clients are at work: requests are answered, and no connection is reset that was accepted."""

import http.client
import signal
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from tests.serve.made import PATIENCE, picture, served

CLIENTS = 8


@pytest.fixture(scope="module")
def bundle(made):
    return made[1]


def requests_until_the_end(port, data, results, *, keep_alive):
    """Send one request after the other until the server says that it ends, or refuses a connection.

    One that the system made, and that the server did not accept before it stopped listening, may be reset.
    """
    reset = None
    while True:
        answers = 0
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.connect()
        except ConnectionRefusedError:
            return
        if reset is not None:
            results.append(f"{reset}, and the next connection was not refused")
        try:
            while True:
                connection.request("POST", "/predict", body=data, headers={"content-type": "image/png"})
                response = connection.getresponse()
                response.read()
                results.append(response.status)
                answers += 1
                if not keep_alive or response.getheader("connection") == "close":
                    break
        except (OSError, http.client.HTTPException) as error:
            if answers or type(error) not in (ConnectionResetError, BrokenPipeError):
                results.append(repr(error))
                return
            reset = repr(error)
        finally:
            connection.close()


@pytest.mark.parametrize("keep_alive", [True, False])
def test_clients_at_work_see_answers_and_then_a_refused_connection(bundle, keep_alive):
    results = []
    with served(bundle) as server:
        threads = [
            threading.Thread(
                target=requests_until_the_end,
                args=(server.port, picture(seed, size=(300, 300)), results),
                kwargs={"keep_alive": keep_alive},
            )
            for seed in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        while len(results) < 3 * CLIENTS:
            assert server.process.poll() is None, server.process.stderr.read()
            time.sleep(0.01)
        code, _, errors = server.end()
        for thread in threads:
            thread.join(PATIENCE)
    assert code == 0
    assert errors == "stopped; all requests were answered\n"
    assert set(results) == {200}


def accepts(server):
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


def test_what_is_on_its_way_is_answered(bundle):
    """Half a head, half a body, an idle connection that is used again, and one that is not accepted yet."""
    data = picture()
    head = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: image/png\r\ncontent-length: %d\r\n\r\n"
    request = head % len(data) + data
    with served(bundle) as server, ExitStack() as stack:

        def connected():
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            return stack.enter_context(connection)

        raw = [connected() for _ in range(4)]
        raw[0].sendall(request[:20])
        raw[1].sendall(request[:-50])
        raw[2].sendall(request)
        assert raw[2].recv(16) == b"HTTP/1.1 200 OK\r"
        while raw[2].recv(4096)[-2:] != b"]}":
            pass
        server.process.send_signal(signal.SIGSTOP)
        late = connected()
        late.sendall(request)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        raw[0].sendall(request[20:])
        raw[2].sendall(request)
        while accepts(server):
            pass
        raw[1].sendall(request[-50:])
        for each in (*raw[:3], late):
            answer = b"".join(iter(lambda each=each: each.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
            assert each is not raw[1] or b"\r\nconnection: close\r\n" in answer.lower()
        assert raw[3].recv(1) == b"", "one that says nothing is ended, not reset"
        stack.close()
        code, _, errors = server.end(0)
    assert (code, errors) == (0, "stopped; all requests were answered\n")


def test_a_client_that_does_not_wait_for_its_answer_leaves_no_error(bundle):
    """Its system answers ours with a reset, after which our side of the connection cannot be ended."""
    with served(bundle) as server:
        server.process.send_signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw:
            raw.sendall(b"HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        server.process.send_signal(signal.SIGCONT)
        code, _, errors = server.end()
    assert (code, errors) == (0, "stopped; all requests were answered\n")


def test_a_refused_body_that_still_comes_is_read_so_that_the_answer_arrives(bundle):
    """Also at the end, when the connection is closed after the answer."""
    with (
        served(bundle, "--max-bytes", 1000, "--max-image-bytes", 1000) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw,
    ):
        head = b"POST /predict HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: image/png\r\n"
        raw.sendall(head + b"content-length: 3000000\r\n\r\n")
        for _ in range(30):
            raw.sendall(bytes(100_000))
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 413 ")
