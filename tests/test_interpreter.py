"""Programs run on NumPy arrays: the day-one programs of DESIGN.md, branches, loops and numbers."""

from __future__ import annotations

import numpy as np
import pytest
from program_text import X, assert_same, body, run

from numfuse.body import (
    Affine,
    Block,
    Buffer,
    BufferResult,
    IndexMap,
    Load,
    Op,
    Program,
    Reduce,
    Store,
    Value,
    ValueResult,
    Version,
    View,
)
from numfuse.body_text import parse_program
from numfuse.errors import (
    FusionIndexError,
    FusionNotImplementedError,
    FusionTypeError,
    FusionValueError,
)
from numfuse.interpreter import interpret

# --------------------------------------------------------------------------------------------------------
# The three programs of DESIGN.md, section 5


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("keepdims", [False, True])
def test_softmax(typed: bool, keepdims: bool) -> None:
    f32 = np.dtype(np.float32) if typed else None
    one, two = ((f32,), (f32, f32)) if f32 is not None else (None, None)
    column = IndexMap((Affine(0),), rank=2)  # v[:, np.newaxis]

    def spread(result: int, operand: int) -> tuple[View, ...]:
        return () if keepdims else (View(Value(result, f32), operand, column),)

    program = Program(
        "softmax",
        (Buffer("x", "parameter", np.dtype(np.float32)),),
        Block(
            (
                Load(Value(0, f32), Version("x")),
                Reduce(Value(1, f32), "maximum", 0, (-1,), keepdims),
                *spread(2, 1),
                Op((Value(3, f32),), "subtract", (0, 1 if keepdims else 2), "operator", two),
                Op((Value(4, f32),), "exp", (3,), "ufunc", one),
                Reduce(Value(5, f32), "add", 4, (-1,), keepdims),
                *spread(6, 5),
                Op((Value(7, f32),), "divide", (4, 5 if keepdims else 6), "operator", two),
            ),
            (7,),
        ),
        (ValueResult(7),),
    )
    x = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    assert_same(run(program, x=x), e / e.sum(axis=-1, keepdims=True))


def in_place(buffers: tuple[str, ...]) -> Program:
    """``def f(x, y): x += y; x += y; return x, y``, where `y` may be another name of `x`."""
    x, y, f64 = buffers[0], buffers[-1], np.dtype(np.float64)
    seen = Version(y, 1 if x == y else 0)  # with one buffer for both, the second `y` is what was stored
    nodes = (
        Load(Value(0), Version(x)),
        Load(Value(1), Version(y)),
        Op((Value(2),), "add", (0, 1), "operator"),
        Op((Value(3),), "assign", (0, 2), "operator"),
        Store(Version(x), Version(x, 1), 3),
        Load(Value(4), Version(x, 1)),
        Load(Value(5), seen),
        Op((Value(6),), "add", (4, 5), "operator"),
        Store(Version(x, 1), Version(x, 2), 6),
    )
    declared = tuple(Buffer(name, "parameter", f64) for name in buffers)
    return Program("f", declared, Block(nodes, ()), (BufferResult(x), BufferResult(y)), (0, 1))


def test_in_place() -> None:
    x, y = np.arange(4.0), np.full(4, 10.0)
    found = run(in_place(("x", "y")), x=x, y=y)
    assert isinstance(found, tuple)
    assert found[0] is x
    assert found[1] is y
    assert_same(x, np.arange(4.0) + 20)
    assert_same(y, np.full(4, 10.0))


def test_in_place_of_one_array_twice() -> None:
    a = np.arange(4.0)
    found = run(in_place(("x",)), x=a)
    assert isinstance(found, tuple)
    assert found[0] is a
    assert found[1] is a
    assert_same(a, np.arange(4.0) * 4)


def test_memory_shared_by_two_buffers_is_refused_once_it_is_stale() -> None:
    a = np.arange(5.0)
    with pytest.raises(FusionValueError, match="buffer 'y' is read after a store to 'x', whose memory"):
        run(in_place(("x", "y")), x=a[1:], y=a[:-1])
    assert_same(a, np.arange(5.0))
    once = "%0 = load x@0\n%1 = load y@0\n%9 = add.operator(%0, %1)\nx@1 = store %9 into x@0"
    expected = np.arange(5.0)
    expected[1:] += expected[:-1]
    run(body(once, x="float64", y="float64"), x=a[1:], y=a[:-1])
    assert_same(a, expected)


def test_difference_of_neighbours() -> None:
    nodes = "%0 = load x@0\n%1 = view %0[1 + d0]\n%2 = view %0[d0 extent 5]\n%9 = subtract.operator(%1, %2)"
    assert_same(run(body(nodes), x=X), X[1:] - X[:-1])
    through_loads = "%1 = load x@0[1 + d0]\n%2 = load x@0[d0 extent 5]\n%9 = subtract.operator(%1, %2)"
    assert_same(run(body(through_loads), x=X), X[1:] - X[:-1])


