"""Loads and stores of GPU global memory by address, and index division, for kernels written for numba.cuda.

Names are made when they are first asked for:

``load_float32(address)``, ``load_float32x4(address)``
    One element, or a tuple of four from 16 consecutive bytes: one access of the memory system. The address
    (uint64) is a multiple of the number of bytes moved, which is 1, 2, 4, 8 or 16.
``load_readonly_float32x4(address)``
    The same, with the promise that nothing writes this memory while the kernel runs (``ld.global.nc``).
``store_float32(address, value)``, ``store_float32x4(address, values)``
    The converse.
``quotient_uint32(a, b)``, ``quotient_uint64(a, b)``
    ``a // b`` at that width; b is not zero. Numba's own ``//`` divides 32-bit integers in 64 bits.

The dtypes are bool, int8 to int64, uint8 to uint64, float32 and float64. A bool is a byte in memory and any
nonzero byte is True.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir

# First: it makes sure that numba.cuda is a usable one, and lets it work with NumPy 2.5.
from numfuse.backends import cuda as _cuda  # noqa: F401 isort: skip
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

__all__: list[str] = []

Codegen = Callable[[Any, Any, Any, Any], Any]

_DTYPES = r"bool|u?int8|u?int16|u?int32|u?int64|float32|float64"
_ACCESS = re.compile(rf"(load_readonly|load|store)_({_DTYPES})(?:x(\d+))?")
_QUOTIENT = re.compile(r"quotient_(uint32|uint64)")
_GLOBAL = 1  # NVPTX's address space of global memory: with it the access is ld.global, not a generic ld
_I8, _I32 = ir.IntType(8), ir.IntType(32)
# How a transfer of so many bytes is made: words of this type, so many of them. Always 32-bit words from 4
# bytes on: LLVM turns a vector of 16 bytes or of 8 halves into several smaller accesses.
_TRANSFERS = {2: (ir.IntType(16), 1), 4: (_I32, 1), 8: (_I32, 2), 16: (_I32, 4)}


def __getattr__(name: str) -> Any:
    made = _make(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made  # next time, and for the identity of what Numba compiled
    return made


def _make(name: str) -> Any:
    if match := _QUOTIENT.fullmatch(name):
        return _quotient(name, getattr(types, match[1]))
    match = _ACCESS.fullmatch(name)
    if match is None:
        return None
    kind, dtype_name, lanes_text = match.groups()
    dtype = types.boolean if dtype_name == "bool" else getattr(types, dtype_name)
    size = 1 if dtype_name == "bool" else dtype.bitwidth // 8
    lanes = int(lanes_text) if lanes_text else 1
    if lanes_text and (lanes < 2 or size * lanes not in _TRANSFERS):
        return None
    transfer = _TRANSFERS[size * lanes] if lanes > 1 else (ir.IntType(8 * size), 1)
    if kind == "store":
        return _store(name, dtype, size, lanes, transfer)
    return _load(name, dtype, size, lanes, transfer, readonly=kind == "load_readonly")


def _quotient(name: str, dtype: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.udiv(*args)

    def quotient(typing_context, a, b):  # type: ignore[no-untyped-def] # Numba reads its parameters
        return dtype(dtype, dtype), codegen

    quotient.__name__ = name
    return intrinsic(quotient)


def _load(name: str, dtype: Any, size: int, lanes: int, transfer: tuple[Any, int], *, readonly: bool) -> Any:
    word, words = transfer
    result = types.UniTuple(dtype, lanes) if lanes > 1 else dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = word if words == 1 else ir.VectorType(word, words)
        pointer = builder.inttoptr(args[0], ir.PointerType(whole, _GLOBAL))
        value = builder.load(pointer, align=size * lanes)
        if readonly:
            value.set_metadata("invariant.load", builder.module.add_metadata([]))
        memory_type = _I8 if dtype == types.boolean else context.get_data_type(dtype)
        items = _unpack(builder, value, memory_type, size, lanes)
        if dtype == types.boolean:
            items = [builder.icmp_unsigned("!=", item, _I8(0)) for item in items]
        return context.make_tuple(builder, result, items) if lanes > 1 else items[0]

    def load(typing_context, address):  # type: ignore[no-untyped-def]
        return result(types.uint64), codegen

    load.__name__ = name
    return intrinsic(load)


def _store(name: str, dtype: Any, size: int, lanes: int, transfer: tuple[Any, int]) -> Any:
    word, words = transfer
    argument = types.UniTuple(dtype, lanes) if lanes > 1 else dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, value = args
        items = cgutils.unpack_tuple(builder, value, lanes) if lanes > 1 else [value]
        if dtype == types.boolean:
            items = [builder.zext(item, _I8) for item in items]
        whole = _pack(builder, items, word, words)
        pointer = builder.inttoptr(address, ir.PointerType(whole.type, _GLOBAL))
        builder.store(whole, pointer, align=size * lanes)
        return context.get_dummy_value()

    def store(typing_context, address, values):  # type: ignore[no-untyped-def]
        return types.void(types.uint64, argument), codegen

    store.__name__ = name
    return intrinsic(store)


def _unpack(builder: Any, value: Any, memory_type: Any, size: int, lanes: int) -> list[Any]:
    """The elements of a loaded word or vector of words."""
    if lanes == 1:
        return [builder.bitcast(value, memory_type)]
    is_vector = isinstance(value.type, ir.VectorType)
    word = value.type.element if is_vector else value.type
    per_word = word.width // (8 * size)
    if per_word <= 1:
        vector = builder.bitcast(value, ir.VectorType(memory_type, lanes))
        return [builder.extract_element(vector, _I32(k)) for k in range(lanes)]
    # Shifts, not one bitcast: LLVM would merge that with the load into a load of narrow elements.
    words = [builder.extract_element(value, _I32(k)) for k in range(value.type.count)] if is_vector else [value]
    items = []
    for one in words:
        for k in range(per_word):
            shifted = builder.lshr(one, word(8 * size * k)) if k else one
            items.append(builder.bitcast(builder.trunc(shifted, ir.IntType(8 * size)), memory_type))
    return items


def _pack(builder: Any, items: list[Any], word: Any, words: int) -> Any:
    """The word, or vector of words, that holds the elements."""
    whole = word if words == 1 else ir.VectorType(word, words)
    if len(items) == 1:
        return builder.bitcast(items[0], whole)
    per_word = len(items) // words
    if per_word <= 1:
        vector = ir.Constant(ir.VectorType(items[0].type, len(items)), ir.Undefined)
        for k, item in enumerate(items):
            vector = builder.insert_element(vector, item, _I32(k))
        return builder.bitcast(vector, whole)
    bits = word.width // per_word
    made = []
    for first in range(0, len(items), per_word):
        acc = None
        for k, item in enumerate(items[first : first + per_word]):
            wide = builder.zext(builder.bitcast(item, ir.IntType(bits)), word)
            wide = builder.shl(wide, word(bits * k)) if k else wide
            acc = wide if acc is None else builder.or_(acc, wide)
        made.append(acc)
    if words == 1:
        return made[0]
    vector = ir.Constant(whole, ir.Undefined)
    for k, one in enumerate(made):
        vector = builder.insert_element(vector, one, _I32(k))
    return vector
