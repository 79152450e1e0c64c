"""A structural check of Programs, for use after lowering and between passes.

It holds what every pass may rely on and none should have to test: each value defined once, before its uses
and in scope of them; regions that yield what their node promises; stores only at the top level, in one
chain of versions a buffer; results that exist. It does not check dtypes or shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numfuse import body
from numfuse.body import Block, IndexMap, Node, Program, Version
from numfuse.errors import FusionValueError, Loc

__all__ = ["verify"]


def verify(program: Program) -> None:
    """Refuse a program that is not well-formed.

    Raises
    ------
    FusionValueError
        With what is wrong and, where known, the place in the user's source.
    """
    _Verifier(program).program()


class _Verifier:
    def __init__(self, whole: Program) -> None:
        self.whole = whole
        self.defined: set[int] = set()  # ever, anywhere
        self.latest = {buffer.name: 0 for buffer in whole.buffers}
        self.loc: Loc | None = None

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise FusionValueError(f"ill-formed program {self.whole.name!r}: {message}", self.loc)

    def program(self) -> None:
        whole = self.whole
        self.require(len(self.latest) == len(whole.buffers), "two buffers have one name")
        self.block(whole.block, frozenset(), top=True)
        self.loc = None
        values = tuple(result.value for result in whole.results if isinstance(result, body.ValueResult))
        self.require(
            values == whole.block.yields,
            f"the body yields {_ids(whole.block.yields)} but the value results are {_ids(values)}",
        )
        for result in whole.results:
            if isinstance(result, body.BufferResult):
                self.require(result.buffer in self.latest, f"result {result.buffer!r} is not a buffer")
            elif isinstance(result, body.HostResult):
                self.slot(result.slot)
        positions = list(_leaves(whole.structure))
        self.require(
            all(type(position) is int for position in positions) and set(positions) == set(range(len(whole.results))),
            f"structure {whole.structure!r} does not place each of {len(whole.results)} results",
        )

    def block(self, block: Block, outer: frozenset[int], top: bool = False) -> None:
        scope = set(outer)
        for node in block.nodes:
            self.loc = node.loc
            self.use(body.node_operands(node), scope)
            self.node(node, frozenset(scope), top)
            self.loc = node.loc
            scope |= self.define(body.node_results(node))
        self.use(block.yields, scope)

    def use(self, ids: Iterable[int], scope: Iterable[int]) -> None:
        for id in ids:
            if id not in scope:
                why = "outside the block that defines it" if id in self.defined else "before it is defined"
                self.require(False, f"%{id} is used {why}")

    def define(self, values: Sequence[body.Value]) -> set[int]:
        for value in values:
            self.require(value.id not in self.defined, f"%{value.id} is defined twice")
            self.defined.add(value.id)
            buffers = value.shape.buffers if value.shape is not None else ()
            for buffer in buffers:
                self.require(buffer in self.latest, f"the shape of %{value.id} names no buffer: {buffer!r}")
        return {value.id for value in values}

    def node(self, node: Node, scope: frozenset[int], top: bool) -> None:
        match node:
            case body.HostArg():
                self.slot(node.slot)
            case body.Load():
                self.version(node.version)
                self.index(node.index)
            case body.Gather():
                self.version(node.version)
            case body.View():
                self.index(node.index)
            case body.Cast():
                self.require(node.result.type is not None, f"cast %{node.result.id} does not say to what")
            case body.Op():
                self.require(bool(node.results), f"{node.row} has no result")
                self.require(
                    node.loop is None or len(node.loop) == len(node.operands),
                    f"{node.row} has {len(node.operands)} operands and other than that many loop dtypes",
                )
            case body.If():
                self.yields(node.then, len(node.results), "the block of the true branch")
                self.yields(node.orelse, len(node.results), "the block of the false branch")
                self.block(node.then, scope)
                self.block(node.orelse, scope)
            case body.Loop():
                self.loop(node, scope)
            case body.Store():
                self.require(top, f"a store to {node.before.buffer!r} inside a branch or loop")
                self.store(node)

    def loop(self, node: body.Loop, scope: frozenset[int]) -> None:
        carried = len(node.results)
        for what, count in (("initial values", len(node.initial)), ("arguments", len(node.arguments))):
            self.require(count == carried, f"a loop with {carried} results has {count} {what}")
        self.require(
            node.trip in (None, "uniform") or (type(node.trip) is int and node.trip >= 0),
            f"a loop cannot make {node.trip} turns",
        )
        self.yields(node.condition, 1, "a loop's condition")
        self.yields(node.body, carried, "a loop's body")
        inside = scope | self.define(node.arguments)
        self.block(node.condition, inside)
        self.block(node.body, inside)

    def yields(self, block: Block, wanted: int, what: str) -> None:
        self.require(len(block.yields) == wanted, f"{what} yields {len(block.yields)} values where {wanted} are needed")

    def slot(self, slot: int) -> None:
        self.require(0 <= slot < len(self.whole.host_slots), f"there is no host slot {slot}")

    def version(self, version: Version) -> None:
        latest = self.latest.get(version.buffer)
        self.require(latest is not None, f"{version.buffer!r} is not a buffer")
        self.require(
            latest is not None and 0 <= version.number <= latest,
            f"{version.buffer}@{version.number} does not exist at this point",
        )

    def store(self, node: body.Store) -> None:
        before, after = node.before, node.after
        self.version(before)
        self.index(node.index)
        self.require(
            node.index.axes is None or node.index.edge in ("none", "wrap"),
            f"a store cannot {node.index.edge} positions outside the buffer: where they go is not one place",
        )
        self.require(
            after == Version(before.buffer, before.number + 1) and before.number == self.latest[before.buffer],
            f"{before.buffer}@{before.number} to {after.buffer}@{after.number} does not continue the chain "
            f"of versions, which ends at {before.buffer}@{self.latest[before.buffer]}",
        )
        self.latest[after.buffer] = after.number

    def index(self, index: IndexMap) -> None:
        if index.edge == "fill":
            self.require(index.fill is not None, "an index map fills with nothing")
        if index.axes is None:
            return
        for axis in index.axes:
            if isinstance(axis, body.Fixed):
                continue
            self.require(
                axis.dim >= 0 and (index.rank is None or axis.dim < index.rank),
                f"an index map of rank {index.rank} names dimension {axis.dim}",
            )
            if isinstance(axis, body.Affine):
                self.require(axis.extent is None or axis.extent >= 0, f"an extent of {axis.extent} in an index map")
                self.require(axis.step != 0 or axis.extent is not None, "an open extent of step zero")


def _ids(ids: Sequence[int]) -> str:
    return f"({', '.join(f'%{id}' for id in ids)})"


def _leaves(structure: object) -> Iterable[object]:
    if isinstance(structure, tuple | list):
        for item in structure:
            yield from _leaves(item)
    elif structure is not None:
        yield structure
