"""Layouts against NumPy: every element of every array at the address where NumPy has it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numfuse.arrays import (
    ArrayInfo,
    dense_strides,
    index_bits,
    nest_layout,
    output_order,
    overlap,
    overlaps_itself,
)
from numfuse.arrays.layout import Layout
from numfuse.backends.element import Access

ITEMSIZE = 8


def is_flat(layout: Layout) -> bool:
    """Whether one loop over neighbouring elements does it."""
    return len(layout.extents) == 1 and set(layout.accesses) <= {Access.DENSE, Access.SCALAR}


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """A C-ordered array whose values say where in the buffer each element lies (in elements)."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """A view of this shape: axes permuted, every second or third element, reversed, some axes broadcast."""
    ndim = len(shape)
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, -1, -2]), min_size=ndim, max_size=ndim))
    permutation = draw(st.permutations(range(ndim)))
    stretch = draw(st.lists(st.booleans(), min_size=ndim, max_size=ndim)) if draw(st.booleans()) else []
    full = [n * abs(step) for n, step in zip(shape, steps, strict=True)]
    base = numbered(tuple(full[axis] for axis in permutation))
    view = base.transpose(np.argsort(permutation)) if ndim else base
    view = view[tuple(slice(None, None, step) for step in steps)]
    assert view.shape == shape
    for axis, broadcast in enumerate(stretch):
        if broadcast:
            first = view[(slice(None),) * axis + (slice(0, 1),)]
            view = np.broadcast_to(first, shape) if draw(st.booleans()) and 0 not in shape else view
    return view


@st.composite
def problems(draw: st.DrawFn, least: int = 1) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """A domain and one to four arrays that broadcast to it."""
    domain = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    arrays = []
    for _ in range(draw(st.integers(least, 4))):
        rank = draw(st.integers(0, len(domain))) if draw(st.booleans()) else len(domain)
        kept = domain[len(domain) - rank :]
        shape = tuple(n if draw(st.integers(0, 3)) else 1 for n in kept)
        arrays.append(draw(views(shape)))
    return domain, arrays


def described(arrays: list[np.ndarray]) -> list[tuple[Any, Any, int]]:
    return [(a.shape, a.strides, a.itemsize) for a in arrays]


def positions_by_layout(layout: Layout, first: list[int]) -> list[tuple[int, ...]]:
    """For each element of the nest, in order, its position in the buffer of each array."""
    found = []
    for index in itertools.product(*map(range, layout.extents)):
        row = []
        for start, offset, strides in zip(first, layout.offsets, layout.strides, strict=True):
            moved = offset + sum(i * s for i, s in zip(index, strides, strict=True))
            assert moved % ITEMSIZE == 0
            row.append(start + moved // ITEMSIZE)
        found.append(tuple(row))
    return found


@given(problems())
def test_every_element_is_met_once_where_numpy_has_it(
    problem: tuple[tuple[int, ...], list[np.ndarray]],
) -> None:
    domain, arrays = problem
    layout = nest_layout(domain, described(arrays))
    first = [int(a[(0,) * a.ndim]) for a in arrays]
    stretched = [np.broadcast_to(a, domain) for a in arrays]
    wanted = [tuple(int(a[index]) for a in stretched) for index in np.ndindex(domain)]
    assert sorted(positions_by_layout(layout, first)) == sorted(wanted)
    assert layout.size == len(wanted)
    assert layout.index_bits == 32


@given(problems())
def test_accesses_say_what_the_strides_are(problem: tuple[tuple[int, ...], list[np.ndarray]]) -> None:
    domain, arrays = problem
    layout = nest_layout(domain, described(arrays))
    for access, strides in zip(layout.accesses, layout.strides, strict=True):
        assert len(strides) == len(layout.extents)
        if access is Access.SCALAR:
            assert not any(strides)
        elif access is Access.DENSE:
            assert strides[-1] == ITEMSIZE
        elif access is Access.REPEATED:
            assert strides[-1] == 0
            assert any(strides)
        else:
            assert strides[-1] not in (0, ITEMSIZE)
    assert 1 not in layout.extents or layout.extents == (1,)


@given(problems(least=1))
def test_no_neighbouring_dimensions_could_still_be_joined(
    problem: tuple[tuple[int, ...], list[np.ndarray]],
) -> None:
    domain, arrays = problem
    layout = nest_layout(domain, described(arrays))
    for d in range(len(layout.extents) - 1):
        assert any(s[d] != s[d + 1] * layout.extents[d + 1] for s in layout.strides)


def moving(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The strides that mean something: those of dimensions with more than one element."""
    return [s for n, s in zip(shape, strides, strict=True) if n > 1]


