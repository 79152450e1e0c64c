"""Statements on their way into the tree.

A frame is walked forwards. The two arms of an ``if`` are walked from the same knowledge and joined.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from numfuse.errors import (
    FusionNameError,
    FusionNotImplementedError,
    FusionSyntaxError,
    FusionTypeError,
    FusionValueError,
)
from numfuse.frontend import language
from numfuse.frontend.binding import (
    UNKNOWN,
    Abstract,
    Kind,
    LocalFunction,
    Values,
    join_values,
    of_kind,
)
from numfuse.frontend.calls import Calls
from numfuse.frontend.expressions import is_simple
from numfuse.frontend.frames import Frame

__all__ = ["Statements"]


class Statements(Calls):
    """The visitor of statements."""

    def block(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Visit statements up to the first that is never passed."""
        for statement in statements:
            if frame.values is None:
                return
            visit = getattr(self, f"do_{type(statement).__name__}", None)
            if visit is None:
                raise language.refusal(statement, frame.place(statement))
            visit(statement, frame)

    # ---------------------------------------------------------------------------------- assignment

    def do_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value, abstract = self.expression(node.value, frame)
        if len(node.targets) > 1 and not is_simple(value):
            first = node.targets[0]
            if isinstance(first, ast.Name):
                self.assign_pair(first, value, abstract, node, frame)
                value, abstract = self.visit_Name(ast.copy_location(ast.Name(first.id, ast.Load()), first), frame)
                for target in node.targets[1:]:
                    self.assign_pair(target, value, abstract, node, frame)
                return
            value = self.temporary("value", value, node, frame)
        for target in node.targets:
            self.assign_pair(target, value, abstract, node, frame)

    def do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            value, abstract = self.expression(node.value, frame)
            self.assign_pair(node.target, value, abstract, node, frame)

    def assign_pair(self, target: ast.expr, value: ast.expr, abstract: Abstract, node: ast.AST, frame: Frame) -> None:
        """Emit ``target = value``, and remember what the names now hold."""
        if isinstance(target, ast.Tuple | ast.List):
            if abstract.items is not None and len(abstract.items) != len(target.elts):
                few = "not enough" if len(abstract.items) < len(target.elts) else "too many"
                message = f"{few} values to unpack (expected {len(target.elts)}, got {len(abstract.items)})"
                raise FusionValueError(message, frame.place(node))
            if isinstance(value, ast.Tuple | ast.List) and abstract.items is not None and abstract.holds_functions:
                for part, item, known in zip(target.elts, value.elts, abstract.items, strict=True):
                    self.assign_pair(part, item, known, node, frame)
                return
        if not (isinstance(target, ast.Name) and abstract.function_like):
            new = self.target(target, frame)
            self.out.append(self.make(ast.Assign([new], value), node, frame))
        self.bind_target(target, abstract, frame)

    def target(self, node: ast.expr, frame: Frame) -> ast.expr:
        """The left side of an assignment."""
        if isinstance(node, ast.Name):
            if node.id in frame.outer_names:
                raise language.refusal("Global", frame.place(node))
            new = self.make(ast.Name(self.variable_name(node.id, frame), ast.Store()), node, frame)
            if node.id in frame.synthetic:
                new.synthetic = True  # type: ignore[attr-defined]
            return new
        if isinstance(node, ast.Tuple | ast.List):
            items = [self.target(item, frame) for item in node.elts]
            return self.make(ast.Tuple(items, ast.Store()), node, frame)
        if isinstance(node, ast.Subscript):
            (base, _), (index, _) = self.expressions([node.value, node.slice], frame)
            return self.make(ast.Subscript(base, index, ast.Store()), node, frame)
        if isinstance(node, ast.Attribute):
            message = "an assignment to an attribute is not supported in a fused function: return the value"
            raise FusionTypeError(message, frame.place(node))
        raise language.refusal(node, frame.place(node))

    def variable_name(self, name: str, frame: Frame) -> str:
        """The name in the tree of a local variable that is assigned."""
        variable = self.variable(name, frame)
        assert isinstance(variable, ast.Name)
        return variable.id

    def bind_target(self, target: ast.expr, abstract: Abstract, frame: Frame) -> None:
        """Remember what the names of an assignment hold."""
        if isinstance(target, ast.Name):
            self.bind_local(target.id, abstract, frame)
        elif isinstance(target, ast.Tuple | ast.List):
            items = abstract.items or (of_kind(abstract.kind),) * len(target.elts)
            for part, item in zip(target.elts, items, strict=True):
                self.bind_target(part, item, frame)

    def do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        if isinstance(node.target, ast.Name):
            name = node.target.id
            old = frame.value(name)
            target = self.target(node.target, frame)
            if old is None:
                message = f"local variable {name!r} is used before it is assigned"
                raise FusionNameError(message, frame.place(node.target))
            value, abstract = self.expression(node.value, frame)
            kind = max(old.kind, abstract.kind)
            self.bind_local(name, of_kind(kind), frame)
        else:
            target = self.target(node.target, frame)
            value, _ = self.expression(node.value, frame)
        assert isinstance(target, ast.Name | ast.Subscript)
        self.out.append(self.make(ast.AugAssign(target, node.op, value), node, frame))

    # ------------------------------------------------------------------------------- small statements

    def do_Return(self, node: ast.Return, frame: Frame) -> None:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        frame.result = self.expression(value, frame)

    def do_Expr(self, node: ast.Expr, frame: Frame) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        value, _ = self.expression(node.value, frame)
        if any(isinstance(part, ast.Call) for part in ast.walk(value)):
            self.out.append(self.make(ast.Expr(value), node, frame))

    def do_Pass(self, node: ast.Pass, frame: Frame) -> None:
        pass

    def do_Global(self, node: ast.Global | ast.Nonlocal, frame: Frame) -> None:
        for name in node.names:
            if name in frame.assigned:
                raise language.refusal(node, frame.place(node))

    do_Nonlocal = do_Global

    def do_Assert(self, node: ast.Assert, frame: Frame) -> None:
        """Keep what Python can check. Others are dropped, but one on an element makes the frame an element function."""
        if not __debug__:  # python -O
            return
        snapshot = self.snapshot()
        with self.collect() as before:
            test, abstract = self.expression(node.test, frame)
        self.truth(abstract, node.test, frame)
        if max(abstract.kind, frame.control) != Kind.HOST:
            self.restore(snapshot)
            return
        self.out += before
        if abstract.known is UNKNOWN or not abstract.known:
            message = None if node.msg is None else self.host_expression(node.msg, frame)
            self.out.append(self.make(ast.Assert(test, message), node, frame))

    def do_Raise(self, node: ast.Raise, frame: Frame) -> None:
        """A path that Python alone decides about may end with an exception."""
        if frame.control == Kind.ELEMENT:
            raise language.refusal(node, frame.place(node))
        if node.exc is None:
            message = "`raise` alone has nothing to raise again in a fused function: name the exception"
            raise FusionSyntaxError(message, frame.place(node))
        error = self.host_expression(node.exc, frame)
        cause = None if node.cause is None else self.host_expression(node.cause, frame)
        self.out.append(self.make(ast.Raise(error, cause), node, frame))
        frame.values, frame.raises = None, True

    def host_expression(self, node: ast.expr, frame: Frame) -> ast.expr:
        """An exception, or the message of an assertion: Python's own values only."""
        with self.collect() as before:
            value, abstract = self.expression(node, frame)
        if abstract.kind == Kind.ELEMENT or before:
            raise FusionSyntaxError(
                "an exception is made by Python, before the kernel runs, so it can hold no elements and nothing that "
                "is computed from them: leave them out of it",
                frame.place(node),
            )
        return value

    def do_FunctionDef(self, node: ast.FunctionDef, frame: Frame) -> None:
        if node.decorator_list:
            raise FusionNotImplementedError(
                "a decorator on a nested function is not supported yet: define the function at module level",
                frame.place(node.decorator_list[0]),
            )
        defaults = self.default_values(node.args, frame)
        self.bind_local(node.name, Abstract(Kind.HOST, LocalFunction(node, frame, defaults)), frame)

    def do_With(self, node: ast.With, frame: Frame) -> None:
        for item in node.items:
            call = item.context_expr
            known = self.resolve(call.func, frame) if isinstance(call, ast.Call) else None
            if known is None or known.value is not np.errstate or item.optional_vars is not None:
                raise language.refusal(node, frame.place(call))
            assert isinstance(call, ast.Call)
            self.guard(known.reference, known.value)
            for keyword in call.keywords:
                _, abstract = self.expression(keyword.value, frame)
                if abstract.known not in ("ignore", "warn"):
                    raise FusionNotImplementedError(
                        'only np.errstate(...="ignore") and "warn" are supported: a fused function raises no '
                        "floating-point errors",
                        frame.place(keyword.value),
                    )
        self.block(node.body, frame)

    # ---------------------------------------------------------------------------------------- branches

    def do_If(self, node: ast.If, frame: Frame) -> None:
        test, condition = self.expression(node.test, frame)
        if condition.known is not UNKNOWN:
            self.block(node.body if condition.known else node.orelse, frame)
            return
        self.truth(condition, node.test, frame)
        assert frame.values is not None
        entry, before = frame.values, frame.control
        frame.control = max(before, condition.kind)
        ends: list[Values | None] = []
        arms: list[list[ast.stmt]] = []
        for arm in (node.body, node.orelse):
            frame.values = dict(entry)
            with self.collect() as statements:
                self.block(arm, frame)
            ends.append(frame.values)
            arms.append(statements)
        frame.control = before
        frame.values = join_values(ends[0], ends[1])
        if not arms[0] and not arms[1]:
            return
        if not arms[0]:
            test = self.make(ast.UnaryOp(ast.Not(), test), node.test, frame)
            arms = [arms[1], []]
        self.out.append(self.make(ast.If(test, arms[0], arms[1]), node, frame))
