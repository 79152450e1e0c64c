"""The body's text form and its structural check."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numfuse import body
from numfuse.body import (
    Affine,
    Block,
    Buffer,
    BufferResult,
    Const,
    Fixed,
    HostResult,
    IndexMap,
    Loop,
    Op,
    Program,
    Shape,
    Stretched,
    Value,
    ValueResult,
    Variance,
    Version,
    Weak,
)
from numfuse.body_text import parse_program, print_program, programs_equal
from numfuse.errors import FusionSyntaxError, FusionTypeError, FusionValueError, Loc
from numfuse.verifier import verify

F32, F64, I64, BOOL = (np.dtype(name) for name in ("float32", "float64", "int64", "bool"))


def wrap(*nodes: body.Node, yields: tuple[int, ...] = (), **fields: Any) -> Program:
    """A program around some nodes, well-formed or not."""
    results = tuple(map(ValueResult, yields))
    buffers = (Buffer("x", "parameter", F32),)
    fields = {"buffers": buffers, "results": results, "structure": tuple(range(len(yields))), **fields}
    return Program("f", block=Block(nodes, yields), **fields)


def identical(first: object, second: object) -> bool:
    """Equality by type and bits, independent of the printer; source places do not count."""
    if type(first) is not type(second):
        return False
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first) if field.compare]
        return all(identical(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(identical, first, second))
    if isinstance(first, np.generic):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(first, complex):
        return struct.pack("dd", first.real, first.imag) == struct.pack("dd", second.real, second.imag)
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    return first == second


def assert_round_trip(program: Program) -> None:
    text = print_program(program)
    parsed = parse_program(text)
    assert identical(parsed, program), text
    assert print_program(parsed) == text
    assert programs_equal(parsed, program)


# --------------------------------------------------------------------------------------------------------
# Random programs: every field of every node, well-formed or not, since the text must not depend on that.

names = st.one_of(
    st.sampled_from(["x", "y", "self.table", "<lambda>", "größe", "yield", "nan", "inf", "d0", "True", "", "a-b"]),
    st.text(max_size=5),
)
ids = st.integers(0, 99)
ints = st.integers(-(2**70), 2**70)
small = st.integers(-9, 9)
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
dtypes = st.sampled_from([*DTYPES, "float64", "complex64", "complex128", ">f4", ">i2", "longdouble"]).map(np.dtype)
types = st.one_of(dtypes, st.sampled_from(Weak))
shapes = st.builds(Shape, st.frozensets(names, max_size=3), st.lists(st.integers(0, 9), max_size=3).map(tuple))
values = st.builds(Value, ids, st.none() | types, st.none() | shapes, st.none() | st.sampled_from(Variance))
python_numbers = st.one_of(st.booleans(), ints, st.floats(), st.complex_numbers())


@st.composite
def numpy_numbers(draw: st.DrawFn) -> np.generic:
    """Any bit pattern of any dtype, NaNs with payloads among them."""
    dtype = draw(st.sampled_from([*DTYPES, "float64", "complex64", "complex128"]).map(np.dtype))
    if dtype == BOOL:
        return np.bool(draw(st.booleans()))
    if draw(st.booleans()):
        return dtype.type(draw(st.sampled_from([0, 1, 2, 3, 7])))
    return np.frombuffer(draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)), dtype)[0]


numbers = st.one_of(python_numbers, numpy_numbers(), st.just(body.UNDEFINED))
axes = st.one_of(
    st.builds(Affine, st.integers(0, 3), small, small, st.none() | st.integers(0, 9)),
    st.builds(Fixed, small),
    st.builds(Stretched, st.integers(0, 3)),
)
index_maps = st.builds(
    IndexMap,
    st.none() | st.lists(axes, max_size=3).map(tuple),
    st.none() | st.integers(0, 4),
    st.sampled_from(["none", "wrap", "clamp", "fill"]),
    st.none() | python_numbers,
)
versions = st.builds(Version, names, st.integers(0, 5))
many_ids = st.lists(ids, max_size=3).map(tuple)
many_values = st.lists(values, max_size=3).map(tuple)
optional_dtypes = st.none() | dtypes
loops = st.none() | st.lists(dtypes, max_size=3).map(tuple)
bounds = st.sampled_from(["wrap-negative", "clamp", "unchecked"])
rules = st.sampled_from(["unsafe", "same_kind", "safe", "weak"])
reduced = st.none() | st.lists(small, max_size=3).map(tuple)
texts = st.sampled_from(['__device__ float f(float x) {\n  return "x"[0]; // %3 = \\n\n}\n', ""]) | st.text()
optional_ids = st.none() | ids
trips = st.none() | st.just("uniform") | st.integers(0, 2**40)
# A strategy for each field of each node kind, in order.
LEAVES: dict[type, tuple[st.SearchStrategy[Any], ...]] = {
    Const: (values, numbers),
    body.HostArg: (values, ids),
    body.Index: (values, small),
    body.Load: (values, versions, index_maps),
    body.Gather: (values, versions, many_ids, bounds),
    Op: (many_values, names, many_ids, names, loops),
    body.Cast: (values, ids, rules),
    body.View: (values, ids, index_maps),
    body.Reduce: (
        values, names, ids, reduced, st.booleans(), optional_dtypes, optional_ids, optional_ids,
    ),
    body.Scan: (values, names, ids, small, optional_dtypes),
    body.External: (many_values, names, texts, texts, many_ids, st.none() | texts),
    body.Store: (versions, versions, ids, index_maps, optional_ids),
}  # fmt: skip
leaf_nodes = st.one_of(*(st.builds(kind, *fields) for kind, fields in LEAVES.items()))


def region_fields(nodes: st.SearchStrategy[body.Node]) -> dict[type, tuple[st.SearchStrategy[Any], ...]]:
    inner = blocks(nodes)
    return {
        body.If: (many_values, ids, inner, inner),
        Loop: (many_values, many_ids, many_values, inner, inner, trips),
    }


def blocks(nodes: st.SearchStrategy[body.Node]) -> st.SearchStrategy[Block]:
    return st.builds(Block, st.lists(nodes, max_size=4).map(tuple), many_ids)


def regions(nodes: st.SearchStrategy[body.Node]) -> st.SearchStrategy[body.Node]:
    return st.one_of(*(st.builds(kind, *fields) for kind, fields in region_fields(nodes).items()))


kinds = st.sampled_from(["parameter", "captured", "temporary", "output"])
programs = st.builds(
    Program,
    names,
    st.lists(st.builds(Buffer, names, kinds, dtypes), max_size=3).map(tuple),
    blocks(st.recursive(leaf_nodes, regions, max_leaves=6)),
    st.lists(st.builds(ValueResult, ids) | st.builds(BufferResult, names) | st.builds(HostResult, ids), max_size=3).map(
        tuple
    ),
    st.recursive(st.none() | ids, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5),
    st.lists(st.none() | types, max_size=3).map(tuple),
)


@given(programs)
def test_round_trip_of_any_program(program: Program) -> None:
    assert_round_trip(program)


@given(leaf_nodes)
def test_round_trip_of_any_node(node: body.Node) -> None:
    assert_round_trip(wrap(node))


@given(numbers)
def test_round_trip_of_any_constant(number: object) -> None:
    assert_round_trip(wrap(Const(Value(0), number)))


def test_words_of_one_line_do_not_begin_the_next() -> None:
    empty = Block((), ())
    assert_round_trip(wrap(Op((), "sin", ()), Loop((), (), (), empty, empty), Op((), "loop", ())))
    last = body.Store(Version("where"), Version("where", 1), 0)
    assert_round_trip(wrap(body.Store(Version("x"), Version("x", 1), 0), last))


def test_every_field_of_every_node_kind_is_drawn() -> None:
    """What is added to the body must be added to the printer, the parser and this file."""
    drawn = LEAVES | region_fields(leaf_nodes)
    assert set(drawn) == set(body.Node.__args__)
    for kind, strategies in drawn.items():
        assert len(strategies) == sum(field.compare for field in dataclasses.fields(kind)), kind


@pytest.mark.parametrize(
    "number",
    [
        -0.0, float("nan"), float("-inf"), 1e-320, complex(-0.0, float("nan")), complex("inf-0j"), 10**5000,
        np.float32("nan"), np.float16("-inf"), np.complex64(complex(float("inf"), -0.0)), np.float32(0.1),
        np.longdouble("0.1"), np.uint64(2**64 - 1), np.False_, True, np.uint32(0x7FC00123).view(np.float32),
    ],
    ids=lambda number: type(number).__name__,
)  # fmt: skip
def test_constants(number: object) -> None:
    assert_round_trip(wrap(Const(Value(0), number)))


def test_programs_equal_compares_bits_and_ignores_places() -> None:
    def constant(number: object, loc: Loc | None = None) -> Program:
        return wrap(Const(Value(0), number, loc))

    quiet, payload = (np.uint32(bits).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert constant(float("nan")) != constant(float("nan"))
    assert programs_equal(constant(float("nan")), constant(float("nan")))
    assert not programs_equal(constant(quiet), constant(payload))
    assert constant(1.0) == constant(True) == constant(np.float32(1))
    for other in (1, True, np.float64(1), np.float32(1), -1.0):
        assert not programs_equal(constant(1.0), constant(other))
    assert not programs_equal(constant(0.0), constant(-0.0))
    assert programs_equal(constant(1.0), constant(1.0, Loc("user.py", 3, 0, 1, "f")))


def test_text_is_readable() -> None:
    x = Shape(frozenset({"x"}))
    nodes = (
        body.Load(Value(0, F32, x, Variance.VARYING), Version("x")),
        body.HostArg(Value(1, Weak.FLOAT, Shape(), Variance.HOST_UNIFORM), 0),
        Op((Value(2, F32, x),), "multiply", (0, 1), "operator", (F32, F32), Loc("user.py", 7, 4, 9, "f")),
        body.View(Value(3), 2, IndexMap((Affine(0, 1, 2, 5), Fixed(-1), Stretched(1)), 2, "fill", 0.0)),
        Loop((Value(4, I64),), (1,), (Value(5, I64),), Block((), (1,)), Block((), (5,)), "uniform"),
        body.Store(Version("x"), Version("x", 1), 2, mask=3),
    )
    program = wrap(*nodes, yields=(4,), host_slots=(Weak.FLOAT,), structure=(0, [()]))
    assert_round_trip(program)
    assert (
        print_program(program, locs=True)
        == """\
