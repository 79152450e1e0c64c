"""Whether two arrays share memory, and whether one array meets the same memory twice.

For ``out=``, which has to refuse outputs that lie across operands or across themselves. There is no ``out=``
yet, so nothing calls this module: results are always new arrays.
"""

from __future__ import annotations

import math
from typing import Literal

from numfuse.arrays.adapter import ArrayInfo


def overlap(a: ArrayInfo, b: ArrayInfo) -> Literal["none", "exact", "partial"]:
    """How the memory of two arrays relates.

    Returns
    -------
    "none"
        No byte in common.
    "exact"
        The same elements at the same indices: one may be overwritten while the other is read.
    "partial"
        Anything else, and also the rare layouts for which the strides do not prove "none" or "exact".
    """
    if a.device != b.device or 0 in a.shape or 0 in b.shape:
        return "none"
    a_low, a_high = _bounds(a)
    b_low, b_high = _bounds(b)
    if a_high <= b_low or b_high <= a_low:
        return "none"
    same_place = a.address == b.address and a.shape == b.shape and a.dtype.itemsize == b.dtype.itemsize
    if same_place and _steps(a) == _steps(b):
        return "exact"
    return "none" if _interleaved(a, a_low, b, b_low) else "partial"


def overlaps_itself(array: ArrayInfo) -> bool:
    """Whether elements of one array may share memory, so that it can't be an output.

    True for broadcast dimensions and for windows; also for the rare layouts for which the strides, taken
    from small to large, do not prove the contrary.
    """
    if 0 in array.shape:
        return False
    span = array.dtype.itemsize
    for stride, extent in sorted(_steps(array)):
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


def _steps(array: ArrayInfo) -> list[tuple[int, int]]:
    """Absolute stride and extent of the dimensions along which anything moves."""
    return [(abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1]


def _bounds(array: ArrayInfo) -> tuple[int, int]:
    """The first byte and the byte after the last."""
    low, high = array.address, array.address + array.dtype.itemsize
    for stride, extent in zip(array.strides, array.shape, strict=True):
        reach = stride * (extent - 1)
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def _interleaved(a: ArrayInfo, a_low: int, b: ArrayInfo, b_low: int) -> bool:
    """Whether the arrays are proved to use different bytes of some common period.

    Every second element, one column, or a block of columns of a larger array all repeat with a period; if
    within it one array keeps to one window and the other to another window, they never meet.
    """
    steps_a, steps_b = _steps(a), _steps(b)
    strides = [stride for stride, _ in (*steps_a, *steps_b)]
    for period in {math.gcd(*strides), *strides} - {0}:
        window_a = _window(steps_a, a.dtype.itemsize, period)
        window_b = _window(steps_b, b.dtype.itemsize, period)
        distance = (b_low - a_low) % period
        if distance >= window_a and distance + window_b <= period:
            return True
    return False


def _window(steps: list[tuple[int, int]], itemsize: int, period: int) -> int:
    """Bytes that an array spans within a period: the reach of the steps that are no multiples of it."""
    return itemsize + sum(stride * (extent - 1) for stride, extent in steps if stride % period)
