"""The text of a CPU kernel: an element function and the loops that apply it to arrays.

A kernel is a Python module that Numba compiles. It takes the address of its packed arguments (the order is
:func:`numfuse.backends.element.parameters`) and a range ``start:stop`` of the elements of its domain, so
that threads can share one call. Two shapes:

* **flat**: every array dense in the same order (or one element): one loop over ``start:stop``;
* **strided**: the coordinates of ``start`` are worked out once, then whole runs along the innermost
  dimension, one inner loop a run, with running addresses for the outer dimensions.

Loops are as plain as they can be: :mod:`numfuse.backends.cpu_memory` tells LLVM what it needs to vectorise
them. Arrays may sit at any address and an output may lie exactly on top of operands, so
``Nest.aligned``, ``Nest.in_place`` and ``Nest.index_bits`` change nothing here.

Writing the text needs no Numba.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from numfuse.backends.element import Access, Nest, parameters
from numfuse.errors import FusionNotImplementedError, FusionValueError

__all__ = ["KernelSource", "kernel_source"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = {np.dtype(name): name for name in (*_INTEGERS, "float32", "float64")}
_DTYPES[np.dtype(np.bool_)] = "boolean"  # as Numba calls it
_NUMBA_NAMES = {*_DTYPES.values(), "bool_"}
_MEMORY_NAMES = (
    "independent_iterations",
    "load",
    "load_at",
    "pointer",
    "prefer_512_bit_vectors",
    "store",
    "store_at",
    "word",
)
_LOCAL_NAMES = ("arguments", "start", "stop", "i", "count", "rest", "min", "range")

# LLVM makes a vector loop of a strided one only for the case that the stride is one element, and leaves the
# others scalar. A stride that is a sum it takes as it is, with gathers and scatters: 2.4 times faster for
# the photograph of the examples, slower for bodies of a few operations. The packed arguments are aligned,
# so the sum changes nothing, which LLVM can't know.
_WORTH_GATHERING = 8

# Contractions and reorderings; NaN, infinities and signed zeros keep their meaning, so that isnan() works.
_FAST = '{"afn", "arcp", "contract", "reassoc"}'


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A complete module as text; `name` is the kernel function in it."""

    text: str
    name: str