program f
buffer x: parameter float32
host 0: float
{
  %0: float32 {x} varying = load x@0
  %1: float {} host-uniform = host 0
  %2: float32 {x} = multiply.operator(%0, %1) loop(float32, float32)  # user.py:7
  %3 = view %2[1 + 2*d0 extent 5, -1, stretch d1; rank 2; edge fill; fill 0.0]
  %4: int64 = loop (%1) as (%5: int64) trip uniform {
    yield %1
  } do {
    yield %5
  }
  x@1 = store %2 into x@0 where %3
  yield %4
}
results %4
structure (0, [()])
"""
    )
    assert parse_program(print_program(program, locs=True)) == program


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(FusionTypeError, match="must be a Python number or a NumPy number, not 'a'"):
        print_program(wrap(Const(Value(0), "a")))
    with pytest.raises(FusionTypeError, match="integers, tuples, lists and None"):
        print_program(wrap(structure={"a": 0}))
    with pytest.raises(FusionTypeError, match="not the dtype of a number"):
        print_program(wrap(buffers=(Buffer("x", "parameter", np.dtype([("a", "f4"), ("b", "i1")])),)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program f\n{\n  %0 = cosnt 1\n", "line 3 .*expected a node, found"),
        ("program f\n{\n  %0 = const ?\n", r"line 3 of the program's text: what is '\?"),
        ("program f\n{\n  %0: flaot32 = const 1\n", "line 3 .*expected a dtype, found 'flaot32'"),
        ("program f\n{\n  %0 = cast %1 rudely\n", "expected unsafe or same_kind or safe or weak"),
        ("program f\n{\n  %0 = index 1.5\n", "expected an integer, found '1.5'"),
        ("program f\n{\n  %0, %1 = const 1\n", "expected a node with 2 results"),
        ("program f\n{\n  yield %0\n", "expected ',', found 'end of text'"),
        ("program f\nhost 1\n", "expected host slots in order"),
    ],
)  # fmt: skip
def test_text_that_is_no_program(text: str, message: str) -> None:
    with pytest.raises(FusionSyntaxError, match=message):
        parse_program(text)


# --------------------------------------------------------------------------------------------------------
# The verifier


WELL_FORMED = """\
program f
buffer x: parameter float32
host 0: int
{
  %0 = load x@0
  %1 = host 0
  %2 = less.operator(%0, %1)
  %3 = if %2 {
    %4 = negative.operator(%0)
    yield %4
  } else {
    yield %0
  }
  %5 = loop (%3) as (%6) {
    %7 = less.operator(%6, %1)
    yield %7
  } do {
    %8 = add.operator(%6, %1)
    yield %8
  }
  x@1 = store %5 into x@0 where %2
  %9 = load x@0
  x@2 = store %9 into x@1[1 + d0]
  %10 = load x@2
  yield %10, %10
}
results %10, buffer x, host 0, %10
structure (3, (1, 2), 0)
"""


def test_verifier_takes_a_well_formed_program() -> None:
    program = parse_program(WELL_FORMED)
    assert_round_trip(program)
    verify(program)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%8 = add", "%0 = add", "%0 is defined twice"),
        ("as (%6)", "as (%5)", "%5 is defined twice|%6 is used before"),
        ("negative.operator(%0)", "negative.operator(%9)", "%9 is used before it is defined"),
        ("negative.operator(%0)", "negative.operator(%4)", "%4 is used before it is defined"),
        ("add.operator(%6, %1)", "add.operator(%6, %7)", "%7 is used outside the block that defines it"),
        ("store %5 into", "store %8 into", "%8 is used outside the block that defines it"),
        ("where %2", "where %20", "%20 is used before it is defined"),
        ("    yield %4\n", "    yield %4, %4\n", "the true branch yields 2 values where 1 are needed"),
        ("    yield %0\n", "    yield\n", "the false branch yields 0 values where 1 are needed"),
        ("    yield %7\n", "    yield %7, %7\n", "condition yields 2 values where 1 are needed"),
        ("    yield %8\n", "    yield\n", "a loop's body yields 0 values where 1 are needed"),
        ("loop (%3) as", "loop (%3, %3) as", "a loop with 1 results has 2 initial values"),
        ("loop (%3) as (%6)", "loop (%3) as (%6, %16)", "a loop with 1 results has 2 arguments"),
        ("loop (%3) as (%6)", "loop (%3) as (%6) trip -1", "cannot make -1 turns"),
        ("    %8 =", "    x@1 = store %6 into x@0\n    %8 =", "a store to 'x' inside a branch or loop"),
        ("x@2 = store %9 into x@1", "x@2 = store %9 into x@0", "which ends at x@1"),
        ("x@2 = store %9 into x@1", "x@3 = store %9 into x@1", "does not continue the chain"),
        ("x@2 = store", "y@2 = store", "does not continue the chain"),
        ("%9 = load x@0", "%9 = load x@2", "x@2 does not exist at this point"),
        ("%9 = load x@0", "%9 = load y@0", "'y' is not a buffer"),
        ("%9 = load", "%9 {y} = load", "the shape of %9 names no buffer: 'y'"),
        ("%9 = load x@0", "%9 = cast %5 unsafe", "cast %9 does not say to what"),
        ("%9 = load x@0", "%9 = gather y@0(%5) clamp", "'y' is not a buffer"),
        ("%9 = load x@0", "%9 = view %5[d1; rank 1]", "of rank 1 names dimension 1"),
        ("%9 = load x@0", "%9 = view %5[*; edge fill]", "fills with nothing"),
        ("%9 = load x@0", "%9 = view %5[0*d0]", "an open extent of step zero"),
        ("%9 = load x@0", "%9 = host 1", "there is no host slot 1"),
        ("%9 = load x@0", "%9 = sin.ufunc(%5) loop()", "other than that many loop dtypes"),
        ("x@1[1 + d0]", "x@1[1 + d0; edge clamp]", "a store cannot clamp positions"),
        ("  yield %10, %10\n", "  yield %10\n", r"the body yields \(%10\) but the value results are"),
        ("results %10, buffer x", "results %10, buffer y", "result 'y' is not a buffer"),
        ("host 0, %10\n", "host 2, %10\n", "there is no host slot 2"),
        ("(3, (1, 2), 0)", "(3, (1, 2))", "does not place each of 4 results"),
        ("(3, (1, 2), 0)", "(3, (1, 2), 0, 4)", "does not place each of 4 results"),
        ("buffer x: parameter float32\n", "buffer x: parameter float32\n" * 2, "two buffers have one name"),
    ],
)  # fmt: skip
def test_verifier_refuses(old: str, new: str, message: str) -> None:
    assert WELL_FORMED.count(old) == 1
    with pytest.raises(FusionValueError, match=f"ill-formed program 'f': .*({message})"):
        verify(parse_program(WELL_FORMED.replace(old, new)))


def test_verifier_says_where() -> None:
    loc = Loc("user.py", 3, 0, 1, "f")
    with pytest.raises(FusionValueError, match=r'File "user\.py", line 3, in f'):
        verify(wrap(Op((Value(0),), "sin", (7,), loc=loc), yields=(0,)))
