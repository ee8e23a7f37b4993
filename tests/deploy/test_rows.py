"""Bundles of tables: all methods from a table to predictions of rows, in files, in Python, in ONNX and over HTTP."""

import json
import re

import httpx
import numpy as np
import onnxruntime
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import surefoot
from surefoot import InputError, LabelKind
from surefoot.deploy.export import export_bundle
from surefoot.deploy.make_bundle import why_not
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.manifest import load_task
from surefoot.lab.tasks.task import Split
from surefoot.serve.app import json_response
from surefoot.serve.batching import Predictor
from surefoot.serve.limits import RefusedError
from surefoot.text import CONTROLS
from tests.cli.command import surefoot as command
from tests.deploy.made import ran
from tests.deploy.test_bundle import bundled
from tests.serve.made import served
from tests.tasks.test_features import TABLE, patients, vectors, write

RECIPE = Recipe(
    network="residual-mlp",
    width=8,
    epochs=4,
    learning_rate=0.05,
    dropout=0.1,
    feature_noise=0.1,
    feature_dropout=0.1,
)
COLUMNS = patients(240)
NAMES = [method.name for method in METHODS if not method.oracle]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every method on a table, with numbers, categories and missing values, and G: other rows."""
    folder = tmp_path_factory.mktemp("rows")
    pyarrow.csv.write_csv(pa.table(patients(60, seed=5)), folder / "g.csv")
    text = TABLE.replace("[familiar]", 'groups = "hospital"\n[familiar]') + '[unlabelled]\nrows = "g.csv"\n'
    return ran(folder, task=write(folder, COLUMNS, text), recipe=RECIPE)


@pytest.fixture(scope="module")
def ensemble(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    return bundled(made, "ensemble-of-t", folder), folder


def rows_named(ids):
    """Rows of the table by the ids of stored predictions."""
    place = {name: row for row, name in enumerate(COLUMNS["patient"])}
    return [{name: values[place[i]] for name, values in COLUMNS.items()} for i in ids]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_predicts_rows_as_it_was_scored(made, name, tmp_path):
    run = made.stored(METHODS.named(name))
    stored = run.after[Split.TEST_UNFAMILIAR]
    assert np.isfinite(stored.probs()).all()
    assert stored.n == 80
    if why_not(METHODS.named(name)) is None:
        bundle = bundled(made, name, tmp_path / "bundle")
        rows = bundle.preprocess_rows(rows_named(stored.ids), allow_unseen=True)
        gap = np.abs(bundle.predict(rows).probs() - stored.probs()).max()
        assert gap < (0.25 if "bayesian" in name else 1e-5)  # its samples are drawn once
        if "bayesian" not in name:
            assert bundle.about["checked"]["rows"] == 8


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json", ".jsonl"])
def test_predictions_of_a_file_are_the_stored_ones(made, ensemble, tmp_path, ending):
    folder = ensemble[1]
    stored = made.stored(METHODS.named("ensemble-of-t")).after[Split.TEST_UNFAMILIAR]
    rows, file = rows_named(stored.ids), tmp_path / f"rows{ending}"
    if ending == ".csv":
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)
    elif ending == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text(json.dumps({"rows": rows}) if ending == ".json" else "\n".join(map(json.dumps, rows)))
    arguments = ["predict", folder, file, "-o", tmp_path / "out.csv", "--probabilities", "--allow-unseen"]
    done = command(*arguments)
    assert done.stdout == f"predictions: {tmp_path / 'out.csv'} (80 rows)\n"
    assert done.stderr.startswith("note: column 'ward' is 'west' in row 0, which training never had; 68 rows")
    table = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert table.column_names == [
        "row",
        "label",
        "confidence",
        "entropy",
        "novelty",
        "prob_died",
        "prob_lived",
        "error",
    ]
    assert table["row"].to_pylist() == list(range(80))
    np.testing.assert_allclose(table["prob_lived"].to_numpy(), stored.probs()[:, 1], atol=1e-5)
    assert surefoot.read_predictions(tmp_path / "out.csv", unlabelled=LabelKind.ONE_LABEL).n == 80
    (tmp_path / "out.csv").unlink()
    refused = command(*arguments[:-1], check=2)
    assert (
        "column 'ward' is 'west' in row 0, which training never had; allowed: east, north, south, an empty"
        in (refused.stderr)
    )
    assert not (tmp_path / "out.csv").exists()


def test_rows_of_python(ensemble):
    bundle, _ = ensemble
    rows = rows_named(COLUMNS["patient"][:6])
    expected = bundle.preprocess_rows(rows, allow_unseen=True)
    for other in (pandas.DataFrame(rows), pa.Table.from_pylist(rows), {n: v[:6] for n, v in COLUMNS.items()}):
        assert torch.equal(bundle.preprocess_rows(other, allow_unseen=True), expected)
    for wrong, message in (
        (3, "the rows are of type int; allowed: a list of mappings"),
        ({"age": [1]}, "no column 'income'; have: age"),
        (rows, "column 'ward' is 'west' in row 2, which training never had"),
    ):
        with pytest.raises(InputError, match=message):
            bundle.preprocess_rows(wrong)
    with pytest.raises(InputError, match="takes rows with age, income, ward, smoker, code, not images"):
        bundle.preprocess("image.jpg")
    card = (ensemble[1] / "README.md").read_text()
    assert "rows of a table, as 16 numbers" in card
    assert "surefoot predict . rows.csv" in card


def rows_with(column, value):
    """A row as JSON, in which a number or a text may be written in any way."""
    row = rows_named(COLUMNS["patient"][:1])[0]
    return json.dumps([{**row, column: "HERE"}]).replace('"HERE"', value)


WRONG = {  # what a cell holds, as a csv file and JSON have it, and why it is refused
    "1e308": "column 'age' is 1e+308 in row 0; allowed: finite numbers up to 1e+100 in size",
    "1e30": "column 'age' has the number 1e+30, and in training a mean of 57.7",
    "-1e39": "column 'age' has the number -1e+39",
    "1e309": ("column 'age' is infinite in row 0", "the number 1e309 is too large"),
    "9" * 400: ("column 'age' is infinite in row 0", "(400 characters) is too large"),
    "Infinity": ("column 'age' is infinite in row 0", "Infinity is not a number of JSON"),
    '"abc"': ("invalid value 'abc'", "'age' is 'abc' in row 0; allowed: a number"),
}


@pytest.mark.parametrize("cell", WRONG)
def test_numbers_that_overflow_are_one_sentence(ensemble, tmp_path, cell):
    bundle, folder = ensemble
    of_csv, of_json = WRONG[cell] if isinstance(WRONG[cell], tuple) else (WRONG[cell], WRONG[cell])
    row = rows_named(COLUMNS["patient"][:1])[0]
    table = ",".join(row) + "\n" + ",".join(cell if name == "age" else str(row[name]) for name in row)
    for ending, text, message in ((".csv", table, of_csv), (".json", rows_with("age", cell), of_json)):
        (tmp_path / f"rows{ending}").write_text(text)
        done = command("predict", folder, tmp_path / f"rows{ending}", "-o", tmp_path / "out.csv", check=2)
        assert message in done.stderr
        assert not (tmp_path / "out.csv").exists()
        kind = {".csv": "text/csv", ".json": "application/json"}[ending]
        with pytest.raises(RefusedError, match=re.escape(message)) as refused:
            Predictor(bundle, None, "cpu").rows(kind, text.encode(), 4)
        assert refused.value.status == 422


NO_NUMBERS = (1e308, 1e30, np.inf, 10**400, 10**5000, "abc", True, 3j, np.ma.masked)
NO_NAMES = (10**400, 10**5000, 1e308, ["a"], b"x", "\ud800", "x" * 3_000_000)


@pytest.mark.parametrize("column", ["age", "ward"])
def test_values_of_python_that_are_none_of_the_column_are_one_short_sentence(ensemble, column):
    for value in NO_NUMBERS if column == "age" else NO_NAMES:
        row = {**rows_named(COLUMNS["patient"][:1])[0], column: value}
        for rows in ([row], {name: [each] for name, each in row.items()}):
            with pytest.raises(InputError, match=rf"{column}|rows that cannot be read") as refused:
                ensemble[0].preprocess_rows(rows)
            assert len(str(refused.value)) < 400


def test_a_repeated_column_is_one_sentence(ensemble, tmp_path):
    bundle, folder = ensemble
    row = rows_named(COLUMNS["patient"][:1])[0]
    table = pa.Table.from_pylist([row]).append_column("age", pa.array([3]))
    with pytest.raises(InputError, match="column 'age' occurs twice; allowed: different names"):
        bundle.preprocess_rows(table)
    pyarrow.csv.write_csv(table, tmp_path / "rows.csv")
    twice = (json.dumps([row])[:-2] + ', "age": 3}]').encode()
    (tmp_path / "rows.json").write_bytes(twice)
    for name, kind in (("rows.csv", "text/csv"), ("rows.json", "application/json")):
        done = command("predict", folder, tmp_path / name, "-o", tmp_path / "out.csv", check=2)
        assert "'age' occurs twice" in done.stderr
        with pytest.raises(RefusedError, match="'age' occurs twice"):
            Predictor(bundle, None, "cpu").rows(kind, (tmp_path / name).read_bytes(), 4)
    other = pa.Table.from_pylist([row]).append_column("patient", pa.array(["twice, but no feature"]))
    assert torch.equal(bundle.preprocess_rows(other), bundle.preprocess_rows([row]))


def test_samples_that_overflow_in_the_networks_are_one_sentence(ensemble):
    bundle, _ = ensemble
    samples = torch.zeros(2, 16)
    samples[1] = 3e38
    with pytest.raises(InputError, match="outputs are not finite for 1 of 2 samples"):
        bundle.predict(samples)


def test_the_exported_graph_predicts_encoded_rows(ensemble, tmp_path):
    """A program that has only the file encodes rows by its metadata, here written out by hand."""
    bundle, _ = ensemble
    export_bundle(bundle, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    rows, encoded = rows_named(COLUMNS["patient"]), []
    for row in rows:
        values = []
        for feature in json.loads(session.get_modelmeta().custom_metadata_map["features"]):
            value = row[feature["column"]]
            if feature["kind"] == "number":
                known = feature["mean"] if value is None else value
                values += [(known - feature["mean"]) / feature["deviation"], float(value is None)]
            else:
                text = None if value is None else str(value).lower()
                slots = [float(text == each) for each in feature["values"]]
                values += [*slots, float(not any(slots))]
        encoded.append(values)
    (probabilities,) = session.run(["probabilities"], {"vectors": np.asarray(encoded, np.float32)})
    expected = bundle.probabilities(bundle.preprocess_rows(rows, allow_unseen=True))
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_rows_over_http(ensemble, tmp_path):
    bundle, folder = ensemble
    rows = rows_named(COLUMNS["patient"][:2])
    pyarrow.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "rows.csv")
    as_csv = {
        "content": (tmp_path / "rows.csv").read_bytes(),
        "headers": {"content-type": "text/csv; charset=utf-8"},
    }
    expected = bundle.predict(bundle.preprocess_rows(rows))
    west = [{**rows[0], "ward": "west"}]
    with (
        served(folder, "--max-images", 4, "--verdict", "on") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        for request in ({"json": rows}, {"json": {"rows": rows}}, as_csv):
            response = client.post("/predict", **request)
            assert response.status_code == 200
            predictions = response.json()["predictions"]
            assert [each["row"] for each in predictions] == [0, 1]
            found = [each["probabilities"]["lived"] for each in predictions]
            assert found == pytest.approx(expected.probs()[:, 1].tolist(), abs=1e-6)
            assert {each["verdict"] for each in predictions} <= {"familiar", "unfamiliar"}
        text = {"content-type": "application/json"}
        for request, status, message in (
            ({"json": west}, 422, "column 'ward' is 'west' in row 0, which training never had"),
            ({"json": [{"age": 1}]}, 422, "row 0 has no 'income'; needed: age, income, ward, smoker, code"),
            ({"json": [{**rows[0], "age": 1e308}]}, 422, "column 'age' is 1e+308 in row 0; allowed: finite"),
            (
                {"json": [{**rows[0], "ward": "x" * 300_000}]},
                422,
                "xxx... in row 0, which training never had",
            ),
            ({"json": []}, 422, "no rows; needed: a list of objects"),
            ({"content": b"{", "headers": text}, 422, "not JSON"),
            ({"content": b"[" * 100_000, "headers": text}, 422, "not JSON (nested too deeply)"),
            ({"content": b"", "headers": text}, 422, "the request has no rows in it"),
            ({"content": b"age\nold", "headers": {"content-type": "text/csv"}}, 422, "cannot be read"),
            ({"json": rows * 3}, 413, "the request has 6 rows; allowed: 4"),
            (
                {"files": {"image": b"x"}},
                415,
                "the request is multipart/form-data; allowed: application/json",
            ),
        ):
            response = client.post("/predict", **request)
            assert response.status_code == status
            assert message in response.json()["error"]
        page = client.get("/").text
        assert "curl --data-binary @rows.csv" in page
        assert '"smoker": …' in page
        assert "Drop images here" not in page
    lenient = Predictor(bundle, None, "cpu", allow_unseen=True)
    assert len(lenient.rows("application/json", json.dumps(west).encode(), 4)) == 1


def test_names_of_a_bundle_control_no_terminal_and_are_no_formulas(tmp_path):
    nasty = "\x1b[31m\x9b\u202e`|<b>"
    values = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    labels = [f"={'ab'[row % 2]}{nasty}" for row in range(90)]
    recipe = Recipe(network="linear", epochs=1, learning_rate=0.1)
    task = vectors(tmp_path / "run", values, labels=labels)
    bundle = bundled(
        ran(tmp_path / "run", task=task, recipe=recipe, methods=("single-t",)), "single-t", tmp_path / "b"
    )
    assert bundle.class_names == (f"=a{nasty}", f"=b{nasty}")
    for name in ("README.md", "bundle.json", "metrics.json"):
        assert CONTROLS.search((tmp_path / "b" / name).read_text()) is None
    assert r"=a\x1b\[31m\x9b\u202e\`\|&lt;b&gt;" in (tmp_path / "b" / "README.md").read_text()
    answer = json_response(200, {"classes": bundle.class_names})
    assert CONTROLS.search(answer.body.decode()) is None
    assert json.loads(answer.body)["classes"] == list(bundle.class_names)


def test_vectors_of_another_length_are_one_sentence(tmp_path):
    values = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)
    values[::2, 0] += 2
    recipe = Recipe(network="linear", epochs=3, learning_rate=0.1)
    made = ran(tmp_path / "run", task=vectors(tmp_path / "run", values), recipe=recipe, methods=("single-t",))
    bundle = bundled(made, "single-t", tmp_path / "bundle")
    task = load_task(tmp_path / "run/task.toml")
    stored = made.stored(METHODS.named("single-t")).after[Split.TEST_UNFAMILIAR]
    np.save(tmp_path / "rows.npy", task.splits[Split.TEST_UNFAMILIAR].inputs)
    command(
        "predict",
        tmp_path / "bundle",
        tmp_path / "rows.npy",
        "-o",
        tmp_path / "out.parquet",
        "--probabilities",
    )
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    np.testing.assert_allclose(table["prob_a"].to_numpy(), stored.probs()[:, 0], atol=1e-5)
    np.save(tmp_path / "rows.npy", np.zeros((3, 4)))
    needed = "the vectors in 'embedding' have 4 numbers; needed: 5, as in training"
    for argument, message in (
        ([tmp_path / "rows.npy"], f"{tmp_path / 'rows.npy'}: {needed}"),
        ([tmp_path / "run"], "no such file, or not one: "),
        ([tmp_path / "gone.csv"], "gone.csv"),
        ([tmp_path / "rows.npy"] * 2, "2 files; the bundle takes rows with embedding: allowed is one table"),
    ):
        done = command("predict", tmp_path / "bundle", *argument, "-o", tmp_path / "o.csv", check=2)
        assert message in done.stderr.replace("\n", " ") or argument[0] == tmp_path / "run"
        assert len(done.stderr.strip().splitlines()) == 1
    changed = json.loads((tmp_path / "bundle/bundle.json").read_text())
    changed["features"][0]["length"] = 4
    (tmp_path / "bundle/bundle.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"input has shape \(5,\), and the features make 4 numbers"):
        surefoot.load_bundle(tmp_path / "bundle")
    assert bundle.encoding.only_vector.length == 5
