"""Rows of the arithmetic operators: + - * / // % ** and what belongs to them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numfuse.body import Type, Weak
from numfuse.ops.rules import (
    FLOATS,
    INTEGERS,
    Expression,
    ExpressionRule,
    Loop,
    Row,
    by_dtype,
    call,
    plain_row,
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


def _power_row(name: str, scalar: ExpressionRule, evaluate: np.ufunc) -> Row:
    """``array ** number`` where NumPy computes another ufunc of the base; dtypes are still those of power."""

    def resolve(operands: Sequence[Type]) -> tuple[Loop, Loop]:
        base, exponent = operands
        if base == np.dtype(bool) and exponent is Weak.INT:  # square(bool) is int8, power(bool, int) int64
            base = np.dtype(np.int8)
        return _POWER.resolve_dtypes((base, exponent))

    def first(base: Any, exponent: Any) -> Any:
        return evaluate(base)

    return plain_row(name, 2, resolve, scalar, first, operator.pow)


# Integer powers are exact; `ulps` is the floats' bound. NumPy raises where an integer has a negative integer
# exponent. A kernel can't, so there the result is the reciprocal cut to an integer: 1 -> 1, -1 -> 1 or -1 as
# the exponent is even or odd, anything else (0 too) -> 0.
_POWER = ufunc_row(np.power, call("power", (*INTEGERS, *FLOATS)), operator.pow, ulps=4)

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
        operator.add,
    ),
    ufunc_row(
        np.subtract,
        by_dtype({**dict.fromkeys(INTEGERS, wrapping("subtract", "{0} - {1}")), **dict.fromkeys(FLOATS, "{0} - {1}")}),
        operator.sub,
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
        operator.mul,
    ),
    ufunc_row(np.divide, same("{0} / {1}", FLOATS), operator.truediv),
    ufunc_row(np.floor_divide, call("floor_divide", (*INTEGERS, *FLOATS)), operator.floordiv),
    ufunc_row(np.remainder, call("remainder", (*INTEGERS, *FLOATS)), operator.mod),
    ufunc_row(np.fmod, call("fmod", (*INTEGERS, *FLOATS))),
    _POWER,
    _power_row("power_square", _SQUARE, np.square),
    _power_row("power_sqrt", call("sqrt", FLOATS, arity=1), np.sqrt),
    _power_row("power_reciprocal", by_dtype(_RECIPROCAL), np.reciprocal),
    ufunc_row(np.negative, call("negative", (*INTEGERS, *FLOATS)), operator.neg),
    ufunc_row(np.positive, same("{0}", (*INTEGERS, *FLOATS)), operator.pos),
    ufunc_row(
        np.absolute,
        by_dtype({"bool": "{0}", **dict.fromkeys((*INTEGERS, *FLOATS), call("absolute"))}),
        abs,
    ),
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
