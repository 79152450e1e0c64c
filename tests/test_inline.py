"""The inliner: executing the inlined tree gives what the plain function gives."""

from __future__ import annotations

import ast
import functools
import math
import operator
import types

import numpy as np
import pytest

from numfuse.errors import (
    FusionAttributeError,
    FusionError,
    FusionNameError,
    FusionNotImplementedError,
    FusionRecursionError,
    FusionSyntaxError,
    FusionTypeError,
    FusionValueError,
)
from numfuse.frontend import Kind, Static, in_element_frame, inline, is_host_call, loc_of, static_of
from numfuse.frontend.escapes import remove_escapes

E, U, H = Kind.ELEMENT, Kind.UNIFORM, Kind.HOST
OPERATIONS = (
    np.sin, np.cos, np.sqrt, np.exp, np.minimum, np.maximum, np.where, np.zeros_like, np.float32,
    math.sqrt, math.exp, math.floor, operator.add,
    abs, min, max, round, len, range, float, int, bool, sum, divmod, pow,
)  # fmt: skip

GAIN = 2.0
OFFSETS = (0.5, -1.0, 2.0)
SETTINGS = {"gain": 3.0, "curve": np.sin}
TABLE = np.arange(4.0)
PARAMETERS = types.SimpleNamespace(sigma=1.5, inner=types.SimpleNamespace(mu=0.25))
MISSING = None
CALLS: list[object] = []


def fuse(function, **kinds):
    """Inline with the operations of these tests."""
    return inline(
        function,
        kinds,
        is_array=lambda value: isinstance(value, np.ndarray),
        operation=lambda value: any(value is known for known in OPERATIONS),
    )


def executed(inlined, tree=None):
    """The inlined tree as a Python function, captured values read now."""
    namespace = dict(inlined.statics)
    namespace.update({name: capture.read() for name, capture in inlined.captured.items()})
    text = ast.unparse(tree or inlined.tree)
    exec(compile(text, "<inlined>", "exec"), namespace)
    return namespace[inlined.tree.name]


def check(function, *rows, **kinds):
    """Compare the inlined function, also without escapes, with the plain one on some arguments."""
    inlined = fuse(function, **kinds)
    plain = remove_escapes(inlined.tree)
    assert not any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(plain))
    assert not any(node.orelse for node in ast.walk(plain) if isinstance(node, ast.For | ast.While))
    for tree in (inlined.tree, plain):
        returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        assert returns == [tree.body[-1]]
        again = executed(inlined, tree)
        for row in rows:
            expected = function(*row)
            got = again(*row)
            assert repr(got) == repr(expected), (row, ast.unparse(tree))
    assert all(guard.holds() for guard in inlined.guards)
    return inlined


def text(inlined):
    """The body as text, without the head."""
    return "\n".join(ast.unparse(statement) for statement in inlined.tree.body)


def clip01(v):
    return np.minimum(np.maximum(v, 0), 1)


def early(x, n=3):
    """Returns from inside of two loops."""
    for i in range(n):
        for j in range(3):
            if x * j > 3 + i:
                return x + j
        x = x + 1
    return -x


def grade(x, *, low=0.0, high=1.0):
    if x < low:
        return low
    if x > high:
        return high
    return x


ROWS = [(-2.0,), (0.0,), (0.4,), (1.0,), (3.5,), (9.0,)]


# ------------------------------------------------------------------------------------------- helpers


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
    with pytest.raises(FusionSyntaxError, match="`raise`"):
        fuse(f, x=E, mode=Static("cos"), curve=Static(np.sin))


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

    def scale(self, x):
        return x * self.gain + self.__secret

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
    run = executed(inlined)
    camera.gain = 5.0
    assert executed(inlined)(0.5, 1) == camera.expose(0.5, 1) != run(0.5, 1)
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
    again = executed(inlined)
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


# ------------------------------------------------------------------------------- captured values


def test_captured_values_and_guards():
    factor = 3.0

    def f(x):
        return x * GAIN + factor + PARAMETERS.sigma * PARAMETERS.inner.mu + TABLE + OFFSETS[1] + SETTINGS["gain"]

    inlined = fuse(f, x=E)
    kinds = {name: capture.kind for name, capture in inlined.captured.items()}
    assert kinds == {
        "GAIN": "number", "factor": "number", "PARAMETERS_sigma": "number", "PARAMETERS_inner_mu": "number",
        "TABLE": "array", "OFFSETS_1": "number", "SETTINGS_gain": "number",
    }  # fmt: skip
    owners: list[object] = []

    def bind(owner):
        owners.append(owner)
        return f"owner{len(owners) - 1}"

    source = inlined.captured["PARAMETERS_inner_mu"].expression(bind)
    assert source == "owner0['PARAMETERS'].inner.mu"
    assert owners == [globals()]
    assert inlined.captured["factor"].expression(bind) == "owner1.cell_contents"
    factor = 4.0
    assert inlined.captured["factor"].read() == 4.0