# --------------------------------------------------------------------------------------------------------
# Regions


ESCAPE = """
%0 = load x@0
%1 = load y@0
%2 = const 0.0
%3 = const 0
%10, %11, %9 = loop (%2, %2, %3) as (%12, %13, %14) {
  %15 = multiply.operator(%12, %12)
  %16 = multiply.operator(%13, %13)
  %17 = add.operator(%15, %16)
  %18 = const 4.0
  %19 = less_equal.operator(%17, %18)
  %20 = const 50
  %21 = less.operator(%14, %20)
  %22 = logical_and.ufunc(%19, %21)
  yield %22
} do {
  %30 = multiply.operator(%12, %12)
  %31 = multiply.operator(%13, %13)
  %32 = subtract.operator(%30, %31)
  %33 = add.operator(%32, %0)
  %34 = const 2
  %35 = multiply.operator(%34, %12)
  %36 = multiply.operator(%35, %13)
  %37 = add.operator(%36, %1)
  %38 = const 1
  %39 = add.operator(%14, %38)
  yield %33, %37, %39
}
"""


def escape(cx: np.float32, cy: np.float32) -> tuple[object, object, int]:
    x, y, n = 0.0, 0.0, 0
    while x * x + y * y <= 4.0 and n < 50:
        x, y, n = x * x - y * y + cx, 2 * x * y + cy, n + 1
    return x, y, n


def test_escape_time_loop() -> None:
    cx, cy = (
        np.linspace(-2, 1, 7, dtype=np.float32)[None, :],
        np.linspace(-1, 1, 5, dtype=np.float32)[:, None],
    )
    text = body(ESCAPE, "%10, %11, %9", x="float32", y="float32").replace("structure 0", "structure (2, (0, 1))")
    found = run(text, x=cx, y=cy)
    each = [[escape(a, b) for a in cx[0]] for b in cy[:, 0]]
    expected = (
        np.array([[n for _, _, n in row] for row in each], np.int64),
        np.array([[x for x, _, _ in row] for row in each], np.float32),
        np.array([[y for _, y, _ in row] for row in each], np.float32),
    )
    assert isinstance(found, tuple)
    assert_same(found[0], expected[0])
    assert_same(found[1][0], expected[1])
    assert_same(found[1][1], expected[2])


def test_counter_of_a_loop_stays_a_python_number() -> None:
    """``n`` counts in Python ints, so ``x * n`` is float32, and counts of int8 elements do not wrap."""
    nodes = """
    %0 = load x@0
    %1 = const 0
    %2, %3 = loop (%1, %0) as (%4, %5) {
      %6 = const 0
      %7 = greater.operator(%5, %6)
      yield %7
    } do {
      %8 = const 100
      %10 = add.operator(%4, %8)
      %11 = const 1
      %12 = subtract.operator(%5, %11)
      yield %10, %12
    }
    """
    x = np.array([0, 1, 2, 3], np.int8)
    assert_same(run(body(nodes, "%2", x="int8"), x=x), np.array([0, 100, 200, 300]))
    times = "%20 = load y@0\n%9 = multiply.operator(%2, %20)"
    y = np.full(4, 0.5, np.float32)
    expected = np.array([0, 50, 100, 150], np.float32)
    assert_same(run(body(nodes + times, x="int8", y="float32"), x=x, y=y), expected)


def test_loop_of_a_uniform_condition_is_python() -> None:
    nodes = """
    %0 = load x@0
    %1 = const 1
    %9, %2 = loop (%0, %1) as (%4, %5) trip 3 {
      %6 = const 1000
      %7 = less.operator(%5, %6)
      yield %7
    } do {
      %8 = multiply.operator(%4, %4)
      %10 = const 10
      %11 = multiply.operator(%5, %10)
      yield %8, %11
    }
    """
    found = run(body(nodes, "%9, %2").replace("structure 0", "structure (0, 1)"), x=X)
    assert isinstance(found, tuple)
    assert_same(found[0], (X * X) * (X * X) * ((X * X) * (X * X)))
    assert_same(found[1], 1000)


ROOT_OR_NEGATIVE = """
%0 = load x@0
%1 = const 0
%2 = greater.operator(%0, %1)
%9 = if %2 {
  %3 = sqrt.ufunc(%0)
  yield %3
} else {
  %4 = const 2
  %5 = multiply.operator(%0, %4)
  yield %5
}
"""


def test_if_of_a_varying_condition() -> None:
    with np.errstate(all="ignore"):
        assert_same(run(body(ROOT_OR_NEGATIVE), x=X), np.where(X > 0, np.sqrt(X), X * 2))
    mixed = np.array([4, -3], np.int8)
    assert_same(run(body(ROOT_OR_NEGATIVE, x="int8"), x=mixed), np.array([2, -6], np.float16))


