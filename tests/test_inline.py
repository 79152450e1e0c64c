"""The inliner: executing the inlined tree gives what the plain function gives."""

from __future__ import annotations

import ast
import functools

import numpy as np
import pytest
from inlining import E, H, check, clip01, early, fuse, grade, runnable, text

from numfuse.frontend.binding import Static
from numfuse.frontend.frames import is_host_call, static_of

GAIN = 2.0
SETTINGS = {"gain": 3.0, "curve": np.sin}
CALLS: list[object] = []


ROWS = [(-2.0,), (0.0,), (0.4,), (1.0,), (3.5,), (9.0,)]


def test_helper_is_inlined_readably():
    def tone(x, gain, gamma=2.0):
        return clip01(gain * x) ** (1 / gamma)

    inlined = check(tone, (0.25, 2.0), (-1.0, 1.0), x=E, gain=H)
    assert text(inlined) == "v = gain * x\nreturn np.minimum(np.maximum(v, 0), 1) ** (1 / gamma)"
    assert inlined.helpers == ("clip01",)
    assert not inlined.element_frame
    assert inlined.captured["gamma"].kind == "number"


def test_a_plain_argument_is_substituted():
    assert text(check(lambda x: clip01(x), *ROWS, x=E)) == "return np.minimum(np.maximum(x, 0), 1)"


def test_local_names_of_helpers_are_fresh():
    def helper(x):
        v = x + 1
        v = v * 2
        return v

    def outer(x, v):
        y = helper(x) + v
        return helper(y) - helper(v)

    inlined = check(outer, (1, 2), (3.5, -1), x=E, v=E)
    assert {"v", "v_1", "v_2", "v_3"} <= {n.id for n in ast.walk(inlined.tree) if isinstance(n, ast.Name)}


def test_parameter_reassigned_in_helper_leaves_the_argument():
    def helper(x):
        x = x * 2
        x += 1
        return x

    check(lambda x: helper(x) - x, *ROWS, x=E)


def test_early_returns_in_nested_loops_twice():
    check(lambda a: early(a) * 100 + early(a * 2, n=2), *ROWS, a=E)


def test_early_returns_of_the_function_itself():
    inlined = check(early, *((x, n) for (x,) in ROWS for n in range(4)), x=E, n=H)
    assert inlined.element_frame


def test_return_in_one_arm_moves_the_rest():
    inlined = check(lambda x: grade(x, high=2.0), *ROWS, x=E)
    assert "returned" not in text(inlined)


def test_return_that_only_may_happen():
    def f(x, y):
        if x > 0:
            if y > 0:
                return x + y
            x = -x
        elif y > 1:
            while y > 0:
                y = y - 2
                if y == x:
                    return y * 10
            else:
                x = 7
        return x * y

    check(f, *((x, y) for x in (-2, -1, 0, 1, 2) for y in range(-2, 5)), x=E, y=E)


def test_return_in_else_of_a_loop_inside_a_loop():
    def f(x, n):
        for i in range(n):
            for j in range(i):
                if x == j * i:
                    break
                if x == 11 + j:
                    return "inner"
            else:
                if x > 5:
                    return "else"
                continue
            x = x + 1
        return x

    check(f, *((x, n) for x in range(14) for n in range(5)), x=E, n=H)


def test_defaults_keywords_and_stars():
    def poly(x, *coefficients, bias=None, scale=GAIN):
        if bias is None:
            bias = 0.5
        total = bias
        for c in coefficients:
            total = total * x + c
        return total * scale

    def forward(*args, **kwargs):
        return poly(*args, **kwargs)

    def f(x, k):
        return (
            poly(x, 1.0, k, x * 2), poly(x + 1, bias=x), forward(x, k, scale=3), poly(*(x, k, 2)),
            grade(high=k, x=x), len((x, k)),
        )  # fmt: skip

    inlined = check(f, (1.5, 2), (-3.0, 4.5), x=E, k=H)
    assert "None" not in text(inlined)


def test_tuple_results_and_nested_unpacking():
    def split(x, y):
        return x + y, (x - y, x * y)

    def f(x, y):
        s, (d, p) = split(x, y)
        y, x = x, y
        q = split(x, s)
        a = b = q[1][0]
        [c, e] = q[1]
        return s, d, p, q[0], a + b, c - e, x

    check(f, (1.0, 2.0), (-3, 5), x=E, y=E)


def test_structural_arguments():
    def apply(function, *args):
        return function(*args)

    def f(x, y):
        def inner(v, w=y * 2):
            return v * w + y

        g = lambda t: apply(inner, t) + np.sin(t)  # noqa: E731
        s = apply(g, x) + apply(lambda v: apply(g, v), y)
        y = y + 1
        return s + inner(1, 2) + apply(SETTINGS["curve"], x)

    inlined = check(f, (0.5, 2.0), (-1.0, 0.0), x=E, y=E)
    assert "SETTINGS['curve']" in text(inlined)


def test_static_parameters_choose_branches():
    def f(x, mode, curve, bias=None):
        if mode == "sin" and bias is None:
            return curve(x)
        raise ValueError(mode)

    inlined = fuse(f, x=E, mode=Static("sin"), curve=Static(np.sin))
    assert text(inlined) == "return curve(x)"
    assert static_of(inlined.tree.body[0].value.func).value is np.sin
    inlined = fuse(f, x=E, mode=Static("sin"), curve=Static(lambda v: v * GAIN))
    assert text(inlined) == "return x * GAIN"
    inlined = fuse(f, x=E, mode=Static("cos"), curve=Static(np.sin))
    assert text(inlined) == "raise ValueError(mode)\nreturn None"


