"""From shapes and strides to the loop nest that walks all arrays of a call together.

Everything here is plain Python on small tuples of ints: strides are bytes, dimensions are listed outermost
first, and nothing touches memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from numfuse.backends.element import Access

Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A domain reduced to as few dimensions as the arrays' strides allow.

    Element ``(i, j, ...)`` of the reduced domain lies, in array ``a``, at its address plus ``offsets[a]``
    plus ``i * strides[a][0] + j * strides[a][1] + ...``.
    """

    extents: Ints
    strides: tuple[Ints, ...]  # bytes, for each array one a dimension
    accesses: tuple[Access, ...]
    offsets: Ints  # bytes, to be added to each array's address (not 0 where dimensions were reversed)
    size: int
    index_bits: Literal[32, 64]


def output_order(domain: Ints, operands: Sequence[tuple[Ints, Ints]]) -> Ints:
    """In which order the dimensions of a new output lie in memory, outermost first.

    The order that NumPy's ufuncs choose by default (``order="K"``): the output follows the operands, and
    where they disagree it is C order.

    Parameters
    ----------
    domain : tuple of int
        The output's shape.
    operands : sequence of (shape, strides)

    Examples
    --------
    >>> output_order((2, 3), [((2, 3), (8, 16))])
    (1, 0)
    """
    ndim = len(domain)
    c_order = tuple(range(ndim))
    if ndim < 2 or 0 in domain:
        return c_order
    return _memory_order(c_order, [_stretched(domain, *operand) for operand in operands])


def dense_strides(shape: Ints, itemsize: int, order: Ints) -> Ints:
    """Byte strides of a new array whose dimensions lie in memory in `order`, outermost first.

    Examples
    --------
    >>> dense_strides((2, 3), 4, (0, 1)), dense_strides((2, 3), 4, (1, 0))
    ((12, 4), (4, 8))
    """
    strides = [0] * len(shape)
    step = itemsize
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)  # an empty array keeps strides that other libraries accept
    return tuple(strides)


def is_c_order(order: Ints) -> bool:
    """Whether this memory order is C order."""
    return order == tuple(range(len(order)))


def nest_layout(domain: Ints, arrays: Sequence[tuple[Ints, Ints, int]]) -> Layout:
    """The loop nest over `domain` for arrays that broadcast to it.

    Dimensions of extent 1 are dropped, the rest sorted as NumPy's iterator sorts them (the fastest-moving
    last), reversed where every array runs backwards, and neighbours joined into one wherever every array
    allows it.

    Parameters
    ----------
    domain : tuple of int
    arrays : sequence of (shape, strides, itemsize)
        Operands first, then outputs; strides in bytes.
    """
    size = math.prod(domain)
    count = len(arrays)
    if size <= 1 or _all_dense(domain, arrays):
        itemsizes = [itemsize for _, _, itemsize in arrays]
        dense = tuple((itemsize,) for itemsize in itemsizes)
        bits = index_bits((size,), dense, itemsizes)
        return Layout((size,), dense, (Access.DENSE,) * count, (0,) * count, size, bits)

    stretched = [_stretched(domain, shape, strides) for shape, strides, _ in arrays]
    dimensions = tuple(d for d, extent in enumerate(domain) if extent != 1)
    order = _memory_order(dimensions, stretched)
    extents = [domain[d] for d in order]
    # One row a dimension, one column an array.
    rows = [[strides[d] for strides in stretched] for d in order]
    offsets = _turn_forwards(extents, rows)
    extents, rows = _coalesce(extents, rows)

    strides = tuple(zip(*rows, strict=True)) if count else ()
    accesses = tuple(_access(column, itemsize) for column, (_, _, itemsize) in zip(strides, arrays, strict=True))
    bits = index_bits(tuple(extents), strides, [itemsize for _, _, itemsize in arrays])
    return Layout(tuple(extents), strides, accesses, offsets, size, bits)