@given(problems())
def test_output_order_is_that_of_numpys_iterator(problem: tuple[tuple[int, ...], list[np.ndarray]]) -> None:
    _, arrays = problem
    result = np.nditer([*arrays, None], [], [["readonly"]] * len(arrays) + [["writeonly", "allocate"]])
    wanted = result.operands[-1]
    order = output_order(wanted.shape, [(a.shape, a.strides) for a in arrays])
    ours = dense_strides(wanted.shape, wanted.itemsize, order)
    assert sorted(order) == list(range(wanted.ndim))
    assert moving(wanted.shape, ours) == moving(wanted.shape, wanted.strides)


@given(problems(least=2))
def test_output_order_is_that_of_numpys_ufuncs(problem: tuple[tuple[int, ...], list[np.ndarray]]) -> None:
    a, b = problem[1][:2]
    wanted = np.add(a, b)
    if not isinstance(wanted, np.ndarray):
        return
    ours = dense_strides(wanted.shape, 8, output_order(wanted.shape, [(a.shape, a.strides), (b.shape, b.strides)]))
    assert moving(wanted.shape, ours) == moving(wanted.shape, wanted.strides)


@pytest.mark.parametrize("drop", [(), (0,), (1,), (2,), (0, 2)], ids=str)
def test_output_order_of_operands_that_disagree(drop: tuple[int, ...]) -> None:
    """All pairs of memory orders in three dimensions, the first operand broadcast along some of them."""
    shape = (2, 3, 4)
    for one, other in itertools.product(itertools.permutations(range(3)), repeat=2):
        a, b = (np.zeros([shape[d] for d in p]).transpose(np.argsort(p)) for p in (one, other))
        a = a[tuple(slice(0, 1) if d in drop else slice(None) for d in range(3))]
        ours = output_order(shape, [(a.shape, a.strides), (b.shape, b.strides)])
        assert dense_strides(shape, 8, ours) == np.add(a, b).strides


def test_dense_arrays_of_one_order_are_flat_whatever_the_order() -> None:
    x = np.zeros((4, 5, 6), np.float32)
    for axes in itertools.permutations(range(3)):
        view = x.transpose(axes)
        order = output_order(view.shape, [(view.shape, view.strides)])
        output = (view.shape, dense_strides(view.shape, 8, order), 8)
        layout = nest_layout(view.shape, [*described([view, view]), output])
        assert is_flat(layout)
        assert layout.extents == (120,)
        assert layout.strides == ((4,), (4,), (8,))
        assert layout.accesses == (Access.DENSE,) * 3


def test_a_row_a_column_and_a_transposed_operand() -> None:
    x = np.zeros((16, 32), np.float32)
    row, column = np.zeros(32, np.float32), np.zeros((16, 1), np.float32)
    square = np.zeros((32, 16), np.float32)
    layout = nest_layout((16, 32), described([x, row, column, square.T, np.zeros((), np.float32), x]))
    assert layout.extents == (16, 32)
    assert layout.strides == ((128, 4), (0, 4), (4, 0), (4, 64), (0, 0), (128, 4))
    assert layout.accesses == (
        Access.DENSE,
        Access.DENSE,
        Access.REPEATED,
        Access.STRIDED,
        Access.SCALAR,
        Access.DENSE,
    )
    assert not is_flat(layout)


def test_a_scalar_operand_keeps_the_nest_flat() -> None:
    x = np.zeros((3, 4), np.int16)
    layout = nest_layout((3, 4), described([x, np.zeros((1, 1), np.int16), x]))
    assert is_flat(layout)
    assert layout.extents == (12,)
    assert layout.accesses == (Access.DENSE, Access.SCALAR, Access.DENSE)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_element_is_dense(shape: tuple[int, ...]) -> None:
    x = np.zeros((2, 2, 2), np.float64)[1:, ::-2, 1:].reshape(shape)
    layout = nest_layout(shape, [*described([x]), ((), (), 4)])
    assert layout.extents == (1,)
    assert layout.strides == ((8,), (4,))
    assert layout.accesses == (Access.DENSE, Access.DENSE)
    assert is_flat(layout)


@pytest.mark.parametrize("domain", [(0,), (3, 0), (0, 2, 5)])
def test_an_empty_domain(domain: tuple[int, ...]) -> None:
    x = np.zeros(domain)
    layout = nest_layout(domain, described([x, np.zeros(())]))
    assert layout.size == 0
    assert layout.extents == (0,)
    assert output_order(domain, [(x.shape, x.strides)]) == tuple(range(len(domain)))


def test_what_runs_backwards_everywhere_is_turned_round() -> None:
    x = numbered((6, 4))[::-1, ::-1]
    layout = nest_layout(x.shape, described([x, x]))
    assert is_flat(layout)
    assert layout.offsets == (-23 * 8, -23 * 8)
    mixed = nest_layout(x.shape, described([x, numbered((6, 4))]))
    assert mixed.extents == (24,)
    assert mixed.strides == ((-8,), (8,))
    assert mixed.accesses == (Access.STRIDED, Access.DENSE)


