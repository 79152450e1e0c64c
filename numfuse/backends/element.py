"""What the two back ends are given: a scalar function, and the loops that apply it to arrays.

:mod:`numfuse.backends.emit` turns a typed program into an :class:`ElementFunction` (Python text, the same
for both targets). The launch side chooses a :class:`Nest` (a loop nest over one domain) for the layouts of
a call. A kernel is one or more nests. The order of a kernel's arguments is :func:`parameters`, read by both
kernel writers and by the packer, so it is stated once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from numfuse.errors import FusionNotImplementedError


@dataclass(frozen=True, slots=True)
class Argument:
    """A named, typed argument or result of an element function."""

    name: str
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class ElementFunction:
    """A scalar function as Python source.

    `source` is ``def NAME(operands..., scalars...):`` and returns a tuple with one item an output (also when
    there is one). It uses casts by dtype name (``float32(x)``), ``inf`` and ``nan``, and the names in
    `imports`, which :mod:`numfuse.mathlib` provides for each target.
    """

    name: str
    source: str
    operands: tuple[Argument, ...]
    scalars: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    imports: tuple[str, ...] = ()
    weight: int = 1  # number of operations, for the choice of lanes and threads


class Access(enum.Enum):
    """How one array is met along the innermost dimension of a nest."""

    DENSE = "dense"  # neighbours in memory: vector loads and stores
    SCALAR = "scalar"  # one element for the whole nest (zero stride everywhere): loaded once
    REPEATED = "repeated"  # zero stride along the innermost dimension only
    STRIDED = "strided"  # anything else; the byte stride is an argument


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest: `element` applied over a domain of `ndim` coalesced dimensions.

    ``ndim == 1`` with every access DENSE or SCALAR is the flat nest. Otherwise each operand and output that
    is not SCALAR has one byte stride for each dimension, outermost first (the innermost one is passed too,
    and only used when the access is STRIDED).
    """

    element: ElementFunction
    ndim: int
    operands: tuple[Access, ...]
    outputs: tuple[Access, ...]
    aligned: bool = True  # every DENSE address is a multiple of 16 bytes
    # Which operand each output is exactly on top of (same address, same strides), or None: in place.
    in_place: tuple[int | None, ...] = ()
    index_bits: Literal[32, 64] = 32

    @property
    def flat(self) -> bool:
        accesses = (*self.operands, *self.outputs)
        return self.ndim == 1 and all(a in (Access.DENSE, Access.SCALAR) for a in accesses)


Role: TypeAlias = Literal["size", "extent", "address", "stride", "scalar"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument; each takes one 8-byte word of the packed buffer, low bytes first."""

    role: Role
    name: str
    dtype: np.dtype
    nest: int
    array: int | None = None  # position in operands + outputs of the nest, for "address" and "stride"
    axis: int | None = None  # for "extent" and "stride"


_UINT64, _INT64 = np.dtype(np.uint64), np.dtype(np.int64)


def parameters(nests: tuple[Nest, ...]) -> tuple[Parameter, ...]:
    """The arguments of a kernel of these nests, in order.

    For each nest: the number of elements; unless it is flat, its extents (outermost first); for each operand
    then each output its address and, unless the nest is flat or the access SCALAR, its byte strides
    (outermost first); then the scalars. Names are unique within the kernel.
    """
    out: list[Parameter] = []
    for k, nest in enumerate(nests):
        tag = f"_{k}" if len(nests) > 1 else ""
        out.append(Parameter("size", f"size{tag}", _INT64, k))
        if not nest.flat:
            out += [Parameter("extent", f"extent_{d}{tag}", _INT64, k, axis=d) for d in range(nest.ndim)]
        arrays = (*nest.element.operands, *nest.element.outputs)
        accesses = (*nest.operands, *nest.outputs)
        for a, (array, access) in enumerate(zip(arrays, accesses, strict=True)):
            out.append(Parameter("address", f"{array.name}_address{tag}", _UINT64, k, a))
            if not nest.flat and access is not Access.SCALAR:
                out += [Parameter("stride", f"{array.name}_stride_{d}{tag}", _INT64, k, a, d) for d in range(nest.ndim)]
        out += [Parameter("scalar", f"{s.name}{tag}", s.dtype, k) for s in nest.element.scalars]
    return tuple(out)


_WORDS = {
    "b": "?7x",
    "i1": "b7x",
    "i2": "h6x",
    "i4": "i4x",
    "i8": "q",
    "u1": "B7x",
    "u2": "H6x",
    "u4": "I4x",
    "u8": "Q",
    "f4": "f4x",
    "f8": "d",
}


def words_format(dtypes: Sequence[np.dtype[Any]]) -> str:
    """The :mod:`struct` format that packs one value of each dtype into an 8-byte word, low bytes first."""
    try:
        return "<" + "".join(_WORDS["b" if t.kind == "b" else f"{t.kind}{t.itemsize}"] for t in dtypes)
    except KeyError:
        refused = next(t for t in dtypes if t.kind != "b" and f"{t.kind}{t.itemsize}" not in _WORDS)
        raise FusionNotImplementedError(f"kernel arguments of dtype {refused} are not supported yet") from None
