"""Adapters on real device arrays: what they say, what they allocate, on which stream, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from adapter_checks import adapter_for, described, refused

from numfuse import fuse
from numfuse.arrays import common_adapter, dense_strides, nest_layout, output_order
from numfuse.backends.element import Access
from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError

pytestmark = pytest.mark.gpu

DTYPES = [np.dtype(code) for code in "?bhiqBHIQfd"]
ORDERS = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_are_described(device_kind: Any, dtype: np.dtype) -> None:
    x = device_kind.from_numpy(np.ones((3, 4), dtype))
    adapter = adapter_for(x)
    info = described(x)
    interface = x.__cuda_array_interface__
    assert adapter.name == device_kind.name
    assert adapter.on_device
    assert (info.dtype, info.shape, info.strides) == (dtype, (3, 4), (4 * dtype.itemsize, dtype.itemsize))
    assert info.address == adapter.address(x) == interface["data"][0]
    assert info.address % 256 == 0
    assert info.device == adapter.device(x) == 0
    assert type(info.address) is type(info.device) is type(adapter.stream(x)) is int
    assert adapter.finish(x) is x
    assert hash(adapter.signature(x)) == hash(adapter.signature(device_kind.from_numpy(np.zeros((3, 4), dtype))))


def test_slices_are_described(device_kind: Any) -> None:
    x = device_kind.from_numpy(np.ones((6, 8), np.float32))
    part = x[1:, ::2]
    info, whole = described(part), described(x)
    assert (info.shape, info.strides) == ((5, 4), (32, 8))
    assert info.address == whole.address + 32
    assert adapter_for(x).signature(x) != adapter_for(x).signature(part)
    layout = nest_layout(info.shape, [(info.shape, info.strides, 4), (whole.shape[:0], (), 4)])
    assert layout.extents == (20,)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_are_the_librarys_own(device_kind: Any, dtype: np.dtype, order: tuple[int, ...]) -> None:
    x = device_kind.from_numpy(np.ones(5, np.float32))
    adapter = adapter_for(x)
    out = adapter.allocator((2, 3, 4), dtype, order, x)(x)
    assert type(out) is device_kind.array_type
    info = described(out)
    assert (info.dtype, info.shape) == (dtype, (2, 3, 4))
    assert info.strides == dense_strides((2, 3, 4), dtype.itemsize, order)
    assert info.device == 0
    assert info.address != adapter.address(x)
    if device_kind.name == "torch":
        assert not out.requires_grad


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (1, 1)], ids=str)
def test_small_outputs(device_kind: Any, shape: tuple[int, ...]) -> None:
    x = device_kind.from_numpy(np.ones(5, np.float32))
    for order in {tuple(range(len(shape))), tuple(reversed(range(len(shape))))}:
        out = adapter_for(x).allocator(shape, np.dtype(np.int16), order, x)(x)
        assert type(out) is device_kind.array_type
        assert tuple(out.shape) == shape
        assert described(out).dtype == np.int16
        assert adapter_for(x).finish(out) is out


def test_outputs_follow_the_memory_order_of_the_operands(device_kind: Any) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    if device_kind.name == "numba":  # Numba's own transpose copies
        x = device_kind.from_numpy(np.asfortranarray(host))
    else:
        x = device_kind.from_numpy(np.ascontiguousarray(host.T)).T
    info = described(x)
    assert (info.shape, info.strides) == ((4, 6), (4, 16))
    order = output_order(info.shape, [(info.shape, info.strides)])
    assert order == (1, 0)
    out = described(adapter_for(x).allocator(info.shape, info.dtype, order, x)(x))
    assert out.strides == np.add(np.asfortranarray(host), 1).strides
    layout = nest_layout(info.shape, [(info.shape, info.strides, 4), (out.shape, out.strides, 4)])
    assert layout.accesses == (Access.DENSE, Access.DENSE)
    assert len(layout.extents) == 1


def test_current_stream(device_kind: Any) -> None:
    x = device_kind.from_numpy(np.ones(5, np.float32))
    adapter = adapter_for(x)
    if device_kind.name == "cupy":
        import cupy

        assert adapter.stream(x) == cupy.cuda.get_current_stream().ptr
        with cupy.cuda.Stream(non_blocking=True) as stream:
            assert adapter.stream(x) == stream.ptr != 0
            out = adapter.allocator((5,), np.dtype(np.float32), (0,), x)(x)
            assert adapter.stream(out) == stream.ptr
    elif device_kind.name == "torch":
        import torch

        assert adapter.stream(x) == torch.cuda.current_stream().cuda_stream
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert adapter.stream(x) == stream.cuda_stream != 0
    else:
        from numba import cuda

        assert adapter.stream(x) == 0
        stream = cuda.stream()
        bound = x.bind(stream)
        assert adapter.stream(bound) == int(stream.handle) != 0
        out = adapter.allocator((5,), np.dtype(np.float32), (0,), bound)(bound)
        assert adapter.stream(out) == adapter.stream(bound)
        assert adapter.stream(x.bind(cuda.default_stream())) == 0


def test_host_and_device_arrays_are_not_mixed(device_kind: Any) -> None:
    x = device_kind.from_numpy(np.ones(5, np.float32))
    assert common_adapter([("a", x), ("b", x)]) is adapter_for(x)
    with pytest.raises(FusionTypeError, match="argument 'a' is a NumPy array in host memory and argument 'b'"):
        common_adapter([("a", np.ones(5)), ("b", x)])
    with pytest.raises(FusionTypeError, match="argument 'b' is a NumPy array in host memory and argument 'a'"):
        common_adapter([("a", x), ("b", np.ones(5))])


def test_two_device_libraries_are_not_mixed() -> None:
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    x, y = cupy.ones(5, np.float32), torch.ones(5, device="cuda")
    with pytest.raises(FusionTypeError, match="argument 'a' is a cupy array and argument 'b' is a torch array"):
        common_adapter([("a", x), ("b", y)])
    # The conversions that the message offers share the memory.
    assert described(cupy.asarray(y)).address == described(y).address
    assert described(torch.as_tensor(x, device="cuda")).address == described(x).address


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda t: t.ones(3, device="cuda", requires_grad=True),
            FusionNotImplementedError,
            "requires grad while grad mode is on, and gradients are not supported yet; pass x.detach()",
        ),
        (
            lambda t: t.nn.Parameter(t.ones(3, device="cuda")),
            FusionNotImplementedError,
            "requires grad while grad mode is on",
        ),
        (
            lambda t: t.ones(3, device="cuda", dtype=t.complex64).conj(),
            FusionNotImplementedError,
            "lazily conjugated view of a torch tensor, not supported yet; pass x.resolve_conj()",
        ),
        (
            lambda t: t.ones(3, device="cuda", dtype=t.complex64).conj().imag,
            FusionNotImplementedError,
            "lazily negated view of a torch tensor, not supported yet; pass x.resolve_neg()",
        ),
        (lambda t: t.ones(3), FusionNotImplementedError, "is a CPU torch tensor"),
        (lambda t: t.ones(3, device="meta"), FusionTypeError, "on device 'meta'"),
        (lambda t: t.eye(3, device="cuda").to_sparse(), FusionTypeError, "is a sparse"),
        (
            lambda t: t.ones(3, device="cuda", dtype=t.float16),
            FusionNotImplementedError,
            "float16, not supported yet",
        ),
        (
            lambda t: t.ones(3, device="cuda", dtype=t.bfloat16),
            FusionNotImplementedError,
            "bfloat16, not supported yet",
        ),
        (
            lambda t: t.ones(3, device="cuda", dtype=t.complex64),
            FusionNotImplementedError,
            "complex64, not supported yet",
        ),
    ],
)
def test_tensors_that_are_refused(make: Callable[[Any], Any], kind: type[FusionError], words: str) -> None:
    error = refused(make(pytest.importorskip("torch")))
    assert type(error) is kind
    assert str(error).startswith("argument 'x' ")
    assert words in str(error)


def test_fake_and_wrapped_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3, device="cuda")
    assert "FakeTensor, a subclass of torch.Tensor" in str(refused(fake))

    met = []
    double = fuse(lambda x: x * 2)
    double(torch.ones(2, device="cuda"))  # so that there is a plan for tensors that look like the wrapped one

    def inner(x: Any) -> Any:
        met.append(str(refused(x)))
        with pytest.raises(FusionTypeError, match="'x' is a torch tensor without memory of its own"):
            double(x)
        return x

    torch.func.vmap(inner)(torch.ones(3, 2, device="cuda"))
    assert len(met) == 1
    assert "without memory of its own" in met[0]


def test_tensors_that_require_grad_are_welcome_without_grad_mode() -> None:
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.ones(3, device="cuda"))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            info = described(x)
            out = adapter_for(x).allocator((3,), np.dtype(np.float32), (0,), x)(x)
        assert info.address == x.data_ptr()
        assert type(out) is torch.Tensor
        assert not out.requires_grad
    # A resolved view has memory that shows its values.
    resolved = torch.ones(3, device="cuda", dtype=torch.complex64).conj().imag.resolve_neg()
    assert described(resolved).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.complex128])
def test_dtypes_that_cupy_and_numba_have_and_kernels_lack(dtype: Any) -> None:
    cupy, cuda = pytest.importorskip("cupy"), pytest.importorskip("numba.cuda")
    for x in (cupy.ones(3, dtype), cuda.to_device(np.ones(3, dtype))):
        error = refused(x)
        assert isinstance(error, FusionNotImplementedError)
        assert f"{np.dtype(dtype).name}, not supported yet" in str(error)


def test_numba_mapped_arrays_are_refused() -> None:
    cuda = pytest.importorskip("numba.cuda")
    assert "is a MappedNDArray of Numba" in str(refused(cuda.mapped_array(3, np.float32)))
