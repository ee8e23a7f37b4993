"""Golden files: how they are written, read and compared."""

import json
import math
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
RELATIVE, ABSOLUTE = 1e-6, 1e-9


def path_of(case):
    return GOLDEN / f"{case.__name__}.json"


def load(case):
    return json.loads(path_of(case).read_text(encoding="utf-8"))


def save(case, found):
    path_of(case).write_text(_text(_rounded(found)) + "\n", encoding="utf-8")


def differences(golden, found, at=""):
    """Every place where they differ: numbers by more than the tolerance, all else at all."""
    if isinstance(golden, dict) and isinstance(found, dict):
        yield from (f"{at}/{key}: gone" for key in golden if key not in found)
        yield from (f"{at}/{key}: new" for key in found if key not in golden)
        shared = [key for key in golden if key in found]
        if shared != [key for key in found if key in golden]:
            yield f"{at}: keys in another order"
        for key in shared:
            yield from differences(golden[key], found[key], f"{at}/{key}")
    elif isinstance(golden, list) and isinstance(found, list):
        if len(golden) != len(found):
            yield f"{at}: {len(golden)} entries, now {len(found)}"
        for index, pair in enumerate(zip(golden, found, strict=False)):
            yield from differences(*pair, f"{at}/{index}")
    elif not _same(golden, found):
        yield f"{at}: {golden!r}, now {found!r}"


def _same(golden, found):
    numbers = [isinstance(each, int | float) and not isinstance(each, bool) for each in (golden, found)]
    if all(numbers):
        both_nan = golden != golden and found != found
        return both_nan or math.isclose(golden, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(golden) is type(found) and golden == found


def _rounded(found):
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_rounded(value) for value in found]
    return float(f"{found:.9g}") if isinstance(found, float) else found


def _text(found, indent=0):
    """JSON with one line for what holds nothing but numbers and words: small, and a change is a line."""
    values = (
        list(found.values() if isinstance(found, dict) else found) if isinstance(found, dict | list) else []
    )
    if not any(isinstance(value, dict | list) and value for value in values):
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    space = "\n" + " " * (indent + 1)
    names = [f"{json.dumps(key)}:" for key in found] if isinstance(found, dict) else [""] * len(values)
    inner = ("," + space).join(
        name + _text(value, indent + 1) for name, value in zip(names, values, strict=True)
    )
    opened, closed = "{}" if isinstance(found, dict) else "[]"
    return f"{opened}{space}{inner}\n{' ' * indent}{closed}"