def _all_dense(domain: Ints, arrays: Sequence[tuple[Ints, Ints, int]]) -> bool:
    """The usual case, found quickly: every array has the domain's shape and C order without gaps."""
    c_order = tuple(range(len(domain)))
    known: dict[int, Ints] = {}
    for shape, strides, itemsize in arrays:
        if shape != domain:
            return False
        if itemsize not in known:
            known[itemsize] = dense_strides(domain, itemsize, c_order)
        if strides != known[itemsize]:
            return False
    return True


def _stretched(domain: Ints, shape: Ints, strides: Ints) -> Ints:
    """The strides of an array broadcast to the domain: 0 where it is stretched or has extent 1."""
    missing = len(domain) - len(shape)
    if missing < 0:
        raise ValueError(f"an array of shape {shape} does not broadcast to {domain}")
    out = [0] * missing
    for extent, own, stride in zip(domain[missing:], shape, strides, strict=True):
        if own == 1:
            out.append(0)
        elif own == extent:
            out.append(stride)
        else:
            raise ValueError(f"an array of shape {shape} does not broadcast to {domain}")
    return tuple(out)


def _memory_order(dimensions: Ints, arrays: Sequence[Ints]) -> Ints:
    """Sort dimensions by stride, outermost first, by the rule of NumPy's iterator.

    An insertion sort from the innermost dimension of C order outwards. A pair of dimensions is compared by
    the absolute strides of every array that has an opinion (both strides nonzero): the pair changes places
    only if all of them want it, and a pair without any opinion is looked past.
    """
    inner_first: list[int] = []
    for moving in reversed(dimensions):
        place = len(inner_first)
        for position in range(len(inner_first) - 1, -1, -1):
            wish = _wants_inside(moving, inner_first[position], arrays)
            if wish is None:
                continue
            if not wish:
                break
            place = position
        inner_first.insert(place, moving)
    return tuple(reversed(inner_first))


def _wants_inside(moving: int, other: int, arrays: Sequence[Ints]) -> bool | None:
    """Whether `moving`, which C order has outside `other`, goes inside it; None if no array cares."""
    wish: bool | None = None
    for strides in arrays:
        ours, theirs = abs(strides[moving]), abs(strides[other])
        if ours and theirs:
            if theirs <= ours:
                return False
            wish = True
    return wish


def _turn_forwards(extents: list[int], rows: list[list[int]]) -> Ints:
    """Reverse the dimensions along which no array runs forwards; the offsets of the new first elements."""
    offsets = [0] * (len(rows[0]) if rows else 0)
    for d, row in enumerate(rows):
        if any(row) and max(row) <= 0:
            for a, stride in enumerate(row):
                offsets[a] += stride * (extents[d] - 1)
                row[a] = -stride
    return tuple(offsets)


def _coalesce(extents: list[int], rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring dimensions that every array crosses in equal steps."""
    out_extents, out_rows = [extents[0]], [rows[0]]
    for extent, row in zip(extents[1:], rows[1:], strict=True):
        outer = out_rows[-1]
        if all(step == inner * extent for step, inner in zip(outer, row, strict=True)):
            out_extents[-1] *= extent
            out_rows[-1] = row
        else:
            out_extents.append(extent)
            out_rows.append(row)
    return out_extents, out_rows


def _access(strides: Ints, itemsize: int) -> Access:
    if not any(strides):
        return Access.SCALAR
    if strides[-1] == itemsize:
        return Access.DENSE
    return Access.STRIDED if strides[-1] else Access.REPEATED


def index_bits(extents: Ints, strides: Sequence[Ints], itemsizes: Sequence[int]) -> Literal[32, 64]:
    """32 where signed 32-bit integers hold every index and byte offset of a kernel, else 64.

    Byte offsets must stay below 2**31 and the number of elements at most 2**30, so that an index plus one
    step of a grid-stride loop (never more than the number of elements, rounded up) does not overflow.
    """
    if math.prod(extents) > 2**30:
        return 64
    for own, itemsize in zip(strides, itemsizes, strict=True):
        reach = sum(abs(stride) * (extent - 1) for stride, extent in zip(own, extents, strict=True))
        if reach + itemsize >= 2**31:
            return 64
    return 32
