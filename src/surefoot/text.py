"""Numbers as text: rounded, signed, in brackets, in words and as CSV; user text made safe to show."""

import csv
import decimal
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DASH = "\N{EN DASH}"  # an undefined number in a table
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def count_of(number: int, one: str, many: str | None = None) -> str:
    """A number and what is counted, in the singular where it is one.

    >>> count_of(1, "picture"), count_of(1200, "picture"), count_of(0, "class", "classes")
    ('1 picture', '1,200 pictures', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def number_text(value: float, decimals: int = 4, *, undefined: str = DASH) -> str:
    """A number with fixed decimals.

    >>> number_text(0.12345), number_text(-0.0001, 2), number_text(math.nan, undefined="undefined")
    ('0.1235', '0.00', 'undefined')
    """
    # Adding 0 turns a rounded -0.0 into 0.0.
    return undefined if math.isnan(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed_text(value: float, decimals: int = 4, *, undefined: str = DASH) -> str:
    """A difference: a number with its sign.

    >>> signed_text(0.5, 2), signed_text(-0.00001)
    ('+0.50', '+0.0000')
    """
    return undefined if math.isnan(value) else f"{round(value, decimals) + 0.0:+.{decimals}f}"


def interval_text(low: float, high: float, decimals: int = 4) -> str:
    """An interval in brackets; empty where there is none.

    >>> interval_text(0.25, 0.75, 2), interval_text(math.nan, math.nan)
    ('[0.25, 0.75]', '')
    """
    return "" if math.isnan(low) else f"[{number_text(low, decimals)}, {number_text(high, decimals)}]"


def signed_interval_text(low: float, high: float, decimals: int = 4) -> str:
    """The interval of a difference in brackets; empty where there is none.

    >>> signed_interval_text(-0.1, 0.2, 1)
    '[-0.1, +0.2]'
    """
    return "" if math.isnan(low) else f"[{signed_text(low, decimals)}, {signed_text(high, decimals)}]"


def percent_range(low: float, high: float) -> str:
    """An interval of shares, for sentences.

    >>> percent_range(0.021, 0.0444)
    '2.1% to 4.4%'
    """
    return f"{low:.1%} to {high:.1%}"


def confidence_text(confidence: float) -> str:
    """A confidence in percent: never 100% unless it is exactly 1.

    >>> confidence_text(0.99996), confidence_text(1.0), confidence_text(0.875)
    ('99.99%', '100%', '87.5%')
    """
    if confidence == 1:
        return "100%"
    return f"{confidence:.1%}" if confidence < 0.99 else f"{min(confidence, 0.9999):.2%}"


def short_number(value: float) -> str:
    """A large number with its unit, for an axis.

    >>> short_number(11_700_000), short_number(0.02)
    ('11.7 M', '0.02')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def p_text(p: float) -> str:
    """A p-value with two digits.

    >>> p_text(0.0), p_text(0.25), p_text(1e-7)
    ('< 1e-300', '0.25', '1e-07')
    """
    return f"{p:.2g}" if p > 1e-300 else "< 1e-300"


def exact_text(value: float | None) -> str:
    """A number in full precision, for CSV; empty where it is undefined or unknown."""
    return "" if value is None or math.isnan(value) else repr(value)


def csv_text(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    r"""A header and lines as CSV; no text is a formula, and none controls a terminal.

    >>> csv_text(["name"], [["=1+1"], ["\x1b[31m"]])
    "name\n'=1+1\n\\x1b[31m\n"
    """
    shown = ([visible(each) if isinstance(each, str) else each for each in line] for line in lines)
    return exact_csv_text([visible(name) for name in header], shown)


def exact_csv_text(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """The same with every text as it is, but for formulas: `from_spreadsheet` gives it back."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in [header, *lines]:
        writer.writerow(spreadsheet_text(each) if isinstance(each, str) else each for each in line)
    return out.getvalue()


# A spreadsheet runs a cell that begins so as a formula (in some countries also with signs of full width); an
# apostrophe before it makes it text. Written the same way for Python and for Arrow (RE2).
FORMULA = r"'*[=+\-@\t\r\n" "\uff1d\uff0b\uff0d\uff20]"
PLAIN_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def spreadsheet_text(text: str) -> str:
    """Text for a cell of a CSV file: never a formula; `from_spreadsheet` gives the text back exactly.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("-0.5"), spreadsheet_text("'=1"), spreadsheet_text("it's")
    ("'=1+1", '-0.5', "''=1", "it's")
    """
    return f"'{text}" if re.match(FORMULA, text) and not re.fullmatch(PLAIN_NUMBER, text) else text


def from_spreadsheet(text: str) -> str:
    """The text that `spreadsheet_text` made a cell of.

    >>> from_spreadsheet("'=1+1"), from_spreadsheet("''=1"), from_spreadsheet("'hello'")
    ('=1+1', "'=1", "'hello'")
    """
    return text[1:] if text.startswith("'") and re.match(FORMULA, text) else text


def visible(text: str) -> str:
    r"""Text for a terminal: control characters, line ends and invisible characters as escape sequences.

    >>> print(visible("a\x1b[31mb\nc"), visible("[bold]ü[/bold]"))
    a\x1b[31mb\nc [bold]ü[/bold]
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def without_controls(html: str) -> str:
    r"""HTML whose control characters, and those that reverse or hide text, are shown as escape sequences.

    >>> print(without_controls("<b>a\x1b[31m</b>"))
    <b>a\x1b[31m</b>
    """
    return CONTROLS.sub(lambda each: ascii(each[0])[1:-1], html)


def path_text(path: str | Path) -> str:
    r"""A path for a page or a document; bytes of its name that are not UTF-8 are shown as escapes.

    >>> print(path_text("a\udcff.npz"))
    a\xff.npz
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


LONGEST_SENTENCE = 1000


def sentence(text: str) -> str:
    r"""Text for one line of a terminal, with the middle left out where it is very long.

    >>> print(sentence("unknown option 'a\nb'; have: c"))
    unknown option 'a\nb'; have: c
    >>> len(sentence("x" * 10**6))
    1000
    """
    shown = visible(text)
    if len(shown) <= LONGEST_SENTENCE:
        return shown
    half = LONGEST_SENTENCE // 2
    return f"{shown[: half - 5]} ... {shown[-half:]}"


def bytes_text(size: float) -> str:
    """A number of bytes in words.

    >>> bytes_text(300), bytes_text(64 * 2**20), bytes_text(2**53)
    ('300 bytes', '64.0 MiB', '8.0 PiB')
    """
    for unit, exponent in (("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**exponent:
            return f"{size / 2**exponent:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def rounded_up(bound: float) -> str:
    """A bound with three digits, rounded up so that it still holds.

    >>> rounded_up(0.044637), rounded_up(0.2), rounded_up(1.0)
    ('0.0447', '0.2', '1')
    """
    up = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    return f"{float(up.create_decimal(repr(float(bound)))):.3g}"
