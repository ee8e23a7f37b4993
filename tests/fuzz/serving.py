"""Requests to a real server, over a plain socket: valid, damaged and hostile ones.

    python -m tests.fuzz.serving --requests 2000 --seed 0

A response has a status of 2xx or 4xx, and an error is one printable sentence in JSON; what is not HTTP may get plain
text. The server stays alive, its log has no traceback, and a valid request has the same answer at the end as before.
"""

import argparse
import contextlib
import io
import json
import re
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fuzz.inputs import NASTY, damaged, pick

KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO")
BUSY = (408, 503, 504)  # a server under load, or one that waits for a body that does not come
SECONDS = 60  # until a response, on a busy machine
PATHS = (
    "/predict/", "//predict", "/predict?x=" + "y" * 3000, "/predict#x", "/%00", "/..%2f..", "*", "/metrics", "/health", "/",
    "http://localhost/predict", "/\x7f", "/é", "/predict%", "/predict;x", "/" + "a" * 70_000,
)  # fmt: skip
LENGTHS = ("-1", "0", "1", "1e3", "+5", " 5", "0x10", "9" * 19, "9" * 30, "9" * 5000, "5, 6", "", "٣")


def image(rng):
    """The bytes of a small image, and whether they are whole."""
    file = io.BytesIO()
    mode = pick(rng, ["RGB", "RGB", "L", "RGBA", "P", "1", "CMYK", "I;16", "LA", "F"])
    size = (int(rng.integers(1, 40)), int(rng.integers(1, 40)))
    kind = pick(rng, KINDS)
    drawn = Image.fromarray(rng.integers(0, 255, (*size[::-1], 3), dtype=np.uint8)).convert(
        "L" if mode in ("I;16", "F", "LA") else mode
    )
    try:
        drawn.convert(mode).save(file, kind)
    except (OSError, ValueError):  # this kind of file has no such mode
        file = io.BytesIO()
        drawn.convert("RGB").save(file, "PNG")
    data = file.getvalue()
    return damaged(data, rng) if rng.random() < 0.5 else data


HEADS = (
    b"content-disposition: form-data", b"content-disposition: form-data; filename*=UTF-8''%ff%00", b"content-type: image/png",
    b"x" * 9000 + b": y", b"", b"content-disposition: form-data; name=a; filename=" + b"z" * 5000, b": novalue", b"content-type",
    b"content-transfer-encoding: base64\r\ncontent-disposition: form-data; filename=a",
)  # fmt: skip
EDGES = ("-", "x" * 70, "x" * 300, "a b", "é", "", "--", '"q"', "a\\b")
TYPES = (
    *["image/png"] * 4,
    "application/octet-stream",
    "text/html",
    "",
    "image/",
    "IMAGE/PNG; x=" + "y" * 500,
)
FORM_TYPES = ("form-data", "form-data; boundary=", "mixed; boundary=edge", "form-data; boundary=other")
METHODS = ("GET", "HEAD", "PUT", "OPTIONS", "PO ST", "post", "TRACE", "X" * 300)
VERSIONS = ("HTTP/1.0", "HTTP/2.0", "HTTP/9", "http/1.1", "")
SIZES = ("{:x}", "{:x}", "{:X};x=y", "-{:x}", "0x{:x}", "{:x}" + "0" * 20, "", "zz")
HEADERS = (
    ("host", "evil.example"), ("host", ""), ("host", "a" * 3000), ("origin", "http://evil.example"), ("origin", "null"),
    ("origin", "http://[::1"), ("sec-fetch-site", "cross-site"), ("content-encoding", "gzip"), ("expect", "100-continue"),
    ("x", "y" * 70_000), ("x\x00", "y"), ("x", "a\x00b"), ("x", "\udcff"), ("x y", "z"), ("", "z"), ("x", "a\r\n b"), ("content-length", "7"),
    ("transfer-encoding", "gzip"), ("upgrade", "websocket"), ("content-type", "text/plain"), ("range", "bytes=0-1"), ("accept", "\x1b[31m"),
)  # fmt: skip


def form(rng):
    """A form with images, perhaps damaged, and the boundary that its content type names."""
    edge = "edge" if rng.random() < 0.7 else pick(rng, EDGES)
    parts = b""
    for _ in range(pick(rng, [1, 1, 1, 1, 2, 2, 2, 9, 9, 120])):
        name = pick(rng, NASTY).encode("utf-8", "replace")
        head = b'content-disposition: form-data; name="image"; filename="' + name + b'"'
        head = head if rng.random() < 0.3 else pick(rng, HEADS)
        parts += b"--" + edge.encode() + b"\r\n" + head + b"\r\n\r\n" + image(rng) + b"\r\n"
    body = parts + b"--" + edge.encode() + b"--\r\n"
    return (damaged(body, rng) if rng.random() < 0.25 else body), edge


