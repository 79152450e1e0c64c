"""Type inference: every value gets the type that NumPy would give it, every conversion is written out.

The rules object (``numfuse.dtypes``) says what an operation computes in; this pass walks the body, joins
the types that meet after branches, and repeats loops until their carried types no longer change. Python
numbers stay numbers until something strong decides their dtype; then they are converted, once, on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from numfuse.body import (
    UNDEFINED,
    Block,
    Cast,
    Const,
    HostArg,
    If,
    Load,
    Loop,
    Node,
    Op,
    Program,
    Type,
    Undefined,
    Value,
    ValueResult,
    Weak,
)
from numfuse.dtypes.rules import DtypeNotSupportedError, Rules, check_supported, dtype_of, host_type
from numfuse.errors import (
    FusionError,
    FusionNotImplementedError,
    FusionOverflowError,
    FusionTypeError,
    FusionValueError,
    Loc,
)
from numfuse.passes.builder import Builder

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
# What a comparison with an integer above (or below) every value of the dtype is: NumPy compares by value.
_WHEN_ABOVE = {"equal": False, "not_equal": True, "less": True, "less_equal": True}
_WHEN_BELOW = {"equal": False, "not_equal": True, "greater": True, "greater_equal": True}
_MIRRORED = {
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}


@dataclass(frozen=True, slots=True)
class RangeGuard:
    """The typed program holds only while ``low <= value of slot <= high``."""

    slot: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Ref:
    """A value during inference: computed (`id`), or a number that waits for its dtype."""

    kind: Type | None  # None: undefined
    source: Literal["value", "const", "host"]
    id: int = -1
    number: object = None  # const: the number; host: its value in this call, for range checks
    slot: int = -1


def infer(program: Program, rules: Rules, host_values: Sequence[object]) -> tuple[Program, list[RangeGuard]]:
    """The program with types, casts and typed numbers.

    Parameters
    ----------
    program : Program
        As lowered: only loads, casts and host slots have types.
    rules : Rules
        Promotion rules of the arrays' library.
    host_values : sequence
        The value of each host slot in this call. They decide nothing but comparisons with integers that do
        not fit the other operand's dtype, and negative exponents; the guards say for which values that holds.
    """
    return _Inference(rules, host_values).run(program)


# The rows that np.clip lowers to, and the bounds that each one has.
_CLIPS = {"clip": ("low", "high"), "clip_low": ("low",), "clip_high": ("high",)}


class _Inference:
    def __init__(self, rules: Rules, host_values: Sequence[object]) -> None:
        self.rules = rules
        self.host_values = host_values
        self.builder = Builder()
        self.guards: dict[RangeGuard, None] = {}
        self.numbers: dict[object, int] = {}

    def run(self, program: Program) -> tuple[Program, list[RangeGuard]]:
        env: dict[int, _Ref] = {}
        for node in program.block.nodes:
            self.node(node, env)
        results = iter(program.block.yields)
        yields = []
        for result in program.results:
            if isinstance(result, ValueResult):
                ref = env[next(results)]
                yields.append(self.cast(ref, dtype_of(ref.kind or Weak.FLOAT), None))
        block = self.builder.finish(tuple(yields))
        numbered = iter(yields)
        typed = tuple(ValueResult(next(numbered)) if isinstance(r, ValueResult) else r for r in program.results)
        return replace(program, block=block, results=typed), list(self.guards)

    # ---- nodes

    def node(self, node: Node, env: dict[int, _Ref]) -> None:
        try:
            self._node(node, env)
        except FusionError:
            raise
        except DtypeNotSupportedError as error:
            raise FusionNotImplementedError(
                f"this gives {error.dtype}, for which numfuse has no kernels yet: convert an operand first, "
                f"for instance with .astype(np.float32)",
                node.loc,
            ) from None
        except TypeError as error:
            raise FusionTypeError(str(error), node.loc) from None

    def _node(self, node: Node, env: dict[int, _Ref]) -> None:
        match node:
            case Const(result, value):
                env[result.id] = _Ref(host_type(value), "const", number=value)
            case HostArg(result, slot):
                env[result.id] = _Ref(result.type, "host", number=self.host_values[slot], slot=slot)
            case Load(result):
                fresh = self.builder.value(check_supported(_known(result.type)))
                self.builder.entry.append(replace(node, result=fresh))
                env[result.id] = _Ref(fresh.type, "value", fresh.id)
            case Op(results, row, operands):
                refs = [env[i] for i in operands]
                for value, ref in zip(results, self.operation(node, row, refs), strict=True):
                    env[value.id] = ref
            case Cast(result, operand, _):
                env[result.id] = self.explicit_cast(node, env[operand], _known(result.type))
            case If():
                self.branch(node, env)
            case Loop():
                self.loop(node, env)
            case _:
                raise FusionNotImplementedError(
                    f"{type(node).__name__} nodes are not compiled in this version", node.loc
                )

    def operation(self, node: Op, row: str, refs: list[_Ref]) -> list[_Ref]:
        if row == "assign":
            return [self.assign(node, *refs)]
        if row in _CLIPS:
            row, refs = self.clip(row, refs)
        types = tuple(ref.kind or Weak.FLOAT for ref in refs)
        if row in COMPARISONS and len(refs) == 2:
            decided = self.out_of_range(node, row, refs)
            if decided is not None:
                return [decided]
            # An integer computed in the kernel is compared by value too, in 64 bits.
            types = tuple(
                np.dtype(np.int64) if k is Weak.INT and r.source == "value" and not _all_weak(types) else k
                for k, r in zip(types, refs, strict=True)
            )
        resolution = self.rules.resolve(row, node.spelling, types)
        if row == "power":
            special = self.power(node, refs, resolution.loop[0], resolution.outputs[0])
            if special is not None:
                return [special]
        convert = self.wrapped if row == "where" else self.cast
        operands = tuple(convert(ref, dtype, node.loc) for ref, dtype in zip(refs, resolution.loop, strict=True))
        return self.emit(row, operands, resolution.loop, resolution.outputs, node)

    def emit(
        self,
        row: str,
        operands: tuple[int, ...],
        loop: tuple[np.dtype, ...],
        outputs: tuple[Type, ...],
        node: Op,
    ) -> list[_Ref]:
        values = tuple(self.builder.value(kind) for kind in outputs)
        self.builder.add(Op(values, row, operands, node.spelling, loop, node.loc))
        return [_Ref(value.type, "value", value.id) for value in values]

    def clip(self, row: str, refs: list[_Ref]) -> tuple[str, list[_Ref]]:
        """``np.clip`` leaves out a bound that is a Python integer beyond the dtype's range."""
        kept = []
        for name, ref in zip(_CLIPS[row], refs[1:], strict=True):
            kind = refs[0].kind
            if ref.kind is Weak.INT and ref.source != "value" and isinstance(kind, np.dtype) and kind.kind in "iu":
                limit = int(getattr(np.iinfo(kind), "min" if name == "low" else "max"))
                number = int(ref.number)  # type: ignore[call-overload]
                beyond = number <= limit if name == "low" else number >= limit
                inside = (limit + 1, math.inf) if name == "low" else (-math.inf, limit - 1)
                outside = (-math.inf, limit) if name == "low" else (limit, math.inf)
                if ref.source == "host":
                    self.guards[RangeGuard(ref.slot, *(outside if beyond else inside))] = None
                if beyond:
                    continue
            kept.append((name, ref))
        names = tuple(name for name, _ in kept)
        operation = {("low", "high"): "clip", ("low",): "maximum", ("high",): "minimum", (): "positive"}[names]
        return operation, [refs[0], *(ref for _, ref in kept)]

    def assign(self, node: Op, target: _Ref, value: _Ref) -> _Ref:
        """``target op= value`` on an array: the target keeps its dtype and its shape."""
        kind = target.kind
        if kind is None or isinstance(kind, Weak):
            return value
        given = value.kind or kind
        asked = given.python(0) if isinstance(given, Weak) else given
        fits = (
            np.can_cast(np.result_type(asked, kind), kind, "same_kind")
            if isinstance(given, Weak)
            else np.can_cast(given, kind, "same_kind")
        )
        if not fits:
            raise FusionTypeError(
                f"Cannot cast the result from dtype('{dtype_of(given)}') to dtype('{kind}') in place with "
                f"casting rule 'same_kind': write a = a + b, which makes a new array of the wider dtype",
                node.loc,
            )
        old, new = self.cast(target, kind, node.loc), self.cast(value, kind, node.loc)
        return self.emit("assign", (old, new), (kind, kind), (kind,), node)[0]

    def power(self, node: Op, refs: list[_Ref], loop: np.dtype, out: Type) -> _Ref | None:
        """Exponents known to be whole and small are products; negative ones of integers are NumPy's error.

        An exponent 0.5 or -1 of an array (spelling "array") is the square root or the reciprocal, as in NumPy.
        """
        base, exponent = refs
        if exponent.source == "value" or not isinstance(exponent.number, int | float | np.number):
            return None
        if loop.kind in "iu":
            if exponent.number < 0:
                raise FusionValueError("Integers to negative integer powers are not allowed.", node.loc)
            if exponent.source == "host":
                self.guards[RangeGuard(exponent.slot, 0, math.inf)] = None
        if exponent.source != "const" or loop.kind not in "iuf":
            return None
        number = exponent.number
        if node.spelling == "array" and loop.kind == "f" and number in (0.5, -1):
            row = "sqrt" if number == 0.5 else "reciprocal"
            return self.emit(row, (self.cast(base, loop, node.loc),), (loop,), (out,), node)[0]
        if number not in ((2, 3, 4) if loop.kind == "f" else (2,)):
            return None
        x = self.cast(base, loop, node.loc)
        square = self.emit("multiply", (x, x), (loop, loop), (out,), node)[0]
        if number == 2:
            return square
        other = x if number == 3 else square.id
        return self.emit("multiply", (square.id, other), (loop, loop), (out,), node)[0]

    def out_of_range(self, node: Op, row: str, refs: list[_Ref]) -> _Ref | None:
        """A comparison of an integer dtype with a Python int that does not fit it."""
        for position, (number, array) in enumerate(((refs[1], refs[0]), (refs[0], refs[1]))):
            kind = array.kind
            if number.kind is not Weak.INT or number.source == "value":
                continue
            if not isinstance(kind, np.dtype) or kind.kind not in "iu" or array.source != "value":
                continue
            value = int(number.number)  # type: ignore[call-overload]
            info = np.iinfo(kind)
            low, high = int(info.min), int(info.max)
            span: tuple[float, float] = (low, high)
            if not low <= value <= high:
                span = (high + 1, math.inf) if value > high else (-math.inf, low - 1)
            if number.source == "host":
                self.guards[RangeGuard(number.slot, *span)] = None
            if low <= value <= high:
                return None
            asked = row if position == 0 else _MIRRORED.get(row, row)
            truth = (_WHEN_ABOVE if value > high else _WHEN_BELOW).get(asked, False)
            # x == x for a true one, x != x for a false one: integers, so this is exact and keeps x's shape.
            same = "equal" if truth else "not_equal"
            return self.emit(same, (array.id, array.id), (kind, kind), (np.dtype(bool),), node)[0]
        return None

    def explicit_cast(self, node: Cast, ref: _Ref, kind: Type) -> _Ref:
        dtype = dtype_of(check_supported(kind))
        if node.rule != "unsafe" and ref.kind is not None and not isinstance(ref.kind, Weak):
            rule: Literal["same_kind", "safe"] = "safe" if node.rule == "safe" else "same_kind"
            if node.rule != "weak" and not np.can_cast(ref.kind, dtype, rule):
                raise FusionTypeError(
                    f"Cannot cast from dtype('{ref.kind}') to dtype('{dtype}') with casting rule '{rule}'",
                    node.loc,
                )
        if ref.kind == kind:
            return ref
        if ref.source != "value" or dtype_of(_known(ref.kind)) == dtype:
            return _Ref(kind, "value", self.cast(ref, dtype, node.loc))
        result = self.builder.value(kind)
        self.builder.add(Cast(result, ref.id, node.rule, node.loc))
        return _Ref(kind, "value", result.id)

    # ---- regions

    def branch(self, node: If, env: dict[int, _Ref]) -> None:
        condition = self.truth(env[node.condition], node.loc)
        arms = []
        for block in (node.then, node.orelse):
            with self.builder.block() as nodes:
                inner = dict(env)
                for child in block.nodes:
                    self.node(child, inner)
                arms.append((nodes, [inner[i] for i in block.yields]))
        kinds = [
            self.join(first.kind, second.kind, node.loc) for first, second in zip(arms[0][1], arms[1][1], strict=True)
        ]
        blocks = [self.close(nodes, refs, kinds, node.loc) for nodes, refs in arms]
        values = tuple(self.builder.value(kind) for kind in kinds)
        self.builder.add(If(values, condition, blocks[0], blocks[1], node.loc))
        for old, new in zip(node.results, values, strict=True):
            env[old.id] = _Ref(new.type, "value", new.id)

    def loop(self, node: Loop, env: dict[int, _Ref]) -> None:
        kinds = [env[i].kind for i in node.initial]
        while True:  # joins only grow, and there are finitely many dtypes
            arguments = tuple(self.builder.value(kind) for kind in kinds)
            inner = dict(env)
            for old, new in zip(node.arguments, arguments, strict=True):
                inner[old.id] = _Ref(new.type, "value", new.id)
            with self.builder.block() as test_nodes:
                test_env = dict(inner)
                for child in node.condition.nodes:
                    self.node(child, test_env)
                test = self.truth(test_env[node.condition.yields[0]], node.loc)
            with self.builder.block() as body_nodes:
                for child in node.body.nodes:
                    self.node(child, inner)
            nexts = [inner[i] for i in node.body.yields]
            joined = [self.join(kind, ref.kind, node.loc) for kind, ref in zip(kinds, nexts, strict=True)]
            if joined == kinds:
                break
            kinds = joined
        settled = [kind if kind is not None else Weak.FLOAT for kind in kinds]
        initial = tuple(
            self.cast(env[i], dtype_of(kind), node.loc) for i, kind in zip(node.initial, settled, strict=True)
        )
        body = self.close(body_nodes, nexts, settled, node.loc)
        values = tuple(self.builder.value(kind) for kind in settled)
        condition = Block(tuple(test_nodes), (test,))
        self.builder.add(Loop(values, initial, arguments, condition, body, node.trip, node.loc))
        for old, new in zip(node.results, values, strict=True):
            env[old.id] = _Ref(new.type, "value", new.id)

    def close(self, nodes: list[Node], refs: list[_Ref], kinds: Sequence[Type | None], loc: Loc | None) -> Block:
        """A block that yields `refs` in the joined types."""
        outer, self.builder.nodes = self.builder.nodes, nodes
        yields = tuple(self.cast(ref, dtype_of(kind or Weak.FLOAT), loc) for ref, kind in zip(refs, kinds, strict=True))
        self.builder.nodes = outer
        return Block(tuple(nodes), yields)

    def join(self, first: Type | None, second: Type | None, loc: Loc | None) -> Type | None:
        if first is None or second is None:
            return first if second is None else second
        try:
            return self.rules.join(first, second)
        except TypeError:
            raise FusionTypeError(
                f"a variable is {first} on one path and {second} on another, which have no common dtype",
                loc,
            ) from None

    # ---- conversions

    def truth(self, ref: _Ref, loc: Loc | None) -> int:
        """The value as a condition."""
        boolean = np.dtype(bool)
        if ref.kind == boolean:
            return self.cast(ref, boolean, loc)
        dtype = dtype_of(ref.kind or Weak.FLOAT)
        result = self.builder.value(boolean)
        self.builder.add(Op((result,), "truth", (self.cast(ref, dtype, loc),), "ufunc", (dtype,), loc))
        return result.id

    def wrapped(self, ref: _Ref, dtype: np.dtype, loc: Loc | None) -> int:
        """The id of an operand of ``np.where``, which makes an int64 of a Python integer and casts that."""
        if ref.kind is not Weak.INT or ref.source == "value" or dtype.kind not in "iu":
            return self.cast(ref, dtype, loc)
        whole = np.dtype(np.uint64 if int(ref.number) > np.iinfo(np.int64).max else np.int64)  # type: ignore[call-overload]
        if ref.source == "host":
            limit = 2**63
            self.guards[RangeGuard(ref.slot, *((limit, math.inf) if whole.kind == "u" else (-math.inf, limit - 1)))] = (
                None
            )
        converted = self.cast(ref, whole, loc)
        return self.cast(_Ref(whole, "value", converted), dtype, loc)

    def cast(self, ref: _Ref, dtype: np.dtype, loc: Loc | None) -> int:
        """The id of the value in that dtype."""
        if ref.kind is None:  # carried into a loop without a value; its type comes with the next walk
            ref = _Ref(None, "const", number=UNDEFINED)
        if ref.source == "value":
            if dtype_of(_known(ref.kind)) == dtype:
                return ref.id
            result = self.builder.value(dtype)
            self.builder.add(Cast(result, ref.id, "unsafe", loc))
            return result.id
        key = (ref.source, ref.slot, type(ref.number), repr(ref.number), dtype)
        if key not in self.numbers:
            result = self.builder.value(dtype)
            node: Node
            if ref.source == "host":
                node = HostArg(result, ref.slot, loc)
            else:
                node = Const(result, _convert(ref.number, dtype, loc), loc)
            self.builder.entry.append(node)
            self.numbers[key] = result.id
        return self.numbers[key]


def _convert(number: object, dtype: np.dtype, loc: Loc | None) -> np.generic:
    """A number in a dtype, as NumPy converts a scalar operand."""
    if isinstance(number, Undefined):
        zero: np.generic = dtype.type(0)
        return zero
    try:
        with np.errstate(all="ignore"):
            converted: np.generic = number.astype(dtype) if isinstance(number, np.generic) else dtype.type(number)
            return converted
    except OverflowError as error:
        raise FusionOverflowError(str(error), loc) from None


def _known(kind: Type | None) -> Type:
    if kind is None:
        raise AssertionError("a loaded or cast value has a type from the start")
    return kind


def _all_weak(types: tuple[Type, ...]) -> bool:
    return all(isinstance(kind, Weak) for kind in types)


__all__ = ["COMPARISONS", "UNDEFINED", "RangeGuard", "Undefined", "Value", "infer"]
