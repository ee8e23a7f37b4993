"""Damaged, hostile and special files: one sentence each, and the interpreter lives."""

import io
import os
import random
import resource
import socket
import struct
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from surefoot import InputError, Predictions, read_predictions, scan_predictions, write_predictions
from surefoot.io import read_json, read_toml
from surefoot.predictions import memory
from surefoot.predictions.readers import parts_of
from tests import warm

LOGITS = np.random.default_rng(0).normal(size=(20, 3))
LABELS = np.arange(20) % 3

# In a process of its own, so that a crash is a failed test and not the end of all tests.
READ_DAMAGED = """
import random, sys
import numpy as np
from surefoot import InputError, read_predictions
with np.load(sys.argv[1]) as file:
    arrays = dict(file)
whole, refused = arrays["attributes"].tobytes(), 0
for seed in range(int(sys.argv[2])):
    rng, data = random.Random(seed), bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    np.savez("damaged.npz", **{**arrays, "attributes": np.frombuffer(bytes(data), np.uint8)})
    try:
        read = read_predictions("damaged.npz")
        for name in read.attributes.column_names:
            read.attributes[name].to_pylist()
    except InputError:
        refused += 1
print(refused)
"""


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(path, *, method=zipfile.ZIP_STORED, **arrays):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in {"logits": LOGITS, "labels": LABELS, **arrays}.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy(array))
    return path


def header(text, shape_bytes=b""):
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + shape_bytes


def announcing(shape, kind="<f8"):
    return header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}", LOGITS.tobytes())


