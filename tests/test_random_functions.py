"""Decorating never changes an answer: random functions, dtypes and layouts against the plain function.

The oracle is the plain function run by NumPy on the same arrays (an element function: on each element as a
NumPy scalar). Compared are the kind of result, its dtype, its shape and its bits; where the last operation
has an error of its own, the true value within 4 units in the last place. What numfuse refuses counts.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import random_functions
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_functions import Drawn

from numfuse import FusionError, FusionNotImplementedError, fuse
from numfuse.body import Cast, walk

# Each function is called in five layouts; more functions in a long run: NUMFUSE_RANDOM_FUNCTIONS=4000.
FUNCTIONS = int(os.environ.get("NUMFUSE_RANDOM_FUNCTIONS", "110"))
MAX_REFUSED = 0.02
ULPS = 4
ERRORS = (AttributeError, TypeError, ValueError, OverflowError, ZeroDivisionError)

counts: Counter[str] = Counter()


def run_plain(drawn: Drawn, arrays: tuple[np.ndarray, ...]) -> Any:
    """What the plain function gives, or the exception it raises."""
    try:
        with np.errstate(all="ignore"):
            if not drawn.element:
                return drawn.function(*arrays, *drawn.scalars)
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            stretched = [np.broadcast_to(array, shape) for array in arrays]
            out = np.empty(shape, object)
            for index in np.ndindex(shape):
                item = drawn.function(*(array[index] for array in stretched), *drawn.scalars)
                out[index] = item[()] if isinstance(item, np.ndarray) else item  # np.where of scalars
            return out
    except ERRORS as error:
        return error


def joined_dtype(items: np.ndarray, beside: np.dtype | None = None) -> np.dtype:
    """The dtype that holds results of these types (`beside` that one), Python numbers being weak."""
    kinds = {type(item) for item in items.flat}
    strong = [np.dtype(kind) for kind in kinds if issubclass(kind, np.generic)] + [np.dtype(bool)] * (bool in kinds)
    weak = [kind(0) for kind in kinds if kind in (int, float)]
    return np.result_type(*strong, *weak, *([] if beside is None else [beside]))


def check_exact(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want, strict=True)
    if want.dtype.kind == "f":  # assert_array_equal takes -0.0 for 0.0
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


def check_close(got: np.ndarray, want: np.ndarray) -> None:
    """Within a few units in the last place; infinities and NaNs in the same places."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want) & np.isfinite(got)
    # One may overflow where the other just does not.
    large = ~finite & (np.abs(want) > np.finfo(want.dtype).max / 8)
    np.testing.assert_array_equal(got[large] > 0, want[large] > 0)
    spacing = np.spacing(np.abs(want[finite]))
    assert np.all(np.abs(got[finite] - want[finite]) <= ULPS * spacing)


def joins_dtypes(fused: Any) -> bool:
    """Whether some variable is of one dtype on some paths and of another on others: it rounds as the wider one."""
    return any(
        isinstance(node, Cast) and node.result.type is not None and np.dtype(node.result.type).kind in "iuf"
        for variants in fused._variants.values()
        for variant in variants
        for node in walk(variant.program.block)
    )


def check_element_results(got: Any, want: np.ndarray, fused: Any) -> None:
    """An element function: branches that no element took may widen the dtype, never narrow it."""
    got = np.asarray(got)
    dtype = joined_dtype(want)
    assert joined_dtype(want, got.dtype) == got.dtype, (dtype, got.dtype)
    if dtype != got.dtype or joins_dtypes(fused):
        counts["joined dtypes"] += 1
        return
    stretched = np.broadcast_to(got, want.shape)  # an output has the shape of what it depends on
    with np.errstate(all="ignore"):
        expected = np.array(want.tolist(), dtype=dtype).astype(got.dtype).reshape(want.shape)
        # A path with the integer 0 has no sign, where another one makes the variable a float.
        np.testing.assert_array_equal(np.array(stretched), expected, strict=True)


def compare(drawn: Drawn, arrays: tuple[np.ndarray, ...], fused: Any, scalars_are_arrays: bool = False) -> None:
    """One call of both; `scalars_are_arrays` for libraries whose results without dimensions stay arrays."""
    counts["drawn"] += 1
    before = [array.copy() for array in arrays]
    want = run_plain(drawn, arrays)
    if isinstance(want, Exception):
        # The plain function fails: so does the fused one. (Of several errors in one function it may meet
        # another one first, since what Python computes comes before what NumPy is asked.)
        counts["raised"] += 1
        if drawn.element and not isinstance(want, TypeError):
            return  # raised for some element only
        with pytest.raises((*ERRORS, FusionNotImplementedError)), np.errstate(all="ignore"):
            fused(*arrays, *drawn.scalars)
        return
    try:
        with np.errstate(all="ignore"):  # Python's own part of a function warns as the plain one does
            got = fused(*arrays, *drawn.scalars)
    except FusionNotImplementedError as error:
        if "float16" not in str(error):  # NumPy's answer for sqrt(int8): these kernels come later
            raise
        counts["float16"] += 1
        return
    except FusionError:
        if not drawn.element:
            raise
        counts["refused"] += 1  # a branch that no element takes may not type
        return
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)
    if drawn.element:
        check_element_results(got, want, getattr(fused, "fused", fused))
        return
    wants = want if isinstance(want, tuple) else (want,)
    gots = got if isinstance(got, tuple) else (got,)
    assert isinstance(got, tuple) == isinstance(want, tuple)
    assert len(gots) == len(wants)
    for one, other in zip(gots, wants, strict=True):
        if scalars_are_arrays and isinstance(one, np.ndarray) and one.ndim == 0:
            one = one[()] if isinstance(other, np.generic) else one
        assert type(one) is type(other)
        if not isinstance(other, np.ndarray | np.generic):
            assert one == other or (one != one and other != other)
            continue
        check = check_close if drawn.rounded else check_exact
        check(np.asarray(one), np.asarray(other))


@settings(
    max_examples=FUNCTIONS,
    deadline=None,
    phases=(Phase.generate, Phase.shrink) if "NUMFUSE_SHRINK" in os.environ else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(drawn=random_functions.functions(), seed=st.integers(0, 10_000))
def _random_functions(drawn: Drawn, seed: int) -> None:
    fused = fuse(drawn.function)
    for arrays in random_functions.layouts(drawn.dtypes, seed):
        try:
            compare(drawn, arrays, fused)
        except Exception as error:
            error.add_note(drawn.source)
            error.add_note(f"arguments: {[(a.dtype, a.shape) for a in arrays]} {drawn.scalars} seed {seed}")
            raise


def test_random_functions_equal_the_plain_function() -> None:
    counts.clear()
    _random_functions()
    print(dict(counts))
    assert counts["drawn"] >= 5 * FUNCTIONS * 0.9
    assert counts["refused"] <= MAX_REFUSED * counts["drawn"]
    assert counts["joined dtypes"] <= 0.15 * counts["drawn"]


def test_the_grammar_draws_what_it_should() -> None:
    """A test that can't fail is none: the grammar reaches every form it is meant to."""
    seen: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(random_functions.functions())
    def draw(drawn: Drawn) -> None:
        for form in ("if ", "while ", "for ", "np.where", "helper(", "//", "&", ".astype", "break", "clip"):
            seen[form] += form in drawn.source
        seen["element"] += drawn.element
        seen["rounded"] += drawn.rounded
        seen["two results"] += ", " in drawn.source.rsplit("return ", 1)[1]

    draw()
    assert all(count >= 10 for count in seen.values()), seen
    assert len(list(itertools.chain(seen))) == 13
