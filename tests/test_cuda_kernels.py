"""The text of GPU kernels: what it computes (interpreted), and what it compiles to. No GPU needed."""

from __future__ import annotations

import sys
import threading

import kernel_interpreter
import numpy as np
import pytest

from numfuse.backends.cuda_kernels import KernelSource, choose_lanes, kernel_source
from numfuse.backends.element import Access, Argument, ElementFunction, Nest
from numfuse.errors import FusionError, FusionNotImplementedError, FusionValueError

DENSE, SCALAR, REPEATED, STRIDED = Access.DENSE, Access.SCALAR, Access.REPEATED, Access.STRIDED
F4, F8, I4, U1, B1 = (np.dtype(t) for t in ("f4", "f8", "i4", "u1", "?"))


def element(source: str, operands: dict, outputs: dict, scalars: dict | None = None, **more) -> ElementFunction:
    name = source.split("(")[0].removeprefix("def ").strip()

    def described(d):
        return tuple(Argument(n, np.dtype(t)) for n, t in (d or {}).items())

    return ElementFunction(name, source, described(operands), described(scalars), described(outputs), **more)


FMA = element("def fma(x, y, z):\n    return (x * y + z,)\n", {"x": F4, "y": F4, "z": F4}, {"out": F4}, weight=2)
ADD = element("def add(x, y):\n    return (x + y,)\n", {"x": F4, "y": F4}, {"out": F4})
SCALE = element("def scale(x, gain):\n    return (x * gain,)\n", {"x": F4}, {"out": F4}, {"gain": F4})
MASK = element(
    "def mask(x, m):\n    r = x if m else float64(x) * float64(2)\n    return (float64(r), m)\n",
    {"x": F4, "m": B1},
    {"value": F8, "flag": B1},
)
INVERT = element("def invert(p):\n    return (uint8(uint8(255) - p),)\n", {"p": U1}, {"q": U1})
WIDEN = element("def widen(p):\n    return (float32(p),)\n", {"p": U1}, {"out": F4})


def flat(e: ElementFunction, operands=None, **more) -> Nest:
    return Nest(e, 1, tuple(operands or [DENSE] * len(e.operands)), (DENSE,) * len(e.outputs), **more)


