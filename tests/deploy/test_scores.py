"""Files in chunks give what the same rows in memory give: the monitor, thresholds, pages; bounds of memory."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import surefoot
from surefoot import (
    InputError,
    LabelKind,
    Predictions,
    fit_temperature,
    read_predictions,
    scan_predictions,
)
from surefoot.decisions.chunks import Keys, facts_of, first_rows
from surefoot.decisions.groups import RepeatedRows
from surefoot.errors import Remark
from surefoot.monitoring import monitor as monitoring
from surefoot.predictions.files import to_list_table
from tests.cli.command import surefoot as command
from tests.conftest import draw_many_labels, draw_one_label


def drawn(n, seed, *, many=False, blur=1.0):
    """Rows with all that is read: three members' logits, groups, ids, novelty, features and two columns."""
    rng = np.random.default_rng(seed)
    draw = draw_many_labels if many else draw_one_label
    rows = draw(n, 4, seed=seed, members=3, class_names=["a", "b", "c", "d"])
    return Predictions.from_logits(
        blur * rows.logits,
        rows.labels,
        kind=rows.kind,
        class_names=rows.class_names,
        groups=np.char.add("person ", rng.integers(0, n // 4, n).astype(str)),
        ids=np.char.add("row ", np.arange(n).astype(str)),
        novelty=rng.random(n),
        features=rng.standard_normal((n, 3)),
        attributes={"site": rng.choice(["x", "y"], n), "weight": rng.random(n)},
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("surefoot.decisions.chunks.NUMBERS", 500)
    monkeypatch.setattr("surefoot.predictions.readers.PART_BYTES", 2**12)


def written(predictions, path):
    """In row groups of 150 rows; a csv has one member and no features."""
    if path.suffix == ".csv":
        surefoot.write_predictions(replace(predictions.member(0), features=None), path)
    else:
        parquet.write_table(to_list_table(predictions), path, row_group_size=150)
    return path


@pytest.fixture(params=["one.parquet", "many.parquet", "one.csv"])
def sides(request, tmp_path):
    many = request.param.startswith("many")
    given = drawn(900, 1, many=many), drawn(700, 2, many=many, blur=0.6)
    paths = [written(each, tmp_path / f"{i}-{request.param}") for i, each in enumerate(given)]
    return [(read_predictions(path), scan_predictions(path)) for path in paths]


def shown(result):
    return json.dumps(result.to_dict())


@pytest.mark.parametrize("most", [100_000, 1000], ids=["few rows", "many rows"])
def test_the_monitor_reads_files_as_it_reads_predictions(sides, most, monkeypatch):
    """Of many rows without features, outputs and single labels."""
    monkeypatch.setattr("surefoot.monitoring.scores.MOST_PROBS", most)
    for module in ("detectors", "scores", "monitor"):
        monkeypatch.setattr(f"surefoot.monitoring.{module}.MOST_ROWS", most)
    (reference, of_reference), (current, of_current) = sides
    assert len(facts_of(of_reference, len)) > (of_reference.files[0].suffix == ".parquet")
    calibration = fit_temperature(reference)
    for options in ({}, {"calibration": calibration}):
        check = surefoot.monitor(reference, current, **options)
        assert shown(surefoot.monitor(of_reference, of_current, **options)) == shown(check)
    assert check.unfamiliar[0][0].startswith("row ")
    compared = {each.name for each in check.findings}
    assert bool(compared & {"features", "outputs"}) == (most > 1000)
    by_site = [each.grouped_by("site") for each in (reference, current, of_reference, of_current)]
    assert shown(surefoot.monitor(*by_site[2:])) == shown(surefoot.monitor(*by_site[:2]))


@pytest.mark.parametrize("per", [None, "class", "groups", "site"])
def test_thresholds_are_those_of_predictions_in_memory(sides, per):
    (val, of_val), (other, of_other) = sides
    many = val.kind is LabelKind.MANY_LABELS
    options = {"target_error": 0.45, "per": per, "for_class": "b" if many else None}
    options["calibration"] = fit_temperature(other)
    chosen = surefoot.choose_thresholds(val, unfamiliar=other, **options)
    assert shown(surefoot.choose_thresholds(of_val, unfamiliar=of_other, **options)) == shown(chosen)
    if isinstance(chosen, surefoot.Thresholds):
        assert chosen.zones_of(of_other) == chosen.zones_of(other)
        watched = surefoot.monitor(of_val, of_other, thresholds=chosen)
        assert shown(watched) == shown(surefoot.monitor(val, other, thresholds=chosen))


def test_large_files_are_read_in_chunks_by_the_commands(tmp_path, monkeypatch):
    """The page too; nothing is read at once, except for a split."""
    paths = [written(drawn(900, i, blur=2), tmp_path / f"{i}.parquet") for i in (1, 2)]
    words = (
        ("monitor", *paths, "--group-by", "site", "-o", tmp_path / "m.html"),
        ("thresholds", paths[0], "--unfamiliar", paths[1], "--target-error", 0.6, "-o", tmp_path / "t.json",
         "--html", tmp_path / "t.html"),
    )  # fmt: skip

    def results():
        done = [command(*each).stdout for each in words]
        return done, [path.read_text() for path in sorted(tmp_path.glob("*.html"))]

    in_memory = results()
    monkeypatch.setattr("surefoot.cli.inputs.read_or_chunk.__kwdefaults__", {"most": 0})
    monkeypatch.setattr("surefoot.cli.thresholds.IN_MEMORY", 0)
    monkeypatch.setattr("surefoot.predictions.files.read_predictions", None)
    assert results() == in_memory


def test_what_cannot_be_read_in_chunks_is_refused_in_a_sentence(tmp_path):
    rows = drawn(300, 1)
    scanned = scan_predictions(written(rows, tmp_path / "a.parquet"))
    with pytest.raises(
        InputError, match="a split needs all rows of val in memory; allowed: read_predictions"
    ):
        surefoot.choose_thresholds(scanned, split=0.5)
    with pytest.raises(InputError, match="groups \\('site'\\) of streamed rows are for thresholds and the"):
        surefoot.evaluate(scanned.grouped_by("site"))
    with pytest.raises(InputError, match="the engine is 'ray'; allowed here: 'local'"):
        surefoot.monitor(replace(scanned, engine="ray"), rows)
    with pytest.raises(InputError, match="unknown column 'sight'"):
        surefoot.monitor(scanned.grouped_by("sight"), rows)
    written(replace(rows, groups=None), tmp_path / "b.parquet")
    with pytest.raises(
        InputError, match=r"groups differ: other files True, .*b\.parquet False; must be equal"
    ):
        surefoot.monitor(scan_predictions([tmp_path / "a.parquet", tmp_path / "b.parquet"]), rows)
    five = scan_predictions(written(draw_one_label(90, 5), tmp_path / "five.parquet"))
    with pytest.raises(InputError, match="classes differ: reference 4, current 5; must be equal"):
        surefoot.monitor(scanned, five)


def test_rows_without_labels_are_read_if_their_kind_is_given(tmp_path):
    rows = drawn(300, 1)
    table = to_list_table(rows).drop_columns(["label"])
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=150)
    scanned = scan_predictions(tmp_path / "a.parquet")
    assert surefoot.monitor(rows, scanned).n_current == 300
    with pytest.raises(InputError, match="no column 'label'"):
        surefoot.monitor(scanned, rows)
    scanned = scan_predictions(tmp_path / "a.parquet", unlabelled=LabelKind.ONE_LABEL)
    assert not surefoot.monitor(scanned, rows).labelled
    assert first_rows(scanned).kind is LabelKind.ONE_LABEL


def test_features_of_many_rows_are_not_compared(monkeypatch):
    """Distances take the time of all pairs of rows."""
    monkeypatch.setattr(monitoring, "MOST_ROWS", 500)
    check = surefoot.monitor(drawn(300, 1), drawn(300, 2))
    assert check.unfamiliar_by == "novelty"


def test_keys_are_joined_as_one_column():
    columns = np.array(["b", "a", "b"]), np.array(["c", "a"]), np.array(["b"])
    joined, whole = Keys.joined([Keys.of(each) for each in columns]), Keys.of(np.concatenate(columns))
    assert joined.names == whole.names == ["b", "a", "c"]
    assert joined.codes.tolist() == whole.codes.tolist() == [0, 1, 0, 2, 1, 0]
    assert [rows.tolist() for rows in joined.rows_of(np.arange(1, 6))] == [[2, 5], [1, 4], [3]]
    assert joined.divides_as(Keys.of(np.array([7, 5, 7, 6, 5, 7])))
    assert not joined.divides_as(Keys.of(np.array([7, 5, 7, 6, 6, 7])))
    assert Keys(pa.array(["x"]), np.zeros(1, np.int32)).group_of is None
    assert whole.take(np.array([0, 2, 4])).group_of.tolist() == [0, 0, 1]  # as many rows as there are values
    assert whole.take(np.array([3, 1, 0])).names == ["c", "a", "b"]  # the order of the bets in a part


def two_files(folder, first, second):
    """A folder of two files of the same rows, each with its own further columns, and a chunked view of it."""
    rows = draw_one_label(300, 3, seed=4, class_names=["a", "b", "c"])
    for name, columns in (("a", first), ("b", second)):
        attributes = {k: v for k, v in columns.items() if k not in ("groups", "ids")} or None
        keys = {k: np.array(v) for k, v in columns.items() if k in ("groups", "ids")}
        given = replace(rows, attributes=None if attributes is None else pa.table(attributes), **keys)
        written(given, folder / f"{name}.parquet")
    return rows, scan_predictions(folder)


NUMBERS, TEXTS = [i % 60 for i in range(300)], [f"p{i % 60}" for i in range(300)]


@pytest.mark.filterwarnings("ignore::surefoot.decisions.groups.RepeatedRows")
@pytest.mark.parametrize("column", ["groups", "ids"])
def test_numbers_in_one_file_and_text_in_another_are_text(tmp_path, column):
    rows, scanned = two_files(tmp_path, {column: NUMBERS}, {column: TEXTS})
    in_memory = read_predictions(tmp_path)
    given = [(in_memory, scanned), (in_memory.grouped_by(column), scanned.grouped_by(column))]
    for one, other in given:
        assert shown(surefoot.monitor(other, rows)) == shown(surefoot.monitor(one, rows))
        chosen = surefoot.choose_thresholds(one, target_error=0.6)
        assert shown(surefoot.choose_thresholds(other, target_error=0.6)) == shown(chosen)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_repeated_column_may_be_missing_in_a_file(tmp_path, missing):
    columns = [{"patient": NUMBERS}, {}]
    rows, scanned = two_files(tmp_path, columns[missing], columns[1 - missing])
    with pytest.warns(RepeatedRows):
        check = surefoot.monitor(scanned, rows)
    with pytest.warns(RepeatedRows):
        assert shown(check) == shown(surefoot.monitor(read_predictions(tmp_path), rows))
    assert check.repeated == "patient"


def test_an_error_of_a_chunk_names_the_file_and_from_where_its_rows_are_counted(tmp_path):
    rows, scanned = two_files(tmp_path, {"site": TEXTS}, {"site": [*TEXTS[:250], None, *TEXTS[251:]]})
    empty = r"b\.parquet, rows counted from (150|249|2\d\d): column 'site' is empty in 1 row, first in row "
    with pytest.raises(InputError, match=empty) as by_group:
        surefoot.monitor(scanned.grouped_by("site"), rows)
    with pytest.raises(InputError, match=empty) as per:
        surefoot.choose_thresholds(scanned, per="site")
    for error in (by_group, per):
        start, row = re.search(r"from (\d+): .* row (\d+);", str(error.value)).groups()
        assert int(start) + int(row) == 250


def test_predicted_classes_are_compared_where_only_one_side_has_names():
    rows = draw_one_label(300, 3, seed=4)
    named = replace(rows, class_names=("a", "b", "c"))
    with pytest.warns(Remark, match="no class names in 'reference'"):
        check = surefoot.monitor(rows, named)
    assert [part.name for part in check.parts] == ["0", "1", "2"]


def test_unnamed_classes_are_remarked_upon_once():
    rows = draw_one_label(300, 3, seed=4)
    named = replace(rows, class_names=("a", "b", "c"))
    with pytest.warns(Remark) as remarks:
        surefoot.choose_thresholds(named, unfamiliar=rows, target_error=0.6)
    assert len(remarks) == 1
