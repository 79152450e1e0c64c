"""``raise`` and ``assert``: kept where Python decides, refused or dropped where elements do."""

from __future__ import annotations

import ast
import enum

import numpy as np
import pytest
from inlining import E, H, check, fuse, runnable, text

import numfuse
from numfuse.errors import FusionSyntaxError, FusionTypeError
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import is_host_call, loc_of

X = np.array([0.5, 2.0], dtype=np.float32)


class BadModeError(ValueError):
    """An exception with more than a message."""

    def __init__(self, mode, allowed):
        super().__init__(f"{mode!r} is not one of {allowed}")
        self.mode = mode


class Curve(enum.Enum):
    LINE = "line"
    BEND = "bend"


def fail(mode):
    raise BadModeError(mode, ("a", "b"))


def by_mode(x, mode):
    if mode == "a":
        return x + 1
    if mode == "b":
        return x * 2
    raise ValueError(f"bad mode {mode!r:>5} of {x.dtype}")


def by_helper(x, mode):
    return x + 1 if mode == "a" else fail(mode) + x


def by_number(x, n):
    if n < 0:
        raise ValueError("n is negative") from KeyError(n)
    for k in range(n):
        if k > 2:
            raise OverflowError(f"{k} of {n}: too many {{turns}}")
        x = x * 2
    return x


def checked(x, gain):
    assert x.ndim == 1
    assert gain > 0, f"gain is {gain}"
    return x * gain


def outcome(function, *args):
    """The result, or the type, the arguments and the cause of what is raised."""
    try:
        return function(*args).tolist()
    except Exception as error:
        message = str(error).partition("\n")[0]  # pytest adds lines to those of assertions
        return type(error), message, type(error.__cause__), getattr(error, "mode", None)


@pytest.mark.parametrize("function", [by_mode, by_helper])
def test_a_structural_value_decides(function):
    fused = numfuse.fuse(function)
    for mode in ("a", "c", "b", "c", "a"):
        assert outcome(fused, X, mode) == outcome(function, X, mode)


def test_a_number_decides():
    fused = numfuse.fuse(by_number)
    for n in (2, -1, 3, -2, 0, 5):
        assert outcome(fused, X, n) == outcome(by_number, X, n)


def test_what_arrives_in_the_tree():
    inlined = fuse(by_number, x=E, n=H)
    found = [node for node in ast.walk(inlined.tree) if isinstance(node, ast.Raise)]
    assert len(found) == 2
    assert loc_of(found[0]).line == by_number.__code__.co_firstlineno + 2
    assert is_host_call(found[0].exc)
    assert is_host_call(found[0].cause)
    assert isinstance(found[1].exc.args[0], ast.JoinedStr)
    with pytest.raises(OverflowError, match=r"3 of 5: too many {turns}"):
        runnable(inlined)(1.0, 5)
    inlined = fuse(by_mode, x=E, mode=Static("c"))
    assert text(inlined) == "raise ValueError(f'bad mode {mode!r:>5} of {x.dtype}')\nreturn None"


def test_code_behind_a_raise_is_not_looked_at():
    def f(x, n):
        if n > 1:
            raise ValueError(n)
            import numpy  # noqa: F401
        return x

    check(f, (1.0, 1), x=E, n=H)


def test_elements_may_not_decide():
    def direct(x):
        if x > 0:
            raise ValueError("positive")
        return x

    def after_return(x, n):
        if x > 0:
            return x
        if n > 0:
            raise ValueError(n)
        return -x

    def through_a_helper(x):
        return by_mode(x, "c") if x > 0 else x

    def bare(x):
        raise

    for function, kinds in ((direct, {}), (after_return, {"n": H}), (through_a_helper, {})):
        with pytest.raises(FusionSyntaxError, match="`raise` where elements decide is not supported"):
            fuse(function, x=E, **kinds)
    with pytest.raises(FusionSyntaxError, match="`raise` alone has nothing to raise"):
        fuse(bare, x=E)


def test_elements_may_not_be_in_the_exception():
    def in_the_text(x, n):
        if n > 0:
            raise ValueError(f"{x}")
        return x

    def as_argument(x, n):
        if n > 0:
            raise ValueError(x)
        return x

    with pytest.raises(FusionSyntaxError, match="an f-string of elements is not supported"):
        fuse(in_the_text, x=E, n=H)
    with pytest.raises(FusionTypeError, match="would make an exception out of elements"):
        fuse(as_argument, x=E, n=H)


def test_an_assertion_on_numbers_is_checked_at_each_call():
    fused = numfuse.fuse(checked)
    for gain in (2.0, -1.0, 0.5, -2.0):
        assert outcome(fused, X, gain) == outcome(checked, X, gain)


def test_an_assertion_on_elements_is_dropped():
    def f(x, n):
        assert x > 0
        if x > 1:
            assert n > 0  # elements decide whether it is reached
        assert n > 1
        assert len((n, n)) == 2
        return x

    assert [ast.unparse(s) for s in fuse(f, x=E, n=H).tree.body] == ["assert n > 1", "return x"]


def test_an_enum_member_is_structural():
    def f(x, curve):
        if curve is Curve.BEND:
            return x * x
        chosen = Curve.LINE if curve == Curve.LINE else None
        if chosen is None:
            raise TypeError(curve)
        return x

    assert text(fuse(f, x=E, curve=Static(Curve.BEND))) == "return x * x"
    fused = numfuse.fuse(f)
    for curve in (Curve.LINE, Curve.BEND, "line", Curve.LINE):
        assert outcome(fused, X, curve) == outcome(f, X, curve)


def test_enum_members_chosen_by_numbers():
    def f(x, n):
        if n > 1:
            curve = Curve.LINE
        else:
            curve = Curve.BEND
        return x * 2 if curve is Curve.LINE else x

    fused = numfuse.fuse(f)
    for n in (2, 1, 3, 0):
        assert outcome(fused, X, n) == outcome(f, X, n)
