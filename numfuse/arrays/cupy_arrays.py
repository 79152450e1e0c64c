"""CuPy arrays: device memory, CuPy's allocator, CuPy's current stream."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from numfuse.arrays.adapter import Adapter, Allocate, ArrayInfo, Refusal, Signature, check_dtype
from numfuse.arrays.layout import dense_strides, is_c_order


class CupyAdapter(Adapter):
    """``cupy.ndarray`` itself; subclasses are refused."""

    name = "cupy"
    on_device = True

    address_code = "{}.data.ptr"
    stream_code = "current_stream({1}).ptr"  # CuPy keeps one current stream for each device and thread

    @property
    def names(self) -> dict[str, Any]:
        return {"current_stream": self._current_stream}

    def __init__(self) -> None:
        cupy = sys.modules["cupy"]
        self._cupy = cupy
        self._current_stream = cupy.cuda.get_current_stream

    def signature(self, array: Any) -> Signature:
        return ("cupy", array.dtype, array.shape, array.strides, array.data.device_id)

    def info(self, array: Any) -> ArrayInfo:
        check_dtype(array.dtype)
        device = array.data.device_id
        return ArrayInfo(array.dtype, array.shape, array.strides, array.data.ptr, device)

    def allocator(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...], like: Any) -> Allocate:
        allocate = self._on_current_device(shape, dtype, order)
        runtime = self._cupy.cuda.runtime
        if runtime.getDeviceCount() == 1:
            return allocate
        # CuPy allocates on the current device, which need not be the array's.
        device = like.data.device_id
        switch_to = self._cupy.cuda.Device

        def allocate_there(array: Any) -> Any:
            if runtime.getDevice() == device:
                return allocate(array)
            with switch_to(device):
                return allocate(array)

        return allocate_there

    def _on_current_device(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...]) -> Allocate:
        ndarray = self._cupy.ndarray
        if is_c_order(order) or 0 in shape:
            return lambda _: ndarray(shape, dtype)
        if is_c_order(order[::-1]):
            return lambda _: ndarray(shape, dtype, order="F")
        # CuPy takes strides only together with memory.
        alloc = self._cupy.cuda.alloc
        nbytes = math.prod(shape) * dtype.itemsize
        strides = dense_strides(shape, dtype.itemsize, order)
        return lambda _: ndarray(shape, dtype, alloc(nbytes), strides)

    def device(self, array: Any) -> int | None:
        device: int = array.data.device_id
        return device


def accept(kind: type) -> None:
    """Raise Refusal for subclasses of cupy.ndarray."""
    if kind is not sys.modules["cupy"].ndarray:
        raise Refusal(
            f"is a {kind.__module__}.{kind.__qualname__}, a subclass of cupy.ndarray that may give operators "
            "another meaning; pass x.view(cupy.ndarray)"
        )
