"""Expressions on their way into the tree.

Each visit gives the new expression and what is known of its value. A helper call inside an expression may emit
statements before it; where Python would not always evaluate that call (an arm of a ternary, an operand of
``and``), the expression becomes an ``if`` statement, and only then.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from numfuse.errors import (
    FusionIndexError,
    FusionNameError,
)
from numfuse.frontend import language
from numfuse.frontend.binding import (
    HOST,
    Abstract,
    Kind,
    LocalFunction,
    Static,
    of_kind,
    of_tuple,
)
from numfuse.frontend.captured import Captured, Pair
from numfuse.frontend.frames import Frame, is_host_call, static_of

__all__ = ["HOST_ATTRIBUTES", "Expressions", "Pair", "is_simple", "is_true"]

#: Attributes of an array that Python knows without its elements.
HOST_ATTRIBUTES = frozenset({"dtype", "shape", "ndim", "size", "itemsize", "nbytes", "strides", "device"})


def is_simple(value: ast.expr) -> bool:
    """Whether an expression may be repeated and moved: a name, a constant, a structural value."""
    if isinstance(value, ast.Tuple):
        return all(is_simple(item) for item in value.elts)
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.USub) and isinstance(value.operand, ast.Constant)
    return isinstance(value, ast.Name | ast.Constant) or static_of(value) is not None


def is_true(node: ast.expr) -> bool:
    """Whether a test is a constant that holds."""
    return isinstance(node, ast.Constant) and bool(node.value)


def _has_effect(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements may change what an expression written before them means."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign | ast.Expr) or is_host_call(node):
                return True
            if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
                return True
    return False


class Expressions(Captured):
    """The visitor of expressions; calls are in the class below it."""

    def expression(self, node: ast.expr, frame: Frame) -> Pair:
        """Visit an expression: the new one, and what is known of its value."""
        visit = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is None:
            raise language.refusal(node, frame.place(node))
        value, abstract = visit(node, frame)
        if abstract.kind == Kind.ELEMENT:
            self.element_work = True
        return value, abstract

    def expressions(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Pair]:
        """Visit operands from left to right, keeping their order of evaluation."""
        done: list[Pair] = []
        for node in nodes:
            start = len(self.out)
            pair = self.expression(node, frame)
            self.spill(done, start, node, frame)
            done.append(pair)
        return done

    def spill(self, done: list[Pair], start: int, origin: ast.AST, frame: Frame) -> None:
        """Store operands evaluated before the statements emitted since `start`, if those could change them."""
        if not _has_effect(self.out[start:]):
            return
        late = self.out[start:]
        del self.out[start:]
        for position, (value, abstract) in enumerate(done):
            if not is_simple(value):
                done[position] = self.temporary("operand", value, value, frame), abstract
        self.out += late

    # ---------------------------------------------------------------------------------------- leaves

    def visit_Constant(self, node: ast.Constant, frame: Frame) -> Pair:
        return self.make(ast.Constant(node.value, node.kind), node, frame), Abstract(Kind.HOST, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Pair:
        """An f-string is Python's; what is an element in it is refused."""
        parts: list[ast.expr] = []
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                parts.append(self.expression(part, frame)[0])
                continue
            value, abstract = self.expression(part.value, frame)
            if abstract.kind == Kind.ELEMENT:
                raise language.refusal(node, frame.place(part.value))
            form = None if part.format_spec is None else self.expression(part.format_spec, frame)[0]
            parts.append(self.make(ast.FormattedValue(value, part.conversion, form), part, frame))
        return self.make(ast.JoinedStr(parts), node, frame), HOST

    def visit_Name(self, node: ast.Name, frame: Frame) -> Pair:
        owner = frame.owner(node.id)
        if owner is None:
            resolved = self.resolve(node, frame)
            if resolved is None:
                raise frame.undefined(node.id, node)
            return self.materialise(resolved, node, frame)
        if node.id in owner.star_keywords:
            raise language.refusal("Dict", frame.place(node))
        abstract = owner.value(node.id)
        if abstract is None:
            raise FusionNameError(f"local variable {node.id!r} is used before it is assigned", frame.place(node))
        if abstract.function_like and abstract.resolved is not None:
            return self.materialise(abstract.resolved, node, frame)
        value: Any = self.clone(self.variable(node.id, owner), node, frame)
        if node.id in owner.synthetic:
            value.synthetic = True
        structural = abstract.resolved is not None and abstract.resolved.category == "static"
        if structural or isinstance(abstract.known, LocalFunction):
            value.static = Static(abstract.known)
        return value, abstract

    def clone(self, value: ast.expr, origin: ast.AST, frame: Frame) -> ast.expr:
        """A copy of a simple expression, standing at `origin`."""
        fields = {name: self._clone_field(item, origin, frame) for name, item in ast.iter_fields(value)}
        if isinstance(value, ast.Name | ast.Tuple | ast.List | ast.Attribute | ast.Subscript):
            fields["ctx"] = ast.Load()
        new: Any = self.make(type(value)(**fields), origin, frame)
        for mark in ("static", "synthetic"):
            if hasattr(value, mark):
                setattr(new, mark, getattr(value, mark))
        result: ast.expr = new
        return result

    def _clone_field(self, item: Any, origin: ast.AST, frame: Frame) -> Any:
        if isinstance(item, list):
            return [self._clone_field(i, origin, frame) for i in item]
        return self.clone(item, origin, frame) if isinstance(item, ast.expr) else item

    # ------------------------------------------------------------------------- attributes and items

    def visit_Attribute(self, node: ast.Attribute, frame: Frame) -> Pair:
        resolved = self.resolve(node, frame)
        if resolved is not None:
            return self.materialise(resolved, node, frame)
        base, abstract = self.expression(node.value, frame)
        new = self.make(ast.Attribute(base, node.attr, ast.Load()), node, frame)
        if abstract.kind == Kind.ELEMENT and node.attr in HOST_ATTRIBUTES:
            if node.attr != "dtype":
                frame.array_uses.append((f".{node.attr}", frame.place(node)))
            return new, HOST
        return new, of_kind(abstract.kind)

    def visit_Subscript(self, node: ast.Subscript, frame: Frame) -> Pair:
        resolved = self.resolve(node, frame)
        if resolved is not None:
            return self.materialise(resolved, node, frame)
        (base, abstract), (index, index_abstract) = self.expressions([node.value, node.slice], frame)
        if abstract.items is not None and isinstance(index_abstract.known, int):
            position = index_abstract.known
            if not -len(abstract.items) <= position < len(abstract.items):
                message = f"index {position} is outside of a tuple of {len(abstract.items)}"
                raise FusionIndexError(message, frame.place(node))
            if isinstance(base, ast.Tuple) and all(is_simple(item) for item in base.elts):
                return base.elts[position], abstract.items[position]
            new = self.make(ast.Subscript(base, index, ast.Load()), node, frame)
            return new, abstract.items[position]
        captured = abstract.resolved is not None
        if abstract.kind == Kind.ELEMENT and abstract.items is None and not captured and _slices(node.slice):
            frame.array_uses.append(("slicing", frame.place(node)))
        new = self.make(ast.Subscript(base, index, ast.Load()), node, frame)
        return new, of_kind(max(abstract.kind, index_abstract.kind))

    def visit_Slice(self, node: ast.Slice, frame: Frame) -> Pair:
        parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        visited = self.expressions(parts, frame)
        values = iter([value for value, _ in visited])
        lower, upper, step = (next(values) if p is not None else None for p in (node.lower, node.upper, node.step))
        kind = max((abstract.kind for _, abstract in visited), default=Kind.HOST)
        return self.make(ast.Slice(lower, upper, step), node, frame), of_kind(kind)

    def visit_Tuple(self, node: ast.Tuple, frame: Frame) -> Pair:
        for item in node.elts:
            if isinstance(item, ast.Starred):
                raise language.refusal(item, frame.place(item))
        visited = self.expressions(node.elts, frame)
        new = self.make(ast.Tuple([value for value, _ in visited], ast.Load()), node, frame)
        return new, of_tuple(tuple(abstract for _, abstract in visited))

    def visit_List(self, node: ast.List, frame: Frame) -> Pair:
        new, abstract = self.visit_Tuple(ast.copy_location(ast.Tuple(node.elts, node.ctx), node), frame)
        assert isinstance(new, ast.Tuple)
        return self.make(ast.List(new.elts, ast.Load()), node, frame), abstract

    def visit_Lambda(self, node: ast.Lambda, frame: Frame) -> Pair:
        defaults = self.default_values(node.args, frame)
        function = LocalFunction(node, frame, defaults)
        new: Any = self.make(ast.Name("lambda_", ast.Load()), node, frame)
        new.static = Static(function)
        return new, Abstract(Kind.HOST, function)

    def default_values(self, arguments: ast.arguments, frame: Frame) -> dict[str, Pair]:
        """Evaluate the defaults of a nested function where it is defined."""
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))[::-1]
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        values = self.expressions([default for _, default in pairs], frame)
        out: dict[str, Pair] = {}
        for (argument, default), (value, abstract) in zip(pairs, values, strict=True):
            if not (is_simple(value) and not isinstance(value, ast.Name)):
                value = self.temporary(argument.arg, value, default, frame)
            out[argument.arg] = value, abstract
        return out


def _slices(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(part, ast.Slice) for part in parts)
