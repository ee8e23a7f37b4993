import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import InputError
from surefoot.lab.comparison.compare import comparison_from_scores
from surefoot.lab.comparison.comparison import Mark, MethodRuns, RunScore, read_scores, scores_text

GOLDEN = """\
method,run,side,metric,value,k,n
single,0,familiar,nll,0.1,,
single,1,familiar,nll,0.30000000000000004,,
single,0,familiar,e99,,0,0
single,1,familiar,e99,0.25,1,4
"a ""b"", c",0,familiar,nll,0.5,,
"""


def written(tmp_path, text):
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_golden_is_read_and_written_again(tmp_path):
    values = read_scores(written(tmp_path, GOLDEN))
    assert set(values) == {"single", 'a "b", c'}
    assert values["single"]["familiar", "nll"] == [RunScore(0, 0.1), RunScore(1, 0.30000000000000004)]
    undefined, defined = values["single"]["familiar", "e99"]
    assert math.isnan(undefined.value)
    assert (undefined.k, undefined.n, defined) == (0, 0, RunScore(1, 0.25, 1, 4))
    comparison = comparison_from_scores(values)
    assert scores_text(comparison) == GOLDEN


def test_tables_need_nothing_but_scores_and_what_the_methods_are(tmp_path):
    lines = [
        f"{m},{r},familiar,nll,{v}"
        for m, vs in (("single", (0.5, 0.52)), ("b", (0.1, 0.12)))
        for r, v in enumerate(vs)
    ]
    text = "method,run,side,metric,value,k,n\n" + "".join(f"{line},,\n" for line in lines)
    values = read_scores(written(tmp_path, text))
    about = [MethodRuns("b", "B"), MethodRuns("gone", "Gone", missing=("x",))]
    result = comparison_from_scores(values, about)
    assert [m.title for m in result.methods] == ["B", "Gone", "single"]
    assert [[run.run for run in m.runs] for m in result.methods] == [[0, 1], [], [0, 1]]
    marks = [m.cells["familiar", "nll"].mark for m in result.methods]
    assert marks == [Mark.BEST, Mark.UNTESTED, Mark.WORSE]
    assert (result.sides, result.baseline, result.resamples) == (("familiar",), "single", 0)


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1),
        st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_any_name_and_number_comes_back(tmp_path_factory, values):
    given_ = {
        name: {("unfamiliar", "nll"): [RunScore(run, value) for run, value in enumerate(runs)]}
        for name, runs in values.items()
    }
    path = tmp_path_factory.mktemp("scores") / "scores.csv"
    path.write_text(scores_text(comparison_from_scores(given_)))
    again = read_scores(path)
    assert list(again) == list(given_)
    for name, runs in values.items():
        result = [score.value for score in again[name]["unfamiliar", "nll"]]
        assert result == pytest.approx(runs, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "begins with 'a,b'; needed: method,run,side,metric,value,k,n"),
        ("", "begins with ''; needed"),
        (GOLDEN + "single,2,familiar\n", "line 7: 3 values; needed: 7"),
        (GOLDEN + "single,2,sideways,nll,1,,\n", "line 7: side 'sideways'; allowed: familiar, unfamiliar"),
        (GOLDEN + "single,two,familiar,nll,1,,\n", "line 7: invalid literal"),
        (GOLDEN + "single,2,familiar,nll,much,,\n", "line 7: could not convert"),
        (GOLDEN + "single,1,familiar,nll,1,,\n", "line 7: run 1 of 'single', familiar nll is given twice"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_scores(written(tmp_path, text))


def test_files_that_cannot_be_read_and_metrics_that_are_not_known(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_scores(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        read_scores(tmp_path / "bytes.csv")
    with pytest.raises(InputError, match="unknown metric 'guess'"):
        comparison_from_scores({"a": {("familiar", "guess"): [RunScore(0, 1.0)]}})


def test_line_ends_in_names_and_of_any_system_are_read(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_bytes(b'method,run,side,metric,value,k,n\r\n"a\r\nb",0,familiar,nll,0.5,,\r\n')
    assert set(read_scores(path)) == {"a\r\nb"}
    path.write_bytes(GOLDEN.replace("\n", "\r").encode())
    assert set(read_scores(path)) == {"single", 'a "b", c'}
