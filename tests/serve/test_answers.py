"""Answers in this process: of many labels, of bundles without thresholds or a verdict, of odd values."""

import asyncio
import json
import math
import os
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import surefoot
from surefoot.decisions.decision import Rule
from surefoot.deploy.bundle import Preprocessing
from surefoot.lab.images.decode import refusing_bombs
from surefoot.serve import app
from surefoot.serve.app import Metrics, Page
from surefoot.serve.batching import Predictor
from surefoot.serve.limits import Capacity, Limits, RefusedError, Watch
from surefoot.serve.uploads import Upload
from surefoot.serve.window import ShiftWindow
from surefoot.text import visible
from tests.serve.made import bundled, counts, picture


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return surefoot.load_bundle(bundled(tmp_path_factory.mktemp("many"), "single", many=True)[1])


def html(predictor):
    return Page.of(predictor, Limits()).html(ShiftWindow(predictor.bundle, Watch()).document())


def test_many_labels(many):
    predictor = Predictor(many, None, "cpu")
    views = [predictor.preprocess(picture(seed), 10**6) for seed in range(5)]
    for result, view in zip(predictor.predict(views), views, strict=True):
        p = many.predict(view[None]).probs()[0]
        assert result["labels"] == [name for name, has in zip(many.class_names, p >= 0.5, strict=True) if has]
        assert result["confidence"] == pytest.approx(np.maximum(p, 1 - p).min(), abs=1e-6)
        assert (result["decision"], "label" in result) == (None, False)
    page = html(predictor)
    assert "any number of 3 classes" in page
    assert "this method is not calibrated" in page
    assert "Accept, review, reject" not in page


def test_other_thresholds_and_a_bundle_without_a_verdict(many):
    old = replace(many, familiar=None)
    thresholds = Rule(math.inf, 0.2)
    predictor = Predictor(old, thresholds, "cpu")
    (result,) = predictor.predict([torch.zeros(old.shape)])
    assert (result["verdict"], result["decision"]) == (None, "review")
    page = html(predictor)
    assert "This bundle has no limit of novelty, so predictions are not marked." in page
    assert "By confidence: nothing is accepted, rejected below 0.2, reviewed otherwise." in page
    assert "accepted at 0.9 or more, nothing is rejected," in html(Predictor(old, Rule(0.9, 0.0), "cpu"))


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_an_answer_does_not_depend_on_what_stands_beside_it(many, rows):
    predictor = Predictor(many, None, "cpu")
    views = [predictor.preprocess(picture(seed), 10**6) for seed in range(rows)]
    all_at_once = predictor.predict(views)
    for result, view in zip(all_at_once, views, strict=True):
        (alone,) = predictor.predict([view])
        for name in many.class_names:
            assert result["probabilities"][name] == pytest.approx(alone["probabilities"][name], abs=1e-6)


def test_large_images_are_decoded_one_at_a_time_and_never_hold_up_small_ones(many, monkeypatch):
    """While six large images wait for one that is decoded, all small ones are answered."""
    predictor, go_on = Predictor(many, None, "cpu"), threading.Event()
    large, small = ([picture(seed, size=size) for seed in range(7)] for size in ((50, 40), (30, 24)))
    expected = [predictor.predict([predictor.preprocess(each, 2000)])[0] for each in large]
    monkeypatch.setattr(app, "LARGE", 1999)
    decoded, plain = [], os.getpriority(os.PRIO_PROCESS, 0)

    class Held(Preprocessing):
        def of_pixels(self, pixels):
            if threading.current_thread().name.startswith("decoding-large"):
                decoded.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
                assert go_on.wait(60)
            return super().of_pixels(pixels)

    predictor.preprocessing = Held(**vars(many.preprocessing))

    async def everything():
        service = app.Service(predictor, Limits(max_pixels=2000))
        async with service.running(None):

            def outcomes(images):
                return [
                    asyncio.create_task(service._outcome(Upload(data=bytearray(each)))) for each in images
                ]

            waiting = outcomes(large)
            answered = await asyncio.wait_for(asyncio.gather(*outcomes(small)), 60)
            assert all("labels" in each for each in answered)
            assert not any(task.done() for task in waiting)
            assert len(decoded) <= 1
            go_on.set()
            (refused,) = await asyncio.gather(*outcomes([picture(size=(50, 41))]))
            assert (refused.status, "50 pixels; allowed: 2,000" in refused.sentence) == (413, True)
            return await asyncio.gather(*waiting)

    results = asyncio.run(everything())
    assert decoded == [min(plain + 10, 19)] * 7, "at a lower priority"
    for result, right in zip(results, expected, strict=True):
        assert result["probabilities"] == pytest.approx(right["probabilities"], abs=1e-6)


