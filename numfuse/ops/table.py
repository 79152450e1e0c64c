"""The operation table: every row by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from numfuse.errors import FusionNotImplementedError
from numfuse.ops import arithmetic, comparisons, functions, logic
from numfuse.ops.rules import Expression, Loop, Row, names

FAMILIES = (arithmetic.ROWS, comparisons.ROWS, logic.ROWS, functions.ROWS)
_ROWS = {row.name: row for family in FAMILIES for row in family}


def rows() -> Mapping[str, Row]:
    """The whole table, by NumPy's names (read only)."""
    return MappingProxyType(_ROWS)


def row(name: str) -> Row:
    """The row of that name.

    Raises
    ------
    FusionNotImplementedError
        When the table has no such operation.
    """
    try:
        return _ROWS[name]
    except KeyError:
        raise FusionNotImplementedError(f"operation {name!r} is not in numfuse's table") from None


def expression(name: str, loop: Loop, out: Loop) -> Expression:
    """The scalar implementation of an operation, for one loop.

    Parameters
    ----------
    name : str
        Name of a row.
    loop : tuple of numpy.dtype
        Dtypes of the operands inside the operation.
    out : tuple of numpy.dtype
        Dtypes of its results; the value of the text has this dtype.

    Raises
    ------
    FusionNotImplementedError
        When the row has no implementation for these dtypes yet.

    Examples
    --------
    >>> import numpy as np
    >>> i4 = np.dtype(np.int32)
    >>> expression("add", (i4, i4), (i4,)).format("a", "b")
    'int32(a + b)'
    """
    found = row(name).expression(loop)
    unsupported = [dtype for dtype in names(out) if dtype in ("float16", "longdouble", "complex64")]
    if unsupported:
        raise FusionNotImplementedError(f"{name} gives {unsupported[0]} here, which is not supported yet")
    return found