def test_module_parameter():
    def f(x, xp):
        return xp.sin(x) + xp.pi

    inlined = fuse(f, x=E, xp=Static(np))
    assert text(inlined) == "return xp.sin(x) + xp.pi"
    assert static_of(inlined.tree.body[0].value.right).value == np.pi


def test_loop_over_functions():
    stages = (np.sin, clip01, lambda v: v + 1)

    def f(x):
        for stage in stages:
            x = stage(x)
        for weight, stage in zip((1.0, 2.0), (np.cos, clip01), strict=False):
            x = weight * stage(x)
        for i, w in enumerate((x, 2, 3)):
            x = x + i * w
        return x

    check(f, *ROWS, x=E)


class Camera:
    """Methods, private names and attributes."""

    limit = 4.0

    def __init__(self, gain):
        self.gain, self.__secret, self.table = gain, 0.5, np.arange(3.0)

    def scale(self, __x):
        __gain = self.gain
        return __x * __gain + self.__secret

    def expose(self, x, i):
        return self.clamp(self.scale(x), self.limit) + self.table[i]

    @staticmethod
    def clamp(x, high):
        return np.minimum(x, high)

    @classmethod
    def bounded(cls, x):
        return np.minimum(x, cls.limit)

    def __call__(self, x):
        return self.scale(x) - self.bounded(x)


def test_methods_and_callable_objects():
    camera = Camera(2.0)
    inlined = check(camera.expose, (0.5, 1), (3.0, 2), x=E, i=E)
    assert inlined.captured["self_table"].kind == "array"
    run = runnable(inlined)
    camera.gain = 5.0
    assert runnable(inlined)(0.5, 1) == camera.expose(0.5, 1) != run(0.5, 1)
    check(camera, *ROWS, x=E)
    check(lambda x: camera(x) + camera.scale(x) + Camera.clamp(x, 1), *ROWS, x=E)


def test_partials_wrappers_and_vectorize():
    half = functools.partial(grade, high=0.5)
    vectorized = np.vectorize(clip01)

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) + 1

        return wrapper

    shifted = logged(clip01)
    cached = functools.lru_cache(clip01)
    check(half, *ROWS, x=E)
    inlined = check(lambda x: half(x) + vectorized(x) + shifted(x) * cached(x), *ROWS, x=E)
    assert "vectorized" not in text(inlined)
    assert text(fuse(np.vectorize(clip01), v=E)) == "return np.minimum(np.maximum(v, 0), 1)"


def test_numba_dispatchers_are_inlined_by_their_python_function():
    numba = pytest.importorskip("numba")
    jitted = numba.njit(clip01)
    ufunc = numba.vectorize(clip01)
    inlined = fuse(lambda x: jitted(x) - ufunc(x), x=E)
    assert inlined.helpers == ("clip01",)


# --------------------------------------------------------------------------- order and evaluation


def record(value):
    CALLS.append(value)
    return value


def test_order_of_evaluation_of_host_calls():
    def helper(a, b, *, c):
        d = record(a) + b
        return d + record(c)

    def f(x, k):
        y = record(k) * helper(record(k + 1), c=record(k + 2), b=record(k + 3)) + record(k + 4)
        z = record(k) if k > 2 and record(k + 5) > 1 else helper(k, k, c=k)
        return x + y + z

    inlined = fuse(f, x=E, k=H)
    again = runnable(inlined)
    for k in (1, 2, 3):
        CALLS.clear()
        expected = f(1.5, k)
        order = CALLS.copy()
        CALLS.clear()
        assert again(1.5, k) == expected
        assert order == CALLS
    calls = [node for node in ast.walk(inlined.tree) if isinstance(node, ast.Call)]
    assert all(is_host_call(call) for call in calls)


def test_conditional_helpers_are_not_hoisted():
    def f(x, k):
        a = early(k + x, 2) if x > 1 else x
        b = x > 0 and early(x) > 1 and x < 5 or early(x, 1)
        c = 0 < x < early(x) < early(x + 1, 1) < 100
        d = 0
        while early(d + x) < 3 and d < 10:
            d = d + 1
            if d == 7:
                continue
            if d > 8 or early(x) == 5:
                break
        else:
            d = d + 100
        return a, b, c, d

    check(f, *((x, k) for (x,) in ROWS for k in (0, 3)), x=E, k=E)


def test_endless_loop_with_flag_and_else():
    def f(n):
        total = 0
        while True:
            total = total + n
            if total > 20:
                break
            for k in range(3):
                if k * n > 4:
                    break
                if k == n:
                    continue
                total = total + 1
            else:
                total = total + 2
        return total, k

    check(f, (1,), (2,), (5,), (30,) if False else (3,), n=E)


def test_statements_that_vanish():
    def f(x):
        """Docstring."""
        pass
        assert x is not None
        y: float
        z: float = x
        with np.errstate(all="ignore"):
            z = z + 1
        "a string"
        return z

    assert text(check(f, *ROWS, x=E)) == "z = x\nz = z + 1\nreturn z"
