"""Shapes and variance: on which arrays each value depends.

A value has the broadcast shape of everything it depends on, the conditions that chose it included. The
ranks stay open: :func:`annotate` works with sets of buffers, once a program; :func:`concrete_shapes` puts
the shapes of one call in, once a layout, and is where shapes that do not broadcast are found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from numfuse.body import (
    SCALAR_SHAPE,
    Block,
    Cast,
    Const,
    External,
    HostArg,
    If,
    Index,
    Load,
    Loop,
    Node,
    Op,
    Program,
    Shape,
    Store,
    Value,
    Variance,
    node_operands,
    node_results,
)
from numfuse.errors import FusionValueError, Loc

S = TypeVar("S")


class _Walk(Generic[S]):
    """One forward walk that gives each value a property: the join of its operands' properties.

    Loops repeat until the carried properties are stable, so `join` must only ever grow them.
    """

    def __init__(self, leaf: Callable[[Node], S], join: Callable[[Node, list[S]], S]) -> None:
        self.leaf = leaf
        self.join = join
        self.known: dict[int, S] = {}

    def block(self, block: Block) -> list[S]:
        for node in block.nodes:
            self.node(node)
        return [self.known[i] for i in block.yields]

    def node(self, node: Node) -> None:
        known = self.known
        if isinstance(node, If):
            condition = known[node.condition]
            arms = zip(self.block(node.then), self.block(node.orelse), strict=True)
            for value, (first, second) in zip(node.results, arms, strict=True):
                known[value.id] = self.join(node, [condition, first, second])
        elif isinstance(node, Loop):
            carried = [known[i] for i in node.initial]
            while True:
                for value, item in zip(node.arguments, carried, strict=True):
                    known[value.id] = item
                (test,) = self.block(node.condition)
                after = self.block(node.body)
                grown = [self.join(node, [a, b, test]) for a, b in zip(carried, after, strict=True)]
                if grown == carried:
                    break
                carried = grown
            for value, item in zip(node.results, carried, strict=True):
                known[value.id] = item
        else:
            operands = [known[i] for i in node_operands(node)]
            item = self.join(node, operands) if operands else self.leaf(node)
            for value in node_results(node):
                known[value.id] = item


def annotate(program: Program) -> Program:
    """The program with the symbolic shape and the variance of every value."""

    def leaf_shape(node: Node) -> Shape:
        return Shape(frozenset({node.version.buffer})) if isinstance(node, Load) else SCALAR_SHAPE

    def leaf_variance(node: Node) -> Variance:
        if isinstance(node, Const):
            return Variance.STATIC
        if isinstance(node, HostArg):
            return Variance.HOST_UNIFORM
        return Variance.VARYING if isinstance(node, Load | Index) else Variance.DEVICE_UNIFORM

    shapes = _Walk[Shape](leaf_shape, lambda _, items: functools.reduce(Shape.__or__, items))
    # What a kernel computes from numbers alone is one value a launch.
    variances = _Walk[Variance](leaf_variance, lambda _, items: max(*items, Variance.DEVICE_UNIFORM))
    shapes.block(program.block)
    variances.block(program.block)

    def mark(value: Value) -> Value:
        return replace(value, shape=shapes.known[value.id], variance=variances.known[value.id])

    return replace(program, block=map_values(program.block, mark))


def map_values(block: Block, change: Callable[[Value], Value]) -> Block:
    """The block with every defined value changed (ids must stay)."""
    nodes: list[Node] = []
    for node in block.nodes:
        if isinstance(node, If):
            then, orelse = map_values(node.then, change), map_values(node.orelse, change)
            nodes.append(replace(node, results=tuple(map(change, node.results)), then=then, orelse=orelse))
        elif isinstance(node, Loop):
            nodes.append(
                replace(
                    node,
                    results=tuple(map(change, node.results)),
                    arguments=tuple(map(change, node.arguments)),
                    condition=map_values(node.condition, change),
                    body=map_values(node.body, change),
                )
            )
        elif isinstance(node, Op | External):
            nodes.append(replace(node, results=tuple(map(change, node.results))))
        elif isinstance(node, Store):
            nodes.append(node)
        else:
            nodes.append(replace(node, result=change(node.result)))
    return Block(tuple(nodes), block.yields)


Extents = tuple[int, ...]


def broadcast(shapes: Iterable[Extents], loc: Loc | None = None) -> Extents:
    """The broadcast of shapes, or NumPy's error at `loc`."""
    listed = list(shapes)
    result: list[int] = []
    for shape in listed:
        short = len(shape) - len(result)
        if short > 0:
            result = [1] * short + result
        offset = len(result) - len(shape)
        for axis, extent in enumerate(shape, offset):
            if result[axis] == 1:
                result[axis] = extent
            elif extent not in (1, result[axis]):
                text = " ".join(str(s).replace(" ", "") for s in listed)
                raise FusionValueError(f"operands could not be broadcast together with shapes {text}", loc)
    return tuple(result)


def concrete_shapes(program: Program, shapes: Mapping[str, Extents]) -> tuple[Extents, ...]:
    """The shape of each yield of the program, given the shapes of its buffers.

    Raises
    ------
    FusionValueError
        Shapes that do not broadcast, at the operation that meets them; or an in-place operation whose
        result is larger than its target.
    """

    def leaf(node: Node) -> Extents:
        return shapes[node.version.buffer] if isinstance(node, Load) else ()

    def join(node: Node, items: list[Extents]) -> Extents:
        first = items[0]
        if all(item == first for item in items):
            return first
        together = broadcast(items, node.loc)
        if isinstance(node, Op) and node.row == "assign" and together != first:
            raise FusionValueError(
                f"non-broadcastable output operand with shape {first} doesn't match the broadcast shape "
                f"{together}: write a = a + b, which makes a new array",
                node.loc,
            )
        return together

    return tuple(_Walk[Extents](leaf, join).block(program.block))


def stays_array(program: Program) -> tuple[bool, ...]:
    """For each yield, whether NumPy leaves it an array when it has no dimensions.

    ufuncs and operators answer with a scalar then; ``np.where`` always makes an array, and ``astype`` and
    ``copy`` give what they were called on.
    """
    arrays: set[int] = set()
    for node in program.block.nodes:
        match node:
            case Load(result):
                arrays.add(result.id)
            case Op((result,), "where"):
                arrays.add(result.id)
            case Op((result,), "identity", (operand,)) if operand in arrays:
                arrays.add(result.id)
            case Op((result,), "assign", (target, _)) if target in arrays:  # an array changed in place stays one
                arrays.add(result.id)
            case Cast(result, operand, rule) if operand in arrays and rule != "weak":
                arrays.add(result.id)
    return tuple(i in arrays for i in program.block.yields)
