"""Runs a Program on NumPy arrays, node by node: the second oracle.

The first oracle is the plain function. This one says which half of the compiler is wrong when they differ,
and gives programs that no Python function spells, or that no emitter takes yet, a meaning to test against.
It is written for plainness: whole arrays, no fusion, loops over elements as loops over masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numfuse import body
from numfuse.body import UNDEFINED, Block, Node, Program, Shape, Value, Version
from numfuse.errors import FusionNotImplementedError, FusionTypeError, FusionValueError
from numfuse.interpreter_values import (
    Evaluate,
    RuntimeValue,
    WeakArray,
    apply_typed,
    apply_untyped,
    cast,
    data,
    gather,
    is_python,
    numpy_row,
    put,
    select,
    settle,
    take,
    to_dtype,
    truth,
)

__all__ = ["interpret"]


def interpret(
    program: Program,
    arrays: Mapping[str, np.ndarray],
    host_values: Sequence[object] = (),
    *,
    evaluate: Evaluate = numpy_row,
) -> object:
    """What a program returns, and does to its arrays.

    Parameters
    ----------
    program : Program
        A well-formed program, typed or not. Where types are stated, operations are done in their `loop`
        dtypes and results converted; where not, Python and NumPy decide, number by number.
    arrays : mapping of str to numpy.ndarray
        The array of each buffer. Those with stores are changed, once, at the end.
    host_values : sequence, optional
        The value of each slot of the host prelude.
    evaluate : callable, optional
        Gives the NumPy implementation of a row by its name; by default the ufunc of that name.

    Returns
    -------
    object
        The results, nested as `program.structure` says. A value that varies is an array of its own.

    Raises
    ------
    FusionNotImplementedError
        For External nodes, and rows that `evaluate` does not have.
    FusionTypeError, FusionValueError, FusionIndexError
        For arrays that do not fit the program, as the nodes find out.
    """
    with np.errstate(all="ignore"):
        return _Run(program, arrays, host_values, evaluate).run()


class _Run:
    def __init__(
        self,
        program: Program,
        arrays: Mapping[str, np.ndarray],
        host_values: Sequence[object],
        evaluate: Evaluate,
    ) -> None:
        self.program = program
        self.arrays = arrays
        self.host_values = host_values
        self.evaluate = evaluate
        self.values: dict[int, RuntimeValue] = {}
        self.versions: dict[Version, np.ndarray] = {}
        self.latest: dict[str, int] = {}
        self.stale: dict[str, str] = {}  # a buffer, and the stored one whose memory it shares
        self.active: np.ndarray | None = None  # the elements that take part; None: all
        for buffer in program.buffers:
            array = arrays.get(buffer.name)
            if array is None:
                raise FusionValueError(f"no array for buffer {buffer.name!r}")
            if array.dtype != buffer.dtype:
                raise FusionTypeError(f"buffer {buffer.name!r} is {buffer.dtype}, its array {array.dtype}")
            self.versions[Version(buffer.name)] = array

    def run(self) -> object:
        self.block(self.program.block)
        # Before anything is written: results may be views of what the arrays held at the start.
        finished = {id: self.finish(id) for id in self.program.block.yields}
        results = [self.result(result, finished) for result in self.program.results]
        for name, number in self.latest.items():
            self.arrays[name][...] = self.versions[Version(name, number)]
        return _nest(self.program.structure, results)

    def result(self, result: body.Result, finished: Mapping[int, object]) -> object:
        match result:
            case body.ValueResult():
                return finished[result.value]
            case body.BufferResult():
                return self.arrays[result.buffer]
            case body.HostResult():
                return self.host_values[result.slot]

    def finish(self, id: int) -> object:
        value = data(self.values[id])
        if isinstance(value, np.ndarray) and (value.base is not None or not value.flags.owndata):
            return value.copy()
        if any(value is array for array in self.versions.values()):
            return value.copy()
        return value

    # Blocks

    def block(self, block: Block) -> list[RuntimeValue]:
        for node in block.nodes:
            self.node(node)
        return [self.values[id] for id in block.yields]

    def masked(self, block: Block, active: np.ndarray | None) -> list[RuntimeValue]:
        """A block where only the active elements count."""
        outer, self.active = self.active, active
        yielded = self.block(block)
        self.active = outer
        return yielded

    def define(self, results: Sequence[Value], values: Sequence[RuntimeValue]) -> None:
        for result, value in zip(results, values, strict=True):
            self.values[result.id] = settle(value, result.type)

    def node(self, node: Node) -> None:
        match node:
            case body.Store():
                self.store(node)
            case body.Op():
                self.define(node.results, self.op(node))
            case body.If():
                self.define(node.results, self.branch(node))
            case body.Loop():
                self.loop(node)
            case body.External():
                raise FusionNotImplementedError(f"NumPy cannot run external {node.symbol!r}", node.loc)
            case _:
                self.define((node.result,), (self.single(node),))

    def single(
        self,
        node: body.Const
        | body.HostArg
        | body.Index
        | body.Load
        | body.Gather
        | body.Cast
        | body.View
        | body.Reduce
        | body.Scan,
    ) -> RuntimeValue:
        match node:
            case body.Const():
                return self.spread(node.value, node.result)
            case body.HostArg():
                return self.spread(self.host_values[node.slot], node.result)
            case body.Index():
                shape = self.domain() if node.result.shape is None else self.shape(node.result.shape)
                if not -len(shape) <= node.axis < len(shape):
                    raise FusionValueError(f"no axis {node.axis} in a domain of shape {shape}", node.loc)
                return np.asarray(np.indices(shape, np.int64)[node.axis])
            case body.Load():
                return take(self.version(node.version), node.index)
            case body.Gather():
                indices = [data(self.values[id]) for id in node.indices]
                return gather(self.version(node.version), indices, node.bounds, self.active)
            case body.Cast():
                if node.result.type is None:
                    raise FusionValueError(f"cast %{node.result.id} does not say to what", node.loc)
                return cast(self.operand(node.operand), node.result.type, node.rule)
            case body.View():
                return take(self.operand(node.operand), node.index)
            case body.Reduce():
                return self.reduce(node)
            case body.Scan():
                operand = np.asarray(data(self.values[node.operand]))
                return self.ufunc(node.row).accumulate(operand, axis=node.axis, dtype=node.dtype)

    def operand(self, id: int) -> RuntimeValue:
        """A value to compute with: of what no path reads, some number, for elements that take no part."""
        value = self.values[id]
        return 0.0 if value is UNDEFINED else value

    def spread(self, number: object, result: Value) -> RuntimeValue:
        """A number, or an array of it where the value is stated to have a shape (``np.ones((3, 1))``)."""
        value: RuntimeValue = number  # type: ignore[assignment]
        shape = self.shape(result.shape) if result.shape is not None else ()
        if shape == ():
            return value
        if isinstance(result.type, np.dtype):  # before the broadcast, so that it sees the Python number
            value = to_dtype(value, result.type)
        return np.broadcast_to(np.asarray(value), shape)

    # Shapes

    def shape(self, shape: Shape) -> tuple[int, ...]:
        buffers = [self.arrays[name].shape for name in sorted(shape.buffers)]
        return np.broadcast_shapes(shape.literal, *buffers)

    def domain(self) -> tuple[int, ...]:
        """Of all buffers together: what an Index of no stated shape counts along."""
        return np.broadcast_shapes(*(self.arrays[buffer.name].shape for buffer in self.program.buffers))

    # Operations

    def op(self, node: body.Op) -> tuple[RuntimeValue, ...]:
        apply = apply_typed if node.loop is not None else apply_untyped
        operands = [self.operand(id) for id in node.operands]
        try:
            return apply(node, operands, self.evaluate)
        except (ArithmeticError, ValueError):
            # 1 // 0 or 2 ** -1 of integers: an error only if an element that takes part asks for it.
            # A shape that does not fit is one for all, and in-place assignment is where lanes would hide it.
            if self.active is None or node.row == "assign":
                raise
        wanted = self.active
        if all(np.ndim(data(value)) == 0 for value in operands) and wanted.any():
            return apply(node, operands, self.evaluate)
        shape = np.broadcast_shapes(wanted.shape, *(np.shape(data(value)) for value in operands))
        wanted = np.broadcast_to(wanted, shape)
        results = apply(node, [_lanes(value, wanted) for value in operands], self.evaluate)
        return tuple(_unlanes(result, wanted) for result in results)

    def ufunc(self, row: str) -> np.ufunc:
        found = self.evaluate(row)
        if not isinstance(found, np.ufunc):
            found = numpy_row(row)
        if not isinstance(found, np.ufunc):
            raise FusionNotImplementedError(f"{row!r} does not reduce")
        return found

    def reduce(self, node: body.Reduce) -> RuntimeValue:
        options: dict[str, Any] = {}
        if node.initial is not None:
            options["initial"] = data(self.values[node.initial])
        if node.where is not None:
            options["where"] = truth(self.values[node.where])
        operand = np.asarray(data(self.values[node.operand]))
        reduced: RuntimeValue = self.ufunc(node.row).reduce(
            operand, axis=node.axes, dtype=node.dtype, keepdims=node.keepdims, **options
        )
        return reduced

    def branch(self, node: body.If) -> list[RuntimeValue]:
        condition = truth(self.values[node.condition])
        if isinstance(condition, bool):
            return self.block(node.then if condition else node.orelse)
        chosen = self.masked(node.then, self.among_active(condition))
        other = self.masked(node.orelse, self.among_active(~condition))
        return [select(condition, first, second) for first, second in zip(chosen, other, strict=True)]

    def among_active(self, mask: np.ndarray) -> np.ndarray:
        return mask if self.active is None else mask & self.active

    def loop(self, node: body.Loop) -> None:
        carried = [self.values[id] for id in node.initial]
        active: np.ndarray | None = None  # until the condition varies, one decision holds for all
        while self.active is None or self.active.any():
            self.define(node.arguments, carried)
            held = self.active if active is None else active
            condition = truth(self.masked(node.condition, held)[0])
            if active is None and isinstance(condition, bool):
                if not condition:
                    break
                carried = self.masked(node.body, self.active)
                continue
            active = np.asarray(condition) if held is None else held & condition
            if not active.any():
                break
            before = [self.values[argument.id] for argument in node.arguments]
            after = self.masked(node.body, active)
            carried = [select(active, new, old) for new, old in zip(after, before, strict=True)]
        self.define(node.results, carried)

    # Memory

    def version(self, version: Version) -> np.ndarray:
        """A state of a buffer, refused where another buffer's store has changed the memory under it."""
        if version.buffer in self.stale:
            raise FusionValueError(
                f"buffer {version.buffer!r} is read after a store to {self.stale[version.buffer]!r}, whose "
                "memory it shares: a program for such a call must have one buffer for both"
            )
        return self.versions[version]

    def store(self, node: body.Store) -> None:
        name = node.before.buffer
        array = self.version(node.before).copy()
        if not self.arrays[name].flags.writeable:
            raise FusionValueError(f"the array of {name!r} is read-only", node.loc)
        mask = True if node.mask is None else truth(self.values[node.mask])
        put(array, node.index, self.values[node.operand], mask)
        self.versions[node.after] = array
        self.latest[name] = node.after.number
        for other in self.program.buffers:
            if other.name != name and np.shares_memory(self.arrays[name], self.arrays[other.name]):
                self.stale[other.name] = name


def _lanes(value: RuntimeValue, wanted: np.ndarray) -> RuntimeValue:
    """The wanted elements of a value, as one dimension."""
    if is_python(value) and wanted.any():
        return value
    if isinstance(value, WeakArray):
        return WeakArray(np.broadcast_to(value.array, wanted.shape)[wanted], value.kind)
    return np.asarray(np.broadcast_to(np.asarray(value), wanted.shape)[wanted])


def _unlanes(value: RuntimeValue, wanted: np.ndarray) -> RuntimeValue:
    """An array with the given values at the wanted elements, and zeros that nobody looks at elsewhere."""
    array = np.zeros(wanted.shape, np.asarray(data(value)).dtype)
    array[wanted] = data(value)
    return WeakArray(array, value.kind) if isinstance(value, WeakArray) else array


def _nest(structure: object, results: Sequence[object]) -> object:
    if structure is None:
        return None
    if isinstance(structure, tuple | list):
        return type(structure)(_nest(item, results) for item in structure)
    assert isinstance(structure, int)
    return results[structure]
