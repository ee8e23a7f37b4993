"""Small changes to Python source for mutation testing: operators, constants, arguments, return values.

Not changed, because the results are the same by design:
- constants that only decide how fast something is: the sizes of chunks, named in CHUNKS, and the rows, steps
  and tolerances of the search for a temperature, named in SEARCH, whose last steps find the root anyway;
- comparisons with these constants, and chunk sizes that are computed from them;
- tolerances for rounding errors, named in NOISE (comparisons with them are changed);
- the indentation of JSON files, and how many names an error lists (no message is changed).
"""

import ast
import copy
from collections.abc import Iterator

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OPPOSITES = {"min": "max", "minimum": "maximum", "any": "all", "floor": "ceil", "amin": "amax", "sum": "max"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items() if old != "sum"}
CHUNKS = {"AT_ONCE", "DRAWN_AT_ONCE", "NUMBERS_AT_ONCE", "QUERIES_AT_ONCE", "REFERENCES_AT_ONCE"}
CHUNKS |= {
    "ROWS_WITH_GRADIENTS",
    "FEW_CLASSES",
    "PART_BYTES",
    "NUMBERS",
    "MOST_ROWS",
    "COLUMN_BUFFER",
    "CSV_BLOCK",
    "STEPS_AT_ONCE",
}
SEARCH = {"FEWEST_ROWS", "MORE", "MANY_ROWS", "STEPS", "EXACT", "CLOSE", "LOOSE", "ROUGH"}
SEARCH |= {"PILOT_NUMBERS", "PILOT_PARTS", "LOGITS_ON_THE_GRID"}
NOISE = {"LEAST_GAIN", "SAME", "ABOVE_ONE", "LEAST_RANGE"}
UNCHANGED = CHUNKS | SEARCH | NOISE | {"NAMES_IN_ERRORS"}
UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)  # messages, and what fails at once
UNREAD = ("annotation", "returns", "decorator_list", "bases")  # fields of a node that are not changed


def changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes of a tree, each with possible replacements."""
    if isinstance(node, UNTOUCHED) or _is_type_checking(node) or _is_about_unchanged(node):
        return
    if isinstance(node, ast.keyword) and node.arg == "indent":
        return
    if isinstance(node, ast.stmt):
        for other in _other_statements(node):
            yield node, ast.unparse(other)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield node.test, f"not {ast.unparse(node.test)}"
    elif isinstance(node, ast.expr):
        for expression in _other_expressions(node):
            plain = isinstance(expression, ast.Constant | ast.Call | ast.Name)
            yield node, ast.unparse(expression) if plain else f"({ast.unparse(expression)})"
    for name, value in ast.iter_fields(node):
        if name not in UNREAD:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from changes(child)


def replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """The source with the node's text replaced; columns are in bytes."""
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    whole = b"".join(lines)
    return (whole[:begin] + text.encode() + whole[end:]).decode()


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_about_unchanged(node: ast.AST) -> bool:
    """Whether a node defines a constant of UNCHANGED, compares with one, or computes a size from one."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        value = node.value
        is_size = isinstance(value, ast.IfExp) or _is_call_of_max(value) or _is_floor_division(value)
        return node.targets[0].id in UNCHANGED or (is_size and _reads_unchanged(value))
    return isinstance(node, ast.Compare) and any(
        isinstance(each, ast.Name) and each.id in UNCHANGED - NOISE for each in (node.left, *node.comparators)
    )


def _is_call_of_max(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max"


def _is_floor_division(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)


def _reads_unchanged(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id in UNCHANGED for each in ast.walk(node))


def _other_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or isinstance(node, ast.AugAssign):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARED[type(operator)]:
                yield _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield _with(node, op=COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for place in range(len(node.values)):
            yield _with(node, values=node.values[:place] + node.values[place + 1 :])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for place, part in enumerate(node.generators):
            if part.ifs:
                without = _with(part, ifs=[])
                yield _with(
                    node, generators=[*node.generators[:place], without, *node.generators[place + 1 :]]
                )


def _other_constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 1.5 if value else 1.0)


def _other_calls(node: ast.Call) -> Iterator[ast.expr]:
    """The opposite function, two arguments swapped, a keyword removed."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in OPPOSITES:
        yield _with(node, func=ast.Name(OPPOSITES[function.id]))
    elif isinstance(function, ast.Attribute) and function.attr in OPPOSITES:
        yield _with(node, func=_with(function, attr=OPPOSITES[function.attr]))
    elif len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        yield _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "strict", "indent"):
            yield _with(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
