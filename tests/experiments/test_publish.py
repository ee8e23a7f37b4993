"""What the pages of results leave out is in files, or is made again from the scores."""

import csv
from pathlib import Path

import pytest

from experiments.publish import shortened

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(RESULTS.glob("*-differences.csv"))
TABLES = """**Six questions**

| question | answer |
|:--|--:|
| a? | yes |

**Table 1. Single, and percent reduction**

| method | runs |
|:--|--:|
| Single | 10 |

**Difference from Single, paired bootstrap over rows: x**

| method | runs | NLL familiar | Label error unfamiliar |
|:--|--:|--:|--:|
| Single | 10 | baseline | baseline |
| Ensemble | 1 | **-0.0486** [-0.0686, -0.0298] | +0.0060 \\[-0.0190, +0.0098\\] |

**Difference from the best of each column, paired bootstrap over rows: x**

| method | runs | NLL familiar |
|:--|--:|--:|
| Single | 10 | +0.0554 [+0.0321, +0.0827] |

**Cost: x**

| method | seconds |
|:--|--:|
| Single | 3 |
"""


def test_differences_become_rows_and_tables_of_scores_are_left_out():
    kept, rows = shortened(TABLES)
    assert [line for line in kept.splitlines() if line.startswith("**")] == [
        "**Six questions**",
        "**Cost: x**",
    ]
    assert rows == [
        ("Ensemble", "Single", "1", "familiar", "NLL", "-0.0486", "-0.0686", "-0.0298"),
        ("Ensemble", "Single", "1", "unfamiliar", "Label error", "+0.0060", "-0.0190", "+0.0098"),
        ("Single", "the best", "10", "familiar", "NLL", "+0.0554", "+0.0321", "+0.0827"),
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_published_file_has_every_method_and_side(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["side"] for row in rows} == {"familiar", "unfamiliar"}
    assert {row["less"] for row in rows} == {"Single", "the best"}
    assert all(float(row["low"]) <= float(row["high"]) for row in rows)
    assert f"`{path.name}`" in (RESULTS / f"{path.stem.removesuffix('-differences')}.md").read_text()
