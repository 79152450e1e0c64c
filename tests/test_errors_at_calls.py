"""Errors that depend on the arguments of one call: what they say, and that later calls still work."""

from __future__ import annotations

import importlib.util
import linecache
import threading
from typing import Any

import numpy as np
import pytest
from comparing import same, variants

import numfuse
from numfuse import FusionError, FusionNotImplementedError, FusionOverflowError, FusionTypeError, FusionValueError, fuse

X = np.linspace(-1, 2, 7, dtype=np.float32)
BYTES = np.arange(7, dtype=np.int8)

HELPERS = '''
import numpy as np

def weight(v, exponent):
    return v ** exponent

def mean_of(v, w):
    """A helper in another file."""
    total = weight(v, 2) + (
        v * w
    )
    return total / 2
'''

MAIN = """
from helpers_of_test import mean_of

def combine(x, y):
    a = mean_of(x, y)
    return a, x
"""


def load(folder: Any, name: str, text: str) -> Any:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    linecache.checkcache(str(path))
    return module


def test_the_text_through_two_files(tmp_path, monkeypatch):
    helpers = load(tmp_path, "helpers_of_test", HELPERS)
    monkeypatch.setitem(__import__("sys").modules, "helpers_of_test", helpers)
    fused = fuse(load(tmp_path, "main_of_test", MAIN).combine)
    with pytest.raises(ValueError, match="broadcast") as caught:
        fused(np.ones((2, 3)), np.ones(4))
    expected = f"""\
operands could not be broadcast together with shapes (2,3) (4,)
  File "{tmp_path}/main_of_test.py", line 5, in combine
    a = mean_of(x, y)
        ^^^^^^^^^^^^^
  File "{tmp_path}/helpers_of_test.py", line 10, in mean_of
    v * w
    ^^^^^"""
    assert str(caught.value) == expected
    found, _ = fused(np.ones((2, 3)), np.ones(3))
    same(found, np.ones((2, 3)))
    assert variants(fused) == 1


def test_the_location_is_an_object_too():
    fused = fuse(lambda x, y: x + y)
    with pytest.raises(FusionValueError) as caught:
        fused(np.ones(2), np.ones(3))
    loc = caught.value.loc
    assert loc is not None
    assert caught.value.message == "operands could not be broadcast together with shapes (2,) (3,)"
    assert (loc.filename, loc.function) == (__file__, fused.__qualname__)
    line = linecache.getline(loc.filename, loc.line)
    assert line[loc.column : loc.end_column] == "x + y"


def test_a_syntax_error_has_the_fields_that_tools_show():
    def f(x):
        import math

        return math.sqrt(x)

    with pytest.raises(SyntaxError) as caught:
        fuse(f)(X)
    error = caught.value
    assert (error.filename, error.lineno) == (__file__, f.__code__.co_firstlineno + 1)
    assert error.text is not None
    assert error.text[error.offset - 1 : error.end_offset - 1] == "import math"
    assert error.msg == "an import is not supported in a fused function: move it to the top of the module"


# --------------------------------------------------------------------------------------------------------
# Numbers that do not fit


def test_integers_out_of_range():
    fused = fuse(lambda x, n: x + n)
    for first_call_fails in (True, False):
        for value in (128, -129, 2**80, -(2**80)):
            with pytest.raises(OverflowError) as caught:
                fused(BYTES, value)
            assert isinstance(caught.value, FusionOverflowError)
            assert caught.value.message == f"Python integer {value} out of bounds for int8"
            assert caught.value.loc is not None
        if not first_call_fails:
            break
        for value in (127, -128, 0):
            same(fused(BYTES, value), BYTES + np.int8(value))
    same(fused(BYTES, np.int16(300)), BYTES + np.int16(300))
    same(fused(BYTES.astype(np.int16), 300), BYTES + np.int16(300))


