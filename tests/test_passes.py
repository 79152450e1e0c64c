"""The passes over the typed body: shapes, simplification, stages; and compiled kernels against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typed_programs import elementwise, typed

from numfuse import FusionValueError, fuse
from numfuse.body import Const, If, Load, Loop, Op, Shape, Variance, node_results, walk
from numfuse.body_text import parse_program, print_program, programs_equal
from numfuse.passes.shapes import annotate, broadcast, concrete_shapes, stays_array
from numfuse.passes.simplify import common_subexpressions, dead_code
from numfuse.passes.stages import group_by_shape, partition
from numfuse.verifier import verify

X = np.linspace(-1, 6, 8)
X4 = X.astype(np.float32)


def count(program: Any, row: str) -> int:
    """How many operations of a row a program has."""
    return sum(isinstance(node, Op) and node.row == row for node in walk(program.block))


def nodes(program: Any, kind: type) -> list[Any]:
    """Its nodes of one kind."""
    return [node for node in walk(program.block) if isinstance(node, kind)]


def text(body: str, results: str, *, buffers: str = "x y", host: int = 0) -> Any:
    """A typed program of float32 buffers, checked."""
    head = "".join(f"buffer {name}: parameter float32\n" for name in buffers.split())
    slots = "".join(f"host {k}: float\n" for k in range(host))
    places = ", ".join(str(k) for k in range(len(results.split(", "))))
    structure = places if "," not in places else f"({places})"
    program = parse_program(
        f"program f\n{head}{slots}{{\n{body}\nyield {results}\n}}\nresults {results}\nstructure {structure}\n"
    )
    verify(program)
    return program


# --------------------------------------------------------------------------------------------------------
# Shapes and variance


def test_values_depend_on_the_arrays_that_made_them():
    def f(x, y, n):
        a = x + n * 2.0
        return a, a * y, np.sqrt(y), (x > 0) & (y > 0)

    program = typed(f, X, X4, 3.0).program
    verify(program)
    shapes = {value.id: value.shape for node in walk(program.block) for value in node_results(node)}
    assert [shapes[i] for i in program.block.yields] == [
        Shape(frozenset(names)) for names in ({"x"}, {"x", "y"}, {"y"}, {"x", "y"})
    ]


def test_a_branch_depends_on_its_condition():
    def f(x, y, z):
        n = 0
        while n < y:
            n += 1
        return (1.0 if x > 0 else 2.0), (x if z > 0 else y), n

    program = typed(f, X4, X4, X4).program
    shapes = {value.id: value.shape for node in walk(program.block) for value in node_results(node)}
    assert [shapes[i].buffers for i in program.block.yields] == [{"x"}, {"x", "y", "z"}, {"y"}]


def test_variance():
    def f(x, n):
        m = 0
        for i in range(100):  # by the kernel: its counter is one value for all elements
            m = m + i * x
        return x * 2, x + n, m

    program = typed(f, X, 2.5).program
    variances = {type(node): node.result.variance for node in program.block.nodes if hasattr(node, "result")}
    assert variances[Const] == Variance.STATIC
    assert variances[Load] == Variance.VARYING
    (loop,) = nodes(program, Loop)
    found = {value.variance for value in loop.results}
    assert found <= {Variance.DEVICE_UNIFORM, Variance.VARYING}
    assert Variance.VARYING in found


def test_annotating_twice_changes_nothing():
    program = typed(lambda x, y: (x * y, x if x > y else y), X, X4).program
    assert programs_equal(annotate(program), program)


def test_concrete_shapes():
    program = typed(lambda x, y, z: (x + y, z * 2, np.where(x > 0, z, y)), X, X, X).program
    shapes = {"x": (3, 1), "y": (4,), "z": (2, 1, 1)}
    assert concrete_shapes(program, shapes) == ((3, 4), (2, 1, 1), (2, 3, 4))
    assert concrete_shapes(program, {"x": (), "y": (), "z": (0,)}) == ((), (0,), (0,))


@pytest.mark.parametrize(
    ("function", "shapes", "message", "code"),
    [
        (lambda x, y: x + y, ((3,), (4,)), "(3,) (4,)", "x + y"),
        (lambda x, y: x * 2 + (x - y), ((2, 3), (2,)), "(2,3) (2,)", "x - y"),
        (lambda x, y: np.where(x > 0, x, y), ((0,), (2,)), "(0,) (0,) (2,)", "np.where(x > 0, x, y)"),
        (lambda x, y: (x if y > 0 else 0) + x, ((3,), (4,)), None, "x if y > 0 else 0"),
    ],
)
def test_shapes_that_do_not_broadcast_are_found_at_their_operation(function, shapes, message, code):
    program = typed(function, X, X).program
    with pytest.raises(FusionValueError, match="operands could not be broadcast together with shapes") as caught:
        concrete_shapes(program, dict(zip("xy", shapes, strict=True)))
    if message is not None:
        assert caught.value.message.endswith(message)
    line = str(caught.value).split("\n")
    start = line[-1].index("^")
    assert line[-2][start : start + len(line[-1].strip())] == code


def test_broadcast_is_numpys():
    examples = [(), (1,), (3,), (3, 1), (1, 4), (2, 3, 4), (0,), (1, 0), (2, 1, 1)]
    for first in examples:
        for second in examples:
            try:
                expected = np.broadcast_shapes(first, second)
            except ValueError:
                with pytest.raises(FusionValueError):
                    broadcast([first, second])
            else:
                assert broadcast([first, second]) == broadcast([second, first]) == expected


def test_what_stays_an_array_without_dimensions():
    def f(x):
        return x + 1, np.where(x > 0, x, 1), x.astype(np.float32), x.copy(), np.sqrt(x).astype(np.float32), x.clip(0, 1)

    scalar = np.array(2.0)
    with_types = [isinstance(item, np.ndarray) for item in f(scalar)]
    assert list(stays_array(typed(f, scalar).program)) == with_types


# --------------------------------------------------------------------------------------------------------
# Simplification


def test_equal_operations_are_done_once():
    def f(x, y):
        return x * y + 1.0, x * y - 1.0, np.sqrt(x * y) if x > 0 else x * y

    program = typed(f, X4, X4).program
    verify(program)
    assert count(program, "multiply") == 1
    assert len(nodes(program, Load)) == 2


def test_numbers_are_told_apart_by_bits_and_dtype():
    def f(x, y):
        return np.copysign(x, 0.0), np.copysign(x, -0.0), x + 1, y + 1, x + 1.0, y + 2**40

    program = typed(f, X, np.arange(8)).program
    numbers = {repr(node.value) for node in nodes(program, Const)}
    assert len(numbers) == len(nodes(program, Const))
    assert numbers == {
        *("np.float64(-0.0)", "np.float64(0.0)", "np.float64(1.0)"),
        *("np.int64(1)", "np.int64(1099511627776)"),
    }
    assert count(program, "copysign") == 2
    assert count(program, "add") == 3  # x + 1 and x + 1.0 are one
    found = fuse(f)(X, np.arange(8))
    for one, other in zip(found, f(X, np.arange(8)), strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_nan_is_equal_to_itself_here():
    program = typed(lambda x: (x + float("nan"), x + float("nan"), x * np.float32("nan")), X).program
    assert count(program, "add") == 1


def test_arms_do_not_see_each_others_values():
    program = text(
        """
        %0: float32 = load x@0
        %1: float32 = load y@0
        %2: bool = less.operator(%0, %1) loop(float32, float32)
        %3: float32 = if %2 {
          %4: float32 = add.operator(%0, %1) loop(float32, float32)
          yield %4
        } else {
          %5: float32 = add.operator(%0, %1) loop(float32, float32)
          %6: float32 = multiply.operator(%5, %5) loop(float32, float32)
          yield %6
        }
        %7: float32 = add.operator(%0, %1) loop(float32, float32)
        %8: float32 = subtract.operator(%3, %7) loop(float32, float32)
        """,
        "%8",
    )
    simple = common_subexpressions(program)
    verify(simple)
    assert count(simple, "add") == 3  # neither arm's sum exists after the branch


def test_what_stood_before_is_seen_inside():
    program = text(
        """
        %0: float32 = load x@0
        %1: float32 = load y@0
        %2: float32 = add.operator(%0, %1) loop(float32, float32)
        %3: bool = less.operator(%0, %2) loop(float32, float32)
        %4: float32 = if %3 {
          %5: float32 = add.operator(%0, %1) loop(float32, float32)
          yield %5
        } else {
          yield %0
        }
        """,
        "%4",
    )
    simple = common_subexpressions(program)
    verify(simple)
    assert count(simple, "add") == 1
    (branch,) = nodes(simple, If)
    assert branch.then.yields == (2,)


def test_dead_results_of_branches_and_loops_go():
    def f(x, y):
        kept, dead, helper = 0.0, 1.0, 2.0
        for i in range(50):
            if x > i:
                kept = kept + x
                dead = dead + np.sqrt(y)
            else:
                dead = np.exp(y)
            helper = helper * 2 + dead
        return kept

    program = typed(f, X4, X4).program
    verify(program)
    (loop,) = nodes(program, Loop)
    assert len(loop.results) == 2  # the sum and the counter
    assert {node.row for node in nodes(program, Op)} == {"less", "add", "greater"}
    assert [buffer.version.buffer for buffer in nodes(program, Load)] == ["x"]
    assert fuse(f)(X4, np.ones((5, 1), np.float32)).shape == X4.shape  # y takes no part in the result's shape


def test_a_carried_value_that_another_needs_stays():
    def f(x):
        a, b, c = x, 1.0, 0.0
        for _ in range(50):
            a, b, c = b + a, a, c + 1.0
        return a

    (loop,) = nodes(typed(f, X4).program, Loop)
    assert len(loop.results) == 3  # a, b and the counter; not c


def test_dead_code_of_some_results():
    program = typed(lambda x, y: (x + 1, np.sqrt(y), x * y), X4, X4).program
    part = dead_code(program, (1,))
    assert [node.row for node in nodes(part, Op)] == ["sqrt"]
    assert part.block.yields == (program.block.yields[1],)


def test_simplifying_twice_changes_nothing():
    def f(x, y):
        return (x * y if x > y else x + y), x * y

    program = typed(f, X4, X4).program
    assert programs_equal(dead_code(common_subexpressions(program)), program)


# --------------------------------------------------------------------------------------------------------
# Stages


def test_results_of_one_shape_share_a_nest():
    program = typed(lambda x, y: (x + 1, y * 2, x * 3, x + y), X4, X4).program
    shapes = concrete_shapes(program, {"x": (5,), "y": (3, 5)})
    assert group_by_shape(shapes) == ((0, 2), (1, 3))
    first, second = partition(program, group_by_shape(shapes))
    assert (first.operands, first.yields) == (("x",), (0, 2))
    assert (second.operands, second.yields) == (("x", "y"), (1, 3))
    assert (count(first.program, "multiply"), count(first.program, "add")) == (1, 1)
    assert group_by_shape([]) == ()
    assert group_by_shape([(2,), (2,), (2,)]) == ((0, 1, 2),)


# --------------------------------------------------------------------------------------------------------
# Two oracles: the plain function and the interpreter, both against the kernel


def clip01(v):
    return np.minimum(np.maximum(v, 0), 1)


def tone(x, gain=1.0, gamma=2.0):
    return clip01(gain * x) ** gamma, x > gain


def escape(cx, cy):
    x = y = 0.0
    n = 0
    while x * x + y * y <= 4 and n < 50:
        x, y = x * x - y * y + cx, 2 * x * y + cy
        n += 1
    return n


def collatz(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def first_above(x):
    for i in range(5):
        if x > i:
            continue
        if x < -0.5:
            break
        return x * i
    return 0.5


def select(x, y):
    return max(x, y) if x > 0 else np.sqrt(abs(y))


def weak(x):
    s = 0
    for k in range(3):
        if x > k:
            s = s + k
    return s * x


def aliased(x, y):
    z = x * 2
    w = z
    w += y
    return z, w, x.copy()


def mixed(x, y):
    return np.where(x > y, x, 1.0), x.astype(np.int8) // 3, (x + 1, np.hypot(x, y))


HALF = X4[::-1].copy()
CASES = {
    "tone": (tone, (X4,), None),
    "escape": (escape, (X4[:, None] / 4, X4[None] / 4), np.int64),
    "collatz": (collatz, (np.arange(1, 20, dtype=np.int32),), np.int64),
    "first_above float": (first_above, (X4,), np.float32),
    "first_above int": (first_above, (X.astype(np.int16),), np.float64),
    "select": (select, (X, HALF), np.float64),
    "weak": (weak, (X.astype(np.int8),), np.int8),
    "aliased": (aliased, (X, X4), None),
    "mixed": (mixed, (X4, X[:, None]), None),
}


@pytest.mark.parametrize("case", CASES)
def test_kernel_interpreter_and_plain_function_agree(case):
    function, args, dtype = CASES[case]
    made = typed(function, *args)
    for program in (made.variant.lowered.program, made.program):
        verify(program)
        assert programs_equal(parse_program(print_program(program)), program)
    with np.errstate(all="ignore"):
        expected = function(*args) if dtype is None else elementwise(function, *args, dtypes=dtype)
    kernel = fuse(function)(*args)

    def compare(found: Any, wanted: Any) -> None:
        if isinstance(wanted, tuple):
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                compare(one, other)
        else:
            np.testing.assert_array_equal(found, wanted, strict=True)

    compare(kernel, expected)
    compare(made.run(), expected)
    untyped = made.run(made.variant.lowered.program)
    if dtype is None:
        compare(untyped, expected)
    else:  # without types, the interpreter joins as Python does
        np.testing.assert_array_equal(untyped, expected)