@pytest.mark.parametrize("stated", ["", ": float32"])
def test_what_no_path_reads_becomes_what_it_meets(stated: str) -> None:
    nodes = f"""
    %0 = load x@0
    %1 = const 1
    %2 = const undefined
    %3 = greater.operator(%0, %1)
    %4{stated}, %5 = loop (%2, %3) as (%6{stated}, %7) {{
      yield %7
    }} do {{
      %8 = logical_not.ufunc(%7)
      yield %0, %8
    }}
    %9 = if %3 {{
      %10 = multiply.operator(%4, %4)
      yield %10
    }} else {{
      yield %2
    }}
    """
    found = run(body(nodes), x=X)
    assert isinstance(found, np.ndarray)
    assert_same(found[X > 1], (X * X)[X > 1])  # the others may be anything


def test_if_of_a_uniform_condition_runs_one_block() -> None:
    assert_same(run(body(ROOT_OR_NEGATIVE, x="int8"), x=np.array(-3, np.int8)), np.int8(-6))
    one_over = """
    %1 = host 0
    %9 = if %1 {
      %2 = const 1
      %3 = floor_divide.operator(%2, %1)
      yield %3
    } else {
      yield %1
    }
    """
    text = body(one_over).replace("{", "host 0: int\n{", 1)
    assert_same(run(text, [0], x=X), 0)
    assert_same(run(text, [1], x=X), 1)


def test_what_inactive_elements_would_raise_is_not_raised() -> None:
    nodes = """
    %0 = load x@0
    %1 = load y@0
    %2 = const 3
    %3 = less.operator(%0, %2)
    %9 = if %3 {
      %4 = gather y@0(%0) wrap-negative
      yield %4
    } else {
      %5 = const 2
      %6 = subtract.operator(%2, %0)
      %7 = negative.operator(%6)
      %8 = power.operator(%5, %7)
      yield %8
    }
    """
    x, y = np.array([-1, 2, 7, 4]), np.array([10, 20, 30])
    assert_same(run(body(nodes, x="int64", y="int64"), x=x, y=y), np.array([30, 30, 16, 2]))
    with pytest.raises(FusionIndexError, match="a computed index is outside an axis of length 3"):
        run(body(nodes, x="int64", y="int64"), x=np.array([-4, 2]), y=y)


# --------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("%0 = const 7\n%1 = const 2\n%9 = floor_divide.operator(%0, %1)", 3),
        ("%0 = const 7\n%1 = const 2\n%9 = divide.operator(%0, %1)", 3.5),
        ("%0 = const 7\n%1 = const 2\n%9 = floor_divide.ufunc(%0, %1)", np.int64(3)),
        ("%0 = const 2\n%9 = sqrt.ufunc(%0)", np.sqrt(2)),
        ("%0 = const 2\n%9 = sqrt.math(%0)", float(np.sqrt(2))),
        ("%0 = const 2\n%9 = power.math(%0, %0)", 4.0),
        ("%0 = const nan\n%9 = truth.operator(%0)", True),
        ("%0 = const 2.0\n%1 = const 1\n%9 = select_min.operator(%0, %1)", 1),
        ("%0 = const True\n%1 = const 1\n%2 = const 0.5\n%9 = where.operator(%0, %1, %2)", 1),
        ("%0 = const int8(100)\n%1 = const 27\n%9 = add.operator(%0, %1)", np.int8(127)),
        ("%0 = const float32(1.5)\n%9: int = cast %0 unsafe", 1),
        ("%0 = const 300\n%9: int8 = cast %0 weak", np.int8(44)),
        ("%0: float32 = const 0.1", np.float32(0.1)),
        ("%0: uint8 = const 2\n%1: int = const 3\n%9: int = power.operator(%0, %1) loop(int64, int64)", 8),
    ],
)
def test_scalars(nodes: str, expected: object) -> None:
    found = run(body(nodes, "%9" if "%9" in nodes else "%0"), x=X)
    assert_same(found, expected)


def test_rows_that_are_no_ufuncs() -> None:
    y = np.array([1, np.nan, 0.0, 1, np.nan, 0.0], np.float32)
    for row, expected in (
        ("select_min", [b if b < a else a for a, b in zip(X, y, strict=True)]),
        ("select_max", [b if b > a else a for a, b in zip(X, y, strict=True)]),
        ("where", np.where(X, y, X)),
        ("clip", np.clip(X, y, X)),
    ):
        operands = "%0, %1" if row.startswith("select") else "%0, %1, %0"
        text = body(f"%0 = load x@0\n%1 = load y@0\n%9 = {row}.ufunc({operands})", x="float32", y="float32")
        assert_same(run(text, x=X, y=y), np.array(expected, np.float32))
    assert_same(run(body("%0 = load x@0\n%9 = truth.ufunc(%0)"), x=X), X != 0)
    assert_same(run(body("%0 = load x@0\n%9 = logical_not.ufunc(%0)"), x=X), ~(X != 0))


