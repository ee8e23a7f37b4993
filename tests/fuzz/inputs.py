"""Inputs from a random generator: valid predictions in every format, and files that are damaged or hostile."""

import io
import os
import socket
import struct
import zipfile
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, eq=False)
class Drawn:
    """Valid predictions, as the reader must understand them."""

    logits: np.ndarray  # (members, n, classes)
    labels: np.ndarray
    names: tuple | None = None
    exact: bool = True  # float64: confidences are the oracle's to 12 decimals
    smooth: bool = True  # no two confidences are equal by intention

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
    n = int(rng.choice([1, 2, 3, 5, 9, 10, 11, 20, 37, 60, 150])) if n is None else n
    n = max(n, least)
    classes = int(rng.choice([2, 2, 3, 4, 5, 12, 33])) if classes is None else classes
    logits = 2 * rng.standard_normal((members, n, classes))
    noise = rng.logistic(size=(n, classes)) if many else rng.gumbel(size=(n, classes))
    truth = logits[0] + noise * rng.choice([0.3, 1, 3])
    labels = (truth > 0).astype(np.int64) if many else truth.argmax(axis=1)
    logits *= rng.choice([0.01, 0.3, 1, 1, 2, 5, 40] if members == 1 else [0.3, 1, 2])  # certain members tie
    smooth = True
    if members == 1 and rng.random() < 0.3:
        smooth = False
        logits = np.round(logits * 2) / 2 if rng.random() < 0.8 else np.zeros_like(logits)
    if rng.random() < 0.3:
        gaps = rng.random(labels.shape) < rng.choice([0.1, 0.6])
        gaps.reshape(-1)[int(rng.integers(gaps.size))] = False
        labels = np.where(gaps, IGNORE, labels)
    return Drawn(logits, labels, smooth=smooth)


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
        _written(path, pyarrow.csv.write_csv, table)
    else:
        size = int(rng.integers(1, drawn.n + 1))
        codec = str(rng.choice(["snappy", "none", "zstd", "gzip"]))
        _written(path, pyarrow.parquet.write_table, table, row_group_size=size, compression=codec)
    return drawn


def _write_npz(drawn, path, rng, name, values):
    if name == "logits" and rng.random() < 0.4:
        kind = rng.choice(["f4", "f2", ">f8", ">f4", "g"])
        with np.errstate(over="ignore"):
            cast = values.astype(kind)
        if np.isfinite(cast).all():
            values = cast
            exact = kind in (">f8", "g")
            drawn = replace(
                drawn, logits=values.astype(np.float64), exact=exact, smooth=drawn.smooth and exact
            )
    labels = drawn.labels
    if rng.random() < 0.5:
        kinds = ["i2", "i4", "<f8", ">i8", "f4", "i1"] + (
            ["u1", "u8", "u4", "u2"] if labels.min() >= 0 else []
        )
        labels = labels.astype(rng.choice(kinds))
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


def _written(path, write_to, table, **options):
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
        column = values[0, :, 1] - values[0, :, 0] if scale == "logit" else values[0, :, 1]
        if scale == "logit":
            drawn = replace(drawn, logits=np.stack([0 * column, column], axis=1)[None])
        else:
            odds = np.log(np.maximum(column, LEAST)) - np.log(np.maximum(1 - column, LEAST))
            drawn = replace(drawn, logits=np.stack([0 * odds, odds], axis=1)[None])
        table = {scale: column, "label": drawn.labels}
        return pa.table(table), replace(drawn, names=None)
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
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        data = rng.choice(DAMAGE)(data, rng) if data else data
    return data


def _spot(data, rng, width=1):
    return int(rng.integers(max(1, len(data) - width + 1)))


