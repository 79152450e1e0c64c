"""Casts and constants as Python text, with exactly the dtype meant."""

from __future__ import annotations

import math

import numpy as np

from numfuse.errors import FusionNotImplementedError
from numfuse.ops.rules import DTYPES, Expression, zero

# C compilers convert a float to a small integer through a wider signed one, so that a negative number
# wraps: `(uint8_t)-1.0f` is 255 on the machines where NumPy is compiled so. Numba would use an unsigned
# conversion, which on a GPU clamps to zero.
_THROUGH = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}


def _supported(dtype: np.dtype) -> str:
    if dtype.name not in DTYPES:
        raise FusionNotImplementedError(
            f"dtype {dtype.name} is not supported yet; cast to one of {', '.join(DTYPES)} before the call"
        )
    return dtype.name


def cast_expression(source: np.dtype, target: np.dtype) -> Expression:
    """The conversion of one value, as ``ndarray.astype`` does it.

    A float that is out of the range of an integer (or NaN) gives an unspecified integer, as in C and NumPy.

    Parameters
    ----------
    source, target : numpy.dtype
        What the operand is and what it becomes.

    Returns
    -------
    Expression
        ``"{0}"`` where nothing changes.

    Raises
    ------
    FusionNotImplementedError
        For a dtype that is not supported yet, by its name.

    Examples
    --------
    >>> cast_expression(np.dtype("f8"), np.dtype("f4")).format("x")
    'float32(x)'
    >>> cast_expression(np.dtype("f4"), np.dtype("?")).format("x")
    'x != float32(0.0)'
    """
    old, new = _supported(source), _supported(target)
    if old == new:
        return Expression("{0}")
    if new == "bool":
        return Expression(f"{{0}} != {zero(old)}")
    if source.kind == "f" and new in _THROUGH:
        return Expression(f"{new}({_THROUGH[new]}({{0}}))")
    return Expression(f"{new}({{0}})")


def literal(value: np.generic) -> str:
    """A NumPy scalar as text that Numba gives exactly the scalar's dtype.

    The text uses dtype names, ``inf`` and ``nan``, and binds tighter than any binary operator but ``**``.

    Raises
    ------
    FusionNotImplementedError
        For a dtype that is not supported yet, by its name.

    Examples
    --------
    >>> literal(np.float32(0.1)), literal(np.float64(-0.0)), literal(np.int64(7)), literal(np.uint8(7))
    ('float32(0.1)', '-0.0', '7', 'uint8(7)')
    """
    dtype = _supported(value.dtype)
    if dtype == "bool":
        return "True" if value else "False"
    if isinstance(value, np.integer):
        # Numba takes a plain int for an int64 unless it needs the 64th bit.
        return str(int(value)) if dtype == "int64" else f"{dtype}({int(value)})"
    number = float(value)
    text = repr(number)
    if dtype == "float32" and math.isfinite(number):
        short = str(value)
        # The shortest decimal of a float32 is read as a float64 first; keep it where that changes nothing.
        text = short if np.float32(float(short)) == value else text
    return text if dtype == "float64" else f"float32({text})"
