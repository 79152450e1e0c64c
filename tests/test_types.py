"""Dtypes are NumPy's: every operator over every pair of dtypes, Python numbers, NumPy scalars, joins."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import variants
from typed_programs import typed

from numfuse import FusionError, FusionNotImplementedError, FusionOverflowError, fuse

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = tuple(np.dtype(name) for name in ("bool", *INTEGERS, "float32", "float64"))


def values(dtype: np.dtype) -> np.ndarray:
    """A few values of a dtype, its extremes among them."""
    if dtype.kind == "b":
        return np.array([True, False, True, False, True, True])
    if dtype.kind == "f":
        return np.array([0.0, -1.5, 2.75, np.inf, 7.0, -0.0], dtype)
    info = np.iinfo(dtype)
    return np.array([0, 1, 3, info.max, info.min, 7], dtype)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives: its value, or the exception."""
    try:
        with np.errstate(all="ignore"):
            return call()
    except (FusionError, TypeError, OverflowError, ValueError) as error:
        return error


def agree(found: Any, expected: Any, what: object) -> None:
    """The same dtype and bits; or the same error with the same text."""
    if isinstance(expected, Exception):
        (kind,) = (k for k in (TypeError, OverflowError, ValueError) if isinstance(expected, k))
        assert isinstance(found, kind), (what, found, expected)
        assert str(found).split("\n")[0] == str(expected), what
        return
    if np.asarray(expected).dtype == np.float16:
        assert isinstance(found, FusionNotImplementedError), (what, found)
        assert str(found).startswith("this gives float16"), what
        return
    assert not isinstance(found, Exception), (what, found)
    assert np.asarray(found).dtype == np.asarray(expected).dtype, what
    np.testing.assert_array_equal(found, expected, err_msg=str(what), strict=True)
    # The sign of a NaN is nobody's business; that of a zero is.
    if np.asarray(expected).dtype.kind == "f":
        zero = np.asarray(expected) == 0
        assert (np.signbit(found)[zero] == np.signbit(expected)[zero]).all(), what


# --------------------------------------------------------------------------------------------------------
# Two arrays

BINARY = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "power": lambda x, y: x**y,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "minimum": lambda x, y: np.minimum(x, y),
    "fmax": lambda x, y: np.fmax(x, y),
    "hypot": lambda x, y: np.hypot(x, y),
    "copysign": lambda x, y: np.copysign(x, y),
    "logical_and": lambda x, y: np.logical_and(x, y),
    "where": lambda x, y: np.where(x > y, x, y),
    "clip": lambda x, y: np.clip(x, y, y),
    "several": lambda x, y: x * y + x - np.minimum(x, y) * True,
}


def has_loop(function: Callable[..., Any], x: Any, y: Any) -> bool:
    """Whether NumPy's own error is about values (an integer to a negative power), which kernels can't raise."""
    return not isinstance(outcome(lambda: function(x, y)), ValueError)


@pytest.mark.parametrize("name", BINARY)
def test_every_pair_of_dtypes(name):
    function = BINARY[name]
    for first, second in itertools.product(DTYPES, DTYPES):
        x, y = values(first), values(second)[::-1].copy()
        if not has_loop(function, x, y):
            y = np.abs(y) % 5
        if not has_loop(function, x, y):
            continue
        expected = outcome(lambda x=x, y=y: function(x, y))
        agree(outcome(lambda x=x, y=y: typed(function, x, y).run()), expected, (name, first, second))


UNARY = {
    "negative": lambda x: -x,
    "positive": lambda x: +x,
    "invert": lambda x: ~x,
    "abs": lambda x: abs(x),
    "square": lambda x: np.square(x),
    "sqrt": lambda x: np.sqrt(x),
    "sign": lambda x: np.sign(x),
    "floor": lambda x: np.floor(x),
    "rint": lambda x: np.rint(x),
    "isnan": lambda x: np.isnan(x),
    "isfinite": lambda x: np.isfinite(x),
    "logical_not": lambda x: np.logical_not(x),
    "reciprocal": lambda x: np.reciprocal(x + x),
    "double": lambda x: x + x,
    "astype": lambda x: x.astype(np.int16).astype(np.float32),
}


@pytest.mark.parametrize("name", UNARY)
def test_every_dtype(name):
    function = UNARY[name]
    for dtype in DTYPES:
        x = values(dtype)
        if name == "astype":
            x = x[np.isfinite(x) & (x < 100)] if dtype.kind == "f" else x
        agree(outcome(lambda x=x: typed(function, x).run()), outcome(lambda x=x: function(x)), (name, dtype))


# --------------------------------------------------------------------------------------------------------
# Numbers

NUMBERS = (True, False, 0, 1, -1, 2, 300, -200, 70_000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1)
FLOATS = (0.0, 2.5, -0.0, 1e300, float("inf"), float("nan"))
WITH_NUMBERS = {
    "add": lambda x, n: x + n,
    "subtract": lambda x, n: n - x,
    "multiply": lambda x, n: x * n,
    "divide": lambda x, n: x / n,
    "floor_divide": lambda x, n: n // x,
    "bitwise_or": lambda x, n: x | n,
    "less": lambda x, n: x < n,
    "greater_equal": lambda x, n: n >= x,
    "equal": lambda x, n: x == n,
    "not_equal": lambda x, n: n != x,
    "maximum": lambda x, n: np.maximum(x, n),
    "where": lambda x, n: np.where(x > 1, x, n),
    "where_condition": lambda x, n: np.where(n, x, x),
    "low": lambda x, n: np.clip(x, n, None),
    "high": lambda x, n: x.clip(max=n),
}