def _flip(data, rng):
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 2, 8, 64]))):
        changed[_spot(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _cut(data, rng):
    return data[: _spot(data, rng)]


def _head_cut(data, rng):
    return data[_spot(data, rng) :]


def _without(data, rng):
    at = _spot(data, rng)
    return data[:at] + data[at + int(rng.choice([1, 4, 100])) :]


def _doubled(data, rng):
    at = _spot(data, rng)
    return data[: at + int(rng.choice([1, 8, 200]))] + data[at:]


def _noise(data, rng):
    at, width = _spot(data, rng), int(rng.choice([1, 4, 8, 64]))
    return data[:at] + rng.bytes(width) + data[at + width :]


def _extreme(data, rng):
    number = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
    width = int(rng.choice([1, 2, 4, 8]))
    at = _spot(data, rng, width)
    fill = bytes([0xFF] * (width - 1) + [0x7F]) if number == 0x7F else bytes([number]) * width
    return data[:at] + fill + data[at + width :]


def _digits(data, rng):
    places = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return _flip(data, rng)
    at = int(rng.choice(places))
    text = str(
        rng.choice(["9" * 400, "-1", "1e999", "nan", "0", "99999999999999999999", "1_0", "", "true", "٣"])
    )
    return data[:at] + text.encode() + data[at + 1 :]


DAMAGE = (_flip, _flip, _flip, _cut, _head_cut, _without, _doubled, _noise, _extreme, _extreme, _digits)


def rewritten_npz(data, rng):
    """An .npz whose members, headers or zip fields are damaged while its checksums are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = str(rng.choice(sorted(members)))
    how = rng.choice(["member", "header", "header", "header", "zip", "extra", "drop", "repeat"])
    if how == "member":
        members[name] = damaged(members[name], rng)
    elif how == "header":
        members[name] = npy_with_header(members[name], rng)
    elif how == "drop":
        del members[name]
    elif how == "extra":
        members[str(rng.choice(["x.npy", "../x.npy", "logits", "logits.npy/", "\x1b[0m.npy"]))] = b"\x93NUMPY"
    sink = io.BytesIO()
    with zipfile.ZipFile(
        sink, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED
    ) as archive:
        for key, content in members.items():
            archive.writestr(key, content)
        if how == "repeat":
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(name, members[name])
    return _zip_fields(sink.getvalue(), rng) if how == "zip" else sink.getvalue()


def _zip_fields(data, rng):
    """A member that is encrypted, compressed by an unknown method, or of an announced size of exabytes."""
    changed = bytearray(data)
    field, value = [
        (6, 1), (6, 1 << 6), (8, 12), (8, 14), (8, 93), (8, 97), (8, 9), (8, 65535), (22, 2**31 - 1), (18, 2**31 - 1),
        (22, 2**32 - 1), (6, 1 << 11), (6, 8),
    ][int(rng.integers(13))]  # fmt: skip
    width = 2 if field < 10 else 4
    for signature, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        at = changed.find(signature)
        changed[at + field + shift : at + field + shift + width] = value.to_bytes(width, "little")
    return bytes(changed)


def npy_with_header(content, rng):
    """An array whose header announces another type, shape or order; or is no header."""
    kind = rng.choice(["shape", "shape", "descr", "descr", "raw"])
    shape = str(rng.choice(["()", "(0,)", "(1,)", "(-1,)", "(10**3,)", "(1000000000000000,)", "(9223372036854775807,)",
                            "(99999999999999999999999,)", "(1, 1, 1, 1, 1)", "(3, 4)", "(2.5,)", "('a',)", "(True,)",
                            "5", "(4611686018427387904, 4)", "(65536, 65536, 65536, 65536)", "(0, 3)", "(3, 0)"]))  # fmt: skip
    descr = str(rng.choice(["'|O'", "'<U1000000000'", "'<f8'", "'>f8'", "'<i8'", "'|u1'", "'|V8'", "'<M8[s]'", "'<c16'",
                            "[('a', '<f8')]", "'<f16'", "'|b1'", "'<U0'", "'|S1'", "'junk'", "5", "None", "[]",
                            "('<f8', (2,))", "'<f2'", "'<u8'", "[('a', '|O')]"]))  # fmt: skip
    start = content.find(b"\n") + 1
    body = content[start:]
    text = content[10:start].decode("latin1").strip()
    if kind == "shape":
        text = text[: text.find("'shape'")] + f"'shape': {shape}, }}"
    elif kind == "descr":
        text = "{'descr': " + descr + text[text.find(", 'fortran_order'") :]
    else:
        choices = [
            "{",
            "",
            "{}",
            "__import__('os')",
            "(" * 5000,
            "{'descr': '<f8'}",
            "\x00",
            "[1" * 900,
            "9" * 5000,
        ]
        text = str(rng.choice(choices))
    header = text.encode("latin1") + b"\n"
    version = bytes([int(rng.choice([1, 1, 1, 2, 3, 9]))]) + b"\x00"
    size = struct.pack("<H", len(header)) if version[0] == 1 else struct.pack("<I", len(header))
    if rng.random() < 0.1:
        size = b"\xff" * len(size)
    return b"\x93NUMPY" + version + size + header + body


def odd_npz(path, rng):
    """An .npz of well-formed arrays of any type, shape and value."""
    n, classes = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    arrays = {}
    names = ["logits", "probs", "labels", "groups", "ids", "classes", "novelty", "attributes"]
    for name in rng.choice(names, size=int(rng.integers(1, 6)), replace=False):
        shapes = [
            (),
            (n,),
            (n, classes),
            (2, n, classes),
            (n, 1),
            (0,),
            (classes,),
            (1, 1, n, classes),
            (n, 0),
        ]
        arrays[str(name)] = odd_array(rng, shapes[int(rng.integers(len(shapes)))])
    if rng.random() < 0.7:
        arrays["logits"] = rng.standard_normal((n, classes))
        arrays.pop("probs", None)
    if rng.random() < 0.7:
        arrays["labels"] = odd_array(rng, (n,)) if rng.random() < 0.5 else rng.integers(0, classes, n)
    np.savez(path, **arrays)


def odd_array(rng, shape):
    """An array of any type whose values are edge cases."""
    kind = str(rng.choice(DTYPES))
    size = int(np.prod(shape))
    if kind == "O":
        return np.array([[1, 2], "a", None][int(rng.integers(3))], dtype=object)
    if kind in ("U3", "S3", "V4", "M8[s]", "m8[D]"):
        return np.frombuffer(rng.bytes(16 * size), "u1")[: np.dtype(kind).itemsize * size].view(kind).reshape(shape) if (
            kind in ("V4", "M8[s]", "m8[D]")
        ) else np.array([str(rng.choice(NASTY))[:3] for _ in range(size)]).astype(
            kind if kind == "U3" else "U3"
        ).reshape(shape)  # fmt: skip
    chosen = [
        EDGES[int(rng.integers(len(EDGES)))] if rng.random() < 0.3 else int(rng.integers(3))
        for _ in range(size)
    ]
    with np.errstate(all="ignore"):
        if np.dtype(kind).kind in "iu":
            limits = np.iinfo(kind)
            chosen = [
                int(v) if np.isfinite(float(v)) and limits.min <= v <= limits.max else 1 for v in chosen
            ]
            return np.array(chosen, dtype=kind).reshape(shape)
        return np.array([float(v) for v in chosen]).astype(kind).reshape(shape)


def odd_table(path, rng):
    """A table with any columns of any Arrow type, repeated and strangely named ones included."""
    n = int(rng.choice([0, 1, 3, 8]))
    names, columns = [], []
    for _ in range(int(rng.integers(1, 7))):
        known = ["logits", "probs", "label", "labels", "logit_a", "logit_b", "logit_", "prob_a", "prob_b", "label_a",
                 "label_b", "groups", "ids", "novelty", "logit", "prob", "path", "confidence", "site"]  # fmt: skip
        names.append(str(rng.choice(known)) if rng.random() < 0.85 else str(rng.choice(NASTY)))
        columns.append(_odd_column(rng, n))
    metadata = None
    if rng.random() < 0.3:
        texts = ['{"class_names": ["a", "a"]}', '{"class_names": 5}', "[", '{"label": "index"}', "null", '{"class_names": ["a", "b"], "label": "index"}', "[" * 3000, '{"class_names": ["a"]}', '{"class_names": [""]}']  # fmt: skip
        metadata = {b"surefoot": str(rng.choice(texts)).encode()}
    if path.suffix == ".csv":
        lines = [",".join(_quoted(name, rng) for name in names)]
        lines += [",".join(_quoted(_cell(rng), rng) for _ in names) for _ in range(n)]
        path.write_bytes(
            ("\r\n" if rng.random() < 0.2 else "\n").join(lines).encode("utf-8", "surrogatepass")
        )
        return
    table = pa.Table.from_arrays(columns, names=names).replace_schema_metadata(metadata)
    _written(path, pyarrow.parquet.write_table, table)


def _cell(rng):
    texts = ["", "nan", "inf", "-inf", "1e999", "9" * 400, "0.5", "1", "0", "-100", "a", "b", " 1", "1 ", "0x1", "true",
             "\x00", "\x1b[2J", "é", "1,5", "-99999999999999999999", "1e-400", "2.0", "٣"]  # fmt: skip
    return str(rng.choice(texts)) if rng.random() < 0.5 else f"{rng.standard_normal():.3f}"


def _quoted(text, rng):
    return '"' + text.replace('"', '""') + '"' if rng.random() < 0.8 else text


def _odd_column(rng, n):
    floats = rng.standard_normal(n)
    kind = rng.choice(["f", "f", "f", "i", "i", "s", "list", "list", "gaps", "other"])
    if kind == "f":
        if n and rng.random() < 0.2:
            floats[0] = rng.choice([np.nan, np.inf, 1e200, -1e308])
        return pa.array(floats)
    if kind == "i":
        types = [pa.int64(), pa.uint8(), pa.int8(), pa.uint64()]
        return pa.array(rng.integers(0, 2, n), types[int(rng.integers(4))])
    if kind == "s":
        return pa.array([str(rng.choice(["a", "b", "1", "-100", ""])) for _ in range(n)], pa.string())
    if kind == "gaps":
        return pa.array([None if rng.random() < 0.3 else 1.0 for _ in range(n)], pa.float64())
    if kind == "list":
        width = int(rng.integers(0, 4))
        values = [[float(v) for v in rng.standard_normal(width)] for _ in range(n)]
        if n and rng.random() < 0.2:
            values[-1] = [[1.0] * (width + 1), None, [None]][int(rng.integers(3))]
        kinds = [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float64())]
        return pa.array(values, kinds[int(rng.integers(3))])
    import datetime
    import decimal

    others = [
        pa.nulls(n), pa.array([True] * n), pa.array([b"x"] * n, pa.binary()), pa.array([{"a": 1}] * n, pa.struct([("a", pa.int64())])),
        pa.array([datetime.datetime(2020, 1, 1)] * n, pa.timestamp("s")), pa.array(["a"] * n, pa.string()).dictionary_encode(),
        pa.array([decimal.Decimal("1.5")] * n, pa.decimal128(5, 2)), pa.array([[[1.0, 2.0]]] * n, pa.list_(pa.list_(pa.float64()))),
        pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int64())), pa.array([1.5] * n, pa.float32()), pa.array(["a"] * n, pa.large_string()),
        pa.array([datetime.timedelta(1)] * n, pa.duration("s")), pa.array(np.ones(n, np.float16)), pa.array([[[[1.0]]]] * n, pa.list_(pa.list_(pa.list_(pa.float64())))),
    ]  # fmt: skip
    return others[int(rng.integers(len(others)))]


def special_file(path, rng):
    """Something that is no regular file, or none that can be read."""
    how = str(
        rng.choice(["fifo", "folder", "socket", "missing", "dev", "loop", "empty", "dangling", "zeros"])
    )
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(path.parent, os.O_RDONLY)  # a socket's path has at most 107 bytes
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
    elif how == "dev":
        path.symlink_to(str(rng.choice(["/dev/null", "/dev/zero", "/dev/tty", "/dev/stdin"])))
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "dangling":
        path.symlink_to("nowhere")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "zeros":
        path.write_bytes(b"\0" * 4096)
    return how
