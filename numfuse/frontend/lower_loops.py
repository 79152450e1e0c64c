"""Lowering of loops: written out where Python decides the turns, a loop of the kernel where elements do."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from numfuse.body import Block, Loop
from numfuse.errors import FusionNotImplementedError, FusionTypeError, FusionValueError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import loc_of
from numfuse.frontend.lower_expressions import STRUCTURAL_VALUES, is_number
from numfuse.frontend.lower_regions import RegionLowering, is_partial
from numfuse.frontend.lower_values import UNASSIGNED, Abstract, Device, TupleValue
from numfuse.frontend.prelude import Host
from numfuse.frontend.python_numbers import NumberSearch

# A loop with a known number of turns is written out when that keeps the body short: its index is then a
# number that Python has, and nothing is carried.
UNROLL_TURNS, UNROLL_NODES = 32, 1000
# Loops that change a Python number are written out as long as they have no more nodes than this; those that only
# do something with the index that may fail or grow out of 64 bits, up to a smaller size.
UNROLL_NUMBERS, UNROLL_CAREFUL = 20_000, 3_000


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """How far lowering had come, for taking back a loop that was written out in vain."""

    nodes: int
    entry: int
    numbers: dict[object, int]
    loads: dict[str, Device]
    env: dict[str, Abstract]
    prelude: tuple[int, int]


class LoopLowering(RegionLowering):
    """``for`` and ``while``."""

    def _while(self, node: ast.While) -> None:
        """Written out while Python decides the test; a loop of the kernel once elements do."""
        saved = self._snapshot()
        certain = False
        decisions = len(self.prelude.lines)
        for turn in range(UNROLL_TURNS * 4):
            test = self.expr(node.test)
            if isinstance(test, Device):
                break
            if not self.truth(test, loc_of(node.test)):
                # Where the number of turns may differ from call to call, a few of them get code of their own.
                fixed = len(self.prelude.lines) == decisions
                if fixed or not certain or self.structural_values(loc_of(node), turn) <= STRUCTURAL_VALUES:
                    return
                break
            certain = True
            if len(self.builder.nodes) - saved.nodes > UNROLL_NODES:
                break
            self.statements(node.body)
            if turn == 0 and isinstance(self.expr(node.test), Device):
                break  # only its first turn is certain: no need to write that one out
        self._restore(saved)
        if certain:  # the first turn stays decided, also where the loop as a whole is the kernel's
            self.truth(self.expr(node.test), loc_of(node.test))
        self.carried_loop(node.body, lambda: self.device(self.expr(node.test), loc_of(node)), node, certain)

    def _for(self, node: ast.For) -> None:
        call = node.iter
        static = getattr(call.func, "static", None) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and isinstance(static, Static) and static.value is range:
            self._for_range(node, [self.expr(bound) for bound in call.args])
            return
        for item in self.sequence(node.iter):
            self.bind(node.target, item)
            self.statements(node.body)

    def sequence(self, node: ast.expr) -> list[Abstract]:
        """The items of a sequence whose length is known: tuples, enumerate and zip of them."""
        static = getattr(node.func, "static", None) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(static, Static) and not node.keywords:
            if static.value is enumerate and len(node.args) == 1:
                items = self.sequence(node.args[0])
                return [TupleValue((self.prelude.static(i), item)) for i, item in enumerate(items)]
            if static.value is zip:
                columns = [self.sequence(arg) for arg in node.args]
                return [TupleValue(row) for row in zip(*columns, strict=False)]
            if static.value is reversed and len(node.args) == 1:
                return self.sequence(node.args[0])[::-1]
        value = self.expr(node)
        if isinstance(value, Device):
            raise FusionTypeError(
                "a loop over an array is not an elementwise function: loop over range() or a tuple",
                loc_of(node),
            )
        return self.items(value, None, loc_of(node))

    def _for_range(self, node: ast.For, bounds: list[Abstract]) -> None:
        loc = loc_of(node)
        if not 1 <= len(bounds) <= 3:
            raise FusionTypeError(f"range expects 1 to 3 arguments, got {len(bounds)}", loc)
        zero, one = self.prelude.static(0), self.prelude.static(1)
        first = bounds[0] if len(bounds) > 1 else zero
        start, stop, step = first, bounds[min(len(bounds), 2) - 1], bounds[2] if len(bounds) == 3 else one
        certain = False
        if isinstance(start, Host) and isinstance(stop, Host) and isinstance(step, Host):
            # Python's own TypeError and ValueError, at each call
            template = f"{self.prelude.bind(range)}({{}}, {{}}, {{}})"
            counted = self.prelude.compute(template, [start, stop, step], range, may_fail=self.depth > 0)
            if not self.prelude.decide(counted):
                return
            turns, certain = counted.value, True
            size = sum(1 for statement in node.body for _ in ast.walk(statement))
            short = len(turns) <= UNROLL_TURNS and len(turns) * size <= UNROLL_NODES
            static = counted.static
            numbers, careful = NumberSearch(self.env, node).run()
            if numbers and not short and len(turns) * size > UNROLL_NUMBERS:
                raise FusionNotImplementedError(
                    f"{numbers[0]} is a Python number that changes in each of {len(turns)} turns, and so many "
                    f"can't be written out: compute it in a helper of numbers alone, or make it a NumPy number",
                    loc,
                )
            python = numbers or (careful and len(turns) * size <= UNROLL_CAREFUL)
            if python or (short and (static or self.structural_values(loc, turns) <= STRUCTURAL_VALUES)):
                for host in (start, stop, step):
                    self.prelude.pin(host)
                for index in turns:
                    self.bind(node.target, self.prelude.static(index))
                    self.statements(node.body)
                return
        start, stop = self._whole(start, loc), self._whole(stop, loc)
        if not isinstance(step, Host):
            raise FusionTypeError("the step of a range must be a number that Python has", loc)
        if self.prelude.decide(self.prelude.compute("({} == 0)", [step], lambda value: value == 0)):
            raise FusionValueError("range() arg 3 must not be zero", loc)
        self._counted_loop(node, start, stop, step, certain)

    def _whole(self, bound: Abstract, loc: Loc | None) -> Abstract:
        """A bound of a range that the kernel counts: an integer, and one that fits its counter."""
        if isinstance(bound, Host):
            self.prelude.within(bound, -(2**63), 2**63 - 1)
            return bound
        return self.op("index", [bound], "operator", loc)

    def _counted_loop(self, node: ast.For, start: Abstract, stop: Abstract, step: Host, certain: bool) -> None:
        """``for`` as a loop of the kernel, with a counter of its own (the target may be assigned to)."""
        loc = loc_of(node)
        increasing = self.prelude.decide(self.prelude.compute("{} > 0", [step], lambda value: value > 0))
        counter = " counter"  # no Python name has a space
        while counter in self.env:
            counter += "'"
        self.env[counter] = start
        advance = ast.Assign([ast.Name(counter, ast.Store())], ast.Constant(0))  # a number: nothing shares it

        stop_flag = getattr(node, "stop_flag", None)  # set by a break

        def test() -> int:
            row = "less" if increasing else "greater"
            more: Abstract = self.op(row, [self.env[counter], stop], "operator", loc)
            if stop_flag is not None and stop_flag in self.env:
                going = self.op("logical_not", [self.env[stop_flag]], "operator", loc)
                more = self.op("logical_and", [going, more], "operator", loc)
            return self.device(more, loc)

        def first() -> None:
            now = self.env[counter]
            self.bind(node.target, now)
            self.env[counter] = self.op("add", [now, step], "operator", loc)

        also = [advance, ast.Assign([node.target], advance.value)]
        self.carried_loop(node.body, test, node, certain, first, also)
        del self.env[counter]

    def carried_loop(
        self,
        body: Sequence[ast.stmt],
        test: Callable[[], int],
        node: ast.stmt,
        certain: bool,
        first: Callable[[], None] | None = None,
        also: Sequence[ast.stmt] = (),
    ) -> None:
        """A loop of the kernel: every variable that a turn assigns is carried.

        `certain`: the first turn is taken by every element.
        """
        loc = loc_of(node)
        names = self._carried([*body, *also])
        in_place = self._changed_in_place(body)
        before = dict(self.env)
        initial: list[int] = []
        groups: dict[object, int] = {}  # names of one array that is changed in place stay one carried value
        position: dict[str, int] = {}
        for name in names:
            value = before.get(name, UNASSIGNED)
            if isinstance(value, TupleValue | Static):
                raise FusionNotImplementedError(
                    f"{name} is a tuple or a function that a loop of the kernel changes, which is not there "
                    f"yet: use one variable for each item",
                    loc,
                )
            key: object = id(value) if any(value is other for other in in_place.values()) else name
            if key not in groups:
                groups[key] = len(initial)
                initial.append(self.device_or_undefined(value, loc))
            position[name] = groups[key]
        arguments = tuple(self.builder.value() for _ in initial)
        unassigned = {position[name] for name in names if is_partial(before.get(name, UNASSIGNED))}
        numbers = {position[name] for name in names if is_number(before.get(name, UNASSIGNED))}
        saved = self._snapshot()
        while True:  # what is no number after a turn is none in the next one
            inside = [
                Device(value.id, partial=k in unassigned, number=k in numbers) for k, value in enumerate(arguments)
            ]
            self.env = {**before, **{name: inside[position[name]] for name in names}}
            with self.region() as test_nodes:
                condition = test()
            with self.region() as body_nodes:
                if first is not None:
                    first()
                self.statements(body)
            kept = numbers - {position[name] for name in names if not is_number(self.env[name])}
            if kept == numbers:
                break
            started = {k for k in numbers if k not in kept}
            numbers = kept
            self._restore(saved)
            self.rebinding |= {name for name in names if position[name] in started}
        after: dict[int, int] = {}
        holders: dict[int, str] = {}
        for name in names:
            value = self.env[name]
            held = self.device_or_undefined(value, loc)
            other = holders.setdefault(id(value), name)
            # Which names share an array must be the same in every turn, or a change in place misses one.
            met = position[name] != position[other] and not {name, other}.isdisjoint(in_place)
            if after.setdefault(position[name], held) != held or met:
                raise FusionNotImplementedError(
                    f"{name} is changed in place in this loop, or shares its array with a name that is, and that "
                    f"sharing begins or ends within a turn, which is not there yet: write y = y + ... for y += ...",
                    loc,
                )
        results = tuple(self.builder.value() for _ in initial)
        self.builder.add(
            Loop(
                results,
                tuple(initial),
                arguments,
                Block(tuple(test_nodes), (condition,)),
                Block(tuple(body_nodes), tuple(after[k] for k in range(len(initial)))),
                None,
                loc,
            )
        )
        partial = {position[name] for name in names if is_partial(self.env[name])}
        if not certain:
            partial |= unassigned
        outside = [Device(value.id, partial=k in partial, number=k in numbers) for k, value in enumerate(results)]
        self.env = {**before, **{name: outside[position[name]] for name in names}}

    def _carried(self, body: Sequence[ast.stmt]) -> list[str]:
        """Names that the statements assign, and other names of an array that they change in place."""
        names: dict[str, None] = {}
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] = None
        changed = self._changed_in_place(body)
        for name, value in self.env.items():
            if any(value is other for other in changed.values()):
                names[name] = None
            if isinstance(value, TupleValue) and name not in names and _holds(value, changed.values()):
                names[name] = None  # refused there: tuples are not carried
        return list(names)

    def _changed_in_place(self, body: Sequence[ast.stmt]) -> dict[str, Device]:
        """The names through which statements change arrays in place, and what these hold now."""
        changed: dict[str, Device] = {}
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    value = self.env.get(node.target.id, UNASSIGNED)
                    if isinstance(value, Device):
                        changed[node.target.id] = value
        return changed

    # ---- undoing a loop that did not end

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            len(self.builder.nodes),
            len(self.builder.entry),
            dict(self.numbers),
            dict(self.loads),
            dict(self.env),
            self.prelude.mark(),
        )

    def _restore(self, saved: _Snapshot) -> None:
        del self.builder.nodes[saved.nodes :]
        del self.builder.entry[saved.entry :]
        self.numbers, self.loads, self.env = dict(saved.numbers), dict(saved.loads), dict(saved.env)
        self.prelude.rewind(saved.prelude)


def _holds(value: Abstract, searched: Iterable[Device]) -> bool:
    if isinstance(value, TupleValue):
        return any(_holds(item, searched) for item in value.items)
    return any(value is other for other in searched)
