"""Stores, index maps, gathers, reductions and scans of the interpreter, against NumPy itself."""

from __future__ import annotations

import numpy as np
import pytest
from program_text import X, assert_same, body, run

from numfuse.errors import FusionIndexError, FusionNotImplementedError, FusionValueError


def test_masked_store() -> None:
    nodes = """
    %0 = load x@0
    %1 = const 0
    %2 = less.operator(%0, %1)
    x@1 = store %1 into x@0 where %2
    %9 = load x@0
    """
    x = X.copy()
    before = run(body(nodes), x=x)
    expected = X.copy()
    expected[expected < 0] = 0
    assert_same(x, expected)
    assert_same(before, X)  # a load of the old version
    assert not np.shares_memory(before, x)  # type: ignore[arg-type]


def test_store_through_a_map() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = x.copy()
    expected[1:, ::2] = [[-1], [-2]]
    v = np.float32([[-1], [-2]])
    run(body("%9 = load v@0\nx@1 = store %9 into x@0[1 + d0, 2*d1]", x="float32", v="float32"), x=x, v=v)
    assert_same(x, expected)


def test_store_to_a_read_only_array() -> None:
    x = X.copy()
    x.flags.writeable = False
    with pytest.raises(FusionValueError, match="the array of 'x' is read-only"):
        run(body("%9 = load x@0\nx@1 = store %9 into x@0"), x=x)


A = np.arange(12, dtype=np.int16).reshape(3, 4)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("d1, d0", A.T),
        ("d0, 3 + -1*d1", A[:, ::-1]),
        ("2, d0", A[2]),
        ("1 + d0, 2", A[1:, 2]),
        ("d0, d2; rank 3", A[:, None, :]),
        ("d0, d0", np.diagonal(A)),
        ("d0, 1 + 2*d1", A[:, 1::2]),
        ("d0, 5 + d1", A[:, 5:]),
        ("2, 3", A[2, 3]),
        ("2, 3; rank 2", A[2:3, 3:4]),
        ("d0, -1 + d1; edge wrap", np.roll(A, 1, axis=1)),
        ("-2 + d0 extent 7, d1; edge wrap", np.pad(A, ((2, 2), (0, 0)), "wrap")),
        ("-1 + d0 extent 5, -2 + d1 extent 7; edge clamp", np.pad(A, ((1, 1), (2, 1)), "edge")),
        ("-1 + d0 extent 5, d1; edge fill; fill -7", np.pad(A, ((1, 1), (0, 0)), constant_values=-7)),
        ("9 + d0 extent 2, d1; edge fill; fill 1.0", np.ones((2, 4), np.int16)),
        ("*", A),
    ],
)
def test_views(index: str, expected: np.ndarray) -> None:
    found = run(body(f"%0 = load x@0\n%9 = view %0[{index}]", x="int16"), x=A)
    assert_same(found, np.array(expected))
    assert not np.shares_memory(found, A)  # type: ignore[arg-type]
    assert_same(run(body(f"%9 = load x@0[{index}]", x="int16"), x=A), np.array(expected))


def test_view_of_a_stretched_axis_and_of_numbers_from_a_loop() -> None:
    row = body("%0 = load x@0\n%9 = view %0[stretch d0, d1]", x="int16")
    assert_same(run(row, x=A[:1]), A[:1])
    with pytest.raises(FusionValueError, match="axis 0 of length 3 cannot be stretched"):
        run(row, x=A)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("d0", "an index map of 1 axes met an array of 2 dimensions"),
        ("d0 extent 4, d1", "position 3 is outside axis 0 of length 3"),
        ("-1 + d0, d1", "position -1 is outside axis 0 of length 3"),
        ("d0 extent 2, d0 extent 3", "one dimension two extents"),
    ],
)
def test_maps_that_do_not_fit(index: str, message: str) -> None:
    with pytest.raises((FusionIndexError, FusionValueError), match=message):
        run(body(f"%0 = load x@0\n%9 = view %0[{index}]", x="int16"), x=A)


def test_gather() -> None:
    i, j = np.array([[0], [-1]], np.int8), np.array([5, 1, -9], np.int64)
    nodes = "%0 = load i@0\n%1 = load j@0\n%9 = gather x@0(%0, %1) "
    dtypes = {"x": "int16", "i": "int8", "j": "int64"}
    assert_same(run(body(nodes + "clamp", **dtypes), x=A, i=i, j=j), A[[[0], [0]], [3, 1, 0]])
    assert_same(run(body(nodes + "wrap-negative", **dtypes), x=A, i=i, j=j % 4), A[i, j % 4])
    assert_same(run(body(nodes + "unchecked", **dtypes), x=A, i=abs(i), j=j % 4), A[abs(i), j % 4])
    with pytest.raises(FusionIndexError, match="outside an axis of length 4"):
        run(body(nodes + "wrap-negative", **dtypes), x=A, i=i, j=j)
    with pytest.raises(FusionIndexError, match="outside an axis of length 3"):
        run(body(nodes + "unchecked", **dtypes), x=A, i=i, j=j % 4)
    k = np.array([2**64 - 1], np.uint64)
    with pytest.raises(FusionIndexError):
        run(body("%0 = load k@0\n%9 = gather x@0(%0) wrap-negative", x="float32", k="uint64"), x=X, k=k)


def test_reductions_and_scans() -> None:
    def reduced(rest: str) -> object:
        return run(body(f"%0 = load x@0\n%9 = {rest}", x="int16"), x=A)

    assert_same(reduced("reduce add %0"), A.sum())
    assert_same(reduced("reduce add %0 axes (0, 1) keepdims dtype int16"), A.sum(keepdims=True, dtype=np.int16))
    assert_same(reduced("reduce maximum %0 axes (-1)"), A.max(axis=-1))
    assert_same(reduced("reduce logical_or %0 axes (0)"), A.any(axis=0))
    assert_same(reduced("reduce add %0 axes ()"), np.add.reduce(A, axis=()))
    assert_same(reduced("scan add %0 axis 1"), A.cumsum(axis=1))
    assert_same(reduced("scan maximum %0 axis 0 dtype float32"), A.astype(np.float32))
    chosen = "%1 = const 5\n%2 = less.operator(%0, %1)\n%9 = reduce minimum %0 axes (1) initial %1 where %2"
    text = body(f"%0 = load x@0\n{chosen}", x="int16")
    assert_same(run(text, x=A), A.min(axis=1, initial=5, where=A < 5))
    with pytest.raises(FusionNotImplementedError, match="'where' does not reduce"):
        reduced("reduce where %0")
