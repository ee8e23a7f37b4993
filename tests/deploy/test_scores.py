"""Files in chunks give what the same rows in memory give: the monitor, thresholds, pages; bounds of memory."""

import json
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
    choose_thresholds,
    fit_temperature,
    read_predictions,
    scan_predictions,
    write_predictions,
)
from surefoot.decisions.chunks import Keys, facts_of, first_rows
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


def test_files_of_which_one_has_numbers_and_one_text(tmp_path):
    """As in memory, where both become text."""
    numbers = np.arange(300) % 60
    for name, keys in (("ids", np.arange(300)), ("groups", numbers)):
        both = [
            replace(draw_one_label(300, 3, seed=seed), **{name: values})
            for seed, values in enumerate((keys, np.char.add("x", keys.astype(str))))
        ]
        for place, rows in enumerate(both):
            write_predictions(rows, tmp_path / f"{name}{place}.parquet")
        files = tmp_path / f"{name}*.parquet"
        whole, scanned = read_predictions(files), scan_predictions(files)
        assert surefoot.monitor(whole, scanned).to_dict() == surefoot.monitor(whole, whole).to_dict()
        assert choose_thresholds(scanned).to_dict() == choose_thresholds(whole).to_dict()
