# ruff: noqa: RUF001
"""Every format against goldens written by hand, and against names made to break it."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from surefoot.report.table_text import notes_text, to_terminal, to_text
from surefoot.report.tables import (
    Column,
    Section,
    Table,
    TableCell,
    distinguishing,
    to_html,
    to_latex,
    to_markdown,
)

METHOD = (Column("method", align="left"), Column("runs"))
SIDES = (Column("familiar", "NLL"), Column("unfamiliar", "NLL"))


def cells(*texts):
    return tuple(TableCell(text) for text in texts)


TABLE = Table(
    title="All: 50% & more",
    columns=(*METHOD, *SIDES),
    sections=(
        Section(
            None,
            ((*cells("Single_1", "10"), TableCell("0.083", True, paper="0.084"), TableCell("–")),),
        ),
        Section(
            "oracle",
            ((*cells("<b>", "1"), TableCell("-7%", detail="3/9"), TableCell("0.1", star=True)),),
        ),
    ),
    notes=("Bold: best.",),
    number=4,
)
MARKDOWN = r"""**Table 4. All: 50% &amp; more**

| method | runs | NLL familiar | NLL unfamiliar |
|:--|--:|--:|--:|
| Single\_1 | 10 | **0.083** (paper 0.084) | – |
| *oracle* |  |  |  |
| &lt;b> | 1 | -7% 3/9 | 0.1\* |

- Bold: best.
"""
LATEX = r"""\begin{table*}
\centering
\footnotesize
\setlength{\tabcolsep}{3.5pt}
\caption{All: 50\% \& more}
\begin{tabular}{lrrr}
\toprule
 &  & \multicolumn{2}{c}{NLL} \\
\cmidrule(lr){3-4}
method & runs & familiar & unfamiliar \\
\midrule
Single\_1 & 10 & \textbf{0.083} & -- \\
{\scriptsize\quad paper} &  & {\scriptsize 0.084} &  \\
\midrule
\multicolumn{4}{l}{\emph{oracle}} \\
\textless{}b\textgreater{} & 1 & $-$7\% & 0.1$^{*}$ \\
 &  & {\scriptsize 3/9} &  \\
\bottomrule
\end{tabular}
\par\smallskip Bold: best.
\end{table*}
"""
HTML = """<div class="scroll"><table class="methods">
<caption>Table 4. All: 50% &amp; more</caption>
<thead>
<tr><th scope="col" rowspan="2" class="left">method</th><th scope="col" rowspan="2">runs</th>\
<th scope="colgroup" colspan="2">NLL</th></tr>
<tr><th scope="col">familiar</th><th scope="col">unfamiliar</th></tr>
</thead>
<tbody>
<tr><th scope="row">Single_1</th><td>10</td><td><strong>0.083</strong><br>\
<small class="paper">paper 0.084</small></td><td data-empty>–</td></tr>
</tbody>
<tbody>
<tr class="section"><th colspan="4">oracle</th></tr>
<tr><th scope="row">&lt;b&gt;</th><td>1</td><td>-7%<br><small class="detail">3/9</small></td>\
<td>0.1<sup>*</sup></td></tr>
</tbody>
</table></div>
<ul class="notes"><li>Bold: best.</li></ul>"""
TERMINAL = """\
Table 4. All: 50% & more
                                 NLL
method    runs  familiar  unfamiliar
────────  ────  ────────  ──────────
Single_1    10     0.083           –
                 (0.084)
oracle
<b>          1       -7%        0.1*
                     3/9
"""
PLAIN = """\
Table 4. All: 50% & more
                                 NLL
