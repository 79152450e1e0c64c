"""GPU kernels on a device, launched by numfuse and by Numba's dispatcher, against NumPy bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_cuda_kernels import (
    ADD,
    DENSE,
    F4,
    FMA,
    INVERT,
    MASK,
    REPEATED,
    SCALAR,
    SCALE,
    STRIDED,
    element,
    flat,
)

from numfuse.backends.cuda_kernels import kernel_source
from numfuse.backends.element import Nest

# Numba finds small grids worth a warning.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

SIZES = [1, 3, 1000, 100_003]


class DeviceBuffer:
    """A copy of the memory under a NumPy array, so that its views keep their layout on the device."""

    def __init__(self, base: np.ndarray) -> None:
        from numba import cuda

        self.base = base
        self.array = cuda.to_device(base.view(np.uint8).reshape(-1))
        self.address = self.array.device_ctypes_pointer.value

    def address_of(self, view: np.ndarray) -> int:
        start = self.base.__array_interface__["data"][0]
        return self.address + view.__array_interface__["data"][0] - start

    def fetch(self) -> None:
        self.base.view(np.uint8).reshape(-1)[...] = self.array.copy_to_host()


def words(source, arrays, buffers, *scalars):
    rest, values = iter(scalars), []
    for p in source.parameters:
        if p.role == "size":
            values.append(arrays[-1].size)
        elif p.role == "extent":
            values.append(arrays[-1].shape[p.axis])
        elif p.role == "address":
            values.append(buffers[p.array].address_of(arrays[p.array]))
        elif p.role == "stride":
            values.append(arrays[p.array].strides[p.axis])
        else:
            values.append(next(rest))
    return values


def both_ways(nest, views, bases, *scalars, outputs, exact=True):
    """Run by both launchers; the outputs' bytes of each."""
    from numba import cuda

    from numfuse.backends.cuda import kernel_function
    from numfuse.backends.cuda_store import gpu_kernel
    from numfuse.backends.driver import Launcher, compute_capability, load

    source = kernel_source((nest,), "kernel")
    found = []
    originals = {id(b): b.copy() for b in bases}  # an output may lie on an operand
    for way in ("driver", "dispatcher"):
        copies = {key: DeviceBuffer(original.copy()) for key, original in originals.items()}
        buffers = [copies[id(b)] for b in bases]
        for buffer, base in zip(buffers, bases, strict=True):
            buffer.base = base
        values = words(source, views, buffers, *scalars)
        if way == "driver":
            cubin, entry, _ = gpu_kernel(source, compute_capability(0), exact=exact)
            launcher = Launcher(load(cubin, entry, 0), source.format, source.block)
            launcher.launch(source.grid(views[-1].size), 0, *values)
        else:
            kernel_function(source)[source.grid(views[-1].size), source.block](*values)
        cuda.synchronize()
        for buffer in copies.values():
            buffer.fetch()
        found.append([views[k].copy() for k in outputs])
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()
    return found[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1])
def test_flat(size, offset):
    rng = np.random.default_rng(size)
    bases = [rng.random(size + 1, F4) for _ in range(2)] + [np.zeros(size + 1, F4)]
    views = [b[offset:][:size] for b in bases]
    x, y, _ = views
    want = x + y
    (out,) = both_ways(flat(ADD, aligned=not offset), views, bases, outputs=[2])
    np.testing.assert_array_equal(out, want)


def test_exact_is_numpys_rounding():
    rng = np.random.default_rng(0)
    bases = [rng.random(5000, F4) for _ in range(3)] + [np.zeros(5000, F4)]
    x, y, z, _ = bases
    from numfuse.backends.cuda_store import gpu_kernel
    from numfuse.backends.driver import Launcher, compute_capability, load

    nest = flat(FMA)
    source = kernel_source((nest,), "kernel")
    buffers = [DeviceBuffer(b) for b in bases]
    cubin, entry, _ = gpu_kernel(source, compute_capability(0), exact=True)
    launcher = Launcher(load(cubin, entry, 0), source.format, source.block)
    launcher.launch(source.grid(5000), 0, *words(source, bases, buffers))
    buffers[3].fetch()  # on the legacy stream, so after the kernel
    np.testing.assert_array_equal(bases[3], x * y + z)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_bools_and_mixed_dtypes(size):
    p, q = np.resize(np.arange(256, dtype=np.uint8), size), np.zeros(size, np.uint8)
    (got,) = both_ways(flat(INVERT), [p, q], [p, q], outputs=[1])
    np.testing.assert_array_equal(got, 255 - p)

    x, m = np.arange(size, dtype=F4), np.resize(np.array([0, 1, 2, 255], np.uint8), size)
    bases = [x, m, np.zeros(size), np.zeros(size, bool)]
    value, flag = both_ways(flat(MASK), bases, bases, outputs=[2, 3])
    np.testing.assert_array_equal(value, np.where(m != 0, x, 2 * x))
    np.testing.assert_array_equal(flag.view(np.uint8), m != 0)


def test_scalars_and_in_place():
    x = np.arange(1001, dtype=F4)
    want = x * F4.type(0.3)
    (got,) = both_ways(flat(SCALE, in_place=(0,)), [x, x], [x, x], 0.3, outputs=[1])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("columns", [64, 37])
def test_broadcasting_and_strides(bits, columns):
    x = np.arange(50 * columns, dtype=F4).reshape(50, columns)
    row, column = np.arange(columns, dtype=F4) * 3, np.arange(50, dtype=F4)[:, None] * 5
    for base, access in ((row, DENSE), (column, REPEATED)):
        out = np.zeros_like(x)
        nest = Nest(ADD, 2, (DENSE, access), (DENSE,), index_bits=bits)
        (got,) = both_ways(nest, [x, np.broadcast_to(base, x.shape), out], [x, base, out], outputs=[2])
        np.testing.assert_array_equal(got, x + base)

    cube = np.arange(24 * columns, dtype=F4).reshape(4, 6, columns)
    out = np.zeros((4, 6, 2 * columns), F4)
    views = [cube[::-1], cube[:, ::-1, ::-1], out[..., ::2]]
    nest = Nest(ADD, 3, (STRIDED, STRIDED), (STRIDED,), aligned=False, index_bits=bits)
    (got,) = both_ways(nest, views, [cube, cube, out], outputs=[2])
    np.testing.assert_array_equal(got, cube[::-1] + cube[:, ::-1, ::-1])


def test_scalar_operand():
    e = element(
        "def f(x, y):\n    return (float32(abs(x)) + y,)\n",
        {"x": F4, "y": F4},
        {"out": F4},
    )
    x, y, out = np.arange(-50, 50, dtype=F4), np.array([7], F4), np.zeros(100, F4)
    views = [x, np.broadcast_to(y, x.shape), out]
    (got,) = both_ways(flat(e, [DENSE, SCALAR]), views, [x, y, out], outputs=[2])
    np.testing.assert_array_equal(got, np.abs(x) + 7)
