"""The scalar implementation of every row, loop by loop: values against NumPy on the CPU, code on the GPU.

One element function a loop signature computes all its rows at once, so that the file compiles few functions.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from numfuse import ops
from numfuse.mathlib.library import CATALOGUE

DTYPES = [np.dtype(name) for name in ops.DTYPES]
BOOL = np.dtype(bool)
# Where NumPy itself has either zero, depending on the length of the array or on scalar bounds.
EITHER_ZERO = {"fmin", "fmax", "clip"}


@dataclass(frozen=True)
class Case:
    """One expression of an element function."""

    name: str
    expression: ops.Expression
    out: np.dtype


def loops_of(row: ops.Row) -> set[tuple[np.dtype, ...]]:
    """The loops of a row in the dtypes that numfuse has."""
    if row.ufunc is not None:
        found = set()
        for entry in row.ufunc.types:
            codes = entry.partition("->")[0]
            if set(codes) <= set("?bBhHiIlLqQfd"):
                found.add(tuple(np.dtype(np.dtype(code).name) for code in codes))
        return found
    if row.name == "where":
        return {(BOOL, dtype, dtype) for dtype in DTYPES}
    return {(dtype,) * row.nin for dtype in DTYPES}


def out_of(row: ops.Row, loop: tuple[np.dtype, ...]) -> np.dtype:
    resolved, out = row.resolve_dtypes(loop)
    assert tuple(d.name for d in resolved) == tuple(d.name for d in loop)
    return np.dtype(out[0].name)


@functools.cache
def signatures() -> dict[tuple[np.dtype, ...], list[Case]]:
    """Loop signature -> the expressions of all rows that have it, and the casts from its dtype."""
    found: dict[tuple[np.dtype, ...], list[Case]] = {}
    for name, row in ops.rows().items():
        for loop in sorted(loops_of(row), key=str):
            out = out_of(row, loop)
            case = Case(name, ops.expression(name, loop, (out,)), out)
            found.setdefault(loop, []).append(case)
    for dtype in DTYPES:
        for target in DTYPES:
            case = Case(f"cast to {target.name}", ops.cast_expression(dtype, target), target)
            found[(dtype,)].append(case)
    return found


def signature_id(loop: tuple[np.dtype, ...]) -> str:
    return "-".join(dtype.name for dtype in loop)


SIGNATURES = sorted(signatures(), key=signature_id)


def element_function(cases: list[Case], arity: int, library: Any, types: Any) -> Callable[..., Any]:
    """A Python function that returns the value of each case, with the names that emitted code has."""
    names = ("x", "y", "z")[:arity]
    lines = [f"    r{i} = {case.expression.format(*names)}" for i, case in enumerate(cases)]
    results = "".join(f"r{i}, " for i in range(len(cases)))
    source = f"def element({', '.join(names)}):\n" + "\n".join(lines) + f"\n    return ({results})\n"
    namespace: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
    namespace |= {name: getattr(types, name) for name in ops.DTYPES if name != "bool"}
    for case in cases:
        namespace |= {name: getattr(library, name) for name in case.expression.imports}
    exec(source, namespace)
    return namespace["element"]


def numba_type(types: Any, dtype: np.dtype) -> Any:
    return types.boolean if dtype == BOOL else getattr(types, dtype.name)


def edges(dtype: np.dtype) -> np.ndarray:
    """Values where implementations differ."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        positive = [0.0, info.smallest_subnormal, info.tiny, 1e-3, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3, 24.0]
        positive += [100.7, 2.0**24 + 1, 1e10, 3e38, info.max, math.inf]
        return np.array([*positive, *(-v for v in positive), math.nan], dtype)
    info = np.iinfo(dtype)
    wanted = {info.min, info.min + 1, info.max, info.max - 1, info.max // 2 + 1}
    wanted |= {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 32, 63, 64, 100, -1, -2, -3, -7, -8, -64}
    return np.array(sorted(v for v in wanted if info.min <= v <= info.max), dtype)


def samples(loop: tuple[np.dtype, ...]) -> list[np.ndarray]:
    """Every combination of edge values; for one or two floats also drawn ones."""
    grid = np.meshgrid(*(edges(dtype) for dtype in loop), indexing="ij")
    columns = [axis.ravel() for axis in grid]
    if all(dtype.kind == "f" for dtype in loop) and len(loop) < 3:
        rng = np.random.default_rng(1)
        drawn = [
            np.concatenate([rng.normal(size=2000) * 10, np.exp(rng.uniform(-60, 60, 2000)), rng.uniform(-1, 1, 2000)])
            for _ in loop
        ]
        columns = [np.concatenate([c, d.astype(c.dtype)]) for c, d in zip(columns, drawn, strict=True)]
    return columns


def in_range(values: np.ndarray, target: np.dtype) -> np.ndarray:
    """Where a cast is defined: NumPy and C leave a float outside the range of an integer open."""
    if values.dtype.kind != "f" or target.kind not in "iu":
        return np.ones(values.shape, bool)
    info = np.iinfo(target)
    whole = np.trunc(values.astype(np.longdouble))
    return (whole >= info.min) & (whole <= info.max)


def expected(name: str, columns: list[np.ndarray], out: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """What NumPy gives, and where that is defined."""
    where = np.ones(columns[0].shape, bool)
    if name.startswith("cast to "):
        return columns[0].astype(out), in_range(columns[0], out)
    row = ops.row(name)
    if name == "power" and out.kind == "i":
        where = columns[1] >= 0
        columns = [columns[0], np.where(where, columns[1], 0).astype(out)]
    if not row.exact and out.kind == "f":
        columns = [column.astype(np.longdouble) for column in columns]
    return np.asarray(row.evaluate(*columns)), where


def bits_differ(got: np.ndarray, wanted: np.ndarray, either_zero: bool) -> np.ndarray:
    """Where two arrays of one dtype hold something else (NaNs are alike)."""
    if got.dtype.kind != "f":
        return got != wanted
    same = (got == wanted) & ((np.signbit(got) == np.signbit(wanted)) | either_zero)
    return ~(same | (np.isnan(got) & np.isnan(wanted)))


def ulps(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Distance in units in the last place; infinite where one is special and the other is not."""
    rounded = truth.astype(got.dtype)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    unit = np.spacing(np.abs(np.where(special, 1, rounded))).astype(np.longdouble)
    distance = np.abs(got.astype(np.longdouble) - truth) / unit
    # A result that overflows may also be the largest number, and the other way round.
    largest = np.finfo(got.dtype).max
    near = np.isinf(rounded) != np.isinf(got)
    near &= (np.abs(got) >= largest) & (np.abs(rounded) >= largest)
    zero_sign = (rounded == 0) & (got == 0) & (np.signbit(rounded) != np.signbit(got))
    distance = np.where(special, np.where(bits_differ(got, rounded, False) & ~near, np.inf, 0), distance)
    return np.where(zero_sign, np.inf, distance)


def loop_source(arity: int, results: int, span: str) -> str:
    """A function that applies `element` over `span` of its columns and stores each result."""
    names = ", ".join(f"c{i}" for i in range(arity))
    items = ", ".join(f"c{i}[i]" for i in range(arity))
    stores = "\n".join(f"        o[{k}][i] = r[{k}]" for k in range(results))
    return f"def run(n, o, {names}):\n    for i in range({span}):\n        r = element({items})\n{stores}\n"


def check(cases: list[Case], columns: list[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Every output against NumPy: bits where the row is exact, else units in the last place."""
    failures = []
    for case, got in zip(cases, outputs, strict=True):
        with np.errstate(all="ignore"):
            wanted, where = expected(case.name, columns, case.out)
            row = ops.rows().get(case.name)
            if row is None or row.exact or case.out.kind != "f":
                assert wanted.dtype == case.out, case.name
                wrong = bits_differ(got, wanted, case.name in EITHER_ZERO) & where
            else:
                wrong = (ulps(got, wanted) > row.ulps) & where
        for position in np.flatnonzero(wrong)[:3]:
            inputs = tuple(column[position].item() for column in columns)
            failures.append(f"{case.name}{inputs} gave {got[position]!r}, not {wanted[position]!r}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("loop", SIGNATURES, ids=signature_id)
def test_values_on_the_cpu(loop: tuple[np.dtype, ...]) -> None:
    from numba import njit, types

    from numfuse.mathlib import cpu

    cases = signatures()[loop]
    element = njit(error_model="numpy")(element_function(cases, len(loop), cpu, types))
    element.compile(tuple(numba_type(types, dtype) for dtype in loop))
    returned = list(element.nopython_signatures[0].return_type)
    wrong_types = [
        f"{case.name}: {kind}, not {case.out}"
        for case, kind in zip(cases, returned, strict=True)
        if types.unliteral(kind) != numba_type(types, case.out)
    ]
    assert not wrong_types

    columns = samples(loop)
    outputs = tuple(np.empty(columns[0].size, case.out) for case in cases)
    namespace: dict[str, Any] = {"element": element}
    exec(loop_source(len(loop), len(cases), "n"), namespace)
    njit(error_model="numpy")(namespace["run"])(columns[0].size, outputs, *columns)
    check(cases, columns, outputs)


def test_zero_signs_of_clip_are_those_of_scalar_bounds() -> None:
    from numba import njit

    from numfuse.mathlib import cpu

    clip_float64 = cpu.clip_float64

    @njit
    def clip(x: float, low: float, high: float) -> float:
        return clip_float64(x, low, high)  # type: ignore[no-any-return]

    for x, low, high in itertools.product((0.0, -0.0), repeat=3):
        wanted = np.clip(np.array([x]), low, high)[0]
        assert math.copysign(1, clip(x, low, high)) == math.copysign(1, wanted), (x, low, high)


def test_integer_powers_with_negative_exponents_are_cut_reciprocals() -> None:
    from numba import njit

    from numfuse.mathlib import cpu

    power_int32 = cpu.power_int32

    @njit
    def power(x: int, y: int) -> int:
        return power_int32(x, y)  # type: ignore[no-any-return]

    for base, exponent, wanted in (
        (1, -5, 1),
        (-1, -4, 1),
        (-1, -5, -1),
        (2, -1, 0),
        (-3, -2, 0),
        (0, -1, 0),
    ):
        assert power(base, exponent) == wanted, (base, exponent)


def test_literals_have_their_dtype_and_value() -> None:
    from numba import njit, types

    values: list[np.generic] = [np.bool_(True), np.bool_(False)]
    for dtype in DTYPES[1:]:
        values += list(edges(dtype))
    values += list(np.random.default_rng(2).normal(size=50).astype(np.float32))
    texts = [ops.literal(value) for value in values]
    namespace: dict[str, Any] = {name: getattr(types, name) for name in ops.DTYPES if name != "bool"}
    namespace |= {"inf": math.inf, "nan": math.nan}
    exec(f"def f():\n    return ({', '.join(texts)},)\n", namespace)
    compiled = njit(namespace["f"])
    got = compiled()
    kinds = [types.unliteral(kind) for kind in compiled.nopython_signatures[0].return_type]
    for value, text, kind, result in zip(values, texts, kinds, got, strict=True):
        assert kind == numba_type(types, value.dtype), text
        assert not bits_differ(np.array([result], value.dtype), np.array([value]), False).any(), text


def test_a_name_that_is_not_there() -> None:
    from numfuse.mathlib import cpu

    with pytest.raises(AttributeError, match="no function 'frobnicate_float32'"):
        _ = cpu.frobnicate_float32


def test_every_name_of_the_library_is_used_by_a_row() -> None:
    used = {name for cases in signatures().values() for case in cases for name in case.expression.imports}
    assert used == set(CATALOGUE)


@pytest.fixture(scope="module")
def numba_cuda() -> Any:
    from numfuse.backends import cuda as _prepared  # noqa: F401 # imports numba.cuda the way kernels need it

    return pytest.importorskip("numba.cuda")


def compile_for_gpu(numba_cuda: Any, cases: list[Case], loop: tuple[np.dtype, ...]) -> tuple[str, list[Any]]:
    from numfuse.mathlib import cuda as library

    types = numba_cuda.types
    element = element_function(cases, len(loop), library, types)
    operands = tuple(numba_type(types, dtype) for dtype in loop)
    ptx, returned = numba_cuda.compile(element, operands, device=True, abi="numba", cc=(9, 0))
    return ptx, list(returned)


# Their slow path for huge arguments reduces by pi/2 in float64.
SLOW_PATHS = {"sin", "cos", "tan"}


@pytest.mark.cuda_compile
@pytest.mark.parametrize("loop", SIGNATURES, ids=signature_id)
def test_code_for_the_gpu(numba_cuda: Any, loop: tuple[np.dtype, ...]) -> None:
    cases = signatures()[loop]
    narrow = [case for case in cases if case.name not in SLOW_PATHS and case.out != np.float64]
    rest = [case for case in cases if case not in narrow]
    for chosen in (narrow, rest):
        if not chosen:
            continue
        ptx, returned = compile_for_gpu(numba_cuda, chosen, loop)
        wanted = [numba_type(numba_cuda.types, case.out) for case in chosen]
        unliteral = numba_cuda.types.unliteral
        assert [str(unliteral(kind)) for kind in returned] == [str(kind) for kind in wanted]
        assert ".extern" not in ptx
        if chosen is narrow and all(dtype != np.float64 for dtype in loop):
            assert not re.findall(r"^.*\.f64.*$", ptx, re.MULTILINE)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Grid size")  # Numba finds small grids worth a warning
@pytest.mark.parametrize("loop", SIGNATURES, ids=signature_id)
def test_values_on_the_gpu(numba_cuda: Any, loop: tuple[np.dtype, ...]) -> None:
    from numfuse.mathlib import cuda as library

    cases = signatures()[loop]
    element = element_function(cases, len(loop), library, numba_cuda.types)
    columns = samples(loop)
    namespace: dict[str, Any] = {"element": numba_cuda.jit(device=True)(element), "cuda": numba_cuda}
    exec(loop_source(len(loop), len(cases), "cuda.grid(1), n, cuda.gridsize(1)"), namespace)
    given = [numba_cuda.to_device(column) for column in columns]
    stores = [numba_cuda.device_array(columns[0].size, case.out) for case in cases]
    numba_cuda.jit(namespace["run"])[64, 256](columns[0].size, tuple(stores), *given)
    check(cases, columns, [store.copy_to_host() for store in stores])


@pytest.mark.cuda_compile
def test_float_division_and_square_root_are_correctly_rounded_on_the_gpu(numba_cuda: Any) -> None:
    for dtype, suffix in ((np.dtype(np.float32), "f32"), (np.dtype(np.float64), "f64")):
        for name, loop, instruction in (("divide", (dtype, dtype), "div.rn"), ("sqrt", (dtype,), "sqrt.rn")):
            ptx, _ = compile_for_gpu(numba_cuda, [c for c in signatures()[loop] if c.name == name], loop)
            assert f"{instruction}.{suffix}" in ptx
            assert "@%p" not in ptx  # no branch for a zero divisor


@pytest.mark.cuda_compile
def test_integer_division_keeps_its_width_on_the_gpu(numba_cuda: Any) -> None:
    loop = (np.dtype(np.int32),) * 2
    cases = [c for c in signatures()[loop] if c.name in ("floor_divide", "remainder", "fmod")]
    ptx, _ = compile_for_gpu(numba_cuda, cases, loop)
    assert "div.s32" in ptx
    assert "div.s64" not in ptx
