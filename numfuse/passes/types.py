"""Type inference: every value gets the type that NumPy would give it, every conversion is written out.

The rules object (``numfuse.dtypes``) says what an operation computes in; this pass walks the body, joins
the types that meet after branches, and repeats loops until their carried types no longer change. Python
numbers stay numbers until something strong decides their dtype; then they are converted, once, on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    Loc,
)
from numfuse.passes.builder import Builder
from numfuse.passes.special_types import CLIPS, COMPARISONS, RangeGuard, Ref, SpecialTyping


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


class _Inference(SpecialTyping):
    def __init__(self, rules: Rules, host_values: Sequence[object]) -> None:
        self.rules = rules
        self.host_values = host_values
        self.builder = Builder()
        self.guards: dict[RangeGuard, None] = {}
        self.numbers: dict[object, int] = {}

    def run(self, program: Program) -> tuple[Program, list[RangeGuard]]:
        env: dict[int, Ref] = {}
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

    def node(self, node: Node, env: dict[int, Ref]) -> None:
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

    def _node(self, node: Node, env: dict[int, Ref]) -> None:
        match node:
            case Const(result, value):
                env[result.id] = Ref(host_type(value), "const", number=value)
            case HostArg(result, slot):
                env[result.id] = Ref(result.type, "host", number=self.host_values[slot], slot=slot)
            case Load(result):
                fresh = self.builder.value(check_supported(_known(result.type)))
                self.builder.entry.append(replace(node, result=fresh))
                env[result.id] = Ref(fresh.type, "value", fresh.id)
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

    def operation(self, node: Op, row: str, refs: list[Ref]) -> list[Ref]:
        if row == "assign":
            return [self.assign(node, *refs)]
        if row == "index":
            return [self.index(node, *refs)]
        if row in CLIPS:
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
        if row == "power" and node.spelling == "array" and types[0] == np.dtype(bool) and refs[1].number == 2:
            row, refs, types = "square", refs[:1], types[:1]  # NumPy's square of bools is int8, its power int64
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
    ) -> list[Ref]:
        values = tuple(self.builder.value(kind) for kind in outputs)
        self.builder.add(Op(values, row, operands, node.spelling, loop, node.loc))
        return [Ref(value.type, "value", value.id) for value in values]

    def explicit_cast(self, node: Cast, ref: Ref, kind: Type) -> Ref:
        dtype = dtype_of(check_supported(kind))
        if node.rule != "unsafe" and ref.kind is not None and not isinstance(ref.kind, Weak):
            rule: Literal["same_kind", "safe"] = "safe" if node.rule == "safe" else "same_kind"
            if node.rule != "weak" and not np.can_cast(ref.kind, dtype, rule):
                raise FusionTypeError(
                    f"Cannot cast from dtype('{ref.kind}') to dtype('{dtype}') with casting rule '{rule}'",
                    node.loc,
                )
        if _same(ref.kind, kind):
            return ref
        if ref.source != "value" or dtype_of(_known(ref.kind)) == dtype:
            return Ref(kind, "value", self.cast(ref, dtype, node.loc))
        result = self.builder.value(kind)
        self.builder.add(Cast(result, ref.id, node.rule, node.loc))
        return Ref(kind, "value", result.id)

    # ---- regions

    def branch(self, node: If, env: dict[int, Ref]) -> None:
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
            env[old.id] = Ref(new.type, "value", new.id)

    def loop(self, node: Loop, env: dict[int, Ref]) -> None:
        kinds = [env[i].kind for i in node.initial]
        while True:  # joins only grow, and there are finitely many dtypes
            arguments = tuple(self.builder.value(kind) for kind in kinds)
            inner = dict(env)
            for old, new in zip(node.arguments, arguments, strict=True):
                inner[old.id] = Ref(new.type, "value", new.id)
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
            if all(map(_same, joined, kinds)):
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
            env[old.id] = Ref(new.type, "value", new.id)

    def close(self, nodes: list[Node], refs: list[Ref], kinds: Sequence[Type | None], loc: Loc | None) -> Block:
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

    def truth(self, ref: Ref, loc: Loc | None) -> int:
        """The value as a condition."""
        boolean = np.dtype(bool)
        if ref.kind == boolean:
            return self.cast(ref, boolean, loc)
        dtype = dtype_of(ref.kind or Weak.FLOAT)
        result = self.builder.value(boolean)
        self.builder.add(Op((result,), "truth", (self.cast(ref, dtype, loc),), "ufunc", (dtype,), loc))
        return result.id

    def cast(self, ref: Ref, dtype: np.dtype, loc: Loc | None) -> int:
        """The id of the value in that dtype."""
        if ref.kind is None:  # carried into a loop without a value; its type comes with the next walk
            ref = Ref(None, "const", number=UNDEFINED)
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


def _same(first: Type | None, second: Type | None) -> bool:
    """Equality of types. NumPy takes None for float64, so a dtype may not be compared with it."""
    if first is None or second is None:
        return first is second
    return first == second


def _all_weak(types: tuple[Type, ...]) -> bool:
    return all(isinstance(kind, Weak) for kind in types)


__all__ = ["COMPARISONS", "UNDEFINED", "RangeGuard", "Undefined", "Value", "infer"]
