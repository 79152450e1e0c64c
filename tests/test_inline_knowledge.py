"""What the inliner says of captured values, frames and places, and its errors."""

from __future__ import annotations

import ast
import math
import types

import numpy as np
import pytest
from inlining import E, H, check, clip01, early, fuse, grade, holds, text

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
from numfuse.frontend.frames import in_element_frame, is_host_call, loc_of

GAIN = 2.0
OFFSETS = (0.5, -1.0, 2.0)
SETTINGS = {"gain": 3.0, "curve": np.sin}
TABLE = np.arange(4.0)
PARAMETERS = types.SimpleNamespace(sigma=1.5, inner=types.SimpleNamespace(mu=0.25))
MISSING = None


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
    assert holds(inlined)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "clip01", lambda v: v)
        assert not holds(inlined)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "abs", lambda v: v)
        assert not holds(inlined)
    with monkeypatch.context() as patch:
        patch.setattr(clip01, "__code__", (lambda v: v).__code__)
        assert not holds(inlined)
    with monkeypatch.context() as patch:
        patch.setattr(np, "minimum", np.maximum)
        assert not holds(inlined)
    assert holds(inlined)


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
        (lambda x: lambda: x, FusionSyntaxError, "function used as a value"),
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
    assert [place.function.rsplit(".", 1)[-1] for place in caught.value.loc.chain()] == [
        "<lambda>",
        "middle",
        "innermost",
    ]


def test_places_of_the_tree():
    inlined = fuse(lambda x: clip01(x), x=E)
    call = inlined.tree.body[-1].value
    place = loc_of(call)
    assert place.function == "clip01"
    assert place.call_site.function.endswith("<lambda>")


def test_an_update_of_an_element_that_nothing_reads():
    def lost(x, y):
        if x > 0:
            x += y
        return y

    def kept(x, y):
        while x > 0:
            x -= y
        y += 1
        return y

    with pytest.raises(FusionSyntaxError, match=r"this changes nothing.*helper\(x\)"):
        fuse(lost, x=E, y=E)
    assert fuse(kept, x=E, y=E).element_frame

    def array(x, y):
        x += y
        return y

    assert "x += y" in text(fuse(array, x=E, y=E))
