"""What is measured: eight elementwise functions, each in the spelling that a peer needs."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Layout = Literal["full", "row", "column"]


@dataclass(frozen=True)
class Operand:
    """An input: its dtype, and whether it fills the whole domain or is broadcast to it."""

    dtype: str
    layout: Layout = "full"


@dataclass(frozen=True)
class Workload:
    """One function.

    `function` is written with ``np``; the other array libraries run it with their own module in that place.
    `element` is a Python expression of scalars x, y, z for hand-written Numba loops, `cuda` the same in CUDA
    C++ where T is the type of the elements, and `numexpr` that library's (None: it lacks the dtypes). `fused`
    is what numfuse is given where it differs: an element function with a branch.
    """

    name: str
    function: Callable[..., Any]
    element: str
    cuda: str
    numexpr: str | None
    operands: tuple[Operand, ...]
    result: str
    fused: Callable[..., Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return ("x", "y", "z")[: len(self.operands)]

    @property
    def ndim(self) -> int:
        return 1 if all(operand.layout == "full" for operand in self.operands) else 2

    def for_module(self, module: Any) -> Callable[..., Any]:
        """`function` with `module` in the place of NumPy."""
        f = self.function
        return types.FunctionType(f.__code__, {**f.__globals__, "np": module}, f.__name__)

    def bytes_moved(self, size: int) -> int:
        """Compulsory traffic for `size` results: every full operand read once, the result written once."""
        full = sum(np.dtype(o.dtype).itemsize for o in self.operands if o.layout == "full")
        return size * (full + np.dtype(self.result).itemsize)

    def make(self, size: int, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Operands for about `size` results, of one dimension, or of two if something is broadcast."""
        rng = np.random.default_rng(seed)
        side = int(size**0.5)
        shapes = {"full": (size,), "row": (side,), "column": (side, 1)}
        if self.ndim == 2:
            shapes["full"] = (side, side)
        return tuple(random_array(rng, shapes[o.layout], np.dtype(o.dtype)) for o in self.operands)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Positive numbers, so that every function here is defined; large arrays repeat 2^20 drawn numbers."""
    size = int(np.prod(shape))
    drawn = min(size, 1 << 20)
    if dtype.kind in "iu":
        sample = rng.integers(0, 100, drawn).astype(dtype)
    else:
        sample = rng.uniform(0.1, 1.5, drawn).astype(dtype)
    return np.resize(sample, shape)


def multiply_add(x, y, z):
    return x * y + z


def polynomial(x, y, z):
    return ((x * y + z) * x - y) * (z + x) * 0.5 - z * y


def exp_log(x, y, z):
    return np.exp(-x * y) * np.log(z + x)


def sin_cos_tanh(x, y, z):
    return np.sin(x) * np.cos(y) + np.tanh(z)


def branch(x, y, z):
    if x > y:
        return x * z - y
    return y * z + x * x


def branch_in_arrays(x, y, z):
    return np.where(x > y, x * z - y, y * z + x * x)


def stretched(x, y):
    return x * y + x


def saturating_sum(x, y):
    return np.minimum(x, 255 - y) + y


F32, F64 = Operand("float32"), Operand("float64")
_MULTIPLY_ADD = ("x * y + z", "x * y + z", "x * y + z")
_EXP_LOG = ("math.exp(-x * y) * math.log(z + x)", "exp(-x * y) * log(z + x)", "exp(-x * y) * log(z + x)")

WORKLOADS = (
    Workload("x*y+z", multiply_add, *_MULTIPLY_ADD, (F32,) * 3, "float32"),
    Workload("x*y+z f64", multiply_add, *_MULTIPLY_ADD, (F64,) * 3, "float64"),
    Workload(
        "polynomial",
        polynomial,
        "((x * y + z) * x - y) * (z + x) * 0.5 - z * y",
        "((x * y + z) * x - y) * (z + x) * T(0.5) - z * y",
        "((x * y + z) * x - y) * (z + x) * 0.5 - z * y",
        (F32,) * 3,
        "float32",
    ),
    Workload("exp, log", exp_log, *_EXP_LOG, (F32,) * 3, "float32"),
    Workload("exp, log f64", exp_log, *_EXP_LOG, (F64,) * 3, "float64"),
    Workload(
        "sin, cos, tanh",
        sin_cos_tanh,
        "math.sin(x) * math.cos(y) + math.tanh(z)",
        "sin(x) * cos(y) + tanh(z)",
        "sin(x) * cos(y) + tanh(z)",
        (F32,) * 3,
        "float32",
    ),
    Workload(
        "if/else",
        branch_in_arrays,
        "x * z - y if x > y else y * z + x * x",
        "x > y ? x * z - y : y * z + x * x",
        "where(x > y, x * z - y, y * z + x * x)",
        (F32,) * 3,
        "float32",
        fused=branch,
    ),
    Workload(
        "x*row+x",
        stretched,
        "x * y + x",
        "x * y + x",
        "x * y + x",
        (F32, Operand("float32", "row")),
        "float32",
    ),
    Workload(
        "x*column+x",
        stretched,
        "x * y + x",
        "x * y + x",
        "x * y + x",
        (F32, Operand("float32", "column")),
        "float32",
    ),
    Workload(
        "f32*i16+u8",
        multiply_add,
        "x * y + z",
        "x * y + z",
        None,
        (F32, Operand("int16"), Operand("uint8")),
        "float32",
    ),
    Workload(
        "u8 saturating",
        saturating_sum,
        "min(x, 255 - y) + y",
        "(x < T(255 - y) ? x : T(255 - y)) + y",
        None,
        (Operand("uint8"),) * 2,
        "uint8",
    ),
)
