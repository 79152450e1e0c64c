"""Lowering of expressions.

An expression whose operands Python has at each call is computed by Python, in the prelude. Everything else
becomes nodes of the body. A value under a condition on elements is special: Python would compute it only
for some elements, so nothing that can fail moves from there into the prelude unconditionally.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from numfuse import ops
from numfuse.body import Block, Cast, CastRule, Const, HostArg, If, Load, Node, Op, Type, Value, Version, Weak
from numfuse.dtypes.rules import host_type
from numfuse.errors import (
    FusionNameError,
    FusionNotImplementedError,
    FusionSyntaxError,
    FusionTypeError,
    FusionValueError,
    Loc,
)
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import in_element_frame, is_synthetic, loc_of, static_of
from numfuse.frontend.lower_values import UNASSIGNED, Abstract, Device, TupleValue, Unassigned
from numfuse.frontend.prelude import Host, PreludeWriter
from numfuse.frontend.python_operators import BINARY, COMPARISON, UNARY
from numfuse.passes.builder import Builder

# Operators that no Python number makes fail.
_SAFE = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "negative",
        "positive",
        "logical_not",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
    ]
)
# Exponents for which NumPy's ``array ** number`` is another ufunc than power.
SPECIAL_EXPONENTS = (2, 0.5, -1)
# Values of a number in a structural place (an exponent, a range bound) that get a kernel of their own, for each
# place in the source.
STRUCTURAL_VALUES = 8


class ExpressionLowering:
    """Turns expressions into values; calls and statements are in the classes that extend it."""

    def __init__(self, prelude: PreludeWriter, structural_values: Callable[[Loc | None, object], int]) -> None:
        self.prelude = prelude
        self.structural_values = structural_values
        self.builder = Builder()
        self.env: dict[str, Abstract] = {}
        self.arrays: dict[str, object] = {}  # array parameters and captured arrays of this call
        self.dtypes: dict[str, np.dtype] = {}  # of these arrays
        self.codes: dict[str, str] = {}  # how the prelude reads them
        self.depth = 0  # how many conditions on elements surround the present place
        self.numbers: dict[object, int] = {}
        self.loads: dict[str, Device] = {}
        self.rebinding: set[str] = set()  # names whose `+=` binds them anew: they start a loop as numbers

    # ---- entry points

    def expr(self, node: ast.expr) -> Abstract:
        """The value of an expression."""
        static = static_of(node)
        if static is not None:  # np.pi and the like are numbers that don't change
            return static if host_type(static.value) is None else self.prelude.static(static.value)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise FusionSyntaxError(
                f"{type(node).__name__} is not part of the language of fused functions", loc_of(node)
            )
        value: Abstract = method(node)
        return value

    def device(self, value: Abstract, loc: Loc | None) -> int:
        """The id of the value in the body; numbers of the host enter as constants or kernel arguments."""
        if isinstance(value, Device):
            return value.id
        if isinstance(value, Host):
            if isinstance(value.value, np.ndarray) and value.value.ndim == 0:  # what np.where makes of numbers
                value = self.prelude.compute("{}[()]", [value], lambda array: array[()])
            kind = host_type(value.value)
            if kind is None:
                raise FusionTypeError(
                    f"{value.name or 'this value'} is of type {type(value.value).__name__}, and only numbers and "
                    f"arrays can enter a kernel: take the number out of it first",
                    loc,
                )
            key = ("static", type(value.value), repr(value.value)) if value.static else value.code
            return self.entry(key, kind, lambda result: self._number(result, value, loc))
        if isinstance(value, TupleValue):
            raise FusionTypeError("a tuple can't be an operand: use its items one by one", loc)
        if isinstance(value, Static):
            raise FusionTypeError(f"{describe(value.value)} can't be an operand of a kernel", loc)
        raise _unassigned(loc)

    def _number(self, result: Value, host: Host, loc: Loc | None) -> Node:
        return Const(result, host.value, loc) if host.static else HostArg(result, self.prelude.slot(host), loc)

    def entry(self, key: object, kind: Type | None, make: Callable[[Value], Node]) -> int:
        """A node before everything else, once for each key."""
        if key not in self.numbers:
            result = self.builder.value(kind)
            self.builder.entry.append(make(result))
            self.numbers[key] = result.id
        return self.numbers[key]

    def load(self, buffer: str, kind: Type) -> Device:
        """The elements of a buffer, loaded once."""
        if buffer not in self.loads:
            result = self.builder.value(kind)
            self.builder.entry.append(Load(result, Version(buffer)))
            self.loads[buffer] = Device(result.id, origin=buffer)
        return self.loads[buffer]

    def op(self, row: str, operands: Sequence[Abstract], spelling: str, loc: Loc | None) -> Device:
        """An operation of the table on at least one value of the body."""
        ids = tuple(self.device(operand, loc) for operand in operands)
        result = self.builder.value()
        self.builder.add(Op((result,), row, ids, spelling, None, loc))
        return Device(result.id, number=spelling == "operator" and all(map(is_number, operands)))

    def convert(self, value: Abstract, kind: Type, rule: CastRule, loc: Loc | None) -> Device:
        """A cast of a value of the body."""
        operand = self.device(value, loc)
        result = self.builder.value(kind)
        self.builder.add(Cast(result, operand, rule, loc))
        return Device(result.id)

    def apply(
        self,
        row: str,
        template: str,
        function: Callable[..., object],
        operands: Sequence[Abstract],
        loc: Loc | None,
    ) -> Abstract:
        """An operator: by Python where Python has all operands, otherwise in the kernel."""
        hosts = hosts_of(operands)
        if hosts is not None:
            numbers = all(host_type(host.value) is not None for host in hosts)
            if self.depth == 0 or (row in _SAFE and numbers):
                return self.prelude.compute(template, hosts, function)
            try:
                return self.prelude.compute(template, hosts, function, may_fail=True)
            except Exception:  # only some elements, perhaps none, would have met it: compute it there
                if not numbers:
                    raise
        return self.op(row, operands, "operator", loc)

    def truth(self, value: Abstract, loc: Loc | None) -> bool | Device:
        """The value as a condition: decided now, or a value of the body."""
        if isinstance(value, Device):
            return value
        if isinstance(value, Host):
            return self.prelude.decide(value)
        if isinstance(value, TupleValue):
            return bool(value.items)
        if isinstance(value, Static):
            return bool(value.value)
        raise _unassigned(loc)

    @contextmanager
    def region(self) -> Iterator[list[Node]]:
        """Nodes of a block that only some elements run through."""
        self.depth += 1
        try:
            with self.builder.block() as nodes:
                yield nodes
        finally:
            self.depth -= 1

    def as_host(self, value: Abstract) -> Abstract:
        """Functions and types are objects that Python has, too."""
        return self.prelude.static(value.value) if isinstance(value, Static) else value

    # ---- names and literals

    def _name(self, node: ast.Name) -> Abstract:
        value = self.env.get(node.id, UNASSIGNED)
        if isinstance(value, Unassigned):
            raise FusionNameError(f"{node.id} is used before it is assigned", loc_of(node))
        if isinstance(value, Device) and value.partial and not is_synthetic(node):
            raise FusionNameError(
                f"{node.id} is assigned on some paths only, and elements that take another one would have no "
                f"value here: assign it before the branch or loop",
                loc_of(node),
            )
        return value

    def _constant(self, node: ast.Constant) -> Abstract:
        return self.prelude.static(node.value)

    def _tuple(self, node: ast.Tuple | ast.List) -> Abstract:
        return TupleValue(tuple(self.expr(item) for item in node.elts), isinstance(node, ast.List))

    _list = _tuple

    def _joinedstr(self, node: ast.JoinedStr) -> Abstract:
        """An f-string of what Python has, as in the message of an exception."""
        parts: list[str] = []
        hosts: list[Host] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            value = self.as_host(self.expr(part.value))
            if not isinstance(value, Host) or (part.format_spec is not None and not _is_plain(part.format_spec)):
                raise FusionSyntaxError("an f-string of elements is not part of the language", loc_of(node))
            spec = "" if part.format_spec is None else str(part.format_spec.values[0].value)  # type: ignore[attr-defined]
            hosts.append(value)
            conversion = "" if part.conversion == -1 else f"!{chr(part.conversion)}"
            parts.append(f"\0{conversion}{':' + spec if spec else ''}\0")
        pieces = "".join(parts).replace("{", "{{").replace("}", "}}").split("\0")
        text = "".join(f"{{{piece}}}" if k % 2 else piece for k, piece in enumerate(pieces))
        formatter = self.prelude.bind(text.format)
        slots = ", ".join(["{}"] * len(hosts))
        return self.prelude.compute(f"{formatter}({slots})", hosts, text.format)

    # ---- operators

    def _binop(self, node: ast.BinOp) -> Abstract:
        return self.binary(node.op, self.expr(node.left), self.expr(node.right), node)

    def binary(self, kind: ast.operator, left: Abstract, right: Abstract, node: ast.AST) -> Abstract:
        """``left op right``; also what an augmented assignment computes."""
        row = ops.binary_operator(type(kind))
        if row is None:
            raise FusionNotImplementedError(
                "@ is a matrix product, not an elementwise operation: call it outside the fused function",
                loc_of(node),
            )
        if isinstance(left, TupleValue) and isinstance(right, TupleValue) and row == "add":
            if left.is_list != right.is_list:
                raise FusionTypeError("a list and a tuple can't be joined with +", loc_of(node))
            return left.with_items((*left.items, *right.items))
        if row in ("power", "left_shift") and is_number(left) and is_number(right) and hosts_of([left, right]) is None:
            raise FusionNotImplementedError(
                "this is a Python integer, which a long loop could make larger than any integer of a kernel: use a "
                "float (2.0 ** i), or fewer turns",
                loc_of(node),
            )
        if row == "power" and isinstance(left, Device):
            return self.power(left, right, "operator", node)
        symbol, function = BINARY[type(kind)]
        return self.apply(row, f"({{}} {symbol} {{}})", function, [left, right], loc_of(node))

    def power(self, base: Abstract, exponent: Abstract, spelling: str, node: ast.AST) -> Device:
        """``base ** exponent``: an exponent that Python has shapes the kernel.

        NumPy computes an array to the power 2, 0.5 and -1 as square, sqrt and reciprocal, which are not the
        power function (of minus infinity, say); for its scalars, in an element function, it does not. So
        those exponents always get a kernel of their own, and others while there are few.
        """
        loc = loc_of(node)
        form = spelling if in_element_frame(node) else "array"
        if isinstance(exponent, Host) and isinstance(exponent.value, int | float | np.number):
            value = exponent.value
            special = value in SPECIAL_EXPONENTS
            few = exponent.static or self.structural_values(loc, value) <= STRUCTURAL_VALUES
            if value == value and (special or few):  # a NaN equals nothing, so it can't be checked for
                exponent = self.prelude.static(self.prelude.pin(exponent))
            else:
                self.prelude.lines.append(f"if {exponent.code} in {SPECIAL_EXPONENTS}: return None")
        return self.op("power", [base, exponent], form, loc)

    def _unaryop(self, node: ast.UnaryOp) -> Abstract:
        value = self.expr(node.operand)
        if isinstance(node.op, ast.Not) and not isinstance(value, Device | Host):
            return self.prelude.static(not self.truth(value, loc_of(node)))
        symbol, function = UNARY[type(node.op)]
        row = ops.unary_operator(type(node.op)) or ""
        return self.apply(row, f"({symbol}{{}})", function, [value], loc_of(node))

    def _compare(self, node: ast.Compare) -> Abstract:
        return self._compare_chain(self.expr(node.left), node.ops, node.comparators, node)

    def _compare_chain(
        self, left: Abstract, kinds: Sequence[ast.cmpop], others: Sequence[ast.expr], node: ast.Compare
    ) -> Abstract:
        """``a < b < c``: the middle operand is evaluated once, the last one only where the first holds."""
        right = self.expr(others[0])
        first = self._compare_pair(kinds[0], left, right, node)
        if len(kinds) == 1:
            return first
        return self.choose(first, lambda: self._compare_chain(right, kinds[1:], others[1:], node), lambda: first, node)

    def _compare_pair(self, kind: ast.cmpop, left: Abstract, right: Abstract, node: ast.Compare) -> Abstract:
        if isinstance(kind, ast.Is | ast.IsNot):
            return self._identity(kind, left, right)
        pair = [self.as_host(left), self.as_host(right)]
        row = ops.comparison(type(kind))
        if row is None:
            return self._membership(isinstance(kind, ast.In), pair, node)
        symbol, function = COMPARISON[type(kind)]
        return self.apply(row, f"({{}} {symbol} {{}})", function, pair, loc_of(node))

    def _membership(self, inside: bool, pair: list[Abstract], node: ast.Compare) -> Abstract:
        hosts = hosts_of(pair)
        if hosts is None:
            raise FusionSyntaxError(
                "`in` on an element is not part of the language: compare with each item and join with |",
                loc_of(node),
            )
        template = "({} in {})" if inside else "({} not in {})"
        return self.prelude.compute(template, hosts, lambda a, b: (a in b) is inside, may_fail=self.depth > 0)

    def _identity(self, kind: ast.cmpop, left: Abstract, right: Abstract) -> Abstract:
        hosts = hosts_of([self.as_host(left), self.as_host(right)])
        positive = isinstance(kind, ast.Is)
        if hosts is None:  # an array is never None, True or a function
            return self.prelude.static((left is right) is positive)
        function = operator.is_ if positive else operator.is_not
        return self.prelude.compute("({} is {})" if positive else "({} is not {})", hosts, function)

    def _boolop(self, node: ast.BoolOp) -> Abstract:
        conjunction = isinstance(node.op, ast.And)

        def from_position(position: int) -> Abstract:
            value = self.expr(node.values[position])
            if position == len(node.values) - 1:
                return value

            def rest() -> Abstract:
                return from_position(position + 1)

            if conjunction:
                return self.choose(value, rest, lambda: value, node)
            return self.choose(value, lambda: value, rest, node)

        return from_position(0)

    def _ifexp(self, node: ast.IfExp) -> Abstract:
        test = self.expr(node.test)
        return self.choose(test, lambda: self.expr(node.body), lambda: self.expr(node.orelse), node)

    def choose(
        self, test: Abstract, then: Callable[[], Abstract], orelse: Callable[[], Abstract], node: ast.expr
    ) -> Abstract:
        """One of two values; both are written into the body when the test is on elements."""
        loc = loc_of(node)
        taken = self.truth(test, loc)
        if isinstance(taken, bool):
            return then() if taken else orelse()
        with self.region() as then_nodes:
            first = then()
        with self.region() as else_nodes:
            second = orelse()
        pairs = [(first, second)]
        if isinstance(first, TupleValue) and isinstance(second, TupleValue):
            if len(first.items) != len(second.items) or first.is_list != second.is_list:
                raise FusionValueError("the two arms are of different lengths, or a tuple and a list", loc)
            pairs = list(zip(first.items, second.items, strict=True))
        yields = [(self.device(a, loc), self.device(b, loc)) for a, b in pairs]
        results = tuple(self.builder.value() for _ in yields)
        blocks = (
            Block(tuple(then_nodes), tuple(a for a, _ in yields)),
            Block(tuple(else_nodes), tuple(b for _, b in yields)),
        )
        self.builder.add(If(results, taken.id, *blocks, loc))
        merged = tuple(
            Device(value.id, number=is_number(a) and is_number(b)) for value, (a, b) in zip(results, pairs, strict=True)
        )
        return first.with_items(merged) if isinstance(first, TupleValue) else merged[0]


def _is_plain(spec: ast.expr) -> bool:
    values = getattr(spec, "values", [])
    return len(values) == 1 and isinstance(values[0], ast.Constant)


def hosts_of(values: Sequence[Abstract]) -> list[Host] | None:
    """The values, if Python has every one of them."""
    hosts = [value for value in values if isinstance(value, Host)]
    return hosts if len(hosts) == len(values) else None


def is_number(value: Abstract) -> bool:
    """Whether Python would have a number of its own here."""
    if isinstance(value, Host):
        return isinstance(host_type(value.value), Weak) or type(value.value) is bool
    return isinstance(value, Device) and value.number


def describe(obj: object) -> str:
    """A function, module or type in words."""
    name = getattr(obj, "__name__", None)
    return f"{type(obj).__name__} {name}" if name else f"a {type(obj).__name__}"


def _unassigned(loc: Loc | None) -> FusionNameError:
    return FusionNameError("this variable has no value here: assign it before the branch", loc)
