"""Rows that compare, select the smaller or larger, and classify floats."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from numfuse.body import Type
from numfuse.ops.rules import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Expression,
    ExpressionRule,
    Loop,
    Row,
    by_dtype,
    call,
    joined,
    library_call,
    names,
    plain_row,
    same,
    strong,
    truth_of,
    ufunc_row,
)

_BOOL = np.dtype(bool)
# np.clip's own core; NumPy gives it no public name, and no other function has its dtype rule.
CLIP: np.ufunc = import_module("numpy._core.umath").clip
_MIXED = {("uint64", "int64"), ("int64", "uint64")}


def _comparison(operation: str, symbol: str) -> ExpressionRule:
    """Infix; uint64 against int64 compares the numbers, where Numba would go through float64."""
    infix = same(f"{{0}} {symbol} {{1}}")

    def rule(loop: Loop) -> Expression | None:
        pair = names(loop)
        if pair in _MIXED:
            return library_call(f"{operation}_{pair[0]}_{pair[1]}", 2)
        return infix(loop)

    return rule


def _compare_row(ufunc: np.ufunc, symbol: str) -> Row:
    return ufunc_row(ufunc, _comparison(ufunc.__name__, symbol))


def _classify(operation: str, discrete: str) -> ExpressionRule:
    """A predicate of floats that is one answer for every bool and integer."""
    floats: dict[str, str | ExpressionRule] = dict.fromkeys(FLOATS, call(operation))
    return by_dtype({**dict.fromkeys(("bool", *INTEGERS), discrete), **floats})


def _resolve_where(operands: Sequence[Type]) -> tuple[Loop, Loop]:
    dtype = joined(operands[1:])
    return (_BOOL, dtype, dtype), (dtype,)


def _where(loop: Loop) -> Expression | None:
    condition, first, second = names(loop)
    if condition != "bool" or first != second or first not in DTYPES:
        return None
    return library_call(f"where_{first}", 3)


def _resolve_selection(operands: Sequence[Type]) -> tuple[Loop, Loop]:
    dtype = joined(operands)
    return (dtype, dtype), (dtype,)


def _resolve_truth(operands: Sequence[Type]) -> tuple[Loop, Loop]:
    return (strong(operands[0]),), (_BOOL,)


def _resolve_identity(operands: Sequence[Type]) -> tuple[Loop, Loop]:
    dtype = strong(operands[0])
    return (dtype,), (dtype,)


def _smaller(a: Any, b: Any) -> Any:
    return np.where(np.less(b, a), b, a)


def _larger(a: Any, b: Any) -> Any:
    return np.where(np.greater(b, a), b, a)


ROWS: tuple[Row, ...] = (
    _compare_row(np.equal, "=="),
    _compare_row(np.not_equal, "!="),
    _compare_row(np.less, "<"),
    _compare_row(np.less_equal, "<="),
    _compare_row(np.greater, ">"),
    _compare_row(np.greater_equal, ">="),
    # Of two equal zeros all four give the second, as NumPy's vector loops do (its scalar tails of fmin and
    # fmax differ from them).
    ufunc_row(np.minimum, call("minimum")),
    ufunc_row(np.maximum, call("maximum")),
    ufunc_row(np.fmin, call("fmin")),
    ufunc_row(np.fmax, call("fmax")),
    # Where x equals a bound, x stays (its sign of zero too), as np.clip does for scalar bounds.
    ufunc_row(CLIP, call("clip")),
    plain_row("where", 3, _resolve_where, _where, np.where),
    # Python's own min and max of two: the second only where it is strictly smaller or larger.
    plain_row("select_min", 2, _resolve_selection, call("select_min"), _smaller),
    plain_row("select_max", 2, _resolve_selection, call("select_max"), _larger),
    plain_row(
        "truth",
        1,
        _resolve_truth,
        by_dtype({dtype: truth_of(0, dtype) for dtype in DTYPES}),
        lambda x: np.asarray(x).astype(bool),
    ),
    plain_row("identity", 1, _resolve_identity, same("{0}"), np.asarray),
    ufunc_row(np.isnan, _classify("isnan", "False")),
    ufunc_row(np.isinf, _classify("isinf", "False")),
    ufunc_row(np.isfinite, _classify("isfinite", "True")),
    ufunc_row(np.signbit, call("signbit", FLOATS)),
    ufunc_row(np.copysign, call("copysign", FLOATS)),
)