def test_an_array_that_does_not_fit_the_domain_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) does not broadcast to \(4,\)"):
        nest_layout((4,), [((3,), (8,), 8)])
    with pytest.raises(ValueError, match=r"shape \(1, 4\) does not broadcast to \(4,\)"):
        nest_layout((4,), [((1, 4), (32, 8), 8)])


def test_index_bits() -> None:
    assert index_bits((2**29,), ((1,),), (1,)) == 32
    assert index_bits((2**30,), ((1,),), (1,)) == 32
    assert index_bits((2**30 + 1,), ((1,),), (1,)) == 64
    assert index_bits((2**29 - 1,), ((4,),), (4,)) == 32
    assert index_bits((2**29,), ((4,),), (4,)) == 64
    assert index_bits((10,), ((4,), (-(2**30),)), (4, 4)) == 64
    assert index_bits((2**16, 2**16), ((0, 0),), (4,)) == 64


def info_of(array: np.ndarray) -> ArrayInfo:
    return ArrayInfo(array.dtype, array.shape, array.strides, array.ctypes.data, None)


def elements(array: np.ndarray) -> list[int]:
    """The address of each element, in C order of indices."""
    strides = np.array(array.strides, dtype=np.int64)
    return [array.ctypes.data + int(strides @ np.array(i, dtype=np.int64)) for i in np.ndindex(array.shape)]


def bytes_of(array: np.ndarray) -> set[int]:
    return {first + k for first in elements(array) for k in range(array.itemsize)}


@st.composite
def pieces(draw: st.DrawFn, buffer: np.ndarray) -> np.ndarray:
    """A basic-indexing view of a two-dimensional buffer."""
    index = []
    for extent in buffer.shape:
        start, stop = sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent))))
        step = draw(st.sampled_from([1, 1, 2, 3]))
        view = slice(start, stop, step)
        index.append(view if draw(st.booleans()) else slice(stop - 1, start - 1 if start else None, -step))
    piece = buffer[tuple(index)]
    return piece.T if draw(st.booleans()) else piece


BUFFER = np.zeros((6, 8), np.int16)


@given(pieces(BUFFER), pieces(BUFFER))
def test_overlap_is_never_missed(a: np.ndarray, b: np.ndarray) -> None:
    found = overlap(info_of(a), info_of(b))
    assert found == overlap(info_of(b), info_of(a))
    shared = bool(bytes_of(a) & bytes_of(b))
    if a.size and a.shape == b.shape and elements(a) == elements(b):
        assert found == "exact"
    elif shared:
        assert found == "partial"
    else:
        assert found in ("none", "partial")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (BUFFER[:3], BUFFER[3:]),
        (BUFFER[::2], BUFFER[1::2]),
        (BUFFER[:, ::2], BUFFER[:, 1::2]),
        (BUFFER[:, :3], BUFFER[:, 3:]),
        (BUFFER[:, 0], BUFFER[:, 7]),
        (BUFFER[::-1, 5:2:-1], BUFFER[:, :3]),
        (BUFFER[:, :0], BUFFER),
        (BUFFER.view(np.complex64).real, BUFFER.view(np.complex64).imag),
    ],
)
def test_disjoint_pieces_of_one_array(left: np.ndarray, right: np.ndarray) -> None:
    assert overlap(info_of(left), info_of(right)) == "none"


def test_the_same_view_and_views_that_differ() -> None:
    x = np.zeros(16, np.float32)
    assert overlap(info_of(x), info_of(x[:])) == "exact"
    assert overlap(info_of(x), info_of(x.view(np.int32))) == "exact"
    assert overlap(info_of(x), info_of(x.view(np.int16))) == "partial"
    assert overlap(info_of(x[1:]), info_of(x[:-1])) == "partial"
    assert overlap(info_of(x), info_of(x[::-1])) == "partial"
    assert overlap(info_of(x), info_of(x.reshape(4, 4))) == "partial"
    on_gpu = ArrayInfo(x.dtype, x.shape, x.strides, x.ctypes.data, 0)
    assert overlap(info_of(x), on_gpu) == "none"


def test_arrays_that_meet_their_own_memory_twice() -> None:
    x = np.zeros((4, 6), np.float64)
    for fine in (
        x,
        x.T,
        x[::2, ::-1],
        x[:, :1],
        np.broadcast_to(x[:1], (1, 6)),
        x[:0],
        x[0, 0:1].reshape(()),
    ):
        assert not overlaps_itself(info_of(fine))
    assert overlaps_itself(info_of(np.broadcast_to(x[0], (4, 6))))
    assert overlaps_itself(info_of(np.lib.stride_tricks.sliding_window_view(x.ravel(), 3)))
    assert not overlaps_itself(info_of(np.broadcast_to(x[0, :0], (4, 0))))
