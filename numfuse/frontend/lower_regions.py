"""Lowering of branches and loops.

Where paths meet, names that mean different values on them meet in the results of an
:class:`~numfuse.body.If` or in the carried values of a :class:`~numfuse.body.Loop`. Only conditions on
elements make regions: what Python decides is simply followed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from numfuse.body import Block, Const, If, Value
from numfuse.errors import FusionTypeError, FusionValueError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import loc_of
from numfuse.frontend.lower_calls import CallLowering
from numfuse.frontend.lower_expressions import is_number
from numfuse.frontend.lower_values import UNASSIGNED, Abstract, Device, TupleValue, Unassigned
from numfuse.frontend.prelude import Host
from numfuse.passes.types import UNDEFINED


class RegionLowering(CallLowering):
    """Statements that choose or repeat."""

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Lower statements in order."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Abstract) -> None:
        """Assign to a name or to a tuple of targets."""
        raise NotImplementedError

    def items(self, value: Abstract, count: int | None, loc: Loc | None) -> list[Abstract]:
        """The items of something that is unpacked or looped over."""
        raise NotImplementedError

    def _if(self, node: ast.If) -> None:
        taken = self.truth(self.expr(node.test), loc_of(node.test))
        if isinstance(taken, bool):
            self.statements(node.body if taken else node.orelse)
            return
        before = self.env
        arms = []
        for body in (node.body, node.orelse):
            self.env = dict(before)
            with self.region() as nodes:
                self.statements(body)
            arms.append((nodes, self.env))
        self.env = dict(before)
        (then_nodes, then), (else_nodes, orelse) = arms
        merge = _Merge(self, loc_of(node))
        for name in {**then, **orelse}:
            first, second = then.get(name, UNASSIGNED), orelse.get(name, UNASSIGNED)
            self.env[name] = merge.pair(first, second)
        if merge.pairs or then_nodes or else_nodes:
            self.builder.add(
                If(
                    tuple(merge.results),
                    taken.id,
                    Block(tuple(then_nodes), tuple(a for a, _ in merge.pairs)),
                    Block(tuple(else_nodes), tuple(b for _, b in merge.pairs)),
                    loc_of(node),
                )
            )

    def device_or_undefined(self, value: Abstract, loc: Loc | None) -> int:
        """The value's id, or that of a number that no path reads."""
        if not isinstance(value, Unassigned):
            return self.device(value, loc)
        return self.entry("undefined", None, lambda result: Const(result, UNDEFINED))


class _Merge:
    """The values of the names after a branch."""

    def __init__(self, lowering: RegionLowering, loc: Loc | None) -> None:
        self.lowering = lowering
        self.loc = loc
        self.results: list[Value] = []
        self.pairs: list[tuple[int, int]] = []
        self._known: dict[tuple[int, int], Abstract] = {}

    def pair(self, first: Abstract, second: Abstract) -> Abstract:
        if first is second or _same_number(first, second):
            return first
        if isinstance(first, Static) and isinstance(second, Static) and first.value is second.value:
            return first
        key = (id(first), id(second))
        if key not in self._known:
            self._known[key] = self._new(first, second)
        return self._known[key]

    def _new(self, first: Abstract, second: Abstract) -> Abstract:
        if isinstance(first, TupleValue) or isinstance(second, TupleValue):
            return self._tuples(first, second)
        if isinstance(first, Static) or isinstance(second, Static):
            if isinstance(first, Unassigned) or isinstance(second, Unassigned):
                return UNASSIGNED
            raise FusionTypeError(
                "a variable is a function or a type here, depending on elements: choose between results instead",
                self.loc,
            )
        ids = tuple(self.lowering.device_or_undefined(value, self.loc) for value in (first, second))
        value = self.lowering.builder.value()
        self.results.append(value)
        self.pairs.append((ids[0], ids[1]))
        number = is_number(first) and is_number(second)
        return Device(value.id, partial=is_partial(first) or is_partial(second), number=number)

    def _tuples(self, first: Abstract, second: Abstract) -> Abstract:
        if isinstance(first, TupleValue) and isinstance(second, TupleValue):
            if len(first.items) == len(second.items) and first.is_list == second.is_list:
                items = zip(first.items, second.items, strict=True)
                return first.with_items(self.pair(a, b) for a, b in items)
        elif isinstance(first, TupleValue) and isinstance(second, Unassigned):
            return first.with_items(self.pair(item, UNASSIGNED) for item in first.items)
        elif isinstance(second, TupleValue) and isinstance(first, Unassigned):
            return second.with_items(self.pair(UNASSIGNED, item) for item in second.items)
        raise FusionValueError(
            "a variable is a tuple on one path and something else, or of another length, on the other",
            self.loc,
        )


def is_partial(value: Abstract) -> bool:
    return isinstance(value, Unassigned) or (isinstance(value, Device) and value.partial)


def _same_number(first: Abstract, second: Abstract) -> bool:
    return (
        isinstance(first, Host)
        and isinstance(second, Host)
        and (first.code == second.code or (first.static and second.static))
        and type(first.value) is type(second.value)
        and repr(first.value) == repr(second.value)
    )
