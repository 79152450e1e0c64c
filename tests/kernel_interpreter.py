"""Runs the text of a GPU kernel in plain Python, thread by thread: its indices and addresses, without a GPU.

Accesses are checked as the hardware would: a misaligned one fails, and so does storing to an address twice.
"""

from __future__ import annotations

import builtins
import ctypes
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from numfuse.backends.cuda_kernels import KernelSource
from numfuse.backends.element import Nest

_UINT64 = 2**64 - 1


def run(source: KernelSource, arguments: list[Any], grid: int, block: int) -> None:
    """Launch the kernel of `source` with these Python values."""
    place = {name: SimpleNamespace(x=0) for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}
    memory = _Memory()
    cuda = SimpleNamespace(jit=_jit, **place)
    modules = {
        "numba": SimpleNamespace(cuda=cuda),
        "numba.cuda.types": _Types(),
        "numfuse.backends.memory": memory,
        "math": math,
    }

    def imported(name: str, *_: Any) -> Any:
        return modules[name]

    namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": imported}}
    exec(compile(source.text, "<kernel>", "exec"), namespace)
    kernel = namespace[source.name]
    place["blockDim"].x, place["gridDim"].x = block, grid
    for b in range(grid):
        for t in range(block):
            place["blockIdx"].x, place["threadIdx"].x = b, t
            kernel(*arguments)


def arguments(
    source: KernelSource, nests: tuple[Nest, ...], arrays: list[list[np.ndarray]], *scalars: Any
) -> list[Any]:
    """What a launch packs; `arrays`: operands, then outputs, of each nest, broadcast to its domain."""
    values, rest = [], iter(scalars)
    for parameter in source.parameters:
        own = arrays[parameter.nest]
        match parameter.role:
            case "size":
                values.append(own[-1].size)
            case "extent":
                values.append(own[-1].shape[parameter.axis])
            case "address":
                values.append(own[parameter.array].__array_interface__["data"][0])
            case "stride":
                values.append(own[parameter.array].strides[parameter.axis])
            case "scalar":
                values.append(next(rest))
    return values


def _jit(*args: Any, **options: Any) -> Any:
    return args[0] if args else lambda function: function


class _Types:
    def __getattr__(self, name: str) -> Any:
        if name in ("boolean", "bool_"):
            return np.bool_
        dtype = np.dtype(name)
        if dtype.kind == "f":
            return dtype.type
        bits, signed = 8 * dtype.itemsize, dtype.kind == "i"

        def cast(value: Any) -> int:
            wrapped = int(value) % 2**bits
            return wrapped - 2**bits if signed and wrapped >= 2 ** (bits - 1) else wrapped

        return cast


class _Memory:
    def __init__(self) -> None:
        self.stored: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("quotient_"):
            return lambda a, b: a // b
        kind, dtype_name, lanes = re.fullmatch(r"(load_readonly|load|store)_(\w+?)(?:x(\d+))?", name).groups()
        dtype, lanes = np.dtype(dtype_name), int(lanes or 1)

        def items(address: int) -> np.ndarray:
            address &= _UINT64
            assert address % (dtype.itemsize * lanes) == 0, f"misaligned {name}"
            raw = (ctypes.c_char * (dtype.itemsize * lanes)).from_address(address)
            return np.frombuffer(raw, np.uint8 if dtype.kind == "b" else dtype)

        def load(address: int) -> Any:
            found = [value != 0 if dtype.kind == "b" else value for value in items(address)]
            return tuple(found) if lanes > 1 else found[0]

        def store(address: int, values: Any) -> None:
            target = items(address)
            for k, value in enumerate(values if lanes > 1 else [values]):
                place = (address & _UINT64) + k * dtype.itemsize
                assert place not in self.stored, f"stored twice by {name}"
                self.stored.add(place)
                target[k] = value

        return store if kind == "store" else load
