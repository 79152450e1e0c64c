"""Operators on their way into the tree, with what is known of their results.

Where Python would not always evaluate an operand that emits statements, the expression becomes an ``if``.
"""

from __future__ import annotations

import ast

from numfuse.frontend.binding import (
    UNKNOWN,
    Abstract,
    Kind,
    LocalFunction,
    join,
    of_kind,
)
from numfuse.frontend.expressions import Expressions, Pair, is_simple
from numfuse.frontend.frames import Frame
from numfuse.frontend.python_operators import COMPARISON

__all__ = ["Operators"]


class Operators(Expressions):
    """The visitor of operators."""

    def visit_BinOp(self, node: ast.BinOp, frame: Frame) -> Pair:
        (left, a), (right, b) = self.expressions([node.left, node.right], frame)
        return self.make(ast.BinOp(left, node.op, right), node, frame), of_kind(max(a.kind, b.kind))

    def visit_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Pair:
        value, abstract = self.expression(node.operand, frame)
        new = self.make(ast.UnaryOp(node.op, value), node, frame)
        known: object = UNKNOWN
        if isinstance(node.op, ast.Not):
            self.truth(abstract, node.operand, frame)
            if abstract.known is not UNKNOWN:
                known = not abstract.known
                return self.make(ast.Constant(known), node, frame), Abstract(Kind.HOST, known)
        elif isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number = node.operand.value
            known = -number if isinstance(number, int | float | complex) else UNKNOWN
        return new, Abstract(abstract.kind, known)

    def truth(self, abstract: Abstract, node: ast.AST, frame: Frame) -> None:
        """Note that the truth value of something is asked for."""
        if abstract.kind == Kind.ELEMENT:
            frame.needs_number(node)

    def visit_IfExp(self, node: ast.IfExp, frame: Frame) -> Pair:
        test, condition = self.expression(node.test, frame)
        if condition.known is not UNKNOWN:
            return self.expression(node.body if condition.known else node.orelse, frame)
        self.truth(condition, node.test, frame)
        before, frame.control = frame.control, max(frame.control, condition.kind)
        with self.collect() as then:
            body, a = self.expression(node.body, frame)
        with self.collect() as other:
            orelse, b = self.expression(node.orelse, frame)
        frame.control = before
        abstract = join(a, b).raised(condition.kind)
        if not then and not other:
            return self.make(ast.IfExp(test, body, orelse), node, frame), abstract
        return self.choose("picked", test, (then, body), (other, orelse), node, frame), abstract

    def choose(
        self,
        wanted: str,
        test: ast.expr,
        then: tuple[list[ast.stmt], ast.expr],
        other: tuple[list[ast.stmt], ast.expr] | None,
        node: ast.AST,
        frame: Frame,
        name: str | None = None,
    ) -> ast.Name:
        """Emit an ``if`` statement whose arms assign one name."""
        name = name or self.fresh(wanted)
        arms: list[list[ast.stmt]] = []
        for arm in (then, other):
            with self.collect() as statements:
                if arm is not None:
                    self.out += arm[0]
                    self.assign(name, arm[1], node, frame)
            arms.append(statements)
        self.out.append(self.make(ast.If(test, arms[0], arms[1]), node, frame))
        return self.name(name, node, frame)

    def visit_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Pair:
        stop = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        abstracts: list[Abstract] = []
        name: str | None = None
        before = frame.control
        for position, operand in enumerate(node.values):
            last = position == len(node.values) - 1
            with self.collect() as statements:
                value, abstract = self.expression(operand, frame)
            if not values and name is None:
                self.out += statements
            elif statements:
                # Later operands are evaluated only where the earlier ones leave the answer open.
                if name is not None:
                    values.insert(0, self.name(name, node, frame))
                name = name or self.fresh("truth")
                if len(values) > 1 or not isinstance(values[0], ast.Name) or values[0].id != name:
                    self.assign(name, self._combined(node, values, frame), node, frame)
                values = []
                self.nest_truth(name, stop, (statements, value), node, frame)
                abstracts.append(abstract)
                if not last:
                    self.truth(abstract, operand, frame)
                frame.control = max(frame.control, abstract.kind)
                continue
            if abstract.known is not UNKNOWN and not last and bool(abstract.known) is not stop:
                continue  # True and x is x
            values.append(value)
            abstracts.append(abstract)
            if abstract.known is not UNKNOWN and bool(abstract.known) is stop:
                break  # False and x is False
            if not last:
                self.truth(abstract, operand, frame)
            frame.control = max(frame.control, abstract.kind)
        frame.control = before
        joined = abstracts[0]
        for abstract in abstracts[1:]:
            joined = join(joined, abstract)
        if len(abstracts) > 1:
            joined = of_kind(joined.kind)
        if name is None:
            return self._combined(node, values, frame), joined
        return self._combined(node, [self.name(name, node, frame), *values], frame), joined

    def nest_truth(
        self, name: str, stop: bool, arm: tuple[list[ast.stmt], ast.expr], node: ast.AST, frame: Frame
    ) -> None:
        """Emit ``if name: ...; name = value`` (``if not name`` for ``or``)."""
        test: ast.expr = self.name(name, node, frame)
        if stop:
            test = self.make(ast.UnaryOp(ast.Not(), test), node, frame)
        self.choose("truth", test, arm, None, node, frame, name)

    def _combined(self, node: ast.BoolOp, values: list[ast.expr], frame: Frame) -> ast.expr:
        return values[0] if len(values) == 1 else self.make(ast.BoolOp(node.op, values), node, frame)

    def visit_Compare(self, node: ast.Compare, frame: Frame) -> Pair:
        (left, a), (right, b) = self.expressions([node.left, node.comparators[0]], frame)
        kind = max(a.kind, b.kind)
        if len(node.ops) == 1:
            known = fold_comparison(node.ops[0], a, b)
            if isinstance(known, bool):
                return self.make(ast.Constant(known), node, frame), Abstract(Kind.HOST, known)
            if isinstance(node.ops[0], ast.In | ast.NotIn) and kind == Kind.ELEMENT:
                frame.needs_number(node)
            return self.make(ast.Compare(left, node.ops, [right]), node, frame), of_kind(kind)
        rights = [right]
        later: list[list[ast.stmt]] = []
        before = frame.control
        for operand in node.comparators[1:]:
            self.truth(of_kind(kind), node, frame)
            frame.control = max(frame.control, kind)
            with self.collect() as statements:
                value, abstract = self.expression(operand, frame)
            kind = max(kind, abstract.kind)
            rights.append(value)
            later.append(statements)
        frame.control = before
        if not any(later):
            return self.make(ast.Compare(left, node.ops, rights), node, frame), of_kind(kind)
        return self._compare_in_steps(node, left, rights, later, frame), of_kind(kind)

    def _compare_in_steps(
        self, node: ast.Compare, left: ast.expr, rights: list[ast.expr], later: list[list[ast.stmt]], frame: Frame
    ) -> ast.expr:
        """``a < b < f(c)`` where f emits statements: each comparison only if those before it hold."""
        name = self.fresh("truth")
        for position, (op, right) in enumerate(zip(node.ops, rights, strict=True)):
            with self.collect() as statements:
                self.out += later[position - 1] if position else []
                if position < len(rights) - 1 and not is_simple(right):
                    right = self.temporary("operand", right, right, frame)
            step = self.make(ast.Compare(left, [op], [right]), node, frame)
            if position:
                self.nest_truth(name, False, (statements, step), node, frame)
            else:
                self.out += statements
                self.assign(name, step, node, frame)
            left = right
        return self.name(name, node, frame)


