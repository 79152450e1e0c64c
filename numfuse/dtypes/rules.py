"""Promotion rules. NumPy's are asked of NumPy itself, so they can't drift.

A :class:`Rules` object answers for one family of arrays. Calls whose arrays are all of another library with
rules of its own will bring another object; no pass knows more than this protocol.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from numfuse import ops
from numfuse.body import Type, Weak

SUPPORTED = frozenset(np.dtype(code) for code in "?bhilqBHILQfd")

_WEAK_ORDER = (Weak.INT, Weak.FLOAT, Weak.COMPLEX)
_WEAK_EXAMPLE = {Weak.INT: 0, Weak.FLOAT: 0.0, Weak.COMPLEX: 0j}
# Python's own result types on two numbers of the larger kind; the rest keep that kind.
_WEAK_BOOL = frozenset(
    {
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "logical_not",
        "logical_and",
        "logical_or",
        "logical_xor",
        "isnan",
        "isinf",
        "isfinite",
        "truth",
    }
)


class DtypeNotSupportedError(Exception):
    """Inference met a dtype for which there are no kernels yet."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        super().__init__(str(dtype))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The dtype of each operand inside an operation, and the type of each result."""

    loop: tuple[np.dtype, ...]
    outputs: tuple[Type, ...]


class Rules(Protocol):
    """What the type pass asks."""

    def resolve(self, row: str, spelling: str, types: tuple[Type, ...]) -> Resolution:
        """Loop dtypes and result types of an operation; TypeError where the library refuses."""

    def join(self, first: Type, second: Type) -> Type:
        """The type of a variable that has either type, depending on the path."""


def dtype_of(kind: Type) -> np.dtype:
    """The dtype in which a value of this type is computed."""
    return kind.loop_dtype if isinstance(kind, Weak) else kind


_NUMBERS: tuple[tuple[type, Weak, np.dtype | None], ...] = (
    (int, Weak.INT, None),  # int64, or uint64 for large values
    (float, Weak.FLOAT, np.dtype(np.float64)),
    (complex, Weak.COMPLEX, np.dtype(np.complex128)),
)


def host_type(value: object) -> Type | None:
    """The type of a Python or NumPy number; None for anything that is not a number of ours."""
    if isinstance(value, bool):
        return np.dtype(bool)
    if isinstance(value, np.generic):
        return value.dtype
    # NumPy takes exactly int, float and complex as weak; subclasses, enum members among them, are arrays to it.
    for kind, weak, strong in _NUMBERS:
        if isinstance(value, kind):
            return weak if type(value) is kind else np.asarray(value).dtype if strong is None else strong
    return None


def check_supported(kind: Type) -> Type:
    """The type, if there are kernels for it."""
    dtype = dtype_of(kind)
    if dtype not in SUPPORTED:
        raise DtypeNotSupportedError(dtype)
    return kind


class NumpyRules:
    """NEP 50: Python numbers are weak, everything else is strong."""

    def resolve(self, row: str, spelling: str, types: tuple[Type, ...]) -> Resolution:
        """Ask the row's ufunc; operators on Python numbers follow Python."""
        return _resolve(row, spelling, types)

    def join(self, first: Type, second: Type) -> Type:
        """NumPy's ``result_type``, with weak numbers staying weak among themselves."""
        return _join(first, second)


@functools.lru_cache(maxsize=4096)
def _resolve(row: str, spelling: str, types: tuple[Type, ...]) -> Resolution:
    entry = ops.row(row)
    if spelling != "ufunc" and all(isinstance(kind, Weak) for kind in types):
        return _resolve_python(row, spelling, tuple(k for k in types if isinstance(k, Weak)))
    loop, outputs = entry.resolve_dtypes(types)
    for kind in (*loop, *outputs):
        check_supported(kind)
    return Resolution(tuple(dtype_of(kind) for kind in loop), tuple(outputs))


def _resolve_python(row: str, spelling: str, types: tuple[Weak, ...]) -> Resolution:
    """The same operation on Python numbers: the result is a Python number, hence weak."""
    kind = max(types, key=_WEAK_ORDER.index)
    if row == "divide" or (spelling == "math" and row not in _WEAK_BOOL):
        kind = max(kind, Weak.FLOAT, key=_WEAK_ORDER.index)
    if kind is Weak.COMPLEX:
        raise DtypeNotSupportedError(kind.loop_dtype)
    result: Type = np.dtype(bool) if row in _WEAK_BOOL else kind
    if row in ("isnan", "isinf", "isfinite"):
        kind = Weak.FLOAT
    return Resolution((kind.loop_dtype,) * len(types), (result,))


@functools.lru_cache(maxsize=4096)
def _join(first: Type, second: Type) -> Type:
    if first == second:
        return first
    if isinstance(first, Weak) and isinstance(second, Weak):
        return max(first, second, key=_WEAK_ORDER.index)
    asked = [_WEAK_EXAMPLE[kind] if isinstance(kind, Weak) else kind for kind in (first, second)]
    return check_supported(np.result_type(*asked))
