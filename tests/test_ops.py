"""The operation table: names, loops, spellings, the arguments of calls, casts and constants as text."""

from __future__ import annotations

import ast
import math
import operator
import subprocess
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

from numfuse import ops
from numfuse.body import Weak
from numfuse.errors import FusionAttributeError, FusionNotImplementedError, FusionTypeError
from numfuse.ops import names
from numfuse.ops.table import FAMILIES

CODES = set("?bBhHiIlLqQfd")
F4, F8, I1, I4, I8, U8 = map(np.dtype, ("f4", "f8", "i1", "i4", "i8", "u8"))
BOOL = np.dtype(bool)

FIRST_TABLE = """
    add subtract multiply divide floor_divide remainder power negative positive absolute fabs sign square sqrt
    reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh
    arccosh arctanh arctan2 hypot floor ceil trunc rint minimum maximum fmin fmax isnan isinf isfinite signbit
    copysign equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
    logical_not bitwise_and bitwise_or bitwise_xor invert left_shift right_shift where clip deg2rad rad2deg
    degrees radians cbrt fmod truth select_min select_max identity
"""


def test_the_table_has_every_row_once() -> None:
    every = [row.name for family in FAMILIES for row in family]
    assert len(every) == len(set(every)) == len(ops.rows())
    assert set(FIRST_TABLE.split()) <= set(every)
    assert all(ops.row(name).name == name for name in every)


@pytest.mark.parametrize("name", [name for name, row in ops.rows().items() if row.ufunc is not None])
def test_a_ufunc_row_has_every_loop_that_numpy_has_in_our_dtypes(name: str) -> None:
    row = ops.row(name)
    assert row.ufunc is not None
    assert (row.nin, row.nout) == (row.ufunc.nin, row.ufunc.nout)
    loops = [entry.partition("->") for entry in row.ufunc.types]
    ours = [(codes, out) for codes, _, out in loops if set(codes + out) <= CODES]
    assert ours
    for codes, out in ours:
        loop = tuple(np.dtype(code) for code in codes)
        expression = ops.expression(name, loop, (np.dtype(out),))
        text = expression.format("x", "y", "z")
        assert ast.parse(text, mode="eval")
        called = {node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}  # type: ignore[attr-defined]
        assert called - set(expression.imports) <= set(ops.DTYPES)
        assert set(expression.imports) <= called


def test_a_loop_that_is_not_there_is_refused_by_name() -> None:
    half = np.dtype(np.float16)
    with pytest.raises(FusionNotImplementedError, match=r"NumPy computes sin in \(float16\)"):
        ops.expression("sin", (half,), (half,))
    with pytest.raises(NotImplementedError, match="'frobnicate' is not in numfuse's table"):
        ops.row("frobnicate")


@pytest.mark.parametrize(
    ("name", "operands", "loop", "out"),
    [
        ("multiply", (F4, Weak.FLOAT), (F4, F4), F4),
        ("add", (I1, I4), (I4, I4), I4),
        ("add", (U8, I8), (F8, F8), F8),
        ("less", (U8, I8), (U8, I8), BOOL),
        ("where", (I4, F4, Weak.FLOAT), (BOOL, F4, F4), F4),
        ("where", (BOOL, Weak.INT, Weak.FLOAT), (BOOL, F8, F8), F8),
        ("select_min", (F4, Weak.INT), (F4, F4), F4),
        ("truth", (Weak.FLOAT,), (F8,), BOOL),
        ("clip", (I1, Weak.INT, Weak.INT), (I1, I1, I1), I1),
    ],
)
def test_dtypes(name: str, operands: tuple[np.dtype | Weak, ...], loop: tuple[np.dtype, ...], out: np.dtype) -> None:
    assert ops.row(name).resolve_dtypes(operands) == (loop, (out,))


def test_the_interpreters_implementations() -> None:
    x, y = np.array([1.0, np.nan, -0.0]), np.array([2.0, 0.0, 0.0])
    np.testing.assert_array_equal(ops.row("select_min").evaluate(x, y), [1.0, np.nan, -0.0])
    np.testing.assert_array_equal(ops.row("select_max").evaluate(x, y), [2.0, np.nan, -0.0])
    np.testing.assert_array_equal(ops.row("truth").evaluate(x), [True, True, False])
    np.testing.assert_array_equal(ops.row("clip").evaluate(x, 0.0, 0.5), [0.5, np.nan, 0.0])


# --------------------------------------------------------------------------------------------------------
# Spellings


@pytest.mark.parametrize(
    ("obj", "row", "form"),
    [
        (np.sin, "sin", "ufunc"),
        (np.abs, "absolute", "ufunc"),
        (np.true_divide, "divide", "ufunc"),
        (np.mod, "remainder", "ufunc"),
        (np.acos, "arccos", "ufunc"),
        (np.bitwise_invert, "invert", "ufunc"),
        (np.clip, "clip", "ufunc"),
        (np.where, "where", "ufunc"),
        (np.real, "identity", "ufunc"),
        (operator.mul, "multiply", "operator"),
        (operator.truth, "truth", "operator"),
        (operator.and_, "bitwise_and", "operator"),
        (math.sin, "sin", "math"),
        (math.atan2, "arctan2", "math"),
        (abs, "absolute", "builtin"),
        (min, "select_min", "builtin"),
        (max, "select_max", "builtin"),
    ],
)
def test_find(obj: object, row: str, form: str) -> None:
    spelling = ops.find(obj)
    assert spelling is not None
    assert (spelling.row, spelling.form) == (row, form)
    assert ops.is_operation(obj)


def test_what_python_rounds_to_an_int_says_so() -> None:
    flagged = {name for name in vars(math) if (found := ops.find(getattr(math, name))) and found.python_int}
    assert flagged == {"floor", "ceil", "trunc"}
    power = ops.find(math.pow)
    assert power is not None
    assert power.floating


def test_every_spelling_names_a_row() -> None:
    for _, spelling in names._known.values():
        assert spelling.row in ops.rows()


@pytest.mark.parametrize("obj", [np.sum, np.sort, np.heaviside, print, len, 3, None, [], "sin", np, lambda x: x])
def test_what_is_no_operation(obj: object) -> None:
    assert ops.find(obj) is None
    assert not ops.is_operation(obj)


@pytest.fixture
def stand_in_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module of the name torch, with a few functions."""
    module = types.ModuleType("torch")
    for name in ("clamp", "where", "sin", "pow", "max", "sum"):
        setattr(module, name, types.FunctionType((lambda *a: None).__code__, {}, name))
    monkeypatch.setitem(sys.modules, "torch", module)
    known, read = dict(names._known), dict(names._read)
    names._read.pop("torch", None)
    yield module
    names._known.clear()
    names._known.update(known)
    names._read.clear()
    names._read.update(read)


def test_functions_of_an_imported_library_are_found(stand_in_torch: types.ModuleType) -> None:
    clamp, power = ops.find(stand_in_torch.clamp), ops.find(stand_in_torch.pow)
    assert clamp is not None
    assert power is not None
    assert (clamp.row, clamp.written, power.row) == ("clip", "torch.clamp", "power")
    assert ops.arrange(clamp, ["x"], {"max": "hi"}) == ("minimum", ["x", "hi"])
    assert ops.arrange(power, ["x"], {"exponent": "y"}) == ("power", ["x", "y"])
    assert ops.find(stand_in_torch.max) is None
    assert ops.find(stand_in_torch.sum) is None


def test_looking_a_function_up_imports_nothing() -> None:
    code = (
        "import sys; from numfuse import ops; ops.find(print); ops.find(lambda x: x);"
        "print(sorted({'numba', 'llvmlite', 'torch', 'cupy', 'jax', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_methods() -> None:
    for name, row in (("clip", "clip"), ("conj", "identity"), ("clamp", "clip")):
        spelling = ops.method(name)
        assert spelling is not None
        assert spelling.row == row
    assert ops.method("sum") is None


def test_operators_of_the_language() -> None:
    assert ops.binary_operator(ast.FloorDiv) == "floor_divide"
    assert ops.binary_operator(ast.MatMult) is None
    assert ops.unary_operator(ast.Invert) == "invert"
    assert ops.comparison(ast.NotEq) == "not_equal"
    assert ops.comparison(ast.In) is None


# --------------------------------------------------------------------------------------------------------
# Arguments


class Holder:
    """Stands for a value that the front end has."""

    def __init__(self, value: object) -> None:
        self.value = value


def spelling_of(obj: object) -> ops.Spelling:
    found = ops.find(obj)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("args", "keywords", "row", "operands"),
    [
        (["x", 0, 1], {}, "clip", ["x", 0, 1]),
        (["x"], {"a_min": 0, "a_max": 1}, "clip", ["x", 0, 1]),
        (["x"], {"max": 1, "min": 0}, "clip", ["x", 0, 1]),
        ([], {"a": "x", "min": 0}, "maximum", ["x", 0]),
        (["x", None, 1], {}, "minimum", ["x", 1]),
        (["x", 0], {}, "maximum", ["x", 0]),
        (["x", None, None], {}, "identity", ["x"]),
    ],
)
def test_clip(args: list[object], keywords: dict[str, object], row: str, operands: list[object]) -> None:
    assert ops.arrange(spelling_of(np.clip), args, keywords) == (row, operands)


def test_none_inside_a_value_of_the_front_end_counts_as_none() -> None:
    x, nothing, one = Holder(2), Holder(None), Holder(1)
    assert ops.arrange(spelling_of(np.clip), [x, nothing, one], {}) == ("minimum", [x, one])


def test_logarithm_to_a_base() -> None:
    assert ops.arrange(spelling_of(math.log), ["x", "b"], {}) == ("log", ["x", "b"])
    with pytest.raises(FusionTypeError, match=r"np\.log takes 1 operand, and 2 were given"):
        ops.arrange(spelling_of(np.log), ["x", "b"], {})


@pytest.mark.parametrize(
    ("obj", "args", "keywords", "error", "message"),
    [
        (np.add, ["x"], {}, TypeError, "np.add takes 2 operands, and 1 was given"),
        (np.add, ["x", "y"], {"out": "z"}, NotImplementedError, r"out= of np.add .* y\[\.\.\.\] = np.add"),
        (np.add, ["x", "y"], {"dtype": "f4"}, NotImplementedError, r"np.add\(x.astype\(dtype\)\)"),
        (np.add, ["x"], {"y": "y"}, TypeError, r"np.add\(\) got an unexpected keyword argument 'y'"),
        (np.clip, ["x", 0, 1, "out"], {}, TypeError, "np.clip takes 3 operands, and 4 were given"),
        (np.clip, ["x", 0], {"min": 1}, TypeError, "multiple values for argument 'min'"),
        (np.clip, [], {}, TypeError, "missing the array"),
        (np.where, ["c"], {}, NotImplementedError, r"np.where\(condition, x, y\) selects"),
        (min, ["x", "y"], {"key": "k"}, NotImplementedError, "key= of min can't be used"),
    ],
)
def test_wrong_arguments(
    obj: object, args: list[str], keywords: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ops.arrange(spelling_of(obj), args, keywords)


# --------------------------------------------------------------------------------------------------------
# Advice


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (np.sum, "np.sum reduces an array, and reductions come in a later version"),
        (np.sort, "np.sort is not elementwise: call it outside the fused function"),
        (np.heaviside, "np.heaviside is not in the table yet: write np.where"),
        (np.nextafter, "np.nextafter is not in the table yet: write it with"),
        (np.reshape, "np.reshape rearranges an array: call it on the arguments"),
        (
            np.max,
            "np.max reduces an array, and reductions come in a later version: compute it before the call and pass "
            "it in: f(x, np.max(x)) (np.maximum(a, b) compares two)",
        ),
        (np.linalg.norm, "np.linalg.norm reduces an array"),
        (np.fft.fft, "np.fft.fft is not elementwise"),
        (np.cumsum, "np.cumsum is a scan"),
        (np.zeros_like, "np.zeros_like is not needed in a fused function, where a number broadcasts: use 0, or x * 0"),
        (np.full_like, "np.full_like is not needed in a fused function, where a number broadcasts: use the number"),
        (np.polyval, "np.polyval is not in the table yet: write Horner's rule"),
        (np.kaiser, "np.kaiser is not an operation that numfuse knows"),
        (math.erf, "math.erf is not in the table yet: compute it before the call"),
        (math.gcd, "math.gcd is not in the table yet"),
        (print, "print() of elements is not supported in a fused function: return the value"),
        (map, "map() of elements is not supported in a fused function: write (f(a), f(b))"),
        (sum, "sum() of elements is not supported in a fused function: of a tuple, write a + b + c"),
        (isinstance, "isinstance() of elements is not supported in a fused function: leave the test out"),
        (7, "7 is not something that a fused function can call"),
    ],
)
def test_advice(obj: object, message: str) -> None:
    assert ops.advice(obj).startswith(message)


def test_advice_for_methods() -> None:
    assert ops.advice_method("mean").startswith("x.mean reduces an array")
    assert ops.advice_method("max").endswith("f(x, x.max()) (np.maximum(a, b) compares two)")
    assert ops.advice_method("byteswap").startswith("x.byteswap is not an operation")
    assert ops.advice_method("frobnicate") == "arrays have no attribute 'frobnicate'"


def test_an_unknown_method_is_an_attribute_error() -> None:
    misspelt = ops.method_error("atsype")
    assert isinstance(misspelt, FusionAttributeError)
    assert misspelt.message == "arrays have no attribute 'atsype'; did you mean 'astype'?"
    assert isinstance(ops.method_error("sort"), FusionNotImplementedError)


# --------------------------------------------------------------------------------------------------------
# Casts and constants


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ("f4", "f4", "x"),
        ("f8", "f4", "float32(x)"),
        ("f4", "u1", "uint8(int32(x))"),
        ("f4", "u4", "uint32(int64(x))"),
        ("f8", "i8", "int64(x)"),
        ("i4", "?", "x != int32(0)"),
        ("f4", "?", "x != float32(0.0)"),
        ("?", "f4", "float32(x)"),
        ("l", "q", "x"),
    ],
)
def test_casts(source: str, target: str, text: str) -> None:
    assert ops.cast_expression(np.dtype(source), np.dtype(target)).format("x") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.bool_(True), "True"),
        (np.int8(-3), "int8(-3)"),
        (np.int64(-(2**63)), str(-(2**63))),
        (np.uint64(2**64 - 1), f"uint64({2**64 - 1})"),
        (np.float32(0.1), "float32(0.1)"),
        (np.float32(np.inf), "float32(inf)"),
        (np.float64(-np.inf), "-inf"),
        (np.float64(np.nan), "nan"),
        (np.float64(-0.0), "-0.0"),
    ],
)
def test_literals(value: np.generic, text: str) -> None:
    assert ops.literal(value) == text


def test_dtypes_to_come_are_refused_by_name() -> None:
    with pytest.raises(FusionNotImplementedError, match="dtype float16 is not supported yet"):
        ops.cast_expression(F4, np.dtype(np.float16))
    with pytest.raises(FusionNotImplementedError, match="dtype complex128 is not supported yet"):
        ops.literal(np.complex128(1j))
