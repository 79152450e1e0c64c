"""What tests of fused functions share: an array, exact comparison, and counts of what a function keeps."""

from __future__ import annotations

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


def same(found: Any, expected: Any) -> None:
    """The same kind of object, dtype, shape and bits, through tuples."""
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray | np.generic):
        np.testing.assert_array_equal(found, expected, strict=True)
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    else:
        assert found == expected