def test_a_failed_call_leaves_the_numbers_of_the_next_one_alone():
    def f(x, n, m):
        return x + n, x * m

    fused = fuse(f)
    with np.errstate(all="ignore"):
        expected = f(BYTES, 3, 100)
        same(fused(BYTES, 3, 100), expected)
        for bad in ((3, 1000), (1000, 3)):
            with pytest.raises(FusionOverflowError):
                fused(BYTES, *bad)
            same(fused(BYTES, 3, 100), expected)
    assert variants(fused) == 1


def test_a_negative_exponent_of_integers_in_a_later_call():
    fused = fuse(lambda x, n: x**n)
    same(fused(BYTES, 2), BYTES**2)
    for _ in range(2):
        with pytest.raises(FusionValueError, match=r"^Integers to negative integer powers are not allowed\."):
            fused(BYTES, -3)
    same(fused(BYTES, 3), BYTES**3)
    np.testing.assert_allclose(fused(X + 3, -3.0), (X + 3) ** -3.0, rtol=1e-6, strict=True)


def test_what_python_raises_is_pythons():
    def f(x, n):
        return x * (10 // n)

    fused = fuse(f)
    same(fused(X, 3), X * 3)
    with pytest.raises(ZeroDivisionError) as caught:
        fused(X, 0)
    assert not isinstance(caught.value, FusionError)
    same(fused(X, 5), X * 2)


# --------------------------------------------------------------------------------------------------------
# Arrays that do not fit


def test_shapes_of_a_later_call():
    def f(x, y):
        return x * 2 + y

    fused = fuse(f)
    same(fused(X, X), f(X, X))
    for _ in range(2):
        with pytest.raises(FusionValueError, match=r"shapes \(7,\) \(6,\)\n"):
            fused(X, X[1:])
    same(fused(X, X), f(X, X))
    assert (variants(fused), len(fused._plans)) == (1, 1)


def test_shapes_that_meet_in_a_branch():
    @fuse
    def f(x, y):
        if x > 0:
            return x
        return y

    with pytest.raises(FusionValueError, match=r"broadcast together with shapes.*\(7,\).*\(3,\)"):
        f(X, X[:3])


@pytest.mark.parametrize(
    ("array", "kind", "message"),
    [
        (
            X.astype(np.float16),
            FusionNotImplementedError,
            "argument 'y' has dtype float16, not supported yet; convert it to float32 or float64",
        ),
        (
            X.astype(np.complex64),
            FusionNotImplementedError,
            "argument 'y' has dtype complex64, not supported yet; pass its real and imaginary parts",
        ),
        (
            X.astype(">f4"),
            FusionTypeError,
            "argument 'y' has byte-swapped dtype '>f4'; convert it with .astype('float32')",
        ),
        (
            np.array(["a"]),
            FusionTypeError,
            "argument 'y' has dtype <U1; only bool, integer and floating-point arrays can be fused",
        ),
        (
            np.ma.array(X),
            FusionTypeError,
            "argument 'y' is a masked array; fuse its data and its mask as two arguments (x.data, "
            "np.ma.getmaskarray(x))",
        ),
        (
            [X, X],
            FusionTypeError,
            "argument 'y' is a list that holds arrays: pass each array as an argument of its own, or np.asarray(y)",
        ),
        (
            (3, {"table": [X]}),
            FusionTypeError,
            "argument 'y' is a tuple that holds arrays: pass each array as an argument of its own",
        ),
    ],
)
def test_arrays_that_are_refused_by_name(array, kind, message):
    fused = fuse(lambda x, y: x + y)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            fused(X, array)
        assert str(caught.value) == message
        assert isinstance(caught.value, TypeError if kind is FusionTypeError else NotImplementedError)
    same(fused(X, X), X + X)


def test_unpacking_and_printing_and_text():
    def unpacked(x):
        a, b = x, x, x
        return a + b

    def printing(x):
        print(x)
        return x

    cases = (
        (unpacked, ValueError, "too many values to unpack (expected 2, got 3)"),
        (
            printing,
            TypeError,
            "print() of elements is not supported in a fused function: return the value and print that",
        ),
        (lambda x: x + "a", TypeError, "this value is of type str, and only numbers and arrays can enter a kernel: "),
    )
    for function, kind, message in cases:
        with pytest.raises(kind) as caught:
            fuse(function)(X)
        assert isinstance(caught.value, FusionError)
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "a str can't be an operand of a kernel"),
        (None, "a NoneType can't be an operand of a kernel"),
        ({}, "y is of type dict, and only numbers and arrays can enter a kernel"),
        ([1.0, 2.0], "y is of type list, and only numbers and arrays can enter a kernel"),
        (np.sin, "ufunc sin can't be an operand of a kernel"),
    ],
)
def test_objects_that_are_no_operands(value, message):
    fused = fuse(lambda x, y: x + y)
    with pytest.raises(FusionTypeError) as caught:
        fused(X, value)
    assert str(caught.value).startswith(message)
    assert caught.value.loc is not None
    same(fused(X, X), X + X)


