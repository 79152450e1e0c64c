"""The few LLVM-level operations that CPU kernels are written with: typed memory access and loop promises.

Numba's own arrays carry shapes, strides and reference counts that a fused loop has no use for, and LLVM
cannot tell that they don't overlap. Kernels therefore work on raw addresses. Two promises make LLVM
vectorise their loops, with no check at run time and for any number of arrays:

* :func:`load` and :func:`store` put each access into one *access group*;
* :func:`independent_iterations`, called after a loop, marks that loop as one whose iterations don't depend
  on each other through accesses of that group.

That is exactly what an elementwise loop may promise: an output may lie on top of any number of operands (in
place), as long as iteration ``i`` touches the same element of each. Order *within* an iteration is kept.
Alias scopes would promise more (that the arrays are disjoint), which in-place calls break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.core.types
import numba.extending
from llvmlite import ir

__all__ = [
    "independent_iterations",
    "load",
    "load_at",
    "pointer",
    "prefer_512_bit_vectors",
    "store",
    "store_at",
    "word",
]


types: Any = numba.core.types


def intrinsic(function: Callable[..., Any]) -> Any:
    return numba.extending.intrinsic(function)


class _DistinctNode(ir.MDValue):  # type: ignore[misc]
    """A metadata node equal only to itself, which llvmlite has no public way to make."""

    def __init__(self, module: ir.Module) -> None:
        super().__init__(module, (), name=str(len(module.metadata)))

    def descr(self, buf: list[str]) -> None:
        buf.append(f"distinct !{{ {', '.join(node.get_reference() for node in self.operands)} }}\n")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def _access_group(module: ir.Module) -> _DistinctNode:
    """The one access group of a module (one kernel a module)."""
    group = getattr(module, "_numfuse_access_group", None)
    if group is None:
        group = module._numfuse_access_group = _DistinctNode(module)
    return group


def _mark(builder: ir.IRBuilder, access: ir.Instruction) -> ir.Instruction:
    access.set_metadata("llvm.access.group", _access_group(builder.module))
    return access


def _read(context: Any, builder: ir.IRBuilder, place: Any, dtype: Any) -> Any:
    # NumPy arrays may sit at any address (fields of packed records), hence align=1. It costs nothing on
    # x86 and 64-bit ARM: their vector loads take any address.
    value = _mark(builder, builder.load(place, align=1))
    if dtype is types.boolean:  # any nonzero byte is True (views of other dtypes hold such bytes)
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))
    return value


def _write(builder: ir.IRBuilder, place: Any, value: Any) -> None:
    if value.type == ir.IntType(1):
        value = builder.zext(value, ir.IntType(8))
    _mark(builder, builder.store(value, place, align=1))


def _shifted(builder: ir.IRBuilder, place: Any, byte_offset: Any) -> Any:
    byte = ir.IntType(8).as_pointer()
    return builder.bitcast(builder.gep(builder.bitcast(place, byte), [byte_offset]), place.type)


@intrinsic
def word(typing_context: Any, arguments: Any, position: Any, dtype: Any) -> Any:
    """The packed argument at `position` (8 bytes each) of the words at address `arguments`, as `dtype`."""
    result = dtype.dtype

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        words = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        place = builder.gep(words, [args[1]])
        place = builder.bitcast(place, context.get_data_type(result).as_pointer())
        return _read(context, builder, place, result)

    return result(types.int64, types.intp, dtype), codegen


@intrinsic
def pointer(typing_context: Any, address: Any, dtype: Any) -> Any:
    """The integer `address` as a pointer to elements of `dtype`."""
    result = types.CPointer(dtype.dtype)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.int64, dtype), codegen


@intrinsic
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """Element `index` of `array`, a :func:`pointer`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return _read(context, builder, builder.gep(args[0], [args[1]], inbounds=True), array.dtype)

    return array.dtype(array, types.intp), codegen


@intrinsic
def load_at(typing_context: Any, array: Any, byte_offset: Any) -> Any:
    """The element that lies `byte_offset` bytes (any integer, also negative) after the start of `array`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return _read(context, builder, _shifted(builder, *args), array.dtype)

    return array.dtype(array, types.intp), codegen


@intrinsic
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Set element `index` of `array` to `value`, converted to the array's dtype."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _write(builder, builder.gep(args[0], [args[1]], inbounds=True), args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def store_at(typing_context: Any, array: Any, byte_offset: Any, value: Any) -> Any:
    """Set the element that lies `byte_offset` bytes after the start of `array`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _write(builder, _shifted(builder, args[0], args[1]), args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


def _back_edges(function: ir.Function) -> list[ir.Instruction]:
    """The terminators that close the loops built so far.

    A depth-first walk. Blocks still to be built have no terminator yet, nor does the entry block (Numba
    writes it last), so the walk starts at the others, in source order.
    """
    found, finished, on_path = [], set(), set()
    stack: list[tuple[Any, Any]] = [(block, None) for block in reversed(function.blocks)]
    while stack:
        block, successors = stack.pop()
        if successors is None:
            if block in finished:
                continue
            on_path.add(block)
            successors = iter(_targets(block))
        for target in successors:
            if target in on_path:
                found.append(block.terminator)
            elif target not in finished:
                stack += [(block, successors), (target, None)]
                break
        else:
            on_path.discard(block)
            finished.add(block)
    return found


def _targets(block: ir.Block) -> list[ir.Block]:
    operands = [] if block.terminator is None else block.terminator.operands
    return [operand for operand in operands if isinstance(operand, ir.Block)]


@intrinsic
def independent_iterations(typing_context: Any) -> Any:
    """Written right after a loop: its iterations meet no element that another one stores.

    Adds ``llvm.loop.parallel_accesses`` to the loop's closing branch, so LLVM vectorises without proving
    or checking that the arrays don't overlap.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        module = builder.module
        open_loops = [edge for edge in _back_edges(builder.function) if "llvm.loop" not in edge.metadata]
        if not open_loops:
            raise AssertionError("independent_iterations() found no loop before it")
        promise = ir.MetaDataString(module, "llvm.loop.parallel_accesses")
        for edge in open_loops:
            loop = _DistinctNode(module)
            loop.operands = (loop, module.add_metadata([promise, _access_group(module)]))
            edge.set_metadata("llvm.loop", loop)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def prefer_512_bit_vectors(typing_context: Any) -> Any:
    """Ask for vectors of full width in the function that calls this.

    LLVM prefers 256-bit vectors on many AVX-512 processors. The attribute lifts that for one function and
    touches nothing else in the process; other processors ignore it. (llvmlite's attribute set refuses names
    that it does not know, hence the plain ``set.add``.)
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen
