"""What a fused function remembers between calls: captured values, structural values, branches, layouts."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from comparing import X, kernels, same, variants

from numfuse import FusionNameError, fuse

gain: Any = 2.0
table: Any = np.arange(7.0)
power: Any = 2


class Parameters:
    """An object with numbers, as programs keep their settings."""

    def __init__(self, shift: Any) -> None:
        self.shift = shift


parameters = Parameters(0.5)


def scaled(v):
    return v * gain


def shifted(v):
    return v + gain


@pytest.fixture
def module(monkeypatch) -> pytest.MonkeyPatch:
    """Sets this module's own globals, and puts them back."""

    class Setter:
        def __setattr__(self, name: str, value: object) -> None:
            monkeypatch.setattr(sys.modules[__name__], name, value)

    return Setter()


# --------------------------------------------------------------------------------------------------------
# Captured values


def test_a_changed_number_compiles_nothing(module):
    def f(x):
        return scaled(x) + parameters.shift

    fused = fuse(f)
    same(fused(X), X * np.float32(2) + np.float32(0.5))
    module.gain, module.parameters = 3.0, Parameters(9.0)
    same(fused(X), X * np.float32(3) + np.float32(9))
    parameters.shift = -1.0
    same(fused(X), f(X))
    assert variants(fused) == kernels(fused) == 1


def test_a_number_of_another_type_is_another_program(module):
    def f(x):
        return scaled(x)

    fused = fuse(f)
    for count, value in enumerate((2.0, np.float64(2), np.float32(2), 2, True, table, np.arange(7, dtype=np.int8)), 1):
        module.gain = value
        same(fused(X), f(X))
        assert variants(fused) == count
    module.gain = 2.5
    same(fused(X), f(X))
    assert variants(fused) == count


def test_a_captured_array_is_read_where_it_is_now(module):
    def f(x):
        return x + table

    fused = fuse(f)
    module.table = np.arange(7.0)
    same(fused(X), f(X))
    table[0] = 100
    same(fused(X), f(X))
    module.table = np.arange(14.0)[::2]
    same(fused(X), f(X))
    module.table = np.ones((2, 1))
    same(fused(X), f(X))
    assert variants(fused) == 1
    module.table = np.arange(7, dtype=np.int16)
    same(fused(X), f(X))
    module.table = 4
    same(fused(X), f(X))
    module.table = np.arange(7.0)
    same(fused(X), f(X))
    assert variants(fused) == 3


def test_closure_cells_are_read_at_each_call():
    def make():
        factor = 2.0

        def change(value):
            nonlocal factor
            factor = value

        return fuse(lambda x: x * factor), change

    fused, change = make()
    for value in (2.0, 3.0, 4.5):
        change(value)
        same(fused(X), X * np.float32(value))
    assert variants(fused) == 1


def test_a_changed_helper_is_noticed(module):
    def f(x):
        return scaled(x)

    fused = fuse(f)
    same(fused(X), X * 2)
    original = scaled
    module.scaled = shifted
    same(fused(X), X + 2)
    module.scaled = original
    same(fused(X), X * 2)
    code = scaled.__code__
    scaled.__code__ = shifted.__code__
    try:
        same(fused(X), X + 2)
    finally:
        scaled.__code__ = code
    same(fused(X), X * 2)


def test_a_name_that_goes_away_and_comes_back(module, monkeypatch):
    def f(x):
        return scaled(x)

    fused = fuse(f)
    same(fused(X), X * 2)
    with monkeypatch.context() as inside:
        inside.delattr(sys.modules[__name__], "gain")
        with pytest.raises(FusionNameError, match="name 'gain' is not defined"):
            fused(X)
    same(fused(X), X * 2)
    assert variants(fused) == 1


def test_functions_and_modules_as_arguments():
    def f(x, function, xp=np):
        return xp.sqrt(xp.abs(function(x)))

    fused = fuse(f)
    for function in (scaled, shifted, lambda v: -v, np.square, np.square):
        same(fused(X, function), f(X, function))
    assert variants(fused) == 4
    shim = types.ModuleType("shim")
    shim.sqrt, shim.abs = np.square, np.abs
    same(fused(X, scaled, shim), f(X, scaled, shim))


# --------------------------------------------------------------------------------------------------------
# Structural values


def test_exponents_get_few_kernels(module):
    def f(x):
        return x**power

    fused = fuse(f)
    with np.errstate(all="ignore"):
        for value in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11.5, 12, 1.75, 13, 0.5, -1, 2):
            module.power = value
            np.testing.assert_allclose(fused(X), f(X), rtol=1e-6)
            assert fused(X).dtype == np.float32
        many = kernels(fused)
        for value in (14, 15, 16, 2.125, 17, 1.5):
            module.power = value
            np.testing.assert_allclose(fused(X), f(X), rtol=1e-6)
    assert kernels(fused) == many <= 14  # 8 values, sqrt, reciprocal, and one each of int and float exponents


