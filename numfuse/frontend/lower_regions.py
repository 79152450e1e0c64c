"""Lowering of branches and loops.

Where paths meet, names that mean different values on them meet in the results of an
:class:`~numfuse.body.If` or in the carried values of a :class:`~numfuse.body.Loop`. Only conditions on
elements make regions: what Python decides is simply followed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence

from numfuse.body import Block, Const, If, Loop, Value
from numfuse.errors import FusionNotImplementedError, FusionTypeError, FusionValueError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.lower_calls import CallLowering
from numfuse.frontend.lower_expressions import STRUCTURAL_VALUES, loc_of
from numfuse.frontend.lower_values import UNASSIGNED, Abstract, Device, TupleValue, Unassigned
from numfuse.frontend.prelude import Host
from numfuse.passes.types import UNDEFINED

# A loop with a known number of turns is written out when that keeps the body short: its index is then a
# number that Python has, and nothing is carried.
UNROLL_TURNS, UNROLL_NODES = 16, 600
# Loops that change a Python number are written out as long as they have no more nodes than this.
UNROLL_NUMBERS = 20_000

_Snapshot = tuple[int, dict[str, Abstract], tuple[int, int, int]]


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

    # ---- loops

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
            if len(self.builder.nodes) - saved[0] > UNROLL_NODES:
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
            numbers = self._python_numbers(node)
            if numbers and not short and len(turns) * size > UNROLL_NUMBERS:
                raise FusionNotImplementedError(
                    f"{numbers[0]} is a Python number that changes in each of {len(turns)} turns, and so many "
                    f"can't be written out: compute it in a helper of numbers alone, or make it a NumPy number",
                    loc,
                )
            if numbers or (short and (static or self.structural_values(loc, turns) <= STRUCTURAL_VALUES)):
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

    def _python_numbers(self, node: ast.For) -> list[str]:
        """Names that the body computes from Python numbers alone, turn after turn.

        Python computes such a number, without limits on its size, so its turns must be written out: in a kernel
        it would be an int64.
        """
        target = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        assigned: dict[str, list[ast.expr]] = {}
        for statement in node.body:
            for child in ast.walk(statement):
                if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For):
                    targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                    value = child.iter if isinstance(child, ast.For) else child.value
                    for name in (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                        assigned.setdefault(name, []).extend([] if value is None else [value])
                elif isinstance(child, ast.If | ast.While):
                    return []  # what is assigned there depends on more than its value
        numbers = {
            name
            for name in assigned
            if isinstance(host := self.env.get(name), Host) and type(host.value) is int and name not in target
        }
        while True:
            kept = {name for name in numbers if all(self._is_number(v, numbers, assigned) for v in assigned[name])}
            if kept == numbers:
                return sorted(kept)
            numbers = kept

    def _is_number(self, value: ast.expr, numbers: set[str], assigned: Mapping[str, object]) -> bool:
        """Whether an expression uses only what Python has in every turn."""
        names = (n for n in ast.walk(value) if isinstance(n, ast.Name) and not hasattr(n, "static"))
        return not any(
            n.id not in numbers and (n.id in assigned or isinstance(self.env.get(n.id), Device | TupleValue))
            for n in names
        )

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
        unassigned = {position[name] for name in names if _is_partial(before.get(name, UNASSIGNED))}
        inside = [Device(value.id, partial=k in unassigned) for k, value in enumerate(arguments)]
        self.env = {**before, **{name: inside[position[name]] for name in names}}
        with self.region() as test_nodes:
            condition = test()
        with self.region() as body_nodes:
            if first is not None:
                first()
            self.statements(body)
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
        partial = {position[name] for name in names if _is_partial(self.env[name])}
        if not certain:
            partial |= unassigned
        outside = [Device(value.id, partial=k in partial) for k, value in enumerate(results)]
        self.env = {**before, **{name: outside[position[name]] for name in names}}

    def device_or_undefined(self, value: Abstract, loc: Loc | None) -> int:
        """The value's id, or that of a number that no path reads."""
        if not isinstance(value, Unassigned):
            return self.device(value, loc)
        return self.entry("undefined", None, lambda result: Const(result, UNDEFINED))

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
        return len(self.builder.nodes), dict(self.env), self.prelude.mark()

    def _restore(self, saved: _Snapshot) -> None:
        size, self.env, mark = saved
        del self.builder.nodes[size:]
        self.prelude.rewind(mark)


def _holds(value: Abstract, searched: Iterable[Device]) -> bool:
    if isinstance(value, TupleValue):
        return any(_holds(item, searched) for item in value.items)
    return any(value is other for other in searched)


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
        return Device(value.id, partial=_is_partial(first) or _is_partial(second))

    def _tuples(self, first: Abstract, second: Abstract) -> Abstract:
        if isinstance(first, TupleValue) and isinstance(second, TupleValue):
            if len(first.items) == len(second.items):
                items = zip(first.items, second.items, strict=True)
                return TupleValue(tuple(self.pair(a, b) for a, b in items))
        elif isinstance(first, TupleValue) and isinstance(second, Unassigned):
            return TupleValue(tuple(self.pair(item, UNASSIGNED) for item in first.items))
        elif isinstance(second, TupleValue) and isinstance(first, Unassigned):
            return TupleValue(tuple(self.pair(UNASSIGNED, item) for item in second.items))
        raise FusionValueError(
            "a variable is a tuple on one path and something else, or of another length, on the other",
            self.loc,
        )


def _is_partial(value: Abstract) -> bool:
    return isinstance(value, Unassigned) or (isinstance(value, Device) and value.partial)


def _same_number(first: Abstract, second: Abstract) -> bool:
    return (
        isinstance(first, Host)
        and isinstance(second, Host)
        and (first.code == second.code or (first.static and second.static))
        and type(first.value) is type(second.value)
        and repr(first.value) == repr(second.value)
    )
