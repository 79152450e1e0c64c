"""Dtypes where paths meet, conversions, and the promotion rules themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_types import BINARY, DTYPES, agree, outcome, values
from typed_programs import elementwise, typed

from numfuse import FusionNotImplementedError, FusionTypeError, FusionValueError, fuse, ops
from numfuse.body import Weak
from numfuse.dtypes.rules import DtypeNotSupportedError, NumpyRules, check_supported, dtype_of, host_type

RULES = NumpyRules()


def test_branches_join_as_numpy_joins_scalars():
    def f(x, y):
        return x if x > y else y

    def weak(x, y):
        return (1 if x > y else x), (1 if x > y else 2), (1 if x > y else 2.5), (0.5 if x > y else y), x > y or y

    for first, second in itertools.product(DTYPES, DTYPES):
        x, y = values(first), values(second)
        agree(typed(f, x, y).run(), elementwise(f, x, y, dtypes=np.result_type(first, second)), (first, second))
        found = typed(weak, x, y).run()
        kinds = (np.result_type(first, 1), np.int64, np.float64, np.result_type(second, 0.5), np.result_type(bool, y))
        for one, other in zip(found, elementwise(weak, x, y, dtypes=kinds), strict=True):
            agree(one, other, (first, second))


def test_loops_join_to_a_fixed_point():
    def total(x):
        s = 0
        for _ in range(40):
            s = s + x
        return s

    def chain(x):
        a, b, c = 0, 0, 0
        n = 3
        while n > 0 and x == x:
            a, b, c = b, c, x
            n -= 1
        return a, n

    for dtype in DTYPES:
        x = values(dtype)
        expected = outcome(lambda x=x: total(x))
        agree(typed(total, x).run(), expected, dtype)
        a, n = typed(chain, x).run()
        assert a.dtype == np.result_type(dtype, 0)
        assert n.dtype == np.int64
        np.testing.assert_array_equal(a[x == x], x[x == x])


def test_what_joins_is_strong_from_then_on():
    def branch(x, y):
        return (0.0 if x > 0 else y) * x

    def loop(x, y):
        s = 0
        for _ in range(30):
            s = s + y
        return s * x

    for first, second in (("float32", "float64"), ("int8", "int64"), ("int8", "float64"), ("float32", "float32")):
        x, y = np.arange(3).astype(first), np.ones(3, second)
        agree(typed(loop, x, y).run(), loop(x, y), (first, second))
        assert typed(branch, x, y).run().dtype == np.result_type(np.result_type(0.0, second), first)


def test_a_weak_number_is_no_dtype():
    for kind in Weak:
        for dtype in DTYPES:
            assert dtype != kind
            assert kind != dtype


def test_conversions_by_type():
    x = values(np.dtype(np.float32))[1:3]
    for convert in (np.float32, np.float64, np.int16, np.uint8, np.bool_):
        agree(typed(lambda x, kind: x + kind(x), np.abs(x), convert).run(), np.abs(x) + convert(np.abs(x)), convert)


def test_python_numbers_of_elements():
    """A Python int as a result is int64, a Python float float64."""

    def f(x):
        n, y = 0, 1.5
        while x > n and n < 5:
            n += 1
            y *= 2
        return n, y, n / 2, n > 2, (n if x > 0 else -1), float(x), int(x), x * y

    for dtype in (np.dtype(np.float32), np.dtype(np.int8)):
        x = np.array([0, 1, 2, 3, 7], dtype)
        kinds = (np.int64, np.float64, np.float64, np.bool_, np.int64, np.float64, np.int64, np.result_type(dtype, 1.5))
        for found, other in zip(typed(f, x).run(), elementwise(f, x, dtypes=kinds), strict=True):
            agree(found, other, dtype)


# --------------------------------------------------------------------------------------------------------
# The rules themselves


def test_rules_are_numpys():
    for first, second in itertools.product(DTYPES, DTYPES):
        assert RULES.join(first, second) == RULES.join(second, first) == np.result_type(first, second)
    for dtype in DTYPES:
        assert RULES.join(dtype, dtype) == dtype
        for kind, example in ((Weak.INT, 0), (Weak.FLOAT, 0.0)):
            for joined in (RULES.join(dtype, kind), RULES.join(kind, dtype)):
                assert isinstance(joined, np.dtype)  # NumPy would call a weak number equal, if it could convert it
                assert joined == np.result_type(dtype, example)
    assert RULES.join(Weak.INT, Weak.FLOAT) is RULES.join(Weak.FLOAT, Weak.INT) is Weak.FLOAT
    assert RULES.join(Weak.INT, Weak.INT) is Weak.INT
    f4, i1 = np.dtype(np.float32), np.dtype(np.int8)
    found = RULES.resolve("add", "operator", (f4, Weak.FLOAT))
    assert (found.loop, found.outputs) == ((f4, f4), (f4,))
    assert RULES.resolve("add", "operator", (Weak.INT, Weak.INT)).outputs == (Weak.INT,)
    assert RULES.resolve("divide", "operator", (Weak.INT, Weak.INT)).outputs == (Weak.FLOAT,)
    assert RULES.resolve("less", "operator", (Weak.INT, Weak.FLOAT)).outputs == (np.dtype(bool),)
    assert RULES.resolve("sqrt", "math", (Weak.INT,)).outputs == (Weak.FLOAT,)
    assert RULES.resolve("sqrt", "ufunc", (Weak.INT,)).outputs == (np.dtype(np.float64),)
    assert RULES.resolve("divide", "ufunc", (i1, i1)).loop == (np.dtype(np.float64),) * 2
    with pytest.raises(TypeError):
        RULES.resolve("bitwise_and", "operator", (f4, f4))
    with pytest.raises(DtypeNotSupportedError):
        RULES.resolve("sin", "ufunc", (i1,))


def test_types_of_numbers():
    assert host_type(True) == np.dtype(bool)
    assert [host_type(n) for n in (1, 2**80, 1.0, 1j)] == [Weak.INT, Weak.INT, Weak.FLOAT, Weak.COMPLEX]
    assert host_type(np.int8(1)) == np.int8
    assert host_type(np.float64(1)) == np.float64  # a subclass of float, and strong
    assert host_type("a") is host_type(None) is host_type([1]) is None
    assert [dtype_of(kind) for kind in (Weak.INT, Weak.FLOAT, np.dtype("i2"))] == [np.int64, np.float64, np.int16]
    assert check_supported(np.dtype("i2")) == np.int16
    for name in ("float16", "complex64", "longdouble", "U1"):
        with pytest.raises(DtypeNotSupportedError):
            check_supported(np.dtype(name))


def test_both_of_cs_names_for_a_64_bit_integer():
    x = np.arange(5, dtype=np.dtype("q"))
    found = fuse(lambda x: x + 1)(x)
    assert found.dtype == (x + 1).dtype
    np.testing.assert_array_equal(found, x + 1)
    assert {row for row in ops.rows()} >= set(BINARY) - {"several"}


def test_errors_of_types_are_about_the_operation():
    x = np.ones(3, np.float32)
    for call, kind in (
        (lambda: typed(lambda x: x & x, x), FusionTypeError),
        (lambda: typed(lambda x: x.astype(np.int8, casting="safe"), x), FusionTypeError),
        (lambda: typed(lambda x, n: x.astype(np.int8) ** n, x, -1), FusionValueError),
        (lambda: typed(lambda x: x + 1j, x), FusionNotImplementedError),
    ):
        found = outcome(call)
        assert isinstance(found, kind)
        assert found.loc is not None