def test_two_results_and_sharing() -> None:
    text = body("%0 = load x@0\n%1 = const 2\n%8, %9 = divmod.operator(%0, %1)", "%8, %9, %9")
    found = run(text.replace("structure 0", "structure (0, (1, 2), none)"), x=np.float32([5, -5]))
    assert isinstance(found, tuple)
    quotient, (remainder, again), nothing = found
    assert_same(quotient, np.float32([2, -3]))
    assert_same(remainder, np.float32([1, 1]))
    assert again is remainder
    assert nothing is None


def test_types_rule_where_they_are_stated() -> None:
    """Operands in the loop dtypes, results in theirs: NumPy alone would add in int8 and wrap."""
    nodes = "%0: int8 = load x@0\n%9: float32 = add.operator(%0, %0) loop(int32, int32)"
    assert_same(run(body(nodes, x="int8"), x=np.int8([100, -100])), np.float32([200, -200]))
    same = body("%0 = load x@0\n%1 = const 0.5\n%9 = add.operator(%0, %1)")
    assert_same(run(same, x=X), X + np.float32(0.5))
    strong = body("%0 = load x@0\n%1 = const float64(0.5)\n%9 = add.operator(%0, %1)")
    assert_same(run(strong, x=X), X + np.float64(0.5))


def test_casts() -> None:
    assert_same(run(body("%0 = load x@0\n%9: bool = cast %0 unsafe"), x=X), X.astype(bool))
    assert_same(run(body("%0 = load x@0\n%9: float16 = cast %0 same_kind"), x=X), X.astype(np.float16))
    for rule, to in (("safe", "float16"), ("same_kind", "int64")):
        with pytest.raises(FusionTypeError, match=f"cannot cast float32 to {to} by the rule '{rule}'"):
            run(body(f"%0 = load x@0\n%9: {to} = cast %0 {rule}"), x=X)
    with pytest.raises(OverflowError):
        run(body("%9: int8 = const 300"), x=X)


def test_host_values() -> None:
    text = body("%0 = load x@0\n%1: float32 = host 1\n%9 = multiply.operator(%0, %1)")
    text = text.replace("{", "host 0: int\nhost 1: float\n{", 1).replace("results %9", "results %9, host 0")
    found = run(text.replace("structure 0", "structure (1, 0)"), [10**30, 0.1], x=X)
    assert isinstance(found, tuple)
    assert_same(found[0], 10**30)
    assert_same(found[1], X * np.float32(0.1))


def test_stated_shapes_of_numbers_and_positions() -> None:
    x = np.zeros((2, 3), np.float32)
    assert_same(run(body("%9: float32 {(3, 1)} = const 1"), x=x), np.ones((3, 1), np.float32))
    assert_same(run(body("%9 {x, (4, 1, 1)} = const 0.5"), x=x), np.full((4, 2, 3), 0.5))
    assert_same(run(body("%9 = index 1"), x=x), np.indices((2, 3))[1])
    assert_same(run(body("%9 {x, (2, 1, 1)} = index -3"), x=x), np.indices((2, 2, 3))[0])


# --------------------------------------------------------------------------------------------------------
# What does not run


def test_what_the_interpreter_refuses() -> None:
    with pytest.raises(FusionNotImplementedError, match="NumPy cannot run external 'fast'"):
        run(body('%0 = load x@0\n%9 = external fast(%0) signature "f(f)" source "float fast()\\n"'), x=X)
    unknown = body("%0 = load x@0\n%9 = erf.ufunc(%0)")
    with pytest.raises(FusionNotImplementedError, match="NumPy alone has no 'erf'"):
        run(unknown, x=X)
    found = interpret(parse_program(unknown), {"x": X}, evaluate=lambda name: {"erf": np.tanh}[name])
    assert_same(found, np.tanh(X))
    with pytest.raises(FusionValueError, match="no array for buffer 'x'"):
        run(unknown)
    with pytest.raises(FusionTypeError, match="buffer 'x' is float32, its array float64"):
        run(unknown, x=X.astype(np.float64))
    with pytest.raises(ValueError, match="could not be broadcast"):
        run(body("%0 = load x@0\n%1 = load x@0[1 + d0]\n%9 = add.operator(%0, %1)"), x=X)
    larger = body("%0 = load x@0\n%1 = load y@0\n%9 = assign.operator(%0, %1)", x="float32", y="float32")
    with pytest.raises(ValueError, match="broadcast"):
        run(larger, x=X[:1], y=X)