def fold_comparison(op: ast.cmpop, a: Abstract, b: Abstract) -> object:
    """The answer of a comparison between structural values, or UNKNOWN."""
    identity = isinstance(op, ast.Is | ast.IsNot)
    if a.known is not UNKNOWN and b.known is not UNKNOWN:
        same = a.known is b.known
        if not identity:
            return _compare(op, a.known, b.known)
        return same if isinstance(op, ast.Is) else not same
    if identity:
        for value, other in ((a, b), (b, a)):
            # An array is never None, unless some path left it so.
            if other.known is None and value.kind == Kind.ELEMENT and not value.optional:
                return isinstance(op, ast.IsNot)
    if not isinstance(op, ast.In | ast.NotIn) or a.known is UNKNOWN or b.items is None:
        return UNKNOWN
    if any(item.known is UNKNOWN for item in b.items):
        return UNKNOWN
    return any(_compare(ast.Eq(), a.known, item.known) is True for item in b.items) is isinstance(op, ast.In)


def _compare(op: ast.cmpop, a: object, b: object) -> object:
    plain = (bool, int, float, str, bytes, type(None))
    if isinstance(op, ast.Eq | ast.NotEq):
        if any(isinstance(value, LocalFunction) for value in (a, b)):
            return UNKNOWN
        try:
            return bool(a == b) is isinstance(op, ast.Eq)
        except (TypeError, ValueError):
            return UNKNOWN
    if not isinstance(a, plain) or not isinstance(b, plain):
        return UNKNOWN
    try:
        if isinstance(op, ast.In | ast.NotIn):
            return (a in b) is isinstance(op, ast.In)  # type: ignore[operator]
        comparison = COMPARISON.get(type(op))
        return UNKNOWN if comparison is None else comparison[1](a, b)
    except TypeError:
        return UNKNOWN