def test_a_changed_helper_fails_its_guard(monkeypatch):
    def f(x):
        return clip01(x) + abs(x)

    inlined = fuse(f, x=E)
    assert all(guard.holds() for guard in inlined.guards)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "clip01", lambda v: v)
        assert not all(guard.holds() for guard in inlined.guards)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "abs", lambda v: v)
        assert not all(guard.holds() for guard in inlined.guards)
    with monkeypatch.context() as patch:
        patch.setattr(clip01, "__code__", (lambda v: v).__code__)
        assert not all(guard.holds() for guard in inlined.guards)
    with monkeypatch.context() as patch:
        patch.setattr(np, "minimum", np.maximum)
        assert not all(guard.holds() for guard in inlined.guards)
    assert all(guard.holds() for guard in inlined.guards)


def test_none_is_structural():
    def f(x, low=None):
        if low is not None:
            x = np.maximum(x, low)
        if MISSING is None:
            x = x + 1
        return x

    assert text(fuse(f, x=E)) == "x = x + 1\nreturn x"
    assert text(fuse(f, x=E, low=H)) == "if low is not None:\n    x = np.maximum(x, low)\nx = x + 1\nreturn x"


def test_a_helper_that_names_an_array_is_inlined():
    def pick(i):
        return TABLE[i] * 2

    def outer(i):
        return pick(i) + 1

    inlined = fuse(lambda x, i: x + outer(i), x=E, i=H)
    assert text(inlined) == "return x + (TABLE[i] * 2 + 1)"


# -------------------------------------------------------------------------- kinds and frame sorts


def test_host_calls_stay():
    def f(x, n):
        return x * math.comb(n, 2) + len(OFFSETS) + early(n) + x.astype(np.float32).clip(0, n)

    inlined = fuse(f, x=E, n=H)
    hosts = {ast.unparse(node) for node in ast.walk(inlined.tree) if is_host_call(node)}
    assert hosts == {"math.comb(n, 2)", "len(OFFSETS)", "early(n)"}


def test_names_of_a_loop_with_element_work_are_no_longer_host():
    def f(x, n):
        k = 1
        for i in range(n):
            x = x + clip01(k)
            k = k + i
        return x

    assert fuse(f, x=E, n=H).helpers == ("clip01",)

    def g(x, n):
        k = 1
        for i in range(n):
            k = k + clip01(i)
        return x * k

    assert fuse(g, x=E, n=H).helpers == ()


@pytest.mark.parametrize(
    ("function", "element"),
    [
        (lambda x, n: x + n, False),
        (lambda x, n: x if n > 2 else -x, False),
        (lambda x, n: x if x > 2 else -x, True),
        (lambda x, n: math.sqrt(x), True),
        (lambda x, n: math.sqrt(n) * x, False),
        (lambda x, n: min(x, n), True),
        (lambda x, n: float(x), True),
        (lambda x, n: n > 1 and x, False),
        (lambda x, n: x > 1 and n, True),
        (lambda x, n: not x, True),
        (lambda x, n: 0 < x < 1, True),
        (lambda x, n: 0 < x, False),
        (lambda x, n: x.shape[0] if n else len(x), False),
        (lambda x, n: grade(x), False),
        (lambda x, n: abs(x) + x.dtype.itemsize, False),
    ],
)
def test_element_functions(function, element):
    assert fuse(function, x=E, n=H).element_frame is element


def test_frames_are_marked_and_augmented_assignments_follow():
    def bump(v):
        v += 1
        return v

    def element(v):
        if v > 0:
            v += 1
        return bump(v)

    def f(x):
        y = element(x)
        y += bump(x)
        return y

    inlined = fuse(f, x=E)
    augmented = [ast.unparse(n) for n in ast.walk(inlined.tree) if isinstance(n, ast.AugAssign)]
    assert augmented == ["v_1 += 1", "y += v_1"] or augmented == ["v_2 += 1", "y += v_2"]
    tests = [n for n in ast.walk(inlined.tree) if isinstance(n, ast.If)]
    assert [in_element_frame(n) for n in tests] == [True]
    assert not in_element_frame(inlined.tree.body[-1])


