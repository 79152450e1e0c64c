"""Which adapter serves a value. Libraries are found through ``sys.modules`` and never imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from numfuse.arrays import cupy_arrays, numba_arrays, numpy_arrays, torch_arrays
from numfuse.arrays.adapter import Adapter, Refusal
from numfuse.errors import FusionNotImplementedError, FusionTypeError

_NUMPY = numpy_arrays.NumpyAdapter()
_adapters: dict[str, Adapter] = {"numpy": _NUMPY}

# By type: the adapter, None for what is not an array, or the refusal to raise.
_known: dict[type, Adapter | Refusal | None] = {
    np.ndarray: _NUMPY,
    **dict.fromkeys((bool, int, float, complex, str, bytes, type(None), tuple, list)),
    **dict.fromkeys(kind for kind in set(np.sctypeDict.values()) if issubclass(kind, np.generic)),
}


def adapter_of(value: Any) -> Adapter | None:
    """The adapter for a value, by its type; None for anything that is not an array of a known library.

    Raises
    ------
    Refusal
        For arrays of a kind that can't be used (masked arrays, tensor subclasses, JAX arrays ...).
    """
    try:
        found = _known[type(value)]
    except KeyError:
        found = _known[type(value)] = _find(value)
    if isinstance(found, Refusal):
        raise Refusal(found.message, found.error)
    return found


def is_array(value: Any) -> bool:
    """Whether a value is an array of a known library, be it one that is refused."""
    try:
        return adapter_of(value) is not None
    except Refusal:
        return True


def common_adapter(arguments: Iterable[tuple[str, Any]], captured: Iterable[tuple[str, Any]] = ()) -> Adapter:
    """The one adapter of all arrays of a call.

    Parameters
    ----------
    arguments : iterable of (name, array)
        At least one.
    captured : iterable of (name, array)
        Arrays that the function takes from elsewhere: a closure, a module.

    Raises
    ------
    FusionTypeError
        Naming both arrays, for host and device arrays in one call, arrays on different devices, and
        arrays of different device libraries; naming one for an array that is refused.
    """
    first, first_device = ("", ""), None
    common: Adapter | None = None
    labelled = [("argument", *item) for item in arguments] + [("captured array", *item) for item in captured]
    for role, name, array in labelled:
        try:
            adapter = adapter_of(array)
        except Refusal as refusal:
            raise refusal.labelled(f"{role} {name!r}") from None
        if adapter is None:
            raise FusionTypeError(f"{role} {name!r} is no array but a {type(array).__qualname__}")
        device = adapter.device(array)
        if common is None:
            first, first_device, common = (role, name), device, adapter
        elif adapter is not common or device != first_device:
            raise _mixed(first, common, first_device, (role, name), adapter, device)
    if common is None:
        raise ValueError("common_adapter needs at least one array")
    return common


def _mixed(
    first: tuple[str, str],
    one: Adapter,
    one_device: int | None,
    second: tuple[str, str],
    other: Adapter,
    other_device: int | None,
) -> FusionTypeError:
    """The error for two arrays, each given as its role and name, that can't be in one call."""
    labels = [f"{role} {name!r}" for role, name in (first, second)]
    if one.on_device != other.on_device:
        host, device = reversed(labels) if one.on_device else labels
        where = one if one.on_device else other
        return FusionTypeError(
            f"{host} is a NumPy array in host memory and {device} is a {where.name} "
            "array on a GPU; nothing is copied behind your back: move one of them to where the other is"
        )
    if one is not other:
        return FusionTypeError(
            f"{labels[0]} is a {one.name} array and {labels[1]} is a {other.name} array; "
            f"convert one of them (both can share memory without a copy), such as "
            f"{_CONVERSIONS[one.name].format(second[1])}"
        )
    return FusionTypeError(
        f"{labels[0]} is on device {one_device} and {labels[1]} on device {other_device}; move them to one device"
    )


_CONVERSIONS = {
    "cupy": "cupy.asarray({})",
    "torch": "torch.as_tensor({}, device='cuda')",
    "numba": "numba.cuda.as_cuda_array({})",
}


def _find(value: Any) -> Adapter | Refusal | None:
    kind = type(value)
    try:
        # Numba's mapped and managed arrays are NumPy arrays as well, so Numba is asked first.
        base = _loaded("numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase")
        if base is not None and issubclass(kind, base):
            numba_arrays.accept(kind)
            return _adapter("numba", numba_arrays.NumbaAdapter)
        if issubclass(kind, np.ndarray):
            numpy_arrays.accept(kind)
            return _NUMPY
        base = _loaded("cupy", "ndarray")
        if base is not None and issubclass(kind, base):
            cupy_arrays.accept(kind)
            return _adapter("cupy", cupy_arrays.CupyAdapter)
        base = _loaded("torch", "Tensor")
        if base is not None and issubclass(kind, base):
            torch_arrays.accept(kind)
            return _adapter("torch", torch_arrays.TorchAdapter)
        base = _loaded("jax", "Array")
        if base is not None and isinstance(value, base):  # a tracer is one by its metaclass only
            raise Refusal(
                "is a JAX array, and these come with a later version; on a CPU pass numpy.asarray(x), "
                "on a GPU cupy.from_dlpack(x)",
                FusionNotImplementedError,
            )
    except Refusal as refusal:
        return refusal.with_traceback(None)
    return None


def _loaded(module: str, name: str) -> type | None:
    """A class of a library, if the program has imported that library (completely enough to have it)."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _adapter(name: str, make: type[Adapter]) -> Adapter:
    # setdefault: two threads that meet a library at the same time must end with one adapter.
    return _adapters.get(name) or _adapters.setdefault(name, make())
