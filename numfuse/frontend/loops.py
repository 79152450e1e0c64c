"""Loops on their way into the tree.

A loop is walked, and its trial output thrown away, until walking it once more teaches nothing new.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from typing import TypeVar

from numfuse.errors import FusionNotImplementedError, FusionTypeError, FusionValueError
from numfuse.frontend.binding import (
    HOST,
    UNASSIGNED,
    UNKNOWN,
    Abstract,
    Kind,
    Values,
    join,
    join_values,
    of_kind,
    of_tuple,
    same,
)
from numfuse.frontend.expressions import HOST_ATTRIBUTES, Pair, is_true
from numfuse.frontend.frames import Frame, LoopRecord
from numfuse.frontend.returns import breaks, stored_names
from numfuse.frontend.scope import Item
from numfuse.frontend.statements import Statements

__all__ = ["Loops"]

Outcome = TypeVar("Outcome")


class Loops(Statements):
    """The visitor of loops."""

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
        place = (frame.path, id(node), self.unrolled)
        guess, guessed_floor = self.settled.get(place, ({}, floor))
        floor = max(floor, guessed_floor)
        for name in stored_names([node]):
            # A later turn may read what an earlier one assigns, wherever the assignment stands.
            start.setdefault(name, UNASSIGNED)
            if name in guess and not guess[name].function_like:
                start[name] = join(start[name], guess[name])
        while True:
            snapshot = self.snapshot()
            record = LoopRecord(start)
            frame.values, frame.control = dict(start), floor
            frame.loops.append(record)
            self.element_work = False
            kind, outcome = turn(record)
            frame.loops.pop()
            end: Values | None = frame.values
            for values in record.continues:
                end = join_values(end, values)
            new_floor = max(floor, record.control, kind, Kind.UNIFORM if self.element_work else Kind.HOST)
            work_before = work_before or self.element_work
            new_start = start if end is None else join_values(start, end) or start
            if new_floor == floor and all(same(start[name], new_start[name]) for name in record.used):
                break
            self.restore(snapshot)
            start, floor = new_start, new_floor
        self.settled[place] = start, floor
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
            new = self.make(
                ast.While(test, [*before, *body] or [self.make(ast.Pass(), node, frame)], orelse), node, frame
            )
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
        if parts is not None and any(abstract.holds_functions for _, abstract in parts):
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

    def _expand(self, function: object, node: ast.Call, frame: Frame) -> tuple[ast.expr, Abstract, list[Pair]] | None:
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
        around = self.unrolled
        for turn, (value, abstract) in enumerate(parts):
            self.unrolled = (*around, turn)
            self.assign_pair(node.target, value, abstract, node, frame)
            self.block(node.body, frame)
        self.unrolled = around
        self.block(node.orelse, frame)


def _continues(statements: Sequence[ast.stmt]) -> bool:
    for statement in statements:
        if isinstance(statement, ast.Continue):
            return True
        if isinstance(statement, ast.If) and (_continues(statement.body) or _continues(statement.orelse)):
            return True
    return False


def _joined(parts: list[Pair]) -> Abstract:
    if not parts:
        return HOST
    joined = parts[0][1]
    for _, abstract in parts[1:]:
        joined = join(joined, abstract)
    return joined
