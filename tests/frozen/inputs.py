"""Predictions to freeze with: seeded, rounded so that no machine's last bit counts, written without our code."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

IGNORED = -100
SITES = 6


def write_inputs(folder):
    """Every file that the cases read."""
    for name, seed, sharpness, members in (("val", 1, 2.0, 1), ("f", 2, 2.0, 1), ("u", 3, 5.0, 1)):
        _write_one_label(folder, f"two-{name}", _one_label(240, 2, seed, sharpness, members))
        _write_one_label(folder, f"five-{name}", _one_label(300, 5, 10 + seed, sharpness, members))
        _write_npz(folder / f"many-{name}.npz", _many_labels(200, 4, 20 + seed, sharpness, 1))
        _write_npz(folder / f"members-{name}.npz", _one_label(240, 3, 30 + seed, sharpness, 3))
        _write_npz(folder / f"many-members-{name}.npz", _many_labels(160, 3, 40 + seed, sharpness, 2))
    _write_npz(folder / "soft-val.npz", _one_label(300, 3, 50, 0.5, 1))
    _write_npz(folder / "large-val.npz", _one_label(1500, 3, 51, 3.0, 1))
    _write_npz(folder / "large-f.npz", _one_label(600, 3, 52, 3.0, 1))
    _write_npz(folder / "large-u.npz", _one_label(500, 3, 53, 9.0, 1))
    _write_npz(folder / "large-many.npz", _many_labels(1500, 3, 54, 3.0, 1))
    _write_parts(folder)
    _write_other_forms(folder)


def _one_label(n, classes, seed, sharpness, members):
    """Logits whose own softmax gave the labels, then made too sure; further members differ from the first."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((1, n, classes))
    labels = (logits[0] + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return _arrays(rng, logits, labels, sharpness, members)


def _many_labels(n, classes, seed, sharpness, members):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((1, n, classes))
    labels = (logits[0] + rng.logistic(size=(n, classes)) > 0).astype(np.int64)
    labels[rng.random((n, classes)) < 0.1] = IGNORED
    return _arrays(rng, logits, labels, sharpness, members)


def _arrays(rng, logits, labels, sharpness, members):
    n = logits.shape[1]
    novelty = np.round(rng.random(n), 5)
    surer = sharpness * (0.6 + 0.8 * novelty)[:, None]  # so that novelty scaling has something to find
    apart = 0.7 * rng.standard_normal((members, *logits.shape[1:])) * (members > 1)
    return {
        "logits": np.round(surer * (logits + apart), 5),
        "labels": labels,
        "novelty": novelty,
        "ids": np.array([f"r{row:04d}" for row in range(n)]),
        "classes": np.array([f"c{index}" for index in range(logits.shape[2])]),
    }


def _write_npz(path, arrays):
    logits = arrays["logits"]
    np.savez(path, **{**arrays, "logits": logits[0] if len(logits) == 1 else logits})


def _table(arrays, rows=slice(None)):
    """A column to each class, labels by name or in columns, and a column of sites of unlike sizes."""
    names, labels = arrays["classes"], arrays["labels"]
    columns = {f"logit_{name}": arrays["logits"][0, rows, i] for i, name in enumerate(names)}
    if labels.ndim == 1:
        columns["label"] = names[labels[rows]].tolist()
    else:
        columns |= {f"label_{name}": labels[rows, i] for i, name in enumerate(names)}
    columns["novelty"] = arrays["novelty"][rows]
    columns["ids"] = arrays["ids"][rows].tolist()
    sites = (np.sqrt(np.arange(len(labels)) * 7 % 36)).astype(int)
    columns["site"] = [f"s{site}" for site in sites[rows]]
    return pa.table(columns)


def _write_one_label(folder, name, arrays):
    pyarrow.parquet.write_table(_table(arrays), folder / f"{name}.parquet", row_group_size=100)


def _write_parts(folder):
    """What is streamed: several files to a side."""
    for name, seed, sharpness in (("val", 61, 3.0), ("f", 62, 3.0), ("u", 63, 7.0)):
        one, many = _one_label(900, 4, seed, sharpness, 1), _many_labels(450, 3, seed + 9, sharpness, 1)
        for part in range(3):
            for kind, arrays in (("one", one), ("many", many)):
                (folder / f"{kind}-parts-{name}").mkdir(exist_ok=True)
                rows = slice(part * len(arrays["labels"]) // 3, (part + 1) * len(arrays["labels"]) // 3)
                table = _table(arrays, rows)
                if kind == "one":
                    path = folder / f"{kind}-parts-{name}/{part}.parquet"
                    pyarrow.parquet.write_table(table, path, row_group_size=128)
                else:
                    pyarrow.csv.write_csv(table, folder / f"{kind}-parts-{name}/{part}.csv")


def _write_other_forms(folder):
    """Two classes by one logit; probabilities; members as lists of lists; no labels."""
    arrays = _one_label(200, 2, 71, 2.0, 1)
    logit = np.round(arrays["logits"][0, :, 1] - arrays["logits"][0, :, 0], 5)
    pyarrow.csv.write_csv(pa.table({"logit": logit, "label": arrays["labels"]}), folder / "logit.csv")
    probs = np.exp(_one_label(200, 3, 72, 2.0, 1)["logits"][0])
    probs = np.round(probs / probs.sum(axis=1, keepdims=True), 7)
    labels = _one_label(200, 3, 72, 2.0, 1)["labels"]
    np.savez(folder / "probs.npz", probs=probs / probs.sum(axis=1, keepdims=True), labels=labels)
    members = _one_label(240, 3, 32, 2.0, 3)
    lists = {"logits": members["logits"].transpose(1, 0, 2).tolist(), "label": members["labels"]}
    pyarrow.parquet.write_table(pa.table(lists), folder / "members.parquet", row_group_size=100)
    unlabelled = _one_label(400, 3, 73, 9.0, 1)["logits"][0]
    columns = {f"logit_c{i}": unlabelled[:, i] for i in range(3)}
    pyarrow.csv.write_csv(pa.table(columns), folder / "unlabelled.csv")
