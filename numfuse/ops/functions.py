"""Rows of the mathematical functions: roots, exponentials, logarithms, trigonometry, rounding."""

from __future__ import annotations

import numpy as np

from numfuse.ops.rules import FLOATS, INTEGERS, ExpressionRule, Row, by_dtype, call, ufunc_row

# Four units in the last place: glibc's float functions stay within one or two, CUDA's libdevice within four
# (CUDA C++ programming guide, appendix "Mathematical Functions").
_ULPS = 4


def _function(ufunc: np.ufunc) -> Row:
    return ufunc_row(ufunc, call(ufunc.__name__, FLOATS), ulps=_ULPS)


def _rounding(operation: str) -> ExpressionRule:
    """Integers and bools are whole already (NumPy's rule since 2.1; before, they went to float64)."""
    floats: dict[str, str | ExpressionRule] = dict.fromkeys(FLOATS, call(operation))
    return by_dtype({**dict.fromkeys(("bool", *INTEGERS), "{0}"), **floats})


ROWS: tuple[Row, ...] = (
    ufunc_row(np.sqrt, call("sqrt", FLOATS)),
    *(
        _function(ufunc)
        for ufunc in (
            np.cbrt,
            np.exp,
            np.exp2,
            np.expm1,
            np.log,
            np.log2,
            np.log10,
            np.log1p,
            np.sin,
            np.cos,
            np.tan,
            np.arcsin,
            np.arccos,
            np.arctan,
            np.sinh,
            np.cosh,
            np.tanh,
            np.arcsinh,
            np.arccosh,
            np.arctanh,
            np.arctan2,
            np.hypot,
        )
    ),
    ufunc_row(np.floor, _rounding("floor")),
    ufunc_row(np.ceil, _rounding("ceil")),
    ufunc_row(np.trunc, _rounding("trunc")),
    ufunc_row(np.rint, call("rint", FLOATS)),
    # One multiplication, by pi/180 or 180/pi rounded to the dtype.
    *(
        ufunc_row(ufunc, by_dtype({"float32": f"{{0}} * float32({single})", "float64": f"{{0}} * {double}"}))
        for ufunc, single, double in (
            (np.deg2rad, repr(float(np.float32(np.pi) / np.float32(180))), repr(np.pi / 180)),
            (np.radians, repr(float(np.float32(np.pi) / np.float32(180))), repr(np.pi / 180)),
            (np.rad2deg, repr(float(np.float32(180) / np.float32(np.pi))), repr(180 / np.pi)),
            (np.degrees, repr(float(np.float32(180) / np.float32(np.pi))), repr(180 / np.pi)),
        )
    ),
)