def rle_bitmap(width, height, runs):
    palette = bytes(1024)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    start = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + head + palette + runs


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"P5 1000 1000 255\n" + bytes(1_000_000), None),
        (b"P5 100 100 254\n" + bytes(10_000), None),
        (b"P5 400 400 254\n" + bytes(160_000), "a slow kind of PPM, of more than 100,000 pixels or bytes"),
        (b"P2 300 300 255\n" + b"1 " * 90_000, "a slow kind of PPM"),
        (b"P6 #" + b"x" * 100_000 + b"\n1 1 255\n" + bytes(3), "it has more than 100,000 parts"),
        (rle_bitmap(400, 400, b"\0\1"), "a slow kind of BMP"),
        (rle_bitmap(4, 4, b"\0\0" * 60_000), "a slow kind of BMP"),  # lines of no pixels
        (picture(kind="JPEG")[:2] + b"\xff\xfe\0\2" * 2**16 + picture(kind="JPEG")[2:], "100,000 parts"),
        (picture(kind="JPEG")[:2] + b"\xff\xfe\0\2" * 2**12 + picture(kind="JPEG")[2:], None),
    ],
    ids=[
        "binary",
        "few scaled",
        "scaled",
        "text",
        "comment",
        "runs",
        "empty runs",
        "comments",
        "few comments",
    ],
)
def test_what_pillow_would_read_slowly_in_python_is_refused(data, sentence, many):
    """16 MiB of it would take seconds, in which no other thread can go on."""
    found = Predictor(many, None, "cpu").preprocess(data, 10**6)
    if sentence is None:
        assert found.shape == many.shape
    else:
        assert found.status == 400
        assert sentence in found.sentence


def test_what_is_no_image_is_refused_and_never_raised(many):
    predictor = Predictor(many, None, "cpu")
    whole = [picture(kind=kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM")]
    rng = np.random.default_rng(0)
    for data in whole:
        for _ in range(40):  # some bytes changed, then cut off
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 6):
                broken[at] = rng.integers(256)
            with refusing_bombs():
                found = predictor.preprocess(broken[: rng.integers(1, len(data) + 1)], 10**6)
            if isinstance(found, RefusedError):
                assert found.status in (400, 413, 415)
                assert "\n" not in found.sentence
            else:
                assert found.shape == many.shape


def test_a_tiff_is_refused_and_cannot_fill_the_log(many, capfd):
    """libtiff would write a line to standard error for each of 40,000 rows."""
    data, short, long = b"\xc0" * 10_000, 3, 4
    tags = [(256, short, 8), (257, long, 40_000), (258, short, 1), (259, short, 4), (262, short, 0)]
    tags += [(273, long, 8), (277, short, 1), (278, long, 40_000), (279, long, len(data))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    group4 = struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data
    group4 += struct.pack("<H", len(tags)) + entries + bytes(4)
    for tiff in (group4, picture(kind="TIFF")):
        refused = Predictor(many, None, "cpu").preprocess(tiff, 10**8)
        assert capfd.readouterr().err == ""
        assert refused.status == 415
        assert refused.sentence.endswith("supported format: JPEG, PNG, WEBP, BMP, GIF, PPM")


def test_metrics_escape_what_they_name():
    nasty = 'a"b\\c\nd\x1b[31m\u202e'
    text = Metrics(Capacity(Limits()), {"bundle": nasty}).text().decode()
    (labels,) = [labels for name, labels in counts(text) if name == "surefoot_info"]
    assert json.loads(f'"{labels[0][1]}"') == visible(nasty)
