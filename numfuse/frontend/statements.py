"""Statements on their way into the tree.

A frame is walked forwards. The two arms of an ``if`` are walked from the same knowledge and joined; a loop is
walked, and its trial output thrown away, until walking it once more teaches nothing new.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from numfuse.errors import FusionNameError, FusionNotImplementedError, FusionTypeError, FusionValueError
from numfuse.frontend import language
from numfuse.frontend.binding import (
    HOST,
    UNASSIGNED,
    UNKNOWN,
    Abstract,
    Kind,
    LocalFunction,
    Values,
    join,
    join_values,
    of_kind,
    of_tuple,
    same,
)
from numfuse.frontend.calls import Calls
from numfuse.frontend.expressions import HOST_ATTRIBUTES, Pair, is_simple, is_true
from numfuse.frontend.frames import Frame, LoopRecord
from numfuse.frontend.returns import breaks, stored_names
from numfuse.frontend.scope import Item

__all__ = ["Statements"]

Outcome = TypeVar("Outcome")


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

    def assign_pair(
        self, target: ast.expr, value: ast.expr, abstract: Abstract, node: ast.AST, frame: Frame
    ) -> None:
        """Emit ``target = value``, and remember what the names now hold."""
        if isinstance(target, ast.Tuple | ast.List):
            if abstract.items is not None and len(abstract.items) != len(target.elts):
                few = "not enough" if len(abstract.items) < len(target.elts) else "too many"
                message = f"{few} values to unpack (expected {len(target.elts)}, got {len(abstract.items)})"
                raise FusionValueError(message, frame.place(node))
            if isinstance(value, ast.Tuple | ast.List) and abstract.items is not None and _has_functions(abstract):
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
        # Assertions are dropped, but one on an element still makes the frame an element function.
        snapshot = self.snapshot()
        with self.collect():
            _, abstract = self.expression(node.test, frame)
        self.truth(abstract, node.test, frame)
        self.restore(snapshot)

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

    # ------------------------------------------------------------------------------------------- loops

    def do_Break(self, node: ast.Break | ast.Continue, frame: Frame) -> None:
        record = frame.loops[-1]
        assert frame.values is not None
        (record.exits if isinstance(node, ast.Break) else record.continues).append(frame.values)
        record.control = max(record.control, frame.control)
        frame.values = None
        self.out.append(self.make(type(node)(), node, frame))

    do_Continue = do_Break

    def settle_loop(
        self, node: ast.For | ast.While, frame: Frame, turn: Callable[[LoopRecord], tuple[Kind, Outcome]]
    ) -> tuple[LoopRecord, Kind, Values, Outcome]:
        """Walk a loop until nothing changes.

        `turn` walks test and body once and gives the kind of what decides about another turn, and what it
        emitted. Returned are what leaves the loop early, the kind under which its names are assigned, what is
        known where a turn starts, and what the last walk emitted.
        """
        assert frame.values is not None
        before, work_before = frame.control, self.element_work
        floor = max(before, Kind.UNIFORM if self.reads_elements(node, frame) else Kind.HOST)
        start: Values = dict(frame.values)
        for name in stored_names([node]):
            # A later turn may read what an earlier one assigns, wherever the assignment stands.
            start.setdefault(name, UNASSIGNED)
        while True:
            snapshot = self.snapshot()
            record = LoopRecord(start)
            frame.values, frame.control = dict(start), floor
            frame.loops.append(record)
            self.element_work = False
            kind, outcome = turn(record)
            frame.loops.pop()
            end = frame.values
            for values in record.continues:
                end = join_values(end, values)
            new_floor = max(floor, record.control, kind, Kind.UNIFORM if self.element_work else Kind.HOST)
            work_before = work_before or self.element_work
            new_start = join_values(start, end)
            assert new_start is not None
            if new_floor == floor and all(same(start[name], new_start[name]) for name in record.used):
                break
            self.restore(snapshot)
            start, floor = new_start, new_floor
        frame.control, self.element_work = before, work_before
        known = {name: abstract for name, abstract in new_start.items() if abstract is not UNASSIGNED}
        return record, floor, known, outcome

    def reads_elements(self, node: ast.For | ast.While, frame: Frame) -> bool:
        """Whether a loop obviously has element work: a good first guess saves walking it once more."""
        assert frame.values is not None
        names = {name for name, abstract in frame.values.items() if abstract.kind == Kind.ELEMENT}
        pending: list[ast.AST] = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, ast.Attribute) and part.attr in HOST_ATTRIBUTES:
                continue
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in names:
                return True
            if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Name) or part.func.id != "len":
                pending += ast.iter_child_nodes(part)
        return False

    def do_While(self, node: ast.While, frame: Frame) -> None:
        def turn(record: LoopRecord) -> tuple[Kind, tuple[list[ast.stmt], ast.expr, Abstract, list[ast.stmt]]]:
            with self.collect() as before:
                test, condition = self.expression(node.test, frame)
            self.truth(condition, node.test, frame)
            if condition.known is not UNKNOWN and not condition.known:
                frame.values = None
                return Kind.HOST, (before, test, condition, [])
            held, frame.control = frame.control, max(frame.control, condition.kind)
            with self.collect() as body:
                self.block(node.body, frame)
            frame.control = held
            return condition.kind, (before, test, condition, body)

        record, floor, start, (before, test, condition, body) = self.settle_loop(node, frame, turn)
        endless = condition.known is not UNKNOWN and bool(condition.known)
        if condition.known is not UNKNOWN and not condition.known:
            frame.values = start
            self.out += before
            self.block(node.orelse, frame)
            return
        if endless and not is_true(test):
            test = self.make(ast.Constant(True), node.test, frame)
        frame.values = None if endless else start
        with self.collect() as orelse:
            self.else_block(node.orelse, record, floor, frame)
        for values in record.exits:
            frame.values = join_values(frame.values, values)
        if not before or endless:
            new = self.make(ast.While(test, [*before, *body] or [self.make(ast.Pass(), node, frame)], orelse), node, frame)
            self.out.append(new)
            return
        self._leave_in_body(node, before, test, body, orelse, bool(record.exits), frame)

    def _leave_in_body(
        self,
        node: ast.While,
        before: list[ast.stmt],
        test: ast.expr,
        body: list[ast.stmt],
        orelse: list[ast.stmt],
        exits: bool,
        frame: Frame,
    ) -> None:
        """``while test`` where the test needs statements: ``while True: ...; if not test: break``."""
        stop: list[ast.stmt] = [self.make(ast.Break(), node, frame)]
        finished = self.fresh("finished") if orelse and exits else None
        if finished is not None:
            self.assign(finished, self.make(ast.Constant(False), node, frame), node, frame)
            with self.collect() as mark:
                self.assign(finished, self.make(ast.Constant(True), node, frame), node, frame)
            stop = [*mark, *stop]
        negated = self.make(ast.UnaryOp(ast.Not(), test), node.test, frame)
        leave = self.make(ast.If(negated, stop, []), node, frame)
        always = self.make(ast.Constant(True), node.test, frame)
        self.out.append(self.make(ast.While(always, [*before, leave, *body], []), node, frame))
        if finished is not None:
            test = self.name(finished, node, frame)
            self.out.append(self.make(ast.If(test, orelse, []), node, frame))
        else:
            self.out += orelse

    def else_block(self, statements: list[ast.stmt], record: LoopRecord, floor: Kind, frame: Frame) -> None:
        """The ``else`` of a loop: what leaves the loop early decides about it."""
        held = frame.control
        if record.exits:
            frame.control = max(held, floor)
        self.block(statements, frame)
        frame.control = held

    def do_For(self, node: ast.For, frame: Frame) -> None:
        iterable, item, parts = self.iterated(node.iter, frame)
        if parts is not None and any(_has_functions(abstract) for _, abstract in parts):
            self.unroll(node, parts, frame)
            return

        def turn(record: LoopRecord) -> tuple[Kind, tuple[ast.expr, list[ast.stmt]]]:
            target = self.target(node.target, frame)
            self.bind_target(node.target, item, frame)
            with self.collect() as body:
                self.block(node.body, frame)
            decides = item.kind if item.items is None and parts is None else Kind.HOST
            return decides, (target, body)

        record, floor, start, (target, body) = self.settle_loop(node, frame, turn)
        frame.values = start
        with self.collect() as orelse:
            self.else_block(node.orelse, record, floor, frame)
        for values in record.exits:
            frame.values = join_values(frame.values, values)
        body = body or [self.make(ast.Pass(), node, frame)]
        self.out.append(self.make(ast.For(target, iterable, body, orelse, None), node, frame))

    def iterated(self, node: ast.expr, frame: Frame) -> tuple[ast.expr, Abstract, list[Pair] | None]:
        """What a ``for`` runs over: the expression, what is known of an item, and the items if they are known."""
        if isinstance(node, ast.Call):
            known = self.resolve(node.func, frame)
            if known is not None and known.value is builtins.range:
                arguments = self.arguments(node, frame)
                kind = max((a.abstract.kind for a in arguments), default=Kind.HOST)
                self.truth(of_kind(kind), node, frame)
                function, _ = self.materialise(known, node.func, frame)
                return self.rebuild(node, function, arguments, frame, host=False), of_kind(kind), None
            if known is not None and known.value in (builtins.enumerate, builtins.zip, builtins.reversed):
                expanded = self._expand(known.value, node, frame)
                if expanded is not None:
                    return expanded
        iterable, abstract = self.expression(node, frame)
        parts = self._parts(iterable, abstract, node, frame)
        if parts is not None:
            return iterable, _joined(parts), parts
        if abstract.kind == Kind.ELEMENT:
            raise FusionTypeError(
                "a loop over an array is not supported: a fused function is applied to all elements at once "
                "(loop over range(...) or a tuple)",
                frame.place(node),
            )
        return iterable, of_kind(abstract.kind), None

    def _expand(
        self, function: object, node: ast.Call, frame: Frame
    ) -> tuple[ast.expr, Abstract, list[Pair]] | None:
        """``enumerate(t)``, ``zip(s, t)`` and ``reversed(t)`` of tuples, as tuples."""
        with self.collect() as statements:
            arguments = self.arguments(node, frame)
        columns = [self._parts(a.value, a.abstract, node, frame) for a in arguments if a.name is None]
        options = {a.name: a.abstract.known for a in arguments if a.name is not None}
        if function is builtins.enumerate and len(columns) == 2:
            options["start"] = arguments[1].abstract.known
            columns.pop()
        settled = [column for column in columns if column is not None]
        if not settled or len(settled) < len(columns) or UNKNOWN in options.values():
            return None
        self.out += statements
        rows: list[Pair] = []
        if function is builtins.reversed:
            rows = settled[0][::-1]
        else:
            if function is builtins.enumerate:
                first = options.get("start", 0)
                assert isinstance(first, int)
                numbers = range(first, first + len(settled[0]))
                settled.insert(0, [(self.make(ast.Constant(i), node, frame), Abstract(Kind.HOST, i)) for i in numbers])
            if options.get("strict") and len({len(column) for column in settled}) > 1:
                raise FusionValueError("zip() arguments differ in length", frame.place(node))
            for row in zip(*settled, strict=False):
                value = self.make(ast.Tuple([v for v, _ in row], ast.Load()), node, frame)
                rows.append((value, of_tuple(tuple(a for _, a in row))))
        whole = self.make(ast.Tuple([value for value, _ in rows], ast.Load()), node, frame)
        return whole, _joined(rows), rows

    def _parts(self, value: ast.expr, abstract: Abstract, node: ast.expr, frame: Frame) -> list[Pair] | None:
        """The items of a tuple whose length is known."""
        if abstract.items is not None and isinstance(value, ast.Tuple | ast.List):
            return list(zip(value.elts, abstract.items, strict=True))
        if abstract.items is not None and isinstance(value, ast.Name):
            out: list[Pair] = []
            for position, item in enumerate(abstract.items):
                index = self.make(ast.Constant(position), node, frame)
                copy = self.clone(value, node, frame)
                out.append((self.make(ast.Subscript(copy, index, ast.Load()), node, frame), item))
            return out
        resolved = abstract.resolved
        if resolved is not None and isinstance(resolved.value, tuple):
            references = [resolved.reference.then(Item(i)) for i in range(len(resolved.value))]
            items = [self.resolved(reference) for reference in references]
            if any(item.category in ("static", "array") for item in items):
                self.guard(resolved.reference, resolved.value)
                return [self.materialise(item, node, frame) for item in items]
        return None

    def unroll(self, node: ast.For, parts: list[Pair], frame: Frame) -> None:
        """Repeat the body for each item: what it calls differs from turn to turn."""
        if any(True for _ in breaks(node.body)) or _continues(node.body):
            raise FusionNotImplementedError(
                "`break` and `continue` are not supported yet in a loop over functions: use `if`",
                frame.place(node),
            )
        for value, abstract in parts:
            self.assign_pair(node.target, value, abstract, node, frame)
            self.block(node.body, frame)
        self.block(node.orelse, frame)


def _continues(statements: Sequence[ast.stmt]) -> bool:
    for statement in statements:
        if isinstance(statement, ast.Continue):
            return True
        if isinstance(statement, ast.If) and (_continues(statement.body) or _continues(statement.orelse)):
            return True
    return False


def _has_functions(abstract: Abstract) -> bool:
    """Whether a value is, or holds, something that only the front end can use."""
    return abstract.function_like or any(_has_functions(item) for item in abstract.items or ())


def _joined(parts: list[Pair]) -> Abstract:
    if not parts:
        return HOST
    joined = parts[0][1]
    for _, abstract in parts[1:]:
        joined = join(joined, abstract)
    return joined
