"""Rows of the arithmetic operators: + - * / // % ** and what belongs to them."""

from __future__ import annotations

import numpy as np

from numfuse.ops.rules import (
    FLOATS,
    INTEGERS,
    Expression,
    ExpressionRule,
    Row,
    by_dtype,
    call,
    same,
    ufunc_row,
    wrapping,
)

# A bool adds as `or` and multiplies as `and`, as in NumPy. Floats need no cast: Numba keeps their dtype.
_SQUARE = by_dtype(
    {
        **dict.fromkeys(INTEGERS, wrapping("multiply", "{0} * {0}")),
        "int64": lambda loop: Expression("multiply_int64({0}, {0})", ("multiply_int64",)),
        **dict.fromkeys(FLOATS, "{0} * {0}"),
    }
)
_RECIPROCAL: dict[str, str | ExpressionRule] = {"float32": "float32(1.0) / {0}", "float64": "1.0 / {0}"}


ROWS: tuple[Row, ...] = (
    ufunc_row(
        np.add,
        by_dtype(
            {
                "bool": "{0} | {1}",
                **dict.fromkeys(INTEGERS, wrapping("add", "{0} + {1}")),
                **dict.fromkeys(FLOATS, "{0} + {1}"),
            }
        ),
    ),
    ufunc_row(
        np.subtract,
        by_dtype({**dict.fromkeys(INTEGERS, wrapping("subtract", "{0} - {1}")), **dict.fromkeys(FLOATS, "{0} - {1}")}),
    ),
    ufunc_row(
        np.multiply,
        by_dtype(
            {
                "bool": "{0} & {1}",
                **dict.fromkeys(INTEGERS, wrapping("multiply", "{0} * {1}")),
                **dict.fromkeys(FLOATS, "{0} * {1}"),
            }
        ),
    ),
    ufunc_row(np.divide, same("{0} / {1}", FLOATS)),
    ufunc_row(np.floor_divide, call("floor_divide", (*INTEGERS, *FLOATS))),
    ufunc_row(np.remainder, call("remainder", (*INTEGERS, *FLOATS))),
    ufunc_row(np.fmod, call("fmod", (*INTEGERS, *FLOATS))),
    # Integer powers are exact; `ulps` is the floats' bound. NumPy raises where an integer has a negative integer
    # exponent. A kernel can't, so there the result is the reciprocal cut to an integer: 1 -> 1, -1 -> 1 or -1 as
    # the exponent is even or odd, anything else (0 too) -> 0.
    ufunc_row(np.power, call("power", (*INTEGERS, *FLOATS)), ulps=4),
    ufunc_row(np.negative, call("negative", (*INTEGERS, *FLOATS))),
    ufunc_row(np.positive, same("{0}", (*INTEGERS, *FLOATS))),
    ufunc_row(np.absolute, by_dtype({"bool": "{0}", **dict.fromkeys((*INTEGERS, *FLOATS), call("absolute"))})),
    ufunc_row(np.fabs, call("absolute", FLOATS)),
    ufunc_row(np.sign, call("sign", (*INTEGERS, *FLOATS))),
    ufunc_row(np.square, _SQUARE),
    # NumPy gives what the machine makes of 1/0 for an integer 0; so do we (see the scalar library).
    ufunc_row(
        np.reciprocal,
        by_dtype({**dict.fromkeys(INTEGERS, call("reciprocal")), **_RECIPROCAL}),
    ),
    ufunc_row(np.conjugate, same("{0}", (*INTEGERS, *FLOATS))),
)
