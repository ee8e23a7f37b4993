"""Inputs from a random generator: valid predictions in every format, and files that are damaged or hostile."""

import datetime
import decimal
import io
import os
import socket
import struct
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tests.fuzz.oracle import IGNORE, LEAST

NASTY = (
    "", " ", "a ", " a", "a", "A", "-100", "100", "label", "labels", "logit", "s", "_a", "1", "01", "1.0", "+1", "0",
    "=1+1", "@x", "-2+3", "[bold]x[/bold]", "[/]", "\x1b[31mred\x1b[0m", "a\nb", "a\rb", "a\tb", "a,b", 'quo"te', "'",
    "é", "e\u0301", "\u0663", "\u202eabc", "\u200b", "nan", "NaN", "None", "null", "true", "inf", "1e5", "0x10",
    "x" * 3000, "<script>alert(1)</script>", "{{7*7}}", "$x$", "\\input{x}", "%s", "..", "/", "\x00", "\ufeffa",
    "logit_a", "label_a", "groups", "ids", "novelty", "\U0001f600", "a;b", "a|b", "`x`", "#", "&amp;", "\x7f", "\x85",
)  # fmt: skip
DTYPES = (
    "?", "i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", ">u8", "<f2", ">f2", "<f4", ">f4",
    "<f8", ">f8", "g", "F", "D", "U3", "S3", "M8[s]", "m8[D]", "V4", "O",
)  # fmt: skip
EDGES = (
    0, 1, -1, 2, 0.5, 1e-308, 5e-324, 1e100, -1e100, 1e101, 1e300, np.nan, np.inf, -np.inf, IGNORE, -101, 127, 128, 156,
    255, 2**31, -(2**31), 2**32 - 100, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 100, 2**64 - 1, 10**30,
)  # fmt: skip


