"""Rows of the logical functions, the bitwise operators and the shifts."""

from __future__ import annotations

import numpy as np

from numfuse.ops.rules import (
    DTYPES,
    INTEGERS,
    ExpressionRule,
    Row,
    by_dtype,
    call,
    truth_of,
    ufunc_row,
    widened,
)


def _logical(symbol: str) -> ExpressionRule:
    return by_dtype({d: f"{truth_of(0, d)} {symbol} {truth_of(1, d)}" for d in DTYPES})


def _bitwise(template: str) -> ExpressionRule:
    return by_dtype({"bool": template, **dict.fromkeys(INTEGERS, widened(template))})


ROWS: tuple[Row, ...] = (
    ufunc_row(np.logical_and, _logical("&")),
    ufunc_row(np.logical_or, _logical("|")),
    ufunc_row(np.logical_xor, _logical("^")),
    ufunc_row(np.logical_not, by_dtype({d: f"not {truth_of(0, d)}" for d in DTYPES})),
    ufunc_row(np.bitwise_and, _bitwise("{0} & {1}")),
    ufunc_row(np.bitwise_or, _bitwise("{0} | {1}")),
    ufunc_row(np.bitwise_xor, _bitwise("{0} ^ {1}")),
    ufunc_row(np.invert, by_dtype({"bool": "not {0}", **dict.fromkeys(INTEGERS, widened("~{0}"))})),
    ufunc_row(np.left_shift, call("left_shift", INTEGERS)),
    ufunc_row(np.right_shift, call("right_shift", INTEGERS)),
)
