"""What tests of fused functions share: an array, exact comparison, threads, and counts of what a function keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from numfuse import Fused

X = np.linspace(-1, 2, 7, dtype=np.float32)


def variants(fused: Fused) -> int:
    """How often the function was lowered."""
    return sum(map(len, fused._variants.values()))


def kernels(fused: Fused) -> int:
    """How many kernels were compiled for it."""
    return len({id(k) for found in fused._variants.values() for v in found for k in v.kernels.values()})


def same(found: Any, expected: Any, *, any_nan: bool = False) -> None:
    """The same kind of object, dtype, shape and bits, through tuples; with `any_nan` any NaN is a NaN."""
    assert type(found) is type(expected)
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, any_nan=any_nan)
    elif isinstance(expected, np.ndarray | np.generic):
        np.testing.assert_array_equal(found, expected, strict=True)
        found, expected = np.asarray(found), np.asarray(expected)
        if any_nan and expected.dtype.kind == "f":
            numbers = ~np.isnan(expected)
            found, expected = found[numbers], expected[numbers]
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected


def at_once(work: Callable[[int], None], count: int) -> None:
    """Run `work(0)`, `work(1)` and so on in threads that begin together; raises what one of them raised."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(begin, number) for number in range(count)]:
            done.result()