def pick(rng, choices):
    """One of them, in its own type."""
    return choices[int(rng.integers(len(choices)))]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Valid predictions, as the reader must understand them."""

    logits: np.ndarray  # (members, n, classes)
    labels: np.ndarray
    names: tuple | None = None
    exact: bool = True  # float64: confidences are the oracle's to 12 decimals

    @property
    def many(self):
        return self.labels.ndim == 2

    @property
    def n(self):
        return self.logits.shape[1]


def draw(rng, *, many=None, members=None, least=1, n=None, classes=None):
    """Predictions of random size, sharpness, ties, label quality and gaps; at least one label is known."""
    many = rng.random() < 0.3 if many is None else many
    members = (1 if rng.random() < 0.75 else int(rng.integers(2, 4))) if members is None else members
    n = max(least, pick(rng, [1, 2, 3, 5, 9, 10, 11, 20, 37, 60, 150]) if n is None else n)
    classes = pick(rng, [2, 2, 3, 4, 5, 12, 33]) if classes is None else classes
    logits = 2 * rng.standard_normal((members, n, classes))
    noise = rng.logistic(size=(n, classes)) if many else rng.gumbel(size=(n, classes))
    truth = logits[0] + noise * rng.choice([0.3, 1, 3])
    labels = (truth > 0).astype(np.int64) if many else truth.argmax(axis=1)
    logits *= rng.choice([0.01, 0.3, 1, 1, 2, 5, 40] if members == 1 else [0.3, 1, 2])  # certain members tie
    if members == 1 and rng.random() < 0.3:
        logits = np.round(logits * 2) / 2 if rng.random() < 0.8 else np.zeros_like(logits)
    if rng.random() < 0.3:
        gaps = rng.random(labels.shape) < rng.choice([0.1, 0.6])
        gaps.reshape(-1)[int(rng.integers(gaps.size))] = False
        labels = np.where(gaps, IGNORE, labels)
    return Drawn(logits, labels)


def nasty_names(rng, classes):
    """Distinct strings, some of them nasty."""
    names = [str(name) for name in rng.choice(NASTY, size=min(classes, 5), replace=False)]
    return tuple(names + [f"c{index}" for index in range(classes - len(names))])


def as_probs(drawn, rng):
    """The same predictions as probabilities, of which some are exactly 0; float64."""
    z = drawn.logits
    if drawn.many:
        probs = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
        logits = np.log(np.maximum(probs, LEAST)) - np.log(np.maximum(1 - probs, LEAST))
        return probs, replace(drawn, logits=logits)
    probs = np.exp(z - z.max(axis=2, keepdims=True))
    if rng.random() < 0.3:
        probs[probs < 0.05] = 0.0
    probs /= probs.sum(axis=2, keepdims=True)
    return probs, replace(drawn, logits=np.log(np.maximum(probs, LEAST)))


def write(drawn, path, rng, *, probs=False):
    """Write valid predictions in one of the ways that a format allows; what the reader must understand."""
    scale, values = "logit", drawn.logits
    if probs:
        scale = "prob"
        values, drawn = as_probs(drawn, rng)
    if path.suffix == ".npz":
        return _write_npz(drawn, path, rng, f"{scale}s", values)
    if path.suffix == ".parquet" and (len(values) > 1 or rng.random() < 0.4):
        table, drawn = _list_table(drawn, scale, values)
    else:
        table, drawn = _wide_table(drawn, scale, values, rng)
    if path.suffix == ".csv":
        written(path, pyarrow.csv.write_csv, table)
    else:
        size = int(rng.integers(1, drawn.n + 1))
        codec = pick(rng, ["snappy", "none", "zstd", "gzip"])
        written(path, pyarrow.parquet.write_table, table, row_group_size=size, compression=codec)
    return drawn


def _write_npz(drawn, path, rng, name, values):
    if name == "logits" and rng.random() < 0.4:
        kind = pick(rng, ["f4", "f2", ">f8", ">f4", "g"])
        with np.errstate(over="ignore"):
            cast = values.astype(kind)
        if np.isfinite(cast).all():
            values = cast
            drawn = replace(drawn, logits=values.astype(np.float64), exact=kind in (">f8", "g"))
    labels = drawn.labels
    if rng.random() < 0.5:
        unsigned = ["u1", "u8", "u4", "u2"] if labels.min() >= 0 else []
        labels = labels.astype(pick(rng, ["i2", "i4", "<f8", ">i8", "f4", "i1", *unsigned]))
    arrays = {name: values[0] if len(values) == 1 and rng.random() < 0.7 else values, "labels": labels}
    if rng.random() < 0.3:
        arrays["ids"] = np.array([f"r{row}" for row in range(drawn.n)])
    if rng.random() < 0.3:
        arrays["novelty"] = rng.random(drawn.n)
    if drawn.names is not None:
        arrays["classes"] = np.array(drawn.names)
    if rng.random() < 0.2:
        arrays["attributes"] = np.frombuffer(arrow_bytes(rng, drawn.n), np.uint8)
    (np.savez if rng.random() < 0.8 else np.savez_compressed)(path, **arrays)
    stripped = None if drawn.names is None else tuple(str(name) for name in arrays["classes"])
    return replace(drawn, names=stripped)


def arrow_bytes(rng, n):
    """An Arrow stream of some columns of that length."""
    columns = {"site": pa.array([f"s{row % 3}" for row in range(n)])}
    if rng.random() < 0.5:
        columns["age"] = pa.array([None if row % 4 == 0 else row for row in range(n)], pa.int32())
    if rng.random() < 0.3:
        columns["kind"] = pa.array([f"k{row % 2}" for row in range(n)]).dictionary_encode()
    if rng.random() < 0.3:
        columns["list"] = pa.array([[row] * (row % 3) for row in range(n)])
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def written(path, write_to, table, **options):
    """Write by a function of Arrow, which takes no path that is not UTF-8."""
    sink = io.BytesIO()
    write_to(table, sink, **options)
    path.write_bytes(sink.getvalue())


def _list_table(drawn, scale, values):
    lists = values[0].tolist() if len(values) == 1 else values.transpose(1, 0, 2).tolist()
    columns = {f"{scale}s": lists, "labels" if drawn.many else "label": drawn.labels.tolist()}
    return pa.table(columns), replace(drawn, names=None)


def _wide_table(drawn, scale, values, rng):
    classes = values.shape[2]
    if classes == 2 and not drawn.many and rng.random() < 0.4:
        column = odds = values[0, :, 1] - values[0, :, 0]
        if scale == "prob":
            column = values[0, :, 1]
            odds = np.log(np.maximum(column, LEAST)) - np.log(np.maximum(1 - column, LEAST))
        read = replace(drawn, logits=np.stack([0 * odds, odds], axis=1)[None], names=None)
        return pa.table({scale: column, "label": drawn.labels}), read
    names = drawn.names or tuple(f"c{index}" for index in range(classes))
    columns = {f"{scale}_{name}": values[0, :, i] for i, name in enumerate(names)}
    if drawn.many:
        columns |= {f"label_{name}": drawn.labels[:, i] for i, name in enumerate(names)}
    elif rng.random() < 0.5 and drawn.names is None:
        columns["label"] = drawn.labels
    else:
        columns["label"] = [names[label] if label >= 0 else str(IGNORE) for label in drawn.labels]
    if rng.random() < 0.3:
        columns["site"] = [f"s{row % 3}" for row in range(drawn.n)]
    if rng.random() < 0.2:
        columns["novelty"] = rng.random(drawn.n)
    return pa.table(columns), replace(drawn, names=tuple(names))


# Damage


def damaged(data, rng):
    """The bytes with one to three kinds of damage."""
    for _ in range(pick(rng, [1, 1, 2, 3])):
        data = pick(rng, DAMAGE)(data, _spot(data, rng), rng) if data else data
    return data


def _spot(data, rng, width=1):
    return int(rng.integers(max(1, len(data) - width + 1)))


def _replaced(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def _flip(data, at, rng):
    for _ in range(pick(rng, [1, 1, 2, 8, 64])):
        data = _replaced(data, at, bytes([data[at] ^ 1 << int(rng.integers(8))]))
        at = _spot(data, rng)
    return data


def _extreme(data, at, rng):
    """Zeros, ones, or the largest or least number of some bytes."""
    fill, width = pick(rng, [0, 1, 0x7F, 0x80, 0xFF]), pick(rng, [1, 2, 4, 8])
    number = bytes([0xFF] * (width - 1) + [0x7F]) if fill == 0x7F else bytes([fill]) * width
    return _replaced(data, _spot(data, rng, width), number)


def _digits(data, at, rng):
    places = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return _flip(data, at, rng)
    at = pick(rng, places)
    text = pick(rng, ["9" * 400, "-1", "1e999", "nan", "0", "99999999999999999999", "1_0", "", "true", "٣"])
    return data[:at] + text.encode() + data[at + 1 :]


DAMAGE = (
    _flip, _flip, _flip, _extreme, _extreme, _digits,
    lambda data, at, _: data[:at],
    lambda data, at, _: data[at:],
    lambda data, at, rng: data[:at] + data[at + pick(rng, [1, 4, 100]) :],
    lambda data, at, rng: data[: at + pick(rng, [1, 8, 200])] + data[at:],
    lambda data, at, rng: _replaced(data, at, rng.bytes(pick(rng, [1, 4, 8, 64]))),
)  # fmt: skip


def rewritten_npz(data, rng):
    """An .npz whose members, headers or zip fields are damaged while its checksums are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = int(rng.integers(len(members)))
    name, content = members[at]
    how = pick(rng, ["member", "header", "header", "header", "zip", "extra", "drop", "repeat"])
    if how == "member":
        members[at] = (name, damaged(content, rng))
    elif how == "header":
        members[at] = (name, npy_with_header(content, rng))
    elif how == "drop":
        del members[at]
    elif how == "extra":
        names = ["x.npy", "../x.npy", "logits", "logits.npy/", "\x1b[0m.npy"]
        members.append((pick(rng, names), b"\x93NUMPY"))
    elif how == "repeat":
        members.append(members[at])
    sink = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(sink, "w", pick(rng, METHODS)) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for member in members:
            archive.writestr(*member)
    return _zip_fields(sink.getvalue(), rng) if how == "zip" else sink.getvalue()