method    runs  familiar  unfamiliar
--------  ----  --------  ----------
Single_1    10    0.083*           –
oracle
<b>          1   -7% 3/9      0.1(*)
*: best.
"""


def printed(table, **options):
    out = io.StringIO()
    Console(file=out, width=100, **options).print(to_terminal(table, 100), soft_wrap=True)
    return out.getvalue()


def named(name):
    """A table whose every text is the name."""
    bold, plain = (TableCell(name, bold, True, name, name) for bold in (True, False))
    section = Section(name, ((*cells(name, name), bold, plain),))
    columns = (*METHOD, Column("familiar", name), Column("unfamiliar", name))
    return Table(name, columns, (section,), (name,))


def test_every_format_is_as_written_by_hand():
    assert to_markdown([TABLE]) == MARKDOWN
    assert to_latex([TABLE]) == LATEX
    assert to_html([TABLE]) == HTML
    assert "\n".join([*to_text(TABLE), *notes_text(TABLE), ""]) == PLAIN


def test_terminal_golden():
    assert "\n".join(line.rstrip() for line in printed(TABLE).splitlines()) + "\n" == TERMINAL
    assert "\x1b[1m0.083\x1b[0m" in printed(TABLE, force_terminal=True, color_system="standard").replace(
        " ", ""
    )


WIDE = Table.of_text(
    "",
    ("compared", "reference", "current", "change", "more novel", "text", "p (corrected for all)"),
    [
        (
            "confidence, lowest",
            "0.7795",
            "0.7918",
            "+0.0123 [-0.0021, +0.0266]",
            "0.481",
            "a b " * 20,
            "0.98",
        ),
        ("all of these together", "–", "–", "–", "–", "–", "0.00057"),
        ("x" * 30, "-0.0246", "1.5184", "+1.5429 [+1.4707, +1.6152]", "0.860", "c", "0.0013"),
    ],
)


@pytest.mark.parametrize("width", [55, 60, 80, 100])
def test_a_wide_table_fits_and_no_number_is_cut(width):
    lines = to_text(WIDE, width)
    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in to_terminal(WIDE, width).plain.replace("─", "-").split("\n")]
    words = {word for line in lines for word in line.split()}
    numbers = [word for row in WIDE.rows for cell in row[1:] for word in cell.text.split()]
    assert words.issuperset(number for number in numbers if number != "–")
    heads = [line for line in lines if line.startswith("compared")]
    assert len(heads) == sum(line.startswith("-----") for line in lines), "each part begins with the names"


def test_bold_stays_only_where_it_distinguishes():
    """A column of which more than half is bold is named in a note; the others keep their marks."""
    marks = [(True, True), (True, False), (False, False), (True, False)]
    rows = tuple((*cells("m", "1"), *(TableCell("0.1", bold) for bold in row)) for row in marks)
    table = distinguishing(Table("", (*METHOD, *SIDES), (Section(None, rows),), ("Bold: best.",)))
    assert [[cell.bold for cell in row[2:]] for row in table.rows] == [[False, bold] for _, bold in marks]
    assert table.notes == (
        "Bold: best.",
        "NLL familiar: more than half of the methods are the best or not significantly worse, so none is marked.",
    )
    assert distinguishing(replace(table, notes=())) == replace(table, notes=())
    rows = tuple((*cells("m", "1"), TableCell("0.1", bold=True)) for _ in range(3))
    table = distinguishing(Table("", (*METHOD, SIDES[0]), (Section(None, rows),), ("Bold: best.", "a note")))
    assert table.notes == (
        "a note",
        "More than half of the methods are the best or not significantly worse, so none is marked.",
    ), "no legend of a mark that is not there"


def test_terminal_reads_no_name_as_a_style():
    assert printed(named("[bold]x[/]")).count("[bold]x[/]") >= 8


def cells_of(line):
    """Columns that a LaTeX line fills, counting spans."""
    assert line.endswith(r" \\")
    parts = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", part) for part in parts]
    return sum(int(span[1]) if span else 1 for span in spans)


def check_latex(text):
    """Braces and environments match, every line fills the table, and nothing special is bare."""
    columns, open_environments = None, []
    for line in text.splitlines():
        if match := re.fullmatch(r"\\begin\{(\w+\*?)\}(?:\{(\w+)\})?", line):
            open_environments.append(match[1])
            columns = len(match[2]) if match[2] else columns
        elif match := re.fullmatch(r"\\end\{(\w+\*?)\}", line):
            assert open_environments.pop() == match[1]
        elif line.endswith(r"\\"):
            assert open_environments in (["table*", "tabular"], ["table", "tabular"])
            assert cells_of(line) == columns
            assert line[:1] not in ("[", "*")
        depth = 0
        for brace in re.findall(r"(?<!\\)[{}]", line):
            depth += 1 if brace == "{" else -1
            assert depth >= 0, line
        assert depth == 0, line
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
        assert not re.search(r"(?<!\\)[#%_~]", line), line
        assert "\\textasciicircum" in line or "^" not in line.replace("$^{*}$", "")
        known = (
            r"\\(?:[\\&%$#_{}]|text\w+|begin|end|centering|footnotesize|setlength|tabcolsep|caption|toprule"
        )
        known += r"|midrule|bottomrule|cmidrule|multicolumn|emph|scriptsize|quad|par|smallskip|pm)"
        assert not re.sub(known, "", line).count("\\"), line
    assert not open_environments


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


NASTY = ["[1] \\ {x} $y$ #_~^ | <script>alert(1)</script> & 5% `c` *d* -e – ±", "-", "[", "*", "\\", "a\nb"]


def check_name(name):
    table = named(name)
    check_latex(to_latex([table, table]))
    for line in to_markdown([table]).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 5, line
            assert "<" not in line
    tags = Tags()
    tags.feed(to_html([table]))
    tags.close()
    assert not tags.open
    assert "".join(tags.text).count(name) >= 12
    allowed = {
        "div",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "strong",
        "sup",
        "br",
        "small",
        "ul",
        "li",
    }
    assert tags.seen <= allowed


def test_names_made_to_break_things_do_not():
    for name in NASTY:
        check_name(name)
    check_latex(to_latex([TABLE]))
    assert r"a\textbar{}b" in to_latex([named("a|b")])


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30))
def test_no_name_breaks_a_format(name):
    check_name(name)


def test_one_level_of_headings():
    table = Table(
        "Cost",
        (*METHOD, Column("Seconds"), Column("Parameters")),
        (Section(None, (cells("a", "1", "3", "4"),)),),
    )
    assert table.header == ("method", "runs", "Seconds", "Parameters")
    latex = to_latex([table])
    assert "cmidrule" not in latex
    assert "method & runs & Seconds & Parameters \\\\\n\\midrule" in latex
    check_latex(latex)
    html = to_html([table])
    assert "rowspan" not in html
    assert '<th scope="col">Seconds</th>' in html
    assert '<td data-name="Parameters">4</td>' in html
    assert "| method | runs | Seconds | Parameters |" in to_markdown([table])


def test_a_markdown_link_in_a_name_stays_text():
    assert r"[a]\(b)" in to_markdown([named("[a](b)")])
    assert "[0.1, 0.2]" in to_markdown([named("[0.1, 0.2]")])