def with_number(function: Callable[..., Any], number: object) -> Callable[..., Any]:
    """The function with the number as a captured variable, which is typed like an argument."""
    return lambda x: function(x, number)


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_python_numbers_are_weak(name):
    function = WITH_NUMBERS[name]
    for dtype, number in itertools.product(DTYPES, (*NUMBERS, *FLOATS)):
        x = values(dtype)
        expected = outcome(lambda x=x, number=number: function(x, number))
        if isinstance(expected, OverflowError):
            continue  # of arguments at the launch, of literals while typing: both below
        found = outcome(lambda x=x, number=number: typed(function, x, number).run())
        agree(found, expected, (name, dtype, number))


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numpy_scalars_are_strong(name):
    function = WITH_NUMBERS[name]
    for dtype, other in itertools.product(DTYPES, DTYPES):
        for number in values(other)[1:5]:
            x = values(dtype)
            expected = outcome(lambda x=x, number=number: function(x, number))
            agree(outcome(lambda x=x, n=number: typed(function, x, n).run()), expected, (name, dtype, repr(number)))


def test_what_everybody_asks_first():
    f4, i1, u1 = np.ones(3, np.float32), np.full(3, 100, np.int8), np.full(3, 200, np.uint8)
    cases = (
        (lambda x: x * 2.0, f4, np.float32),
        (lambda x: x * np.float64(2), f4, np.float64),
        (lambda x: x * 2, f4, np.float32),
        (lambda x: x + x, i1, np.int8),
        (lambda x: x + 100, i1, np.int8),
        (lambda x: x / 2, i1, np.float64),
        (lambda x: x + 1.5, i1, np.float64),
        (lambda x: x + True, i1, np.int8),
        (lambda x: (x > 1) + 1, i1, np.int64),
        (lambda x: (x > 1) + (x > 2), i1, np.bool_),
        (lambda x: (x > 1) * x, f4, np.float32),
        (lambda x: x + np.int64(1), u1, np.int64),
        (lambda x: x * np.pi, f4, np.float32),
        (lambda x: np.sqrt(2) * x, f4, np.float64),
        (lambda x: x * (1 / 3), f4, np.float32),
        (lambda x: np.where(x > 1, 1.0, 0.0), f4, np.float64),
        (lambda x: np.where(x > 1, x, 0.0), f4, np.float32),
    )
    for function, x, dtype in cases:
        found = typed(function, x).run()
        assert found.dtype == dtype
        agree(found, outcome(lambda x=x, function=function: function(x)), function)


def test_literals_out_of_range():
    for function, x in (
        (lambda x: x + 300, np.ones(3, np.uint8)),
        (lambda x: x + 128, np.ones(3, np.int8)),
        (lambda x: -1 + x, np.ones(3, np.uint64)),
        (lambda x: x * 18446744073709551616, np.ones(3, np.uint64)),
        (lambda x: np.maximum(x, 70000), np.ones(3, np.uint16)),
    ):
        expected = outcome(lambda x=x, function=function: function(x))
        assert isinstance(expected, OverflowError)
        found = outcome(lambda x=x, function=function: typed(function, x))
        assert isinstance(found, FusionOverflowError)
        agree(found, expected, function)
        assert found.loc is not None


def test_arguments_out_of_range_are_numpys_errors_and_compile_once():
    def f(x, n):
        return x + n, x < n, np.where(x > 1, x, n)

    fused = fuse(f)
    for dtype in (np.dtype(np.int8), np.dtype(np.uint16)):
        x = values(dtype)
        for number in (0, 5, 127, 128, -129, 300, 70_000, 2**70, -1, 3):
            expected = outcome(lambda x=x, number=number: f(x, number))
            found = outcome(lambda x=x, number=number: fused(x, number))
            if isinstance(expected, OverflowError):
                assert isinstance(found, FusionOverflowError)
                assert str(found).startswith(f"Python integer {number} out of bounds for {dtype}")
                continue
            for one, other in zip(found, expected, strict=True):
                agree(one, other, (dtype, number))
    assert variants(fused) <= 8


def test_comparisons_follow_the_number_from_call_to_call():
    comparisons = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)

    def f(x, n):
        return x < n, x <= n, x == n, x != n, x > n, x >= n

    fused = fuse(f)
    x = values(np.dtype(np.int8))
    for number in (0, 127, 128, -128, -129, 2**80, -(2**80), 5):
        for found, compare in zip(fused(x, number), comparisons, strict=True):
            agree(found, compare(x, number), (number, compare))
    assert variants(fused) == 3  # below, inside and above the range


# --------------------------------------------------------------------------------------------------------
# Kernels, for a sample (the scalar library has tests of its own)


@pytest.mark.parametrize("first", ["bool", "int8", "uint16", "int32", "uint64", "float32"])
def test_compiled_kernels_agree(first):
    def f(x, y, n):
        total = x + y * n
        return total, x * y, x / 3, np.minimum(x, y), x < y, np.where(x > y, x, y) * 2, total == n, (x > n) + x

    for second in ("bool", "int8", "int64", "float32"):
        x, y = values(np.dtype(first)), values(np.dtype(second))[::-1].copy()
        for number in (2, 1.5):
            expected = outcome(lambda x=x, y=y, n=number: f(x, y, n))
            for found, other in zip(fuse(f)(x, y, number), expected, strict=True):
                agree(found, other, (first, second, number))
