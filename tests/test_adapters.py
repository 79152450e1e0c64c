"""The adapter for NumPy arrays, and which values are arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_checks import adapter_for, refused

from numfuse.arrays import adapter_of, common_adapter, is_array, numpy_arrays
from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError


def test_importing_the_adapters_imports_no_library() -> None:
    probe = "import sys, numfuse.arrays as a; a.adapter_of(1.0); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not {"numba", "numba_cuda", "llvmlite", "torch", "cupy", "jax", "cuda"} & set(run.stdout.split())


@pytest.mark.parametrize("code", list("?bhilqBHILQfd"))
def test_numpy_arrays_are_described(code: str) -> None:
    x = np.zeros((4, 6), code)[::-1, 1::2]
    adapter = adapter_for(x)
    info = adapter.info(x)
    assert (adapter.name, adapter.on_device) == ("numpy", False)
    assert (info.dtype, info.shape, info.strides) == (x.dtype, x.shape, x.strides)
    assert info.address == x.ctypes.data == adapter.address(x)
    assert info.device is None
    assert adapter.device(x) is None
    assert adapter.stream(x) == 0


def test_numpy_signatures_tell_plans_apart() -> None:
    x = np.zeros((4, 4), np.float32)
    signature = adapter_for(x).signature
    others = [x[:2], x.T, x.astype(np.float64), x.astype(">f4"), x.astype(np.int32), x.ravel()]
    keys = {signature(a) for a in (x, *others)}
    assert len(keys) == len(others) + 1
    assert signature(x) == signature(np.ones((4, 4), np.float32))
    # The layout is the key, not the contents, the owner or the flags.
    frozen = np.ones((4, 4), np.float32)
    frozen.flags.writeable = False
    assert signature(frozen) == signature(x)


def test_addresses_are_read_from_the_array_object() -> None:
    assert numpy_arrays.address_of is numpy_arrays._field_address
    empty, scalar = np.zeros((0, 3)), np.zeros(())
    unaligned = np.zeros(9, np.uint8)[1:].view(np.float32)
    for x in (empty, scalar, unaligned, np.arange(5)[::-1], np.broadcast_to(1.0, (3, 3))):
        assert numpy_arrays.address_of(x) == x.ctypes.data
    assert adapter_for(unaligned).info(unaligned).address % 4 == unaligned.ctypes.data % 4


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_numpy_outputs_lie_in_memory_as_asked(order: tuple[int, ...]) -> None:
    x = np.zeros(3)
    out = adapter_for(x).allocator((2, 3, 4), np.dtype(np.int16), order, x)(x)
    assert (type(out), out.dtype, out.shape) == (np.ndarray, np.dtype(np.int16), (2, 3, 4))
    assert out.transpose(order).flags.c_contiguous
    assert out.flags.writeable


def test_numpy_results_without_dimensions_become_scalars() -> None:
    adapter = adapter_for(np.zeros(3))
    out = adapter.allocator((), np.dtype(np.float32), (), np.zeros(()))(np.zeros(()))
    out[...] = 2.5
    assert type(adapter.finish(out)) is np.float32
    assert adapter.finish(out) == 2.5
    vector = np.zeros(1)
    assert adapter.finish(vector) is vector


def test_memory_maps_are_arrays(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3,))
    assert adapter_for(x) is adapter_for(np.zeros(1))
    assert adapter_for(x).signature(x) == adapter_for(x).signature(np.zeros(3, np.float32))


class Units(np.ndarray):
    """A subclass that could mean anything."""


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_numpy_subclasses_that_are_refused() -> None:
    for value, words in [
        (np.ma.masked_array([1.0], [True]), "masked array"),
        (np.matrix([[1.0]]), "numpy.matrix"),
        (np.zeros(2).view(Units), "Units, a subclass of numpy.ndarray"),
        (np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "recarray"),
    ]:
        error = refused(value)
        assert isinstance(error, FusionTypeError)
        assert words in str(error)
        assert str(error).startswith("argument 'x' is a")
        assert is_array(value)


@pytest.mark.parametrize(
    ("dtype", "kind", "words"),
    [
        (np.float16, FusionNotImplementedError, "float16, not supported yet; convert it to float32"),
        (np.longdouble, FusionNotImplementedError, "not supported yet; convert it"),
        (np.complex64, FusionNotImplementedError, "complex64, not supported yet; pass its real"),
        (np.complex128, FusionNotImplementedError, "complex128, not supported yet; pass its real"),
        (">f4", FusionTypeError, "byte-swapped dtype '>f4'; convert it with .astype('float32')"),
        (">c8", FusionTypeError, "byte-swapped"),
        (object, FusionTypeError, "dtype object; only bool"),
        ("U3", FusionTypeError, "dtype <U3; only bool"),
        ("S3", FusionTypeError, "dtype |S3; only bool"),
        ("M8[s]", FusionTypeError, "dtype datetime64[s]; only bool"),
        ("m8[s]", FusionTypeError, "dtype timedelta64[s]; only bool"),
        ([("a", "f4")], FusionTypeError, "structured dtype; pass its fields"),
    ],
)
def test_dtypes_that_are_refused(dtype: Any, kind: type[FusionError], words: str) -> None:
    error = refused(np.zeros(2, dtype))
    assert type(error) is kind
    assert words in str(error)


class HasArray:
    __array__ = __cuda_array_interface__ = __array_ufunc__ = None


@pytest.mark.parametrize("value", [1, 2.0, 1j, True, None, "x", np.float32(1), np.int8(1), [1.0], HasArray()])
def test_what_is_no_array(value: Any) -> None:
    assert adapter_of(value) is None
    assert not is_array(value)


def test_the_adapter_of_all_arguments() -> None:
    x = np.zeros(3)
    assert common_adapter([("a", x), ("b", x)]) is adapter_for(x)
    with pytest.raises(FusionTypeError, match="argument 'b' is a masked array"):
        common_adapter([("a", x), ("b", np.ma.masked_array([1.0]))])
    with pytest.raises(FusionTypeError, match="argument 'b' is no array but a float"):
        common_adapter([("a", x), ("b", 1.0)])
    with pytest.raises(ValueError, match="at least one array"):
        common_adapter([])