def test_a_damaged_attribute_table_never_crashes_the_interpreter(tmp_path):
    n = 30
    attributes = pa.table(
        {
            "text": [f"name{i}" * (i % 4) for i in range(n)],
            "gaps": pa.array([None if i % 5 == 0 else i for i in range(n)]),
            "coded": pa.array([f"c{i % 3}" for i in range(n)]).dictionary_encode(),
            "lists": pa.array([[i] * (i % 3) for i in range(n)]),
            "nested": pa.array([{"x": i, "y": str(i)} for i in range(n)]),
        }
    )
    predictions = Predictions.from_logits(np.zeros((n, 2)), np.arange(n) % 2, attributes=attributes)
    write_predictions(predictions, tmp_path / "whole.npz")
    done = warm.run(READ_DAMAGED, "whole.npz", 400, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 100


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_flipped_bits_are_one_sentence_or_nothing(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    write_predictions(
        Predictions.from_logits(LOGITS, LABELS, class_names=["a", "b", "ü"], ids=np.arange(20)), path
    )
    whole = path.read_bytes()
    for seed in range(150):
        rng, data = random.Random(seed), bytearray(whole)
        for _ in range(rng.choice([1, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with suppress(InputError):
            read_predictions(path)


@pytest.mark.parametrize("kind", [*"bhilqBHILQefdg", ">i4", ">f8", "<u2"])
def test_labels_of_every_type_of_number_are_read(kind, tmp_path):
    read = read_predictions(npz(tmp_path / "p.npz", labels=LABELS.astype(kind)))
    assert read.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("kind", [*"bhilqBHILQefdg?", ">f4", ">i2"])
def test_logits_of_every_type_of_number_are_read(kind, tmp_path):
    logits = (10 * np.abs(LOGITS)).astype(kind)
    read = read_predictions(npz(tmp_path / "p.npz", logits=logits))
    assert read.logits[0].tolist() == logits.astype(float).tolist()


@pytest.mark.parametrize("name", ["logits", "labels", "novelty", "classes", "groups", "ids"])
@pytest.mark.parametrize(
    "array",
    [
        np.array(1.5),
        np.array("a"),
        np.zeros(20, "F"),
        np.zeros(20, "M8[s]"),
        np.zeros(20, "m8[s]"),
        np.zeros(20, "f4,f4"),
        np.zeros(20, "V4"),
        np.array([b"a"] * 20),
        np.array(["a\ud800"] * 20),
        np.zeros((20, 2, 2, 2)),
    ],
    ids=str,
)
def test_other_arrays_are_refused(name, array, tmp_path):
    with pytest.raises(InputError):
        read_predictions(npz(tmp_path / "p.npz", **{name: array}))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2**64 - 100, *[0] * 19], dtype=np.uint64),
        np.array([2**32 - 100, *[0] * 19]),
        np.array([156, *[0] * 19], dtype=np.uint8),
        np.array([2.0**64 - 100, *[0] * 19]),
    ],
    ids=["uint64", "int32", "uint8", "float"],
)
def test_no_label_wraps_to_the_mark_of_unknown_ones(labels, tmp_path):
    with pytest.raises(InputError, match=r"labels|out of range"):
        read_predictions(npz(tmp_path / "p.npz", labels=labels))
    (tmp_path / "p.csv").write_text(f"logit_a,logit_b,label\n1,2,{2**64 - 100}\n")
    with pytest.raises(InputError, match="20 digits"):
        read_predictions(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (announcing("(1000000000000000, 3)"), r"21\.3 PiB"),
        (announcing("(-20, 3)"), "must be equal"),
        (announcing("()"), "must be equal"),
        (announcing("(20, 3)", "|O"), "Python objects"),
        (announcing("(60,)", "|T8"), "type|header"),
        (header("__import__('os').abort()"), "header that cannot be read"),
        (header("(" * 5000), "header that cannot be read"),
        (b"", "header that cannot be read"),
        (npy(LOGITS)[:50], "header that cannot be read"),
        (npy(LOGITS)[:300], "must be equal"),
    ],
)
def test_headers_that_do_not_fit_their_data_are_refused(array, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        read_predictions(npz(tmp_path / "p.npz", logits=array))


def test_columns_first_is_read_too(tmp_path):
    read = read_predictions(npz(tmp_path / "p.npz", logits=np.asfortranarray(LOGITS)))
    assert read.logits[0].tolist() == LOGITS.tolist()


def patched(path, local, central, value, size):
    """The zip file with a field of every member set, in both of the places that have it."""
    data = bytearray(npz(path).read_bytes())
    for magic, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = data.find(magic)
        while at >= 0:
            data[at + offset : at + offset + size] = value.to_bytes(size, "little")
            at = data.find(magic, at + 4)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("method", [1, 9, 12, 14, 99, 65535])
def test_other_compressions_are_refused(method, tmp_path):
    with pytest.raises(InputError, match=f"method {method}; allowed: not compressed, or deflated"):
        read_predictions(patched(tmp_path / "p.npz", 8, 10, method, 2))


def test_encrypted_and_repeated_arrays_are_refused(tmp_path):
    with pytest.raises(InputError, match="encrypted"):
        read_predictions(patched(tmp_path / "p.npz", 6, 8, 1, 2))
    with (
        zipfile.ZipFile(npz(tmp_path / "p.npz"), "a") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("logits.npy", npy(LOGITS))
    with pytest.raises(InputError, match="'logits' occurs twice"):
        read_predictions(tmp_path / "p.npz")


def test_a_member_cannot_announce_more_than_its_data_can_hold(tmp_path):
    with pytest.raises(InputError, match="announces"):
        read_predictions(patched(tmp_path / "p.npz", 22, 24, 2**31, 4))


def test_compressed_arrays_are_read(tmp_path):
    read = read_predictions(npz(tmp_path / "p.npz", method=zipfile.ZIP_DEFLATED))
    assert read.logits[0].tolist() == LOGITS.tolist()


def special(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        folder = Path.cwd()
        os.chdir(path.parent)  # the whole path may be too long for a socket
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(folder)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_special_files_are_refused_at_once(kind, tmp_path):
    readers = {
        ".npz": [read_predictions],
        ".csv": [read_predictions, lambda path: parts_of([path])],
        ".parquet": [read_predictions, lambda path: parts_of([path])],
        ".json": [lambda path: read_json(path, "a calibration file")],
        ".toml": [read_toml],
    }
    for suffix, functions in readers.items():
        path = tmp_path / f"p{suffix}"
        special(path, kind)
        for read in functions:
            is_empty = kind == "folder" and read is read_predictions
            says = "no predictions in this folder" if is_empty else f"a {kind}; allowed: a regular file"
            with pytest.raises(InputError, match=says):
                read(path)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "9" * 5000, "1e999", str(2**63)])
def test_numbers_of_any_length_are_one_sentence(number, tmp_path):
    (tmp_path / "p.toml").write_text(f"a = {number}\n")
    (tmp_path / "p.json").write_text(f'{{"a": {number}}}')
    for read in (lambda: read_toml(tmp_path / "p.toml"), lambda: read_json(tmp_path / "p.json", "a file")):
        with pytest.raises(InputError) as refused:
            read()
        assert len(str(refused.value)) < 400 + len(str(tmp_path))
    for text in (f"{number},1,a", f"1,1,{number}"):
        (tmp_path / "p.csv").write_text(f"logit_a,logit_b,label\n{text}\n")
        with suppress(InputError):
            assert abs(read_predictions(tmp_path / "p.csv").logits).max() == float(number)


@pytest.mark.parametrize("content", ["[" * 100_000, "{" * 100_000, '{"a":' * 50_000])
def test_deep_nesting_is_refused(content, tmp_path):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InputError, match="not JSON"):
        read_json(tmp_path / "p.json", "a file")
    (tmp_path / "p.toml").write_text(f"a = {content}")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(tmp_path / "p.toml")


