"""Faults for mutation tests: small changes in the syntax tree of a module that is already loaded."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SET_AT_IMPORT = (int, float, tuple, dict, list, types.MappingProxyType)
Edit = Callable[[Any], ast.AST]


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        path: the file.
        line, column: the start of the changed expression, counted from 1.
        lines: the first and the last line of a range; a test reaches the fault if it runs one of these lines. None
            means any line of the file.
        number: the index of the node in the order of `ast.walk`.
        kind: the index of the change among the possible changes of the node.
        before, after: the expression or statement before and after the change.
    """

    path: Path
    line: int
    column: int
    lines: tuple[int, int] | None
    number: int
    kind: int
    before: str
    after: str

    def __str__(self) -> str:
        before, after = (text.splitlines()[0] for text in (self.before, self.after))
        return f"{self.path.parent.name}/{self.path.name}:{self.line}:{self.column}  {before}  ->  {after}"


def mutants(path: Path) -> list[Mutant]:
    """Return all possible faults in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines, passed_over = _reach(tree), _passed_over(tree)
    faults = []
    for number, node in enumerate(ast.walk(tree)):
        if node in passed_over:
            continue
        for kind, edit in enumerate(_edits(node)):
            before, after = ast.unparse(node), ast.unparse(edit(copy.deepcopy(node)))
            faults.append(
                Mutant(path, node.lineno, node.col_offset + 1, lines[node], number, kind, before, after)  # type: ignore[attr-defined]
            )
    return faults


def _passed_over(tree: ast.AST) -> set[ast.AST]:
    """Return nodes without faults: error messages, assertions, annotations, decorators, code for type checkers."""
    roots: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or _is_for_types(node):
            roots.append(node)
        elif isinstance(node, ast.keyword) and node.arg == "strict":  # `strict` of zip is also an assertion
            roots.append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.arg):
            roots.append(node.annotation)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            roots += node.decorator_list
            roots += [node.returns] if isinstance(node, FUNCTIONS) else node.bases
    return {node for root in roots if root is not None for node in ast.walk(root)}


def _is_for_types(node: ast.AST) -> bool:
    """Return whether a statement is an import or a type alias for type checkers."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript | ast.BinOp)
        and node.col_offset == 0
        and ("Literal[" in ast.unparse(node.value) or "|" in ast.unparse(node.value))
    )


def _reach(tree: ast.Module) -> dict[ast.AST, tuple[int, int] | None]:
    """Return a line range per node. A test reaches the node if it runs one of these lines. None: it runs at import."""
    reach: dict[ast.AST, tuple[int, int] | None] = {}

    def visit(node: ast.AST, lines: tuple[int, int] | None, function: bool) -> None:
        if isinstance(node, FUNCTIONS):
            body = (node.body[0].lineno, node.end_lineno or node.lineno)
            for part in ast.iter_child_nodes(node):
                visit(part, body if part in node.body else (None if not function else body), part in node.body)
        else:
            if function and isinstance(node, ast.stmt):
                blocks = [block for name in ("body", "orelse", "finalbody") for block in getattr(node, name, [])]
                last = min((block.lineno - 1 for block in blocks), default=node.end_lineno or node.lineno)
                lines = (node.lineno, max(last, node.lineno))
            for part in ast.iter_child_nodes(node):
                visit(part, lines, function)
        reach[node] = lines

    visit(tree, None, False)
    return reach


def _edits(node: ast.AST) -> Iterator[Edit]:
    """Yield the possible changes of a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield _compare
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _calculate
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield _count
    elif isinstance(node, ast.BoolOp):
        yield _connect
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        # Don't turn -1 into 1, which is the same dimension of a matrix. The number 1 becomes 2, so -1 becomes -2.
        if ast.unparse(node) != "-1":
            yield lambda node: node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _negate
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield lambda _: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper", "step"):
            if getattr(node, bound) is not None:
                yield lambda node, bound=bound: _set(node, bound, None)  # type: ignore[misc]


def _set(node: Any, name: str, value: Any) -> Any:
    setattr(node, name, value)
    return node


def _compare(node: ast.Compare) -> ast.AST:
    return _set(node, "ops", [COMPARISONS[type(node.ops[0])](), *node.ops[1:]])


def _calculate(node: ast.BinOp | ast.AugAssign) -> ast.AST:
    return _set(node, "op", ARITHMETIC[type(node.op)]())


def _count(node: ast.Constant) -> ast.AST:
    value = node.value
    return _set(node, "value", not value if isinstance(value, bool) else value + 1)  # type: ignore[operator]


def _connect(node: ast.BoolOp) -> ast.AST:
    return _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _negate(node: Any) -> ast.AST:
    return _set(node, "test", ast.UnaryOp(ast.Not(), node.test))


def install(mutant: Mutant | None, module: types.ModuleType) -> None:
    """Insert a fault into a loaded module, so that all references to its functions have it; None restores the module.

    Values that are set at import are also replaced, in this module and in all modules that imported them.
    """
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    if mutant is not None:
        place = list(ast.walk(tree))[mutant.number]
        edit = list(_edits(place))[mutant.kind]
        tree = _Replacement(place, edit(copy.deepcopy(place))).visit(tree)
    code = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec", dont_inherit=True)
    again = types.ModuleType(module.__name__)
    again.__dict__.update({name: getattr(module, name) for name in ("__file__", "__package__", "__spec__")})
    sys.modules[module.__name__], loaded = again, sys.modules[module.__name__]  # dataclasses look up their module
    try:
        exec(code, again.__dict__)
    finally:
        sys.modules[module.__name__] = loaded
    for name, new in vars(again).items():
        old = vars(module).get(name)
        if isinstance(new, SET_AT_IMPORT) and not name.startswith("__") and new != old:
            for other in [other for other in sys.modules.values() if vars(other).get(name, ...) is old]:
                setattr(other, name, new)
        elif getattr(new, "__module__", None) == module.__name__:
            _graft(old, new)


def _graft(old: Any, new: Any) -> None:
    """Replace the code of a function by that of another, or the code of all methods of a class."""
    if isinstance(old, type):
        for name, part in vars(new).items():
            if name in vars(old):
                _graft(vars(old)[name], part)
    elif isinstance(old, property):
        _graft(old.fget, new.fget)
    elif isinstance(old, staticmethod | classmethod):
        _graft(old.__func__, new.__func__)
    elif inspect.isfunction(old) and inspect.isfunction(new):
        if hasattr(old, "__wrapped__"):
            _graft(old.__wrapped__, new.__wrapped__)
        elif len(old.__code__.co_freevars) == len(new.__code__.co_freevars):
            old.__code__ = new.__code__
        old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__


class _Replacement(ast.NodeTransformer):
    """A transformer that replaces one node."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)