def test_range_bounds_get_few_kernels():
    def f(x, n):
        total = x * 0
        for i in range(n):
            total = total + x * i
        return total

    fused = fuse(f)
    for n in range(20):
        same(fused(X, n), f(X, n))
    assert variants(fused) <= 10


def test_a_range_that_changes_direction():
    def f(x, start, stop, step):
        total = x * 0
        for i in range(start, stop, step):
            total = total * 2 + i
        return total

    fused = fuse(f)
    for bounds in ((0, 30, 1), (30, 0, -1), (5, 5, 1), (3, 60, 4), (60, 3, -4)):
        same(fused(X, *bounds), f(X, *bounds))
    with pytest.raises(ValueError, match="arg 3 must not be zero"):
        fused(X, 0, 3, 0)


@pytest.mark.parametrize("items", [(1.5, 2), [3], [], range(4), {0: 5, 1: 7}, {3}, {1: 2}.values()])
def test_loops_go_over_what_python_iterates(items):
    def f(x, items):
        total = x
        for item in items:
            total = total * 2 + item
        return total

    fused = fuse(f)
    for _ in range(2):
        same(fused(X, items), f(X, items))
    same(fused(X, (4, 5.0)), f(X, (4, 5.0)))


# --------------------------------------------------------------------------------------------------------
# Branches that Python decides


def test_branches_of_the_host_are_variants():
    def f(x, k, mode="sum"):
        if mode == "both":
            return x + k, x * 2.0
        if k > 0:
            return x + k
        return x.astype(np.float64) - k, k

    fused = fuse(f)
    for k in (1, 2, 3, -1, -5, 0):
        same(fused(X, k), f(X, k))
    assert variants(fused) == kernels(fused) == 2
    for k in (1, -1):
        same(fused(X, k, "both"), f(X, k, "both"))
    assert variants(fused) == 3


def test_what_python_computes_stays_pythons():
    def f(x, n):
        big = 2**n // 3
        return x * (big % 7), big

    fused = fuse(f)
    for n in (10, 100, 1000):
        same(fused(X, n), f(X, n))
    assert variants(fused) == 1
    with pytest.raises(ZeroDivisionError):
        fuse(lambda x, n: x + 1 / n)(X, 0)


# --------------------------------------------------------------------------------------------------------
# Layouts


def test_layouts_are_plans_of_one_variant():
    fused = fuse(lambda x, y: x + y)
    z = np.arange(64, dtype=np.float32).reshape(8, 8)
    pairs = ((z, z), (z, z.T), (z, z[0]), (z[::2], z[:4, :1]), (z.ravel(), z.ravel()), (z[:3], z[:3]))
    for _ in range(2):
        for x, y in pairs:
            same(fused(x, y), x + y)
        assert (variants(fused), len(fused._plans)) == (1, len(pairs))
    assert kernels(fused) == 4  # dense operands of any size share one


def test_sizes_share_a_kernel():
    fused = fuse(lambda x, y: x - y)
    for size in (1, 2, 3, 5, 8, 15, 16, 17, 100, 1000, 4097, 300_000):
        x = np.arange(size, dtype=np.float32)
        same(fused(x, x[::-1].copy()), x - x[::-1])
    assert kernels(fused) == 1


def test_plans_stay_bounded(monkeypatch):
    monkeypatch.setattr("numfuse.fused.MAX_PLANS", 8)
    fused = fuse(lambda x: x * 2)
    for size in range(1, 30):
        same(fused(X[:1].repeat(size)), X[:1].repeat(size) * 2)
        assert len(fused._plans) <= 8
    assert kernels(fused) == 1


def test_functions_as_arguments_stay_bounded(monkeypatch):
    monkeypatch.setattr("numfuse.variants.MAX_VARIANTS", 8)
    fused = fuse(lambda x, function: function(x))
    for k in range(30):
        same(fused(X, lambda v, k=k: v + k), X + k)
        assert len(fused._variants) <= 8


def test_plain_calls_stay_bounded(monkeypatch):
    monkeypatch.setattr("numfuse.fused.MAX_PLANS", 8)
    fused = fuse(lambda x, function: function(x))
    for k in range(30):
        assert fused(1.0, lambda v, k=k: v + k) == 1.0 + k
        assert len(fused._plans) <= 8


def test_a_full_table_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr("numfuse.fused.MAX_PLANS", 2)
    monkeypatch.setattr("numfuse.variants.MAX_VARIANTS", 2)
    fused = fuse(lambda x, n: x * n if n > 0 else x - n)
    for array in (X, X.astype(np.float64)):
        for n in (1.0, -1.0):  # two entries under one key
            same(fused(array, n), array * n if n > 0 else array - n)
    assert (len(fused._plans), len(fused._variants), variants(fused)) == (2, 2, 4)


def test_structural_values_are_not_collected_for_ever(module):
    fused = fuse(lambda x: x**power)
    for value in range(40):
        module.power = float(value)
        with np.errstate(all="ignore"):
            fused(X)
    assert max(map(len, fused._structural.values())) <= 9