METHODS = (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
# Encrypted, compressed by an unknown method, of an announced size of exabytes.
ZIP_FIELDS = (
    (6, 1), (6, 1 << 6), (8, 12), (8, 14), (8, 93), (8, 97), (8, 9), (8, 65535), (22, 2**31 - 1), (18, 2**31 - 1),
    (22, 2**32 - 1), (6, 1 << 11), (6, 8),
)  # fmt: skip


def _zip_fields(data, rng):
    """The first member with another value in a field of its two headers."""
    field, value = pick(rng, ZIP_FIELDS)
    for signature, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        at = data.find(signature) + field + shift
        data = _replaced(data, at, value.to_bytes(2 if field < 10 else 4, "little"))
    return data


SHAPES = (
    "()", "(0,)", "(1,)", "(-1,)", "(10**3,)", "(1000000000000000,)", "(9223372036854775807,)", "(99999999999999999999999,)",
    "(1, 1, 1, 1, 1)", "(3, 4)", "(2.5,)", "('a',)", "(True,)", "5", "(4611686018427387904, 4)",
    "(65536, 65536, 65536, 65536)", "(0, 3)", "(3, 0)",
)  # fmt: skip
DESCRIPTIONS = (
    "'|O'", "'<U1000000000'", "'<f8'", "'>f8'", "'<i8'", "'|u1'", "'|V8'", "'<M8[s]'", "'<c16'", "[('a', '<f8')]", "'<f16'",
    "'|b1'", "'<U0'", "'|S1'", "'junk'", "5", "None", "[]", "('<f8', (2,))", "'<f2'", "'<u8'", "[('a', '|O')]",
)  # fmt: skip
HEADERS = ("{", "", "{}", "__import__('os')", "(" * 5000, "{'descr': '<f8'}", "\x00", "[1" * 900, "9" * 5000)


def npy_with_header(content, rng):
    """An array whose header announces another type, shape or order; or is no header."""
    start = content.find(b"\n") + 1
    text = content[10:start].decode("latin1").strip()
    text = [
        text[: text.find("'shape'")] + f"'shape': {pick(rng, SHAPES)}, }}",
        "{'descr': " + pick(rng, DESCRIPTIONS) + text[text.find(", 'fortran_order'") :],
        pick(rng, HEADERS),
    ][pick(rng, [0, 0, 1, 1, 2])]
    header = text.encode("latin1") + b"\n"
    version = pick(rng, [1, 1, 1, 2, 3, 9])
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    if rng.random() < 0.1:
        size = b"\xff" * len(size)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + content[start:]


def odd_npz(path, rng):
    """An .npz of well-formed arrays of any type, shape and value."""
    n, classes = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    names = ["logits", "probs", "labels", "groups", "ids", "classes", "novelty", "attributes"]
    shapes = [(), (n,), (n, classes), (2, n, classes), (n, 1), (0,), (classes,), (1, 1, n, classes), (n, 0)]
    chosen = rng.choice(names, size=int(rng.integers(1, 6)), replace=False)
    arrays = {str(name): odd_array(rng, pick(rng, shapes)) for name in chosen}
    if rng.random() < 0.7:
        arrays["logits"] = rng.standard_normal((n, classes))
        arrays.pop("probs", None)
    if rng.random() < 0.7:
        arrays["labels"] = odd_array(rng, (n,)) if rng.random() < 0.5 else rng.integers(0, classes, n)
    np.savez(path, **arrays)


def odd_array(rng, shape):
    """An array of any type whose values are edge cases."""
    kind, size = pick(rng, DTYPES), int(np.prod(shape))
    if kind == "O":
        return np.array(pick(rng, [[1, 2], "a", None]), dtype=object)
    if kind in ("V4", "M8[s]", "m8[D]"):
        return np.frombuffer(rng.bytes(np.dtype(kind).itemsize * size), kind).reshape(shape)
    if kind in ("U3", "S3"):
        texts = [pick(rng, NASTY)[:3] for _ in range(size)]
        return np.array([text if kind == "U3" else text.encode() for text in texts], kind).reshape(shape)
    chosen = [pick(rng, EDGES) if rng.random() < 0.3 else int(rng.integers(3)) for _ in range(size)]
    with np.errstate(all="ignore"):
        if np.dtype(kind).kind in "iu":
            least, most = np.iinfo(kind).min, np.iinfo(kind).max
            chosen = [int(v) if np.isfinite(float(v)) and least <= v <= most else 1 for v in chosen]
            return np.array(chosen, dtype=kind).reshape(shape)
        return np.array([float(v) for v in chosen]).astype(kind).reshape(shape)


COLUMNS = (
    "logits", "probs", "label", "labels", "logit_a", "logit_b", "logit_", "prob_a", "prob_b", "label_a", "label_b", "groups",
    "ids", "novelty", "logit", "prob", "path", "confidence", "site",
)  # fmt: skip
METADATA = (
    '{"class_names": ["a", "a"]}', '{"class_names": 5}', "[", '{"label": "index"}', "null", "[" * 3000,
    '{"class_names": ["a", "b"], "label": "index"}', '{"class_names": ["a"]}', '{"class_names": [""]}',
)  # fmt: skip
CELLS = (
    "", "nan", "inf", "-inf", "1e999", "9" * 400, "0.5", "1", "0", "-100", "a", "b", " 1", "1 ", "0x1", "true", "\x00",
    "\x1b[2J", "é", "1,5", "-99999999999999999999", "1e-400", "2.0", "٣",
)  # fmt: skip


def odd_table(path, rng):
    """A table with any columns of any Arrow type, repeated and strangely named ones included."""
    n = pick(rng, [0, 1, 3, 8])
    names = [pick(rng, COLUMNS if rng.random() < 0.85 else NASTY) for _ in range(int(rng.integers(1, 7)))]
    if path.suffix == ".csv":
        rows = [names, *([odd_cell(rng) for _ in names] for _ in range(n))]
        lines = [",".join(quoted(cell, rng) for cell in row) for row in rows]
        end = "\r\n" if rng.random() < 0.2 else "\n"
        path.write_bytes(end.join(lines).encode("utf-8", "surrogatepass"))
        return
    metadata = {b"surefoot": pick(rng, METADATA).encode()} if rng.random() < 0.3 else None
    table = pa.Table.from_arrays([_odd_column(rng, n) for _ in names], names=names)
    written(path, pyarrow.parquet.write_table, table.replace_schema_metadata(metadata))


def odd_cell(rng):
    return pick(rng, CELLS) if rng.random() < 0.5 else f"{rng.standard_normal():.3f}"


def quoted(text, rng):
    return '"' + text.replace('"', '""') + '"' if rng.random() < 0.8 else text


# A value that is repeated, and its type.
REPEATED = (
    (None, pa.null()), (True, pa.bool_()), (b"x", pa.binary()), ({"a": 1}, pa.struct([("a", pa.int64())])),
    (datetime.datetime(2020, 1, 1), pa.timestamp("s")), ("a", pa.dictionary(pa.int32(), pa.string())),
    (decimal.Decimal("1.5"), pa.decimal128(5, 2)), ([[1.0, 2.0]], pa.list_(pa.list_(pa.float64()))),
    ([("a", 1)], pa.map_(pa.string(), pa.int64())), (1.5, pa.float32()), ("a", pa.large_string()),
    (datetime.timedelta(1), pa.duration("s")), (np.float16(1), pa.float16()),
    ([[[1.0]]], pa.list_(pa.list_(pa.list_(pa.float64())))),
)  # fmt: skip


def _odd_column(rng, n):
    kind = pick(rng, ["f", "f", "f", "i", "i", "s", "list", "list", "gaps", "other"])
    if kind == "f":
        floats = rng.standard_normal(n)
        if n and rng.random() < 0.2:
            floats[0] = pick(rng, [np.nan, np.inf, 1e200, -1e308])
        return pa.array(floats)
    if kind == "i":
        return pa.array(rng.integers(0, 2, n), pick(rng, [pa.int64(), pa.uint8(), pa.int8(), pa.uint64()]))
    if kind == "s":
        return pa.array([pick(rng, ["a", "b", "1", "-100", ""]) for _ in range(n)], pa.string())
    if kind == "gaps":
        return pa.array([None if rng.random() < 0.3 else 1.0 for _ in range(n)], pa.float64())
    if kind == "other":
        value, of = pick(rng, REPEATED)
        return pa.array([value] * n, of)
    width = int(rng.integers(0, 4))
    values = [rng.standard_normal(width).tolist() for _ in range(n)]
    if n and rng.random() < 0.2:
        values[-1] = pick(rng, [[1.0] * (width + 1), None, [None]])
    return pa.array(values, pick(rng, [pa.list_(pa.float64()), pa.large_list(pa.float32())]))


def _socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)  # a socket's path has at most 107 bytes
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


SPECIAL = (  # Path.exists leaves nothing there
    os.mkfifo, os.mkdir, _socket, Path.exists, lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"), lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"\0" * 4096),
    *(lambda path, device=device: path.symlink_to(device) for device in ("/dev/null", "/dev/zero", "/dev/tty", "/dev/stdin")),
)  # fmt: skip


def special_file(path, rng):
    """Something that is no regular file, or none that can be read, or nothing."""
    pick(rng, SPECIAL)(path)
