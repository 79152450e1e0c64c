"""CPU kernels against NumPy: every access, dtype, range and aliasing."""

from __future__ import annotations

import itertools
import textwrap
import warnings

import numpy as np
import pytest
from cpu_calls import DENSE, REPEATED, SCALAR, STRIDED, arguments_of, element, flat, numbers, pack, run

from numfuse.backends import cpu
from numfuse.backends.cpu_kernels import kernel_source
from numfuse.backends.element import Access, ElementFunction, Nest
from numfuse.errors import FusionNotImplementedError, FusionValueError

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = ["bool", *INTEGERS, "float32", "float64"]


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in memory; the tests of the disk cache set a folder of their own."""
    monkeypatch.setattr(cpu.cache, "safe_directory", lambda create: None)


def laid_out(access: Access, dtype: np.dtype, shape: tuple[int, ...], variant: int) -> np.ndarray:
    """Numbers of `shape` in memory such that the innermost dimension is met by `access`.

    The outer dimensions are contiguous, with gaps, backwards or stretched, by turns.
    """
    if access is SCALAR:
        return np.broadcast_to(numbers(dtype, (1,) * len(shape), variant), shape)
    *outer, inner = shape
    source, index = [], []
    for d, extent in enumerate(outer):
        kind = (variant + d) % 4
        source.append([extent, 2 * extent, extent, 1][kind])
        index.append([slice(None), slice(None, None, 2), slice(None, None, -1), slice(None)][kind])
    if access is STRIDED:
        step = [2, -1, -3, 3][variant % 4]
        source.append(inner * abs(step))
        index.append(slice(None, None, step))
    else:
        source.append(1 if access is REPEATED else inner)
        index.append(slice(None))
    return np.broadcast_to(numbers(dtype, tuple(source), variant)[tuple(index)], shape)


def room(access: Access, dtype: np.dtype, shape: tuple[int, ...], variant: int) -> tuple[np.ndarray, np.ndarray]:
    """A writable output met by `access`, with the whole buffer that it lies in."""
    *outer, inner = shape
    gap = 1 + variant % 2
    step = [2, -1][variant % 2] if access is STRIDED else 1
    whole = np.full([gap * extent for extent in outer] + [abs(step) * inner], 77, dtype)
    return whole[(*(slice(None, None, gap),) * len(outer), slice(None, None, step))], whole


SHAPES = {1: (37,), 2: (5, 37), 3: (3, 4, 19)}


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(Access, repeat=2)))
def test_every_access(ndim: int, first: Access, second: Access) -> None:
    function = element("x: float32, y: int16 -> float32(x * float32(y)), y > x", "o: float32, p: bool")
    shape = SHAPES[ndim]
    nest = Nest(function, ndim, (first, second), (DENSE, STRIDED if second is STRIDED else DENSE))
    for variant in range(4):
        x = laid_out(first, np.dtype(np.float32), shape, variant)
        y = laid_out(second, np.dtype(np.int16), shape, variant + 1)
        o, whole_o = room(nest.outputs[0], np.dtype(np.float32), shape, variant)
        p, whole_p = room(nest.outputs[1], np.dtype(np.bool_), shape, variant + 1)
        run(nest, [x, y, o, p])
        np.testing.assert_array_equal(o, x * y.astype(np.float32), strict=True)
        np.testing.assert_array_equal(p, y > x, strict=True)
        assert (whole_o == 77).sum() == whole_o.size - o.size
        assert (whole_p.view(np.uint8) <= 1).all()


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("inner", [DENSE, STRIDED])
def test_partial_ranges(ndim: int, inner: Access) -> None:
    function = element("x: int32 -> x + int32(1)", "o: int32")
    nest = Nest(function, ndim, (inner,), (inner,))
    shape = SHAPES[ndim]
    size = int(np.prod(shape))
    x = laid_out(inner, np.dtype(np.int32), shape, 1)
    for start, stop in [
        (0, 0),
        (5, 5),
        (0, 1),
        (18, 19),
        (19, 20),
        (7, size),
        (size - 1, size),
        (3, 33),
        (size, size),
    ]:
        o, _ = room(inner, np.dtype(np.int32), shape, 0)
        run(nest, [x, o], bounds=(start, stop))
        expected = np.full(size, 77, np.int32)
        expected[start:stop] = (x + np.int32(1)).reshape(-1)[start:stop]
        np.testing.assert_array_equal(o.reshape(-1), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_sizes(dtype: str) -> None:
    kind = np.dtype(dtype)
    formula = "(x and y) != g" if dtype == "bool" else "x + y * g"  # stores wrap like NumPy's dtype
    function = element(f"x: {dtype}, y: {dtype} -> {formula}", f"o: {dtype}", f"g: {dtype}")
    gain = kind.type(3) if kind.kind != "b" else np.bool_(True)
    for size in (0, 1, 2, 63, 64, 65, 1000):
        x, y = numbers(kind, (size,), 1), numbers(kind, (size,), 2)
        o = np.full(size + 1, 1, kind)
        run(flat(function), [x, y, o[:size]], [gain])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            expected = (x & y) != gain if kind.kind == "b" else x + y * gain
        np.testing.assert_array_equal(o[:size], expected, strict=True)
        assert o[size] == 1


def test_float_arithmetic_has_the_bits_of_numpy() -> None:
    # One fused multiply-add would show here.
    for dtype in ("float32", "float64"):
        function = element(f"x: {dtype}, y: {dtype}, z: {dtype} -> x * y + z", f"o: {dtype}")
        x, y, z = (np.random.default_rng(k).normal(size=4099).astype(dtype) for k in range(3))
        o = np.empty_like(x)
        run(flat(function), [x, y, z, o])
        np.testing.assert_array_equal(o, x * y + z, strict=True)


def test_fast_contracts_and_keeps_nan() -> None:
    function = element("x: float32, y: float32 -> x * y + x if x == x else float32(7)", "o: float32")
    source = kernel_source(flat(function), "f", fast=True)
    x = np.array([1.5, np.nan, np.inf, -0.0] * 40, np.float32)
    o = np.empty_like(x)
    words = pack(flat(function), x.shape, [x, x, o])
    cpu.compile_kernel(source)(words.ctypes.data, 0, x.size)
    np.testing.assert_allclose(o, np.where(np.isnan(x), 7, x * x + x), rtol=1e-6)
    assert source.text != kernel_source(flat(function), "f").text


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_any_address(offset: int) -> None:
    def at_offset(values: np.ndarray) -> np.ndarray:
        raw = np.zeros(values.nbytes + 8, np.uint8)
        place = raw[offset : offset + values.nbytes].view(values.dtype)
        place[:] = values
        return place

    x, y = (at_offset(numbers(np.dtype(d), (133,), k)) for k, d in enumerate(["float64", "int16"]))
    o = at_offset(np.zeros(133))
    assert not x.flags.aligned
    function = element("x: float64, y: int16 -> x - y", "o: float64")
    run(flat(function), [x, y, o])
    np.testing.assert_array_equal(o, x - y)
    run(Nest(function, 1, (DENSE, STRIDED), (DENSE,)), [x, y, o])
    np.testing.assert_array_equal(o, x - y)


def test_in_place() -> None:
    # The output lies on two operands, and a second output is computed from what they held before.
    function = element("x: float32, y: float32, z: float32 -> x * y + z, y - z", "o: float32, p: float32")
    for nest in (flat(function), Nest(function, 2, (DENSE,) * 3, (DENSE,) * 2)):
        shape = (1027,) if nest.flat else (13, 79)
        a, z = (np.random.default_rng(k).normal(size=shape).astype(np.float32) for k in range(2))
        p = np.empty_like(a)
        expected = a * a + z, a - z
        run(nest, [a, a, z, a, p])
        np.testing.assert_array_equal(a, expected[0])
        np.testing.assert_array_equal(p, expected[1])
        b, c = a.copy(), z.copy()
        run(nest, [b, c, c, b, c])  # both outputs in place
        np.testing.assert_array_equal(b, a * z + z)
        np.testing.assert_array_equal(c, z - z)


def test_any_nonzero_byte_is_true() -> None:
    x = np.array([0, 1, 2, 128, 255, 0, 254] * 40, np.uint8)
    o = np.full(x.size, 9, np.uint8)
    run(flat(element("x: bool, y: bool -> x == y", "o: bool")), [x.view(bool), (x != 0), o.view(bool)])
    assert o.tolist() == [1] * x.size


def test_scalars_and_single_elements() -> None:
    function = element(
        "x: float64 -> x + a + b + c + (1.0 if d else 0.0)",
        "o: float64",
        "a: int8, b: uint64, c: float32, d: bool",
    )
    x, o = np.arange(10.0), np.empty(10)
    run(flat(function), [x, o], [-3, 2**63, 0.5, True])
    np.testing.assert_array_equal(o, x - 3 + float(2**63) + 0.5 + 1)
    one = np.zeros(1)
    run(Nest(function, 1, (SCALAR,), (SCALAR,)), [x[:1], one], [1, 1, 1, False])
    assert one[0] == 3


def test_loops_and_branches_on_elements() -> None:
    source = textwrap.dedent(
        """
        def f(n):
            steps = int32(0)
            while n > int32(1):
                if n % int32(2) == int32(0):
                    n = int32(n // int32(2))
                else:
                    n = int32(int32(3) * n + int32(1))
                steps = int32(steps + int32(1))
            return (steps,)
        """
    )
    function = ElementFunction("f", source, arguments_of("n: int32"), (), arguments_of("o: int32"))
    n, o = np.arange(28, dtype=np.int32), np.empty(28, np.int32)
    run(flat(function), [n, o])
    assert o[27] == 111
    assert o[:9].tolist() == [0, 0, 1, 7, 2, 5, 8, 16, 3]


def test_kernels_raise_nothing() -> None:
    function = element("x: float64, n: int64 -> 1.0 / x, n // int64(0)", "o: float64, p: int64")
    x, n, o, p = np.zeros(5), np.arange(5), np.empty(5), np.empty(5, np.int64)
    run(flat(function), [x, n, o, p])
    assert np.isinf(o).all()


def test_argument_names_may_be_anything() -> None:
    names = ["start", "stop", "i", "arguments", "count", "rest", "x", "x_data", "njit", "min", "at_0", "load"]
    head = ", ".join(f"{name}: float32" for name in names)
    function = element(f"{head} -> {' + '.join(names)} + word", "store: float32", "word: float32")
    function = ElementFunction(
        "pointer",
        function.source.replace("def f", "def pointer"),
        function.operands,
        function.scalars,
        function.outputs,
    )
    nest = Nest(function, 2, (DENSE, STRIDED, REPEATED) + (DENSE,) * 9, (DENSE,))
    arrays = [numbers(np.dtype(np.float32), (3, 7), k) for k in range(len(names))]
    arrays[2] = np.broadcast_to(arrays[2][:, :1], (3, 7))
    o = np.empty((3, 7), np.float32)
    run(nest, [*arrays, o], [2])
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    np.testing.assert_array_equal(o, expected + np.float32(2))


def test_refused() -> None:
    for dtype in ("float16", "complex64"):
        with pytest.raises(FusionNotImplementedError, match=rf"x is {dtype}: .* no {dtype} yet"):
            kernel_source(flat(element(f"x: {dtype} -> x", f"o: {dtype}")), "f")
    function = element("x: int8 -> x", "o: int8")
    with pytest.raises(FusionValueError, match="2 arrays, but 1"):
        kernel_source(Nest(function, 1, (), (DENSE,)), "f")