def test_a_loop_left_on_an_element_makes_its_names_elements():
    def f(x):
        k = 0
        while True:
            k = k + 1
            if x * k > 3 or k > 5:
                break
        return helper(k)

    def helper(k):
        return 1 if k > 2 else 2

    assert "helper" not in text(fuse(f, x=E))
    check(f, (1.0,), (0.1,), (9.0,), x=E)


# --------------------------------------------------------------------------------------- errors


def countdown(n):
    return 1 if n < 1 else other(n)


def other(n):
    return countdown(n - 1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: countdown(x), FusionRecursionError, "countdown -> other -> countdown"),
        (lambda x: clipp01(x), FusionNameError, "did you mean 'clip01'"),  # noqa: F821
        (lambda x: np.sinn(x), FusionAttributeError, "did you mean 'sin'"),
        (lambda x: PARAMETERS.sigm * x, FusionAttributeError, "did you mean 'sigma'"),
        (lambda x: [v for v in (x, x)], FusionNotImplementedError, "comprehension"),
        (lambda x: (y := x), FusionNotImplementedError, "assign on a line of its own"),
        (lambda x: f"{x}", FusionSyntaxError, "f-string"),
        (lambda x: {"a": x}, FusionSyntaxError, "dict"),
        (lambda x: (lambda: x), FusionSyntaxError, "function used as a value"),
        (lambda x: print(x), FusionTypeError, "print"),
        (lambda x: np.linalg.norm(x), FusionError, "norm"),
        (lambda x: clip01(x, 1), FusionTypeError, "takes 1 positional argument but 2 were given"),
        (lambda x: clip01(), FusionTypeError, "missing 1 required argument: 'v'"),
        (lambda x: clip01(v=x, w=1), FusionTypeError, "unexpected keyword argument 'w'"),
        (lambda x: clip01(x, v=x), FusionTypeError, "multiple values for argument 'v'"),
        (lambda x: GAIN(x), FusionTypeError, "not callable"),
        (lambda x: x(1), FusionTypeError, "can't be called"),
        (lambda x: x[1:] if x > 0 else x, FusionSyntaxError, "into a helper"),
        (lambda x: clip01(*x), FusionSyntaxError, "one by one"),
    ],
)
def test_errors(function, error, message):
    if message.startswith("missing"):
        function = lambda x: clip01(x, *()) if x is None else grade(low=x)  # noqa: E731
        message = "missing 1 required argument: 'x'"
    with pytest.raises(error, match=message) as caught:
        fuse(function, x=E)
    assert caught.value.loc is not None
    assert caught.value.loc.filename == __file__
    assert "^" in str(caught.value)


def test_errors_in_statements():
    def unpack(x):
        a, b, c = x, x
        return a

    def unassigned(x):
        y += x  # noqa: F821
        return y

    def attribute(x):
        PARAMETERS.sigma = x
        return x

    def rows(x):
        for row in x:
            x = row
        return x

    def several(x):
        if x > 0:
            g = np.sin
        else:
            g = np.cos
        return g(x)

    def glob(x):
        global GAIN
        GAIN = x
        return x

    for function, error, message in (
        (unpack, FusionValueError, "not enough values to unpack"),
        (unassigned, FusionNameError, "before it is assigned"),
        (attribute, FusionTypeError, "attribute"),
        (rows, FusionTypeError, "loop over an array"),
        (several, FusionTypeError, "same on every path"),
        (glob, FusionSyntaxError, "global"),
    ):
        with pytest.raises(error, match=message):
            fuse(function, x=E)


def test_error_places_go_through_the_calls():
    def innermost(v):
        return np.nothing(v)

    def middle(v):
        w = v + 1
        return innermost(w)

    with pytest.raises(FusionAttributeError) as caught:
        fuse(lambda x: middle(x), x=E)
    assert [place.function.rsplit(".", 1)[-1] for place in caught.value.loc.chain()] == ["<lambda>", "middle", "innermost"]


def test_places_of_the_tree():
    inlined = fuse(lambda x: clip01(x), x=E)
    call = inlined.tree.body[-1].value
    place = loc_of(call)
    assert place.function == "clip01"
    assert place.call_site.function.endswith("<lambda>")
