"""NumPy arrays: host memory."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from numfuse.arrays.adapter import Adapter, Allocate, ArrayInfo, Refusal, Signature, check_dtype
from numfuse.arrays.layout import is_c_order

# NumPy's C API fixes the start of every array object: the Python object head, then the data pointer.
# Reading that field costs 0.14 microseconds; `array.ctypes.data` costs 1.0, `__array_interface__` as much.
_HEAD = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address


def _field_address(array: np.ndarray) -> int:
    return _pointer_at(id(array) + _HEAD).value


def _documented_address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def _field_is_the_data_pointer() -> bool:
    """Compare both ways on arrays that differ in rank, offset, order and owner."""
    if sys.implementation.name != "cpython":  # where id() need not be an address that can be read
        return False
    if _HEAD + ctypes.sizeof(ctypes.c_size_t) > np.ndarray.__basicsize__:
        return False
    base = np.zeros((3, 4, 5), np.float32)
    views = (base, base[1:, ::-1, 2:], base.T, base[0, 0, 3:4].reshape(()), np.zeros((0, 2), np.int8))
    return all(_field_address(view) == _documented_address(view) for view in views)


address_of = _field_address if _field_is_the_data_pointer() else _documented_address

# np.memmap is an ndarray in all that a kernel sees, and NumPy's own results on it are plain arrays.
_ACCEPTED = (np.ndarray, np.memmap)


class NumpyAdapter(Adapter):
    """Plain arrays (and memory maps). Other subclasses change what arithmetic means, so they are refused."""

    name = "numpy"
    on_device = False

    address_code = "address_of({})"
    stream_code = "0"

    @property
    def names(self) -> dict[str, Any]:
        return {"address_of": address_of}

    def signature(self, array: Any) -> Signature:
        return ("numpy", array.dtype, array.shape, array.strides)

    def info(self, array: Any) -> ArrayInfo:
        check_dtype(array.dtype)
        return ArrayInfo(array.dtype, array.shape, array.strides, address_of(array), None)

    def allocator(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...], like: Any) -> Allocate:
        empty = np.empty
        if is_c_order(order):
            return lambda _: empty(shape, dtype)
        if is_c_order(order[::-1]):
            return lambda _: empty(shape, dtype, "F")
        in_memory = tuple(shape[dimension] for dimension in order)
        back = tuple(order.index(dimension) for dimension in range(len(shape)))
        return lambda _: empty(in_memory, dtype).transpose(back)

    def device(self, array: Any) -> int | None:
        return None

    def finish(self, array: Any) -> Any:
        """NumPy's functions answer with a scalar where the result has no dimensions."""
        return array if array.ndim else array[()]


def accept(kind: type) -> None:
    """Raise Refusal for the subclasses of ndarray that numfuse does not take."""
    if kind in _ACCEPTED:
        return
    if issubclass(kind, np.ma.MaskedArray):
        raise Refusal("is a masked array; fuse its data and its mask as two arguments (x.data, np.ma.getmaskarray(x))")
    if issubclass(kind, np.matrix):
        raise Refusal("is a numpy.matrix, whose operators differ from an array's; pass np.asarray(x)")
    raise Refusal(
        f"is a {kind.__module__}.{kind.__qualname__}, a subclass of numpy.ndarray that may give operators "
        "another meaning; pass np.asarray(x)"
    )
