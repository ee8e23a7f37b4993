"""Forms are read the same however they are cut into pieces, and nothing is held that was let go."""

import email
import email.policy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot import InputError
from surefoot.serve.limits import Capacity, Limits, RefusedError
from surefoot.serve.uploads import Form

LIMITS = Limits(max_images=4, max_image_bytes=40)
EDGE = b"\r\n--edge"
CONTENT = st.binary(max_size=60).filter(lambda data: b"--edge" not in data)


def body(contents):
    parts = [
        b'--edge\r\nContent-Disposition: form-data; name="i"; filename="%d"\r\n\r\n%s\r\n' % (i, data)
        for i, data in enumerate(contents)
    ]
    return b"".join(parts) + b"--edge--\r\n"


def by_the_standard_library(data):
    head = b"Content-Type: multipart/form-data; boundary=edge\r\n\r\n"
    message = email.message_from_bytes(head + data, policy=email.policy.HTTP)
    return [part.get_filename() for part in message.iter_parts()]


@settings(max_examples=60, deadline=None)
@given(st.lists(CONTENT, min_size=1, max_size=4), st.lists(st.integers(0, 300), max_size=12))
def test_any_pieces_give_the_same_files(contents, cuts):
    whole, capacity = body(contents), Capacity(LIMITS)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    with capacity.request() as memory:
        form = Form(b"edge", LIMITS, memory)
        for start, end in pairwise(edges):
            form.write(whole[start:end])
        form.close()
        found = form.uploads()
        assert [each.name for each in found] == by_the_standard_library(whole)
        for each, data in zip(found, contents, strict=True):
            assert bytes(each.data) == (data if len(data) <= 40 else b"")
            assert (each.refused is not None) == (len(data) > 40)
        assert capacity.bytes == sum(len(data) for data in contents if len(data) <= 40)
    assert capacity.bytes == 0


def test_one_image_is_one():
    capacity = Capacity(Limits(max_images=1, max_waiting=1))
    with (
        pytest.raises(RefusedError, match=r"^the form has more than 1 image, the most allowed$"),
        capacity.request() as memory,
    ):
        Form(b"edge", capacity.limits, memory).write(body([b"abc"] * 2))
    with (
        pytest.raises(RefusedError, match=r"^1 image is waiting already"),
        capacity.queued(1),
        capacity.queued(1),
    ):
        raise AssertionError("there was no capacity")


def test_a_request_that_fails_leaves_nothing_behind():
    capacity = Capacity(LIMITS)
    with pytest.raises(RefusedError), capacity.request() as memory:
        Form(b"edge", LIMITS, memory).write(body([b"abc"] * 9))
    assert capacity.bytes == 0
    with pytest.raises(RefusedError), capacity.queued(1), capacity.queued(512):
        raise AssertionError("there was no capacity")
    assert capacity.waiting == 0


@pytest.mark.parametrize("headers", [b"a: " + b"b" * 10**5, b"a: b\r\n" * 100])
def test_a_part_s_headers_are_limited(headers):
    """By python-multipart, from 0.0.27 on: they count nowhere else."""
    with Capacity(LIMITS).request() as memory, pytest.raises(RefusedError, match="the form is broken"):
        Form(b"edge", LIMITS, memory).write(b"--edge\r\n" + headers)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"timeout": 0}, "timeout is 0; allowed: a positive number"),
        ({"timeout": float("nan")}, "timeout is nan; allowed: a positive number"),
        ({"max_bytes": -1}, "max_bytes is -1"),
        ({"max_waiting": 3}, "max_waiting is 3, below max_images, which is 64; allowed: at least as many"),
    ],
)
def test_limits_that_cannot_be(values, says):
    with pytest.raises(InputError, match=says):
        Limits(**values)