def aligned(shape, dtype, fill=None) -> np.ndarray:
    """An array whose address is a multiple of 64."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    array = raw[start : start + size].view(dtype).reshape(shape)
    if fill is not None:
        array[...] = fill
    return array


def interpret(nests, arrays, *scalars, grid=3, block=4, **more) -> KernelSource:
    source = kernel_source(nests, "kernel", **more)
    values = kernel_interpreter.arguments(source, nests, arrays, *scalars)
    kernel_interpreter.run(source, values, grid, block)
    return source


# What the loops compute


@pytest.mark.parametrize("size", [1, 3, 4, 47, 48, 49, 200])
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("is_aligned", [True, False])
def test_flat(size, lanes, is_aligned):
    base = [np.arange(size + 1, dtype=F4) * k for k in (1, 2, 3)]
    arrays = [aligned(size + 1, F4, b)[0 if is_aligned else 1 :][:size] for b in base] + [aligned(size, F4)]
    nests = (flat(FMA, aligned=is_aligned),)
    interpret(nests, [arrays], lanes=(lanes,))
    x, y, z, out = arrays
    np.testing.assert_array_equal(out, x * y + z)


@pytest.mark.parametrize("size", [1, 15, 16, 100])
def test_flat_mixed_dtypes_bool_and_scalar_operand(size):
    x = aligned(size, F4, np.arange(size))
    m = aligned(size, np.uint8, np.resize([0, 1, 2, 255], size)).view(bool)
    value, flag = aligned(size, F8), aligned(size, bool)
    interpret((flat(MASK),), [[x, m, value, flag]])
    truth = m.view(np.uint8) != 0
    np.testing.assert_array_equal(value, np.where(truth, x, 2 * x))
    np.testing.assert_array_equal(flag.view(np.uint8), truth)  # 0 and 1, whatever came in

    column = np.broadcast_to(aligned(1, F4, 5), (size,))
    out = aligned(size, F4)
    interpret((flat(ADD, [DENSE, SCALAR]),), [[x, column, out]])
    np.testing.assert_array_equal(out, x + 5)


def test_flat_bytes_and_scalar_argument():
    p, q = aligned(70, U1, np.arange(70)), aligned(70, U1)
    interpret((flat(INVERT),), [[p, q]])
    np.testing.assert_array_equal(q, 255 - p)
    x, out = aligned(70, F4, np.arange(70)), aligned(70, F4)
    interpret((flat(SCALE),), [[x, out]], 0.5)
    np.testing.assert_array_equal(out, x * F4.type(0.5))


def test_in_place():
    x = aligned(50, F4, np.arange(50))
    source = interpret((flat(ADD, in_place=(0,)),), [[x, x, x]])
    np.testing.assert_array_equal(x, 2 * np.arange(50))
    assert "readonly" not in source.text


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("columns", [8, 7])
def test_rows_with_broadcasting(bits, columns):
    """x + row and x + column: vectors where each row is whole vectors, else element by element."""
    x = aligned((5, columns), F4, np.arange(5 * columns).reshape(5, columns))
    row = np.broadcast_to(aligned(columns, F4, np.arange(columns) * 100), x.shape)
    column = np.broadcast_to(aligned((5, 1), F4, np.arange(5)[:, None] * 1000), x.shape)
    for other, access in ((row, DENSE), (column, REPEATED)):
        out = aligned(x.shape, F4)
        source = interpret((Nest(ADD, 2, (DENSE, access), (DENSE,), index_bits=bits),), [[x, other, out]])
        np.testing.assert_array_equal(out, x + other)
        assert f"quotient_uint{bits}" in source.text


def test_rows_of_a_padded_array_that_are_not_whole_vectors():
    """Every row begins aligned, but its length is no multiple of a vector."""
    x, y, whole = (aligned((5, 8), F4, np.arange(40).reshape(5, 8) * k) for k in (1, 2, 0))
    out = whole[:, :7]
    interpret((Nest(ADD, 2, (DENSE, DENSE), (DENSE,)),), [[x[:, :7], y[:, :7], out]])
    np.testing.assert_array_equal(out, 3 * x[:, :7])
    assert not whole[:, 7].any()


@pytest.mark.parametrize("bits", [32, 64])
def test_negative_strides_and_strided_output(bits):
    data = aligned((4, 6, 10), F4, np.arange(240).reshape(4, 6, 10))
    x, y = data[::-1, :3, ::2], data.transpose(0, 2, 1)[:, 2:5, ::-1][..., :5]
    out = aligned((4, 3, 10), F4)[..., ::-2]
    nest = Nest(ADD, 3, (STRIDED, STRIDED), (STRIDED,), aligned=False, index_bits=bits)
    interpret((nest,), [[x, y, out]])
    np.testing.assert_array_equal(out, x + y)


def test_one_strided_dimension():
    data = aligned(60, F4, np.arange(60))
    out = aligned(20, F4)
    nest = Nest(ADD, 1, (STRIDED, DENSE), (DENSE,), aligned=False)
    source = interpret((nest,), [[data[::-3], data[1:21], out]])
    np.testing.assert_array_equal(out, data[::-3] + data[1:21])
    assert "quotient" not in source.text


def test_scalar_output():
    x, y, out = (aligned(1, F4, v) for v in (2, 3, 0))
    interpret((Nest(ADD, 1, (SCALAR, SCALAR), (SCALAR,)),), [[x, y, out]], grid=1, block=1)
    assert out[0] == 5


def test_several_nests_share_a_launch():
    """Two domains, and two element functions of one name."""
    other = element("def add(x, y):\n    return (x - y,)\n", {"x": F4, "y": F4}, {"out": F4})
    a, b = ([aligned(n, F4, np.arange(n)), aligned(n, F4, 7), aligned(n, F4)] for n in (30, 11))
    source = interpret((flat(ADD), flat(other)), [a, b])
    np.testing.assert_array_equal(a[2], a[0] + 7)
    np.testing.assert_array_equal(b[2], b[0] - 7)
    assert source.grid(30, 11) == 1
    assert source.text.count("forceinline=True") == 2


def test_names_do_not_collide():
    """Arguments named like the kernel's own variables, and like each other."""
    taken = "def item(count, thread, size):\n    return (count + thread * size,)\n"
    e = element(taken, {"count": F4, "thread": F4}, {"blocks": F4}, {"size": F4})
    x, y, out = aligned(9, F4, np.arange(9)), aligned(9, F4, 3), aligned(9, F4)
    interpret((flat(e),), [[x, y, out]], 2.0)
    np.testing.assert_array_equal(out, x + 6)


# Choices


def test_lanes():
    one = element("def f(x):\n    return (x,)\n", {"x": F4}, {"out": F4})
    assert choose_lanes(flat(FMA)) == 4
    assert choose_lanes(flat(one)) == 8
    assert choose_lanes(flat(INVERT)) == 16
    assert choose_lanes(flat(MASK)) == 8  # two float64 in 16 bytes; 5 bytes loaded an element
    heavy = element("def f(x):\n    return (x,)\n", {"x": F4}, {"out": F4}, weight=400)
    assert choose_lanes(flat(heavy)) == 1
    assert choose_lanes(flat(FMA, aligned=False)) == 4  # one element an access, four in flight