def test_a_file_without_end_is_refused_by_its_size(tmp_path):
    with (tmp_path / "p.json").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(InputError, match=r"1\.0 TiB; allowed: at most 64\.0 MiB"):
        read_json(tmp_path / "p.json", "a file")


def test_ids_that_would_fill_the_memory_are_refused(tmp_path):
    ids = ["x" * 10**8, *["y"] * 99_999]
    logits = np.zeros((len(ids), 2))
    with pytest.raises(InputError, match="ids of up to 100,000,000 characters would take"):
        Predictions.from_logits(logits, np.zeros(len(ids), int), ids=ids)


def test_every_header_is_checked_before_the_first_array_is_read(tmp_path):
    """A few kilobytes of zeros can stand for gigabytes."""
    np.savez_compressed(tmp_path / "p.npz", logits=np.zeros((2**20, 8)), labels=np.zeros(5, complex))
    tracemalloc.start()
    with pytest.raises(InputError, match="array 'labels' has type complex128; allowed: numbers and text"):
        read_predictions(tmp_path / "p.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23  # the logits have 2**26 bytes


def test_an_allocation_beyond_the_available_memory_is_refused_while_data_are_decoded(monkeypatch):
    """A kilobyte of a .parquet can stand for gigabytes, and nothing in its metadata can be trusted to say so."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(memory, "available_memory", lambda: 2.0**20)
    np.empty(4 * 2**30, dtype=np.uint8)  # is promised: it is not written to
    refused = pytest.raises(InputError, match=r"do not fit into memory; allowed: what is available, 1\.0 MiB")
    with refused, memory.limited_memory(), memory.limited_memory():
        np.empty(4 * 2**30, dtype=np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_a_name_that_is_not_utf_8_can_be_written_and_read(tmp_path, suffix):
    path = tmp_path / "\udcff" / f"\udcfe{suffix}"
    path.parent.mkdir()
    write_predictions(Predictions.from_logits(LOGITS, LABELS), path)
    assert np.array_equal(read_predictions(path).logits[0], LOGITS)
    if suffix != ".npz":
        assert scan_predictions(path).classes == 3


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", "-Infinity", "1e999", "9" * 30])
def test_json_that_other_programs_would_not_read_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(f'{{"a": {text}}}')
    with pytest.raises(InputError, match="is not a calibration: not JSON"):
        read_json(tmp_path / "a.json", "a calibration")
