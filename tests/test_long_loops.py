"""Loops that a kernel runs: aliases, Python numbers, steps, iterators. Each test failed once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from agreeing import CHILD, HEAD, I8, D, F, N, agree, same_result
from comparing import variants

from numfuse import fuse

# --- the counter of range(x, ...) never advances: endless loop in a native kernel (Ctrl-C does not help)


def test_range_that_starts_at_an_element(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        HEAD + "def f(n, a):\n    s = 0\n    for i in range(n, a): s += i\n    return s\n"
        "got = fuse(f)(np.arange(-3, 4), 10)\nassert got.tolist() == [f(int(n), 10) for n in range(-3, 4)]\n"
    )
    assert subprocess.run([sys.executable, str(program)], timeout=30, env=CHILD).returncode == 0


# --- two names of one array in a carried loop: both get the last one's value


def two_names(x, n):
    y = x * 1
    z = y
    for _ in range(n):
        y += 1
        y = y * 2
    return y, z


def two_names_b(x, n):
    y = x * 1
    z = y
    for _ in range(n):
        y = y + 1
        z += 2
    return y, z


@pytest.mark.parametrize("function", [two_names, two_names_b])
def test_names_that_stop_sharing_in_a_carried_loop(function):
    agree(function, fuse(function), D, 40)


# --- step 0 after a negative step: silent, or an endless loop for start > stop


def stepped(x, a, b, c):
    s = x * 0
    for i in range(a, b, c):
        s = s + i
    return s


def test_zero_step_after_a_negative_one():
    f = fuse(stepped)
    agree(stepped, f, F, 300, 0, -7)
    agree(stepped, f, F, 0, 300, 0)  # (300, 0, 0) does not come back


# --- host while: a variant for every number, without limit


def counted(x, n):
    i = 0
    while i < n:
        x = x + i
        i += 1
    return x


def test_while_on_a_number_that_changes_compiles_few_variants():
    f = fuse(counted)
    for n in range(30):
        f(F[:3], n)
    assert variants(f) <= 10


# --- range(float element) and range(bool element) are TypeErrors in Python


def to(n):
    s = 0
    for i in range(n):
        s += i
    return s


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_range_of_an_element_that_is_no_integer(dtype):
    with pytest.raises(TypeError):
        fuse(to)(np.array([1, 0], dtype))


# --- a variable that some elements never assign reads as 0


def partly(x):
    if x > 0:
        y = x
    return y


def test_unassigned_on_some_elements():
    with pytest.raises(NameError):
        fuse(partly)(D)


# --- two names of one array (or number) before a carried loop


def fibonacci(n):
    a = n
    b = n
    for _ in range(30):
        if a > 1000:
            break
        a, b = b, a + b
    return a


def test_two_names_in_an_element_loop():
    got = fuse(fibonacci)(N)
    assert got.tolist() == [int(fibonacci(v)) for v in N]


def test_array_frame_fibonacci():
    def f(x, n):
        a = x
        b = x
        for _ in range(n):
            a, b = b, a + b
        return a, b

    agree(f, fuse(f), N, 40)


# --- Python numbers carried through more than 16 turns


def factorials(x, n):
    k, s = 1, 0.0 * x
    for i in range(1, n):
        k *= i
        s = s + x / k
    return s


def test_factorials():
    agree(factorials, fuse(factorials), D, 80)


def product(x, n):
    k = 1
    for _ in range(n):
        k *= 3
    return x, k


def test_a_big_python_int_is_a_result():
    agree(product, fuse(product), D, 100)


def summed(x, n):
    k = 0
    for i in range(n):
        k += i
    return x + k


def test_overflow_error_of_a_carried_number():
    agree(summed, fuse(summed), I8, 100)


def powers(x, n):
    s = x * 0
    for i in range(n):
        s = s + 2**i
    return s


def deciding(x, n):
    k = 1
    for _ in range(n):
        k = k * 3
        if k % 7 == 1:
            x = x + 1
    return x


def reciprocal(x, n):
    s = x * 0
    for i in range(n):
        s = s + 1 / (i - 20)
    return s


@pytest.mark.parametrize("function", [powers, deciding, reciprocal])
def test_python_numbers_in_a_long_loop(function):
    agree(function, fuse(function), D, 70)


# --- numbers of the host in loops that were first written out in vain


def grown(x, gain, bias):
    i = 0
    while i < 200:
        x = x * gain
        i += 1
    return x + bias


def halved(a, tolerance, scale):
    while a > tolerance:
        a = 0.5 * a
    return a * scale


def fourier(x, n=60):
    s = 0.0
    for k in range(1, n):
        s += np.sin(k * x) / k
    return s


def bound_in_a_loop(a, b):
    n = 0
    while n < 3 or b < 0:
        y = b * 1.0
        n += 1
    return a * y


def test_numbers_of_the_host_keep_their_places():
    same_result(grown(D, 1.01, 5.0), fuse(grown)(D, 1.01, 5.0))
    want = np.array([halved(v, 0.1, 1000.0) for v in D])
    np.testing.assert_array_equal(fuse(halved)(D, 0.1, 1000.0), want)


@pytest.mark.parametrize("x", [F, D])
def test_a_sum_that_starts_as_a_number(x):
    got, want = fuse(fourier)(x), fourier(x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_variable_that_a_loop_makes_keeps_its_dtype():
    got = fuse(bound_in_a_loop)(F, abs(D))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, F * abs(D))


# --- a long-loop variant meets a bound that only a short loop could take: refused depending on history


def test_huge_bounds_do_not_depend_on_history():
    f = fuse(stepped)
    f(F, 0, 300, 7)
    same_result(stepped(F, 2**70, 2**70 + 3, 1), f(F, 2**70, 2**70 + 3, 1))