def test_a_captured_array_that_is_refused_has_a_name():
    table = X.astype(np.float16)
    with pytest.raises(FusionNotImplementedError, match=r"table.*float16") as caught:
        fuse(lambda x: x + table)(X)
    assert caught.value.loc is not None


def test_errors_have_no_frames_and_causes_of_the_compiler():
    def down(v):
        return down(v) + 1

    def helper(v):
        return (lambda w: (yield w))(v)

    settings: dict[str, Any] = {}
    for function in (down, helper, lambda x: x + settings["gain"], lambda x: x + "a", lambda x: x.missing):
        fused = fuse(function)
        for call in (fused, fused.explain):
            with pytest.raises(FusionError) as caught:
                call(X)
            error = caught.value
            assert error.__suppress_context__
            assert not isinstance(error.__cause__, FusionError)
            assert error.__cause__ is None or error.__cause__.__traceback__ is None
            assert len(caught.traceback) <= 3  # this function, the call, and where it raises


def test_a_function_without_source():
    function = eval("lambda x: x + 1")
    with pytest.raises(FusionTypeError, match=r"^the source text of <lambda> .* is not available"):
        fuse(function)(X)
    assert fuse(function)(2) == 3


def test_generators_and_coroutines():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for function in (generator, coroutine):
        with pytest.raises(NotImplementedError, match=r"return its values from a plain `def`"):
            fuse(function)(X)


def test_builtin_code_can_not_be_read():
    with pytest.raises(FusionTypeError, match="sin is not a Python function whose code could be read"):
        fuse(np.sin)(X)


# --------------------------------------------------------------------------------------------------------
# Afterwards


def test_a_failure_while_lowering_frees_the_lock():
    names: dict[str, Any] = {}
    fused = fuse(lambda x: x * names["gain"])
    caught: list[BaseException] = []

    def work():
        try:
            fused(X)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (error,) = caught
    assert isinstance(error, FusionError)
    assert "names['gain']" in str(error)
    assert isinstance(error, KeyError)
    names["gain"] = 2.0
    same(fused(X), X * 2)


def test_explain_raises_what_the_call_raises():
    fused = fuse(lambda x, y: x + y)
    for args in ((X, X[1:]), (X, "a"), (X.astype(np.float16), 1)):
        with pytest.raises(FusionError) as of_call:
            fused(*args)
        with pytest.raises(type(of_call.value)) as of_explain:
            fused.explain(*args)
        assert str(of_explain.value) == str(of_call.value)
    with pytest.raises(FusionTypeError, match=r"^explain\(\) needs at least one array"):
        fused.explain(1, 2)


def test_the_family_is_public():
    names = {name for name in numfuse.__all__ if name.startswith("Fusion")}
    kinds = "Attribute Index Key Name NotImplemented Overflow Recursion Syntax Type Value".split()
    assert names == {"FusionError", *(f"Fusion{kind}Error" for kind in kinds)}
    for name in names:
        assert issubclass(getattr(numfuse, name), FusionError)
