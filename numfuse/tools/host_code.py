"""The host prelude of a lowering as a person would write it.

What runs is a function full of checks and of names for objects (:mod:`numfuse.frontend.prelude`). What a user
asks is which numbers Python computes before a launch, and for which calls the kernel holds.
"""

from __future__ import annotations

import ast
import re
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

# A computation is written into the place of its only use as long as the line stays this short.
_LINE = 88

_BOUND = re.compile(r"_bound\d+$")
_NUMBERED = re.compile(r"(.+)_\d+_*$")


def host_code(prelude: Callable[..., object], source: str, function: Any) -> str:
    """The computations of a prelude as a Python function, and as comments what it checks.

    Parameters
    ----------
    prelude : callable
        The prelude that runs; its globals hold the objects that `source` calls ``_bound0`` and so on.
    source : str
        Its text.
    function : callable
        The fused function, for the names of its closure's cells.
    """
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    reader = _Reader(dict(prelude.__globals__), function)
    reader.read(definition.body)
    statements, conditions = reader.finished()
    head = f"def prelude({', '.join(argument.arg for argument in definition.args.args)}):"
    lines = ["# Checked first: the functions that it uses are the same ones."] if reader.guarded else []
    lines += [f"# Holds for calls with {condition}." for condition in conditions]
    lines += [line for statement in statements for line in ast.unparse(statement).split("\n")]
    return "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"


class _Reader:
    """Sorts the statements of a prelude."""

    def __init__(self, namespace: Mapping[str, Any], function: Any) -> None:
        self.namespace = namespace
        self.cells = _cell_names((function, *namespace.values()))
        self.values: dict[str, ast.expr] = {}
        self.result: list[ast.expr] = []
        self.conditions: list[ast.expr] = []
        self.guarded = False

    def read(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Try():
                    self.read(statement.body)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self.values[name] = self.spell(statement.value, name)
                case ast.If():
                    self.check(statement.test)
                case ast.Return(value=ast.Tuple(elts=items)):
                    self.result = [self.spell(item) for item in items]

    def check(self, refused: ast.expr) -> None:
        """A condition under which the prelude says no."""
        match refused:
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp() as test) if _about_functions(test):
                self.guarded = True
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare() as test) if _about_functions(test):
                self.guarded = True
            case ast.UnaryOp(op=ast.Not(), operand=test):
                self.conditions.append(self.spell(test))
            case ast.BoolOp(op=ast.Or(), values=[_, ast.Compare(left=left, comparators=[right])]):  # a pinned value
                self.conditions.append(ast.Compare(self.spell(left), [ast.Eq()], [self.spell(right)]))
            case ast.Compare(ops=[ast.IsNot()]):
                pass  # of a certain type: what the kernel was compiled for shows that
            case _:
                self.conditions.append(ast.UnaryOp(ast.Not(), self.spell(refused)))

    def spell(self, expression: ast.expr, stem: str = "") -> ast.expr:
        """With the names that the user gave to things."""
        spelled: ast.expr = _Names(self.namespace, self.cells, stem).visit(expression)
        return spelled

    def finished(self) -> tuple[list[ast.stmt], list[str]]:
        """The statements that compute the result, and the conditions."""
        final: dict[str, ast.expr] = {}
        uses = Counter(name for part in (*self.values.values(), *self.result) for name in _names(part))
        kept: list[ast.stmt] = []
        everywhere: dict[str, ast.expr] = {}
        for name, value in self.values.items():
            final[name] = everywhere[name] = _Replace(everywhere).visit(value)
            replaced = _Replace({key: v for key, v in final.items() if key != name}).visit(value)
            short = len(ast.unparse(replaced)) <= _LINE // 2
            if not uses[name] or _is_place(replaced) or (uses[name] == 1 and short):
                final[name] = replaced
            else:
                kept.append(_assignment(name, replaced))
                del final[name]
        result = ast.Tuple([_Replace(final).visit(item) for item in self.result], ast.Load())
        conditions = [ast.unparse(_negated(_Replace(everywhere).visit(test))) for test in self.conditions]
        return [*kept, ast.Return(result)], list(dict.fromkeys(conditions))


class _Names(ast.NodeTransformer):
    """Names of objects instead of ``_bound0``."""

    def __init__(self, namespace: Mapping[str, Any], cells: Mapping[int, str], stem: str) -> None:
        self.namespace = namespace
        self.cells = cells
        self.stem = stem

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        owner = self.bound(node.value)
        if isinstance(owner, types.CellType) and node.attr == "cell_contents":
            numbered = _NUMBERED.match(self.stem)
            return ast.Name(self.cells.get(id(owner), numbered[1] if numbered else "captured"), ast.Load())
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        owner = self.bound(node.value)
        if isinstance(owner, dict) and "__builtins__" in owner and isinstance(node.slice, ast.Constant):
            return ast.Name(str(node.slice.value), ast.Load())  # a global
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not _BOUND.match(node.id) or node.id not in self.namespace:
            return node
        value = self.namespace[node.id]
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            return ast.Constant(value)
        module = getattr(value, "__module__", None)
        owner = f"{module}." if module in ("math", "numpy") and not isinstance(value, types.ModuleType) else ""
        name = getattr(value, "__name__", None)
        text = f"{owner}{name}" if isinstance(name, str) else repr(value)
        try:
            expression = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError):
            expression = None
        if expression is None or len(text) > _LINE // 2:
            return ast.Name(type(value).__name__.lower(), ast.Load())
        return expression

    def bound(self, node: ast.expr) -> Any:
        """The object that a name of ours stands for."""
        return self.namespace.get(node.id) if isinstance(node, ast.Name) and _BOUND.match(node.id) else None


class _Replace(ast.NodeTransformer):
    """Values instead of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)

    def visit(self, node: Any) -> Any:
        """A new tree: one value may stand in several places."""
        if isinstance(node, ast.AST) and not isinstance(node, ast.Name):
            fields = {key: self._field(value) for key, value in ast.iter_fields(node)}
            return type(node)(**fields)
        return super().visit(node)

    def _field(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
        return self.visit(value) if isinstance(value, ast.AST) else value


def _about_functions(test: ast.expr) -> bool:
    """Whether a check compares captured functions, modules or defaults by identity."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return all(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ast.Is)
        and isinstance(part.comparators[0], ast.Name)
        and _BOUND.match(part.comparators[0].id) is not None
        for part in parts
    )


def _negated(test: ast.expr) -> ast.expr:
    """``not (a == b)`` as ``a != b``, and the like."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=inner)):
            return inner
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[ast.Eq()], comparators=right)):
            return ast.Compare(left, [ast.NotEq()], right)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[ast.NotEq()], comparators=right)):
            return ast.Compare(left, [ast.Eq()], right)
    return test


def _names(expression: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]


def _is_place(expression: ast.expr) -> bool:
    """Whether it only reads: a name, an attribute, an item with a constant key."""
    match expression:
        case ast.Name():
            return True
        case ast.Attribute(value=owner) | ast.Subscript(value=owner, slice=ast.Constant()):
            return _is_place(owner)
    return False


def _assignment(name: str, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], value))


def _cell_names(functions: tuple[Any, ...]) -> dict[int, str]:
    """The variables whose cells the closures of functions hold."""
    found: dict[int, str] = {}
    for function in functions:
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
        if isinstance(code, types.CodeType) and isinstance(cells, tuple):
            found.update({id(cell): name for cell, name in zip(cells, code.co_freevars, strict=True)})
    return found