def request(rng):
    """The bytes of a request."""
    method = "POST" if rng.random() < 0.92 else pick(rng, METHODS)
    path = "/predict" if rng.random() < 0.94 else pick(rng, PATHS)
    version = "HTTP/1.1" if rng.random() < 0.95 else pick(rng, VERSIONS)
    body, kind = image(rng), pick(rng, TYPES)
    if rng.random() < 0.5:
        body, edge = form(rng)
        kind = f"form-data; boundary={edge}" if rng.random() < 0.9 else pick(rng, FORM_TYPES)
        kind = f"multipart/{kind}"
    headers = [("host", "localhost"), ("content-type", kind), ("connection", "close")]
    framing = rng.random()
    if framing < 0.9:
        length = str(len(body)) if framing < 0.85 else pick(rng, LENGTHS)
        headers.append(("content-length", length))
    elif framing < 0.98:
        headers.append(("transfer-encoding", "chunked"))
        cut = int(rng.integers(len(body) + 1))
        pieces = [each for each in (body[:cut], body[cut:]) if each]
        lengths = [pick(rng, SIZES).format(len(each)).encode() for each in pieces]
        chunks = [b"%b\r\n%b\r\n" % both for both in zip(lengths, pieces, strict=True)]
        body = b"".join(chunks) + b"0\r\n\r\n"
    if rng.random() < 0.15:
        headers.append(pick(rng, HEADERS))
    lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    data = "\r\n".join(lines).encode("utf-8", "surrogateescape") + body
    return damaged(data, rng) if rng.random() < 0.05 else data


def exchange(port, data, *, seconds=SECONDS):
    """What the server sends until it closes the connection; it does not wait long for a body that is cut short."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            connection.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
        return received


def wrong(received):
    """The status, and what is wrong with a response; None where nothing is."""
    if not received:
        return "none", None  # the request was cut short: nobody is there for an answer
    head, _, body = received.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    if match is None:
        return "none", f"no status: {received[:200]!r}"
    status = int(match[1])
    if status == 100:
        return wrong(body)
    if not (200 <= status < 300 or 400 <= status < 500 or status in BUSY):
        return status, f"status {status}: {body[:300]!r}"
    if status < 400 or not body or b"application/json" not in head.lower():
        return status, None if len(body) < 100 or status < 400 else f"no JSON: {received[:200]!r}"
    sentence = json.loads(body)["error"]
    is_clear = isinstance(sentence, str) and sentence.isprintable() and 5 < len(sentence) < 1000
    return status, None if is_clear else f"unclear: {sentence!r}"


def valid(port):
    """The answer to a valid request, also of a server that is busy."""
    file = io.BytesIO()
    Image.fromarray(np.full((20, 20, 3), 90, dtype=np.uint8)).save(file, "PNG")
    data = file.getvalue()
    head = "POST /predict HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: image/png\r\n"
    for _ in range(20):
        received = exchange(port, f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        if received.startswith(b"HTTP/1.1 200 "):
            return json.loads(received.partition(b"\r\n\r\n")[2])
    raise AssertionError(f"no answer to a valid request: {received[:300]!r}")


def fuzz_server(port, requests, seed, *, first=0):
    """Send requests to a server; counts by status, and failures as (number, sentence)."""
    counts, failures = Counter(), []
    before = valid(port)
    for number in range(first, first + requests):
        rng = np.random.default_rng([seed, number])
        try:
            status, problem = wrong(exchange(port, request(rng)))
        except (OSError, ValueError, KeyError) as error:
            status, problem = "none", f"{type(error).__name__}: {error}"
        counts[str(status)] += 1
        if problem is not None:
            failures.append((number, problem))
    if valid(port) != before:
        failures.append((None, "another answer than before"))
    return counts, failures


def main():
    """A server of a small bundle, and requests to it."""
    from tests.serve.made import bundled, served

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("requests", 2000), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-serve-") as folder:
        _, bundle = bundled(Path(folder))
        with served(bundle, "--timeout", 2) as server:
            counts, failures = fuzz_server(
                server.port, arguments.requests, arguments.seed, first=arguments.first
            )
            code, _, log = server.end()
    for number, sentence in failures:
        sys.stdout.write(f"request {number}: {sentence}\n")
    statuses = ", ".join(f"{count:,} of {status}" for status, count in sorted(counts.items()))
    sys.stdout.write(f"{arguments.requests:,} requests, {len(failures)} failures; responses: {statuses}\n")
    if code or "Traceback" in log:
        sys.stdout.write(f"the server ended with {code}: {log[-3000:]}\n")
    return int(bool(failures or code or "Traceback" in log))


if __name__ == "__main__":
    sys.exit(main())