def test_launch_shape_and_words():
    source = kernel_source((flat(SCALE),), "scale_kernel")
    assert [p.name for p in source.parameters] == ["size", "x_address", "out_address", "gain"]
    assert source.format == "<qQQf4x"
    assert source.grid(0) == 1
    assert source.grid(1 << 28) == (1 << 28) // (source.block * source.lanes[0])


def test_unsupported_dtype_is_refused_by_name():
    e = element("def f(x):\n    return (x,)\n", {"x": "c8"}, {"out": "c8"})
    with pytest.raises(FusionNotImplementedError, match=r"complex64 yet \(x of f\)"):
        kernel_source((flat(e),), "kernel")


def test_writing_text_needs_no_numba():
    import subprocess

    code = (
        "import sys, test_cuda_kernels as t; t.kernel_source((t.flat(t.FMA),), 'k'); "
        "sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    )
    path = [*(p for p in sys.path if p), __file__.rsplit("/", 1)[0]]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], check=False)
    assert done.returncode == 0


# What it compiles to


@pytest.fixture(scope="module")
def compiled():
    """compiled(nests, capability=(9, 0), **options) -> Compiled, each made once."""
    from numfuse.backends.cuda import compile_kernel

    made = {}

    def get(*nests, capability=(9, 0), **options):
        key = (nests, capability, tuple(sorted(options.items())))
        if key not in made:
            made[key] = compile_kernel(kernel_source(nests, "kernel"), capability, **options)
        return made[key]

    return get


@pytest.mark.cuda_compile
@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (7, 5)])
def test_flat_float32_has_vector_accesses_and_no_float64(compiled, capability):
    made = compiled(flat(FMA), capability=capability)
    counts = made.info["counts"]
    assert (counts["loads_16_bytes"], counts["stores_16_bytes"]) == (3, 1)
    assert "ld.global.nc.v4" in made.ptx
    assert "st.global.v4" in made.ptx
    assert (counts["f64"], counts["calls"], counts["entries"], counts["divisions_64_bit"]) == (0, 0, 1, 0)
    assert counts["fma"] > 0
    assert made.entry == "kernel"
    assert made.cubin[:4] == b"\x7fELF"
    assert f".target sm_{capability[0]}{capability[1]}" in made.ptx
    assert made.info["registers"] <= 64
    assert made.info["spill_bytes"] == 0


@pytest.mark.cuda_compile
def test_exact_does_not_contract(compiled):
    made = compiled(flat(FMA), exact=True)
    assert made.info["counts"]["fma"] == 0
    assert "mul.rn.f32" in made.ptx
    assert "add.rn.f32" in made.ptx


@pytest.mark.cuda_compile
def test_fast_reaches_the_element_function(compiled):
    divide = element("def divide(x, y):\n    return (x / y,)\n", {"x": F4, "y": F4}, {"out": F4})
    assert "div.rn.f32" in compiled(flat(divide)).ptx
    fast = compiled(flat(divide), fast=True).ptx
    assert "div.rn.f32" not in fast
    assert "div.approx.ftz.f32" in fast or "div.full.ftz.f32" in fast


@pytest.mark.cuda_compile
def test_fast_takes_libdevices_approximate_functions():
    from numfuse.backends.cuda import _fast_functions

    module = 'call float @"__nv_expf"(float %x)\ncall double @"__nv_exp"(double %y)\n'
    assert _fast_functions(module) == module.replace("nv_expf", "nv_fast_expf")
    both = module + 'declare float @"__nv_fast_expf"(float)\n'
    assert _fast_functions(both) == both


@pytest.mark.cuda_compile
@pytest.mark.parametrize("e", [INVERT, WIDEN, MASK], ids=lambda e: e.name)
def test_narrow_and_mixed_dtypes_move_vectors(compiled, e):
    counts = compiled(flat(e)).info["counts"]
    assert counts["stores_16_bytes"] >= 1
    if e is INVERT:
        assert counts["loads_16_bytes"] == 1
        assert counts["other_loads"] == 1  # the tail's
    assert counts["divisions_64_bit"] == 0


@pytest.mark.cuda_compile
def test_in_place_does_not_read_through_the_constant_cache(compiled):
    assert "ld.global.nc" in compiled(flat(ADD)).ptx
    assert "ld.global.nc" not in compiled(flat(ADD, in_place=(1,))).ptx