class _Names:
    """Names of a module that don't collide with each other nor with the names given."""

    def __init__(self, *taken: str) -> None:
        self._taken = set(taken)

    def new(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def kernel_source(nest: Nest, name: str, *, fast: bool = False) -> KernelSource:
    """Write the kernel of one nest.

    Parameters
    ----------
    nest : Nest
        The element function and how its arrays are met.
    name : str
        The kernel function is called ``NAME_kernel``.
    fast : bool
        Let LLVM contract, reorder and approximate floating-point operations.

    Returns
    -------
    KernelSource
        The module's text and the kernel's name.

    Raises
    ------
    FusionNotImplementedError
        A dtype that CPU kernels don't have yet.
    """
    return KernelSource(*_Writer(nest, name, fast).write())


class _Writer:
    def __init__(self, nest: Nest, name: str, fast: bool) -> None:
        self.nest = nest
        self.element = nest.element
        self.fast = fast
        self.arrays = (*self.element.operands, *self.element.outputs)
        self.accesses = (*nest.operands, *nest.outputs)
        if len(self.accesses) != len(self.arrays):
            raise FusionValueError(f"{len(self.arrays)} arrays, but {len(self.accesses)} ways to access them")
        for argument in (*self.arrays, *self.element.scalars):
            if argument.dtype not in _DTYPES:
                raise FusionNotImplementedError(
                    f"{argument.name} is {argument.dtype}: CPU kernels have no {argument.dtype} yet. "
                    "Write .astype(np.float32), or another of "
                    f"{', '.join(dtype.name for dtype in _DTYPES)}, before the call."
                )
        self.names = _Names(self.element.name, *self.element.imports, *_NUMBA_NAMES, "inf", "nan", "njit")
        for local in _LOCAL_NAMES:
            self.names.new(local)
        self.memory = {item: self.names.new(item) for item in _MEMORY_NAMES}
        self.name = self.names.new(f"{name}_kernel")
        self.used: set[str] = set()  # of self.memory
        # Python expressions, by (role, array, axis) of the parameter
        self.local: dict[tuple[str, int | None, int | None], str] = {}

    def call(self, operation: str, *args: str) -> str:
        self.used.add(operation)
        return f"{self.memory[operation]}({', '.join(args)})"

    def write(self) -> tuple[str, str]:
        body = [
            '"""Elements `start` to `stop`; `arguments` is the address of the packed words."""',
            self.call("prefer_512_bit_vectors"),
            *self.unpack(),
            *(self.flat() if self.nest.flat else self.strided()),
        ]
        fast = f", fastmath={_FAST}" if self.fast else ""
        inner = 'error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True'
        lines = [
            *self.header(),
            "",
            "",
            f"@njit({inner}{fast})",
            self.element.source.rstrip("\n"),
            "",
            "",
            f'@njit(error_model="numpy", nogil=True{fast})',
            f"def {self.name}(arguments, start, stop):",
            *(f"    {line}" for line in body),
        ]
        return "\n".join(lines) + "\n", self.name

    def header(self) -> Iterator[str]:
        words = set(re.findall(r"[A-Za-z_]\w*", self.element.source))
        own = {_DTYPES[argument.dtype] for argument in (*self.arrays, *self.element.scalars)}
        yield f'"""The CPU kernel of {self.element.name}, written by numfuse."""'
        yield ""
        if constants := sorted({"inf", "nan"} & words):
            yield f"from math import {', '.join(constants)}"
        yield f"from numba import {', '.join(sorted((_NUMBA_NAMES & words) | own | {'int64', 'njit'}))}"
        memory = (n if n == alias else f"{n} as {alias}" for n, alias in self.memory.items() if n in self.used)
        yield "from numfuse.backends.cpu_memory import ("
        yield from (f"    {item}," for item in memory)
        yield ")"
        if self.element.imports:
            yield f"from numfuse.mathlib.cpu import {', '.join(sorted(set(self.element.imports)))}"

    def dtype(self, array: int) -> str:
        return _DTYPES[self.arrays[array].dtype]

    def innermost(self, role: str, array: int | None) -> str:
        return self.local[role, array, self.nest.ndim - 1]

    def unpack(self) -> Iterator[str]:
        """Read the packed arguments that the loops use, as local names."""
        scalar = 0
        for position, parameter in enumerate(parameters((self.nest,))):
            role, array, axis = parameter.role, parameter.array, parameter.axis
            if role == "size" or (role, axis) == ("extent", 0):  # `start:stop` lies inside already
                continue
            if role == "stride" and array is not None and axis == self.nest.ndim - 1:
                if self.accesses[array] is Access.REPEATED:
                    continue
                if self.accesses[array] is Access.DENSE:
                    self.local[role, array, axis] = str(self.arrays[array].dtype.itemsize)
                    continue
            dtype = _DTYPES[parameter.dtype] if role == "scalar" else "int64"
            value = self.call("word", "arguments", str(position), dtype)
            if role == "stride" and axis == self.nest.ndim - 1 and self.element.weight >= _WORTH_GATHERING:
                value += " + (arguments & 7)"  # adds 0, see _WORTH_GATHERING
            if role == "address" and array is not None:
                if self.nest.flat or self.accesses[array] is Access.SCALAR:
                    yield from self.point(array, value)
                    continue
                if self.nest.ndim == 1:  # used once
                    self.local[role, array, None] = value
                    continue
            name = self.names.new(parameter.name)
            yield f"{name} = {value}"
            if role == "scalar":
                self.local["scalar", scalar, None] = name
                scalar += 1
            else:
                self.local[role, array, axis] = name

    def point(self, array: int, address: str) -> Iterator[str]:
        """Make the pointer of an array at `address`, or read its value when the inner loop has only one."""
        place = self.call("pointer", address, self.dtype(array))
        once = self.accesses[array] in (Access.SCALAR, Access.REPEATED)
        if once and array < len(self.element.operands):
            name = self.own("value", array)
            yield f"{name} = {self.call('load', place, '0')}"
        else:
            yield f"{self.own('data', array)} = {place}"

    def own(self, role: str, array: int) -> str:
        """The local name for the pointer ("data") or the value of an array, made at the first use."""
        key = role, array, None
        if key not in self.local:
            self.local[key] = self.names.new(f"{self.arrays[array].name}_{role}")
        return self.local[key]

    def inner_loop(self, loop: str) -> Iterator[str]:
        """One run along the innermost dimension, element `i` after element."""
        operands = len(self.element.operands)
        given = [self.item("load", a) for a in range(operands)]
        given += [self.local["scalar", s, None] for s in range(len(self.element.scalars))]
        outputs = range(operands, len(self.arrays))
        values = ", ".join(self.own("value", a) for a in outputs)
        if len(outputs) == 1:
            values = f"({values},)"
        yield loop
        yield f"    {values} = {self.element.name}({', '.join(given)})"
        for a in outputs:
            yield f"    {self.item('store', a, self.own('value', a))}"
        if all(access in (Access.DENSE, Access.STRIDED) for access in self.nest.outputs):
            yield self.call("independent_iterations")

    def item(self, operation: str, array: int, *value: str) -> str:
        """Load or store of the element that iteration `i` meets."""
        access = self.accesses[array]
        if access is Access.DENSE:
            return self.call(operation, self.own("data", array), "i", *value)
        if access is Access.STRIDED:
            offset = f"i * {self.innermost('stride', array)}"
            return self.call(f"{operation}_at", self.own("data", array), offset, *value)
        if operation == "store":
            return self.call("store", self.own("data", array), "0", *value)
        return self.own("value", array)

    def flat(self) -> Iterator[str]:
        yield from self.inner_loop("for i in range(start, stop):")

    def strided(self) -> Iterator[str]:
        last = self.nest.ndim - 1
        address = {
            a: self.local["address", a, None] for a, access in enumerate(self.accesses) if access is not Access.SCALAR
        }
        if last == 0:
            yield "count = stop - start"
            yield from self.run(address, "start")
            return
        # Where `start` lies.
        at = [self.names.new(f"at_{d}") for d in range(self.nest.ndim)]
        yield "rest = start"
        for d in range(last, 0, -1):
            yield f"{at[d]} = rest % {self.local['extent', None, d]}"
            yield f"rest = rest // {self.local['extent', None, d]}"
        yield f"{at[0]} = rest"
        row = {a: self.names.new(f"{self.arrays[a].name}_row") for a in address}
        for a in address:
            terms = [f" + {at[d]} * {self.local['stride', a, d]}" for d in range(last)]
            yield f"{row[a]} = {address[a]}{''.join(terms)}"
        yield "while start < stop:"
        body = [
            f"count = min({self.local['extent', None, last]} - {at[last]}, stop - start)",
            *self.run(row, at[last]),
            "start += count",
            f"{at[last]} = 0",
            *self.advance(row, at, last - 1),
        ]
        yield from (f"    {line}" for line in body)

    def run(self, row: dict[int, str], first: str) -> Iterator[str]:
        """The elements from `first` on in the row that begins at the addresses `row`."""
        for a, address in row.items():
            if self.accesses[a] is not Access.REPEATED:
                address = f"{address} + {first} * {self.innermost('stride', a)}"
            yield from self.point(a, address)
        yield from self.inner_loop("for i in range(count):")

    def advance(self, row: dict[int, str], at: list[str], d: int) -> Iterator[str]:
        """Step dimension `d`, carrying into the next outer one where it ends."""
        yield f"{at[d]} += 1"
        for a, address in row.items():
            yield f"{address} += {self.local['stride', a, d]}"
        if d == 0:
            return
        extent = self.local["extent", None, d]
        yield f"if {at[d]} == {extent}:"
        yield f"    {at[d]} = 0"
        for a, address in row.items():
            yield f"    {address} -= {extent} * {self.local['stride', a, d]}"
        yield from (f"    {line}" for line in self.advance(row, at, d - 1))
