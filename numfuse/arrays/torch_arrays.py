"""torch tensors in CUDA memory, torch's caching allocator, torch's current stream."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from numfuse.arrays.adapter import Adapter, Allocate, ArrayInfo, Refusal, Signature, not_yet
from numfuse.arrays.layout import dense_strides, is_c_order
from numfuse.errors import FusionNotImplementedError, FusionTypeError

_DTYPE_NAMES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
)


class TorchAdapter(Adapter):
    """``torch.Tensor`` and ``torch.nn.Parameter`` on a CUDA device.

    Refused by name: tensors that require grad while grad mode is on (the result would be cut out of the
    graph without a word), lazily conjugated or negated views (their memory holds other values than they
    show), and tensors without memory of their own (sparse, nested, fake, wrapped by vmap or grad).
    """

    name = "torch"
    on_device = True

    address_code = "{}.data_ptr()"
    address_error = RuntimeError  # wrapped by vmap or grad: the signature is that of an ordinary tensor
    stream_code = "raw_stream({1})"

    @property
    def names(self) -> dict[str, Any]:
        return {"raw_stream": self._raw_stream}

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        self._torch = torch
        self._grad_enabled = torch.is_grad_enabled
        names = [name for name in _DTYPE_NAMES if hasattr(torch, name)]  # old versions lack uint16 and up
        self._to_numpy = {getattr(torch, name): np.dtype(name) for name in names}
        self._to_torch = {np.dtype(name): getattr(torch, name) for name in names}
        # The handle as an int costs 0.09 microseconds this way and 4.4 through a Stream object.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or self._public_stream

    def _public_stream(self, device: int) -> int:
        handle: int = self._torch.cuda.current_stream(device).cuda_stream
        return handle

    def signature(self, array: Any) -> Signature:
        if array.requires_grad and self._grad_enabled():
            raise Refusal(
                "is a torch tensor that requires grad while grad mode is on, and gradients are not supported "
                "yet; pass x.detach() or call under torch.no_grad()",
                FusionNotImplementedError,
            )
        try:
            device = array.get_device()
            if device >= 0 and not array.is_neg():
                # Asking for the strides, and hashing them, costs more than asking whether they are C order's.
                strides = None if array.is_contiguous() else array.stride()
                return (array.dtype, array.shape, strides, device)
        except RuntimeError:  # sparse and nested tensors have no strides
            pass
        raise self._refusal(array)

    def info(self, array: Any) -> ArrayInfo:
        self.signature(array)
        # The conjugate bit needs no look of its own as long as complex dtypes are refused.
        dtype = self._to_numpy.get(array.dtype)
        if dtype is None:
            raise self._refusal(array)
        try:
            address = array.data_ptr()
        except RuntimeError:
            raise self._refusal(array) from None
        itemsize = dtype.itemsize
        strides = tuple(step * itemsize for step in array.stride())
        return ArrayInfo(dtype, tuple(array.shape), strides, address, array.get_device())

    def no_address(self, array: Any) -> Refusal:
        return self._refusal(array)

    def allocator(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...], like: Any) -> Allocate:
        kind = self._to_torch.get(dtype)
        if kind is None:
            version = self._torch.__version__
            raise FusionTypeError(f"a result has dtype {dtype}, which torch {version} lacks")
        same = kind == like.dtype
        # These keep the device, and the dtype unless told otherwise. Their order is that of their cost: 3.7, 4.1
        # and 5.4 microseconds (new_empty takes longer for a tuple than for numbers).
        if is_c_order(order):
            if same and shape and tuple(like.shape) == shape and like.is_contiguous():
                empty_like: Allocate = self._torch.empty_like
                return empty_like
            if same and shape:
                return lambda array: array.new_empty(*shape)
            return lambda array: array.new_empty(shape, dtype=kind)
        strides = dense_strides(shape, 1, order)
        if same:
            return lambda array: array.new_empty_strided(shape, strides)
        return lambda array: array.new_empty_strided(shape, strides, dtype=kind)

    def device(self, array: Any) -> int | None:
        device: int = array.get_device()
        return device if device >= 0 else None

    def _refusal(self, array: Any) -> Refusal:
        """Why this tensor can't be used. Slow: it asks everything."""
        torch = self._torch
        if array.is_nested or array.layout is not torch.strided:
            kind = "nested" if array.is_nested else f"sparse ({array.layout})"
            return Refusal(f"is a {kind} torch tensor; pass a dense one, such as its values()")
        if not array.is_cuda:
            if array.device.type == "cpu":
                return Refusal(
                    "is a CPU torch tensor, and these come with a later version; pass x.numpy(), and turn "
                    "the result back with torch.from_numpy",
                    FusionNotImplementedError,
                )
            return Refusal(f"is a torch tensor on device {str(array.device)!r}; only CUDA tensors can be fused")
        if array.is_conj() or array.is_neg():
            bit = "conjugated" if array.is_conj() else "negated"
            resolve = "resolve_conj" if array.is_conj() else "resolve_neg"
            return Refusal(
                f"is a lazily {bit} view of a torch tensor, not supported yet; pass x.{resolve}()",
                FusionNotImplementedError,
            )
        if array.dtype not in self._to_numpy:
            name = str(array.dtype).removeprefix("torch.")
            if array.dtype.is_floating_point or array.dtype.is_complex:
                return Refusal(not_yet(name), FusionNotImplementedError)
            return Refusal(f"has dtype {name}; only bool, integer and floating-point tensors can be fused")
        return Refusal(
            "is a torch tensor without memory of its own (a fake tensor, or one wrapped by torch.func.vmap "
            "or grad); call the fused function on ordinary tensors"
        )


def accept(kind: type) -> None:
    """Raise Refusal for tensor subclasses, which may hold no memory or give operators another meaning."""
    torch = sys.modules["torch"]
    if getattr(torch.version, "hip", None) is not None:
        raise Refusal("is a tensor of a ROCm build of torch; numfuse needs CUDA")
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    if kind is torch.Tensor or kind is parameter:
        return
    raise Refusal(
        f"is a {kind.__module__}.{kind.__qualname__}, a subclass of torch.Tensor that may have no memory of "
        "its own or give operators another meaning; pass an ordinary tensor"
    )
