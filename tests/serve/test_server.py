"""A real server on loopback: its answers are the library's, and what is wrong with a request is a sentence."""

import asyncio
import io
import json
import re
import socket
import struct
import zlib
from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import surefoot
from tests.deploy.made import COLOURS
from tests.fuzz.serving import fuzz_server
from tests.serve.made import PATIENCE, counts, expected, json_of, picture, served

CLOSE = 1e-6
MOST, MOST_OF_ONE = 300_000, 200_000  # bytes
LIMITS = ("--max-bytes", MOST, "--max-image-bytes", MOST_OF_ONE, "--max-images", 8, "--max-pixels", 4_000_000,
          "--verdict", "on")  # fmt: skip
IMAGE = {"content-type": "image/png"}
FORM = {"content-type": "multipart/form-data; boundary=edge"}


@pytest.fixture(scope="module")
def server(made):
    with served(made[1], *LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def bundle(made):
    return surefoot.load_bundle(made[1])


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as found:
        yield found


def files(*contents):
    return [("image", (f"{i}.png", content, "image/png")) for i, content in enumerate(contents)]


def check(result, bundle, data, folder):
    """An answer against the library's own."""
    probs, novelty = expected(bundle, data, folder)
    assert result["label"] == COLOURS[probs.argmax()]
    np.testing.assert_allclose([result["probabilities"][name] for name in COLOURS], probs, atol=CLOSE)
    assert result["confidence"] == pytest.approx(probs.max(), abs=CLOSE)
    assert result["entropy"] == pytest.approx(-(probs * np.log(probs)).sum(), abs=CLOSE)
    assert result["novelty"] == pytest.approx(novelty, rel=CLOSE, abs=CLOSE)
    assert result["verdict"] == ("unfamiliar" if novelty > bundle.familiar.limit else "familiar")
    decision = "accept" if probs.max() >= 0.4 else "reject" if probs.max() < 0.35 else "review"
    assert result["decision"] == decision


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM"])
def test_one_image_as_the_body(client, bundle, kind, tmp_path):
    data = picture(1, kind=kind)
    response = client.post("/predict", content=data, headers={"content-type": f"image/{kind.lower()}"})
    assert response.status_code == 200
    (result,) = json_of(response)["predictions"]
    check(result, bundle, data, tmp_path)
    assert result["name"] is None


def test_a_batch_with_bad_ones_in_it(client, bundle, tmp_path):
    good = [picture(seed, label=seed % 3, size=(20 + seed, 33)) for seed in range(3)]
    bad = [b"no image", picture(kind="JPEG")[:700], b"", bytes(MOST_OF_ONE + 1)]
    response = client.post("/predict", files=files(good[0], *bad, *good[1:]))
    assert response.status_code == 200
    result = json_of(response)["predictions"]
    assert [each["name"] for each in result] == [f"{i}.png" for i in range(7)]
    for each, data in zip((result[0], *result[5:]), good, strict=True):
        check(each, bundle, data, tmp_path)
    assert [each["status"] for each in result[1:5]] == [415, 400, 422, 413]
    assert result[1]["error"].startswith("not an image in a supported format: JPEG, PNG")
    assert result[2]["error"].startswith("the image cannot be read: image file is truncated")
    assert result[4]["error"] == "the image is larger than 200,000 bytes, which is the most allowed"
    assert all("label" not in each for each in result[1:5])


def test_where_every_image_is_bad_the_request_is(client):
    same = client.post("/predict", files=files(b"a", b"b"))
    assert same.status_code == 415
    assert json_of(same)["error"].startswith("none of 2 images could be predicted; the first: not an image")
    mixed = client.post("/predict", files=files(b"a", b""))
    assert mixed.status_code == 400
    assert [each["status"] for each in json_of(mixed)["predictions"]] == [415, 422]


@cache
def bomb(side):
    """A whole PNG of side x side black pixels in a few kilobytes, made without decoding anything."""
    rows = zlib.compressobj(9)
    row = bytes(1 + side // 8)
    packed = b"".join(rows.compress(row) for _ in range(side)) + rows.flush()

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def chunks(number, size=50_000):
    for _ in range(number):
        yield bytes(size)


def form(*parts, end=b"--edge--\r\n"):
    return b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + end


FILE = b'Content-Disposition: form-data; name="image"; filename="%s"\r\n\r\n%s'
FIELD = b'Content-Disposition: form-data; name="note"\r\n\r\n%s'
REFUSED = {
    "a form without a file": (form(FIELD % b"hello"), FORM, 422, "the request has no image in it; allowed: "),
    "a form with no file chosen": (form(FILE % (b"", b"")), FORM, 422, "the request has no image in it"),
    "an empty form": (form(), FORM, 422, "the request has no image in it"),
    "an empty body": (b"", IMAGE, 422, "the request has no image in it"),
    "no type": (b"x", {}, 415, "the request is of no type; allowed: multipart/form-data"),
    "another type": (b"{}", {"content-type": "application/json<b>"}, 415, "the request is application/json"),
    "text as an image": (b"hello", IMAGE, 415, "not an image in a supported format"),
    "an SVG": (b"<svg onload='alert(1)'/>", {"content-type": "image/svg+xml"}, 415, "not an image in a supported format"),
    "a compressed body": (b"x", {**IMAGE, "content-encoding": "gzip"}, 415, "the request is compressed"),
    "a truncated JPEG": (picture(kind="JPEG")[:700], IMAGE, 400, "the image cannot be read: image file is trunc"),
    "a truncated PNG": (picture()[:300], IMAGE, 400, "the image cannot be read: "),
    "a form with no boundary": (b"x", {"content-type": "multipart/form-data"}, 400, "the form has no boundary"),
    "a form that is none": (b"hello there", FORM, 400, "the form is broken: not multipart/form-data"),
    "half a form": (form(FILE % (b"a.png", picture()), end=b""), FORM, 400, "the form is incomplete"),
    "a bomb of 900 million pixels": (lambda: bomb(30_000), IMAGE, 413, "the image has more than 89,478,485 pixels; allowed: 4,0"),
    "a bomb of 9 million pixels": (lambda: bomb(3_000), IMAGE, 413, "the image has 3,000 x 3,000 pixels; allowed: 4,000,000"),
    "too large, said first": (bytes(MOST + 1), IMAGE, 413, "the request is larger than 300,000 bytes"),
    "too large, not said": (lambda: chunks(40), IMAGE, 413, "the request is larger than 300,000 bytes"),
    "too large an image": (lambda: chunks(5), IMAGE, 413, "the image is larger than 200,000 bytes"),
    "too many images": (form(*[FILE % (b"a", b"b")] * 9), FORM, 413, "the form has more than 8 images"),
    "too many fields": (form(*[FIELD % b""] * 200), FORM, 413, "the form has more than 108 parts"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_one_sentence(client, case):
    content, headers, status, says = REFUSED[case]
    response = client.post("/predict", content=content() if callable(content) else content, headers=headers)
    assert response.status_code == status
    result = json_of(response)
    assert list(result) == ["error"]
    assert result["error"].startswith(says)
    assert "Traceback" not in result["error"]
    assert "\n" not in result["error"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_bomb_is_refused_before_it_is_unpacked(server, client):
    """900 million pixels take no memory that is worth speaking of."""
    before = peak_memory(server.process.pid)
    for _ in range(3):
        assert client.post("/predict", content=bomb(30_000), headers=IMAGE).status_code == 413
    assert peak_memory(server.process.pid) < before + 50_000


def peak_memory(process):
    """In kilobytes."""
    with open(f"/proc/{process}/status") as file:  # noqa: PTH123
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1])


def test_a_very_long_image_is_refused_too(client):
    file = io.BytesIO()
    Image.new("L", (60_000, 1)).save(file, "PNG")
    response = client.post("/predict", content=file.getvalue(), headers=IMAGE)
    assert response.status_code == 413
    assert json_of(response)["error"].startswith(
        "the image has 960000 x 16 pixels at this size; allowed: 4,0"
    )


def test_a_name_is_said_back_as_text(client):
    name = 'a"<script>alert(1)</script>\u2028é.png'
    response = client.post("/predict", files=[("image", (name, picture(), "image/png"))])
    (result,) = json_of(response)["predictions"]
    assert result["name"] == name.replace("\u2028", "")


def test_what_is_not_there(client):
    missing = client.get("/etc/passwd")
    assert (missing.status_code, json_of(missing)) == (
        404,
        {"error": "not found; have: /, /predict, /health, /metrics"},
    )
    assert client.get("/predict").status_code == 405
    assert client.post("/health").status_code == 405
    assert client.head("/").status_code == 200
    assert client.get("/docs").status_code == 404, "that page would load scripts from elsewhere"


def test_the_page_lists_every_status(client):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "commands" / "serve.md").read_text()
    code = "".join(file.read_text() for file in (root / "src" / "surefoot" / "serve").glob("*.py"))
    refused = {int(status) for status in re.findall(r"RefusedError\(\s*(\d+)", code)}
    not_there = {client.get("/nowhere").status_code, client.get("/predict").status_code}
    rows = re.findall(r"^- (\d{3}(?:, \d{3})*): ", page, flags=re.MULTILINE)
    named = [int(status) for row in rows for status in row.split(", ")]
    assert sorted(named) == sorted(refused | not_there)


def test_what_is_not_http(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw:
        raw.sendall(b"hello\r\n\r\n")
        result = b"".join(iter(lambda: raw.recv(4096), b""))
    assert result.startswith(b"HTTP/1.1 400 ")
    assert json.loads(result.partition(b"\r\n\r\n")[2])["error"]


def test_a_client_that_leaves_does_no_harm(server, client):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw:
            head = (
                b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: image/png\r\ncontent-length: 999\r\n\r\n"
            )
            raw.sendall(head + b"x")
    assert client.post("/predict", content=picture(), headers=IMAGE).status_code == 200
    assert server.process.poll() is None


def test_health(client, bundle):
    response = client.get("/health")
    assert response.status_code == 200
    assert json_of(response)["ready"] is True
    assert json_of(response)["bundle"] == bundle.name


def test_metrics_are_what_was_done(client, bundle, tmp_path):
    before = counts(client.get("/metrics").text)
    data = [picture(seed, label=seed % 3) for seed in range(4)]
    client.post("/predict", files=files(*data, b"bad"))
    client.post("/predict", content=b"bad", headers=IMAGE)
    after = counts(client.get("/metrics").text)

    def rise(name, **labels):
        key = (f"surefoot_{name}", tuple(sorted(labels.items())))
        return after.get(key, 0) - before.get(key, 0)

    assert rise("images_total", outcome="predicted") == 4
    assert rise("images_total", outcome="refused") == 2
    assert rise("requests_total", path="/predict", code="200") == 1
    assert rise("requests_total", path="/predict", code="415") == 1
    assert rise("predict_seconds_count") == rise("predict_seconds_bucket", le="+Inf") == 2
    assert rise("batch_images_sum") == 4
    confident = [expected(bundle, each, tmp_path)[0].max() for each in data]
    decided = ["accept" if p >= 0.4 else "reject" if p < 0.35 else "review" for p in confident]
    for decision in ("accept", "review", "reject"):
        assert rise("decisions_total", decision=decision) == decided.count(decision)
    assert sum(rise("verdicts_total", verdict=name) for name in ("familiar", "unfamiliar")) == 4
    assert after["surefoot_waiting_images", ()] == 0
    assert after["surefoot_held_bytes", ()] == 0
    assert after["surefoot_info", (("bundle", bundle.name), ("version", surefoot.__version__))] == 1


def test_metrics_are_read_by_prometheus_own_parser(client):
    client.post("/predict", content=picture(), headers=IMAGE)
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    parsed = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert parsed == {
        (name, tuple(sorted(labels))): value for (name, labels), value in counts(response.text).items()
    }


def test_a_slice_of_the_hostile_requests(made):
    """`make fuzz` sends thousands."""
    with served(made[1], "--timeout", 2) as running:
        found, failures = fuzz_server(running.port, 150, seed=19)
        code, _, log = running.end()
    assert not failures
    assert found["200"] > 10
    assert found["400"] > 10
    assert (code, "Traceback" in log) == (0, False), log


def test_a_hundred_clients_at_once(server, client, bundle, tmp_path):
    """Each with connections of its own, in turn one image and three: no error, and the library's answers."""
    data = [picture(seed, label=seed % 3, size=(20 + seed, 28)) for seed in range(12)]
    right = [expected(bundle, each, tmp_path)[0] for each in data]
    before = counts(client.get("/metrics").text)

    async def one(number):
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, verify=False) as own:
            for turn in range(3):
                first = (number + turn) % 10
                some = range(first, first + (3 if turn % 2 else 1))
                response = await own.post("/predict", files=files(*(data[i] for i in some)))
                assert response.status_code == 200
                for i, result in zip(some, response.json()["predictions"], strict=True):
                    got = [result["probabilities"][name] for name in COLOURS]
                    np.testing.assert_allclose(got, right[i], atol=CLOSE)
        return True

    async def everyone():
        return await asyncio.gather(*(one(number) for number in range(100)))

    assert asyncio.run(everyone()) == [True] * 100
    after = counts(client.get("/metrics").text)
    images = ("surefoot_images_total", (("outcome", "predicted"),))
    assert after[images] - before[images] == 100 * (1 + 3 + 1)
    key = ("surefoot_batch_images_sum", ())
    assert after[key] - before[key] == 500