@pytest.mark.cuda_compile
@pytest.mark.parametrize("accesses", [(DENSE, DENSE, DENSE), (STRIDED, REPEATED, STRIDED)])
def test_strided_divides_in_32_bits(compiled, accesses):
    counts = compiled(Nest(ADD, 3, accesses[:2], accesses[2:])).info["counts"]
    assert (counts["divisions_64_bit"], counts["f64"], counts["calls"], counts["entries"]) == (0, 0, 0, 1)
    assert counts["stores_16_bytes"] == (1 if accesses[2] is DENSE else 0)
    wide = compiled(Nest(ADD, 3, accesses[:2], accesses[2:], index_bits=64)).info["counts"]
    assert wide["divisions_64_bit"] > 0


@pytest.mark.cuda_compile
def test_several_nests_compile_to_one_entry(compiled):
    counts = compiled(flat(ADD), Nest(SCALE, 2, (STRIDED,), (DENSE,))).info["counts"]
    assert counts["entries"] == 1


@pytest.mark.cuda_compile
def test_scalars_and_constants(compiled):
    e = element(
        "def f(x, on, gain):\n    return (x * gain if on else float32(inf), x == float32(nan))\n",
        {"x": F4},
        {"out": F4, "flag": B1},
        {"on": B1, "gain": F4},
    )
    counts = compiled(flat(e)).info["counts"]
    assert counts["f64"] == 0


@pytest.mark.cuda_compile
def test_text_is_an_ordinary_cuda_jit_kernel():
    """A user who executes the text gets a dispatcher; tracebacks find its lines."""
    import linecache

    from numfuse.backends.cuda import kernel_function

    source = kernel_source((flat(SCALE),), "scale_kernel")
    kernel = kernel_function(source)
    assert type(kernel).__name__ == "CUDADispatcher"
    code = kernel.py_func.__code__
    assert linecache.getline(code.co_filename, code.co_firstlineno + 1).startswith("def scale_kernel(")


@pytest.mark.cuda_compile
def test_text_compiles_for_what_a_dispatcher_makes_of_python_numbers():
    """Launched by a user, sizes are int64 and scalars float64; the element function sees float32."""
    from numba import cuda
    from numba.cuda import types

    from numfuse.backends.cuda import _device_stand_in, kernel_function, ptx_counts

    for nest in (flat(SCALE), Nest(SCALE, 3, (STRIDED,), (DENSE,))):
        source = kernel_source((nest,), "scale_kernel")
        arguments = [types.float64 if p.role == "scalar" else types.int64 for p in source.parameters]
        with _device_stand_in((9, 0)):
            function = kernel_function(source).py_func
            ptx, _ = cuda.compile(function, types.void(*arguments), device=False, abi="numba", cc=(9, 0))
        counts = ptx_counts(ptx)
        assert counts["f64"] == 1  # the scalar's conversion
        assert counts["divisions_64_bit"] == 0


@pytest.mark.cuda_compile
def test_compiler_errors_name_the_kernel(compiled):
    e = element("def f(x):\n    return (x.nothing,)\n", {"x": F4}, {"out": F4})
    with pytest.raises(FusionError, match="Numba refused kernel kernel"):
        compiled(flat(e))
    with pytest.raises(FusionValueError, match="exact or fast"):
        compiled(flat(FMA), exact=True, fast=True)
    with pytest.raises(FusionError, match=r"compute capability 3\.0"):
        compiled(flat(FMA), capability=(3, 0))


@pytest.mark.cuda_compile
def test_compiling_leaves_other_threads_devices_alone(compiled):
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    seen = []
    from numfuse.backends import cuda

    with cuda._device_stand_in((8, 6)):
        replaced = dispatcher.get_current_device
        assert replaced().compute_capability == (8, 6)
        thread = threading.Thread(target=lambda: seen.append(_capability_or_error(replaced)))
        thread.start()
        thread.join()
    assert seen[0] != (8, 6)
    assert dispatcher.get_current_device is original


def _capability_or_error(get):
    try:
        return tuple(get().compute_capability)
    except Exception as error:  # no driver on this machine: the original was asked, which is the point
        return type(error)


@pytest.mark.cuda_compile
def test_numpy_25_without_row_stack():
    """numba-cuda 0.30 reads numpy.row_stack on import, which NumPy 2.5 no longer has."""
    import subprocess

    code = (
        "import numpy\n"
        "if hasattr(numpy, 'row_stack'): del numpy.row_stack\n"
        "from numfuse.backends.cuda import compile_kernel\n"
        "import test_cuda_kernels as t\n"
        "assert compile_kernel(t.kernel_source((t.flat(t.FMA),), 'k'), (9, 0)).cubin\n"
        "assert not hasattr(numpy, 'row_stack')\n"
    )
    path = [*(p for p in sys.path if p), __file__.rsplit("/", 1)[0]]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
