"""Numba's device arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from numfuse.arrays.adapter import Adapter, Allocate, ArrayInfo, Refusal, Signature, check_dtype
from numfuse.arrays.layout import dense_strides, is_c_order


def _device_of(array: Any) -> int:
    device: int = array.gpu_data.context.device.id
    return device


def _stream_of(array: Any) -> int:
    stream = array.stream
    if isinstance(stream, int):
        return stream
    # The protocol that Numba itself follows for its own and for foreign stream objects.
    return int(stream.__cuda_stream__()[1])


class NumbaAdapter(Adapter):
    """``DeviceNDArray``, as ``numba.cuda.to_device`` and ``device_array`` make it.

    Numba has no current stream: an array may be bound to a stream (``array.bind(stream)``), and otherwise
    belongs to the default stream. Outputs are bound to the stream of the array that they are made like.
    """

    name = "numba"
    on_device = True
    stream_of_array = True

    address_code = "({}.device_ctypes_pointer.value or 0)"
    stream_code = "stream_of({})"

    @property
    def names(self) -> dict[str, Any]:
        return {"stream_of": _stream_of}

    def signature(self, array: Any) -> Signature:
        return ("numba", array.dtype, array.shape, array.strides, _device_of(array))

    def info(self, array: Any) -> ArrayInfo:
        check_dtype(array.dtype)
        return ArrayInfo(
            array.dtype,
            tuple(array.shape),
            tuple(array.strides),
            self.address(array),
            _device_of(array),
        )

    def allocator(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...], like: Any) -> Allocate:
        cuda = sys.modules["numba.cuda"]
        device_array = cuda.device_array
        strides = None if is_c_order(order) else dense_strides(shape, dtype.itemsize, order)
        device = _device_of(like)
        if len(cuda.gpus) == 1:
            return lambda array: device_array(shape, dtype, strides, stream=array.stream)

        def allocate_there(array: Any) -> Any:
            with cuda.gpus[device]:
                return device_array(shape, dtype, strides, stream=array.stream)

        return allocate_there

    def device(self, array: Any) -> int | None:
        return _device_of(array)


def accept(kind: type) -> None:
    """Raise Refusal for kinds of Numba array other than the plain device array."""
    if kind.__name__ == "DeviceNDArray":
        return
    raise Refusal(
        f"is a {kind.__name__} of Numba; pass a device array, such as numba.cuda.to_device(x) makes it, "
        "or host memory as numpy.asarray(x)"
    )
