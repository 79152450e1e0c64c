"""The interpreter's arithmetic: what one node does to NumPy values.

A value is a Python number (weak), a NumPy scalar or array, a :class:`WeakArray`, or `UNDEFINED`, which
becomes any other value that it is joined with.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from numfuse import body
from numfuse.body import UNDEFINED, IndexMap, Type, Undefined, Weak
from numfuse.errors import FusionIndexError, FusionNotImplementedError, FusionTypeError, FusionValueError


@dataclass(frozen=True, slots=True)
class WeakArray:
    """A Python number for each element, as weak as the one number that the plain function has there."""

    array: np.ndarray
    kind: Weak


RuntimeValue: TypeAlias = bool | int | float | complex | np.generic | np.ndarray | WeakArray | Undefined
Evaluate: TypeAlias = Callable[[str], Callable[..., Any]]

_WEAK = {int: Weak.INT, float: Weak.FLOAT, complex: Weak.COMPLEX}
_WEAK_ORDER = (Weak.INT, Weak.FLOAT, Weak.COMPLEX)
_DTYPE_WEAK = {"i": Weak.INT, "f": Weak.FLOAT, "c": Weak.COMPLEX}


def is_python(value: RuntimeValue) -> bool:
    """Whether the value is a Python number; NumPy's float64 scalars, though floats, are not."""
    return type(value) in (bool, int, float, complex)


def data(value: RuntimeValue) -> Any:
    """The value as NumPy takes it."""
    if value is UNDEFINED:  # only elements that do not take part get here
        return 0.0
    return value.array if isinstance(value, WeakArray) else value


def _weak(value: RuntimeValue) -> Weak | None:
    return value.kind if isinstance(value, WeakArray) else _WEAK.get(type(value))


def _dtype(value: RuntimeValue) -> np.dtype:
    """The dtype in which the value is computed with where nothing else decides."""
    weak = _weak(value)
    return weak.loop_dtype if weak is not None else np.asarray(value).dtype


# --------------------------------------------------------------------------------------------------------
# Conversions


def to_dtype(value: RuntimeValue, dtype: np.dtype, *, wrap: bool = False) -> Any:
    """The value in a dtype, as ``astype`` converts; a Python int that does not fit wraps or is an error."""
    if type(value) is int:
        if wrap and dtype.kind in "iu":
            value &= (1 << 8 * dtype.itemsize) - 1
            return np.asarray(value, f"u{dtype.itemsize}").astype(dtype)[()]
        return np.asarray(value, dtype)[()]
    array = np.asarray(value)[()] if is_python(value) else data(value)
    if array.dtype.kind == "c" and dtype.kind not in "cb":
        array = array.real
    return array.astype(dtype, copy=False)


def to_weak(value: RuntimeValue, kind: Weak) -> RuntimeValue:
    """The value as a Python number, or as one for each element."""
    if np.ndim(data(value)) == 0:
        scalar: Any = value if is_python(value) else data(value).item()
        return kind.python(scalar)
    return WeakArray(np.asarray(to_dtype(value, kind.loop_dtype)), kind)


def settle(value: RuntimeValue, type: Type | None) -> RuntimeValue:
    """The value in the type that a typed program states; any value where it states none."""
    if type is None:
        return value
    if value is UNDEFINED:
        value = 0
    if isinstance(type, Weak):
        return to_weak(value, type)
    return to_dtype(value, type)  # type: ignore[no-any-return]


def cast(value: RuntimeValue, type: Type, rule: body.CastRule) -> RuntimeValue:
    """A Cast node: `rule` is checked as ``astype(casting=rule)`` checks it."""
    if isinstance(type, Weak):
        return to_weak(value, type)
    if rule in ("same_kind", "safe"):
        weak = _weak(value) is not None  # a weak number has no width of its own
        if not np.can_cast(_dtype(value), type, "same_kind" if weak else rule):
            raise FusionTypeError(f"cannot cast {_dtype(value)} to {type} by the rule {rule!r}")
    return to_dtype(value, type, wrap=rule == "weak")  # type: ignore[no-any-return]


def truth(value: RuntimeValue) -> bool | np.ndarray:
    """The truth value (a NaN is true): one bool, or an array where the value varies."""
    result = np.asarray(data(value)) != 0
    return bool(result) if np.ndim(result) == 0 else np.asarray(result)


def select(mask: np.ndarray, first: RuntimeValue, second: RuntimeValue) -> RuntimeValue:
    """`first` where the mask is true and `second` elsewhere, in the type that both join to."""
    if first is UNDEFINED or second is UNDEFINED:
        first = second = first if second is UNDEFINED else second
        if first is UNDEFINED:
            return UNDEFINED
    weak = [_weak(first), _weak(second)]
    if None not in weak:
        kind = max((kind for kind in weak if kind is not None), key=_WEAK_ORDER.index)
        return WeakArray(np.where(mask, to_dtype(first, kind.loop_dtype), to_dtype(second, kind.loop_dtype)), kind)
    joined = np.result_type(
        *(_dtype(v) if w is None else w.python(0) for v, w in zip((first, second), weak, strict=True))
    )
    return np.asarray(np.where(mask, to_dtype(first, joined), to_dtype(second, joined)))


# --------------------------------------------------------------------------------------------------------
# Operations

# What an operator does to Python numbers and arrays alike.
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "mod": operator.mod,
    "divmod": divmod,
    "power": operator.pow,
    "negative": operator.neg,
    "positive": operator.pos,
    "absolute": abs,
    "invert": operator.invert,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
# What only Python numbers can be asked; arrays go through the rows below.
_PYTHON_ONLY: Mapping[str, Callable[..., Any]] = {
    "logical_not": operator.not_,
    "truth": bool,
    "where": lambda condition, first, second: first if condition else second,
    "select_min": min,
    "select_max": max,
}
_ROWS: Mapping[str, Callable[..., Any]] = {
    "assign": lambda target, value: np.broadcast_to(value, np.shape(target)),
    "clip": np.clip,
    "select_max": lambda a, b: np.where(np.greater(b, a), b, a),
    "select_min": lambda a, b: np.where(np.less(b, a), b, a),
    "truth": lambda x: np.not_equal(x, 0),
    "where": np.where,
}


def numpy_row(name: str) -> Callable[..., Any]:
    """The NumPy implementation of a row of the operation table, where NumPy has one."""
    found = _ROWS.get(name) or getattr(np, name, None)
    if name in _ROWS or isinstance(found, np.ufunc):
        return found  # type: ignore[return-value]
    raise FusionNotImplementedError(f"NumPy alone has no {name!r}: give interpret() an `evaluate` that has")


def numpy_ufunc(row: str) -> np.ufunc | None:
    """The ufunc of a row, or None."""
    found = getattr(np, row, None)
    return found if isinstance(found, np.ufunc) else None


def apply_typed(node: body.Op, operands: Sequence[RuntimeValue], evaluate: Evaluate) -> tuple[Any, ...]:
    """The operation in its loop dtypes."""
    assert node.loop is not None
    return _tuple(evaluate(node.row)(*map(to_dtype, operands, node.loop)))


def apply_untyped(node: body.Op, operands: Sequence[RuntimeValue], evaluate: Evaluate) -> tuple[Any, ...]:
    """The operation as Python and NumPy would do it, weak numbers staying weak unless a ufunc is named."""
    if node.row == "assign":
        return (_assign(operands[0], operands[1]),)
    function = evaluate(node.row)
    weakness = [_weak(value) for value in operands]
    all_python = all(w is not None or is_python(v) for v, w in zip(operands, weakness, strict=True))
    if not any(isinstance(value, WeakArray) for value in operands):
        operators = {**_PYTHON_ONLY, **_OPERATORS} if all_python else _OPERATORS
        if node.spelling == "operator":
            function = operators.get(node.row, function)
        results = _tuple(function(*operands))
    elif all_python:
        results = _tuple(function(*(to_dtype(v, _dtype(v)) for v in operands)))
    else:
        results = _tuple(function(*map(to_dtype, operands, _loop(node.row, operands, weakness))))
    if all_python and node.spelling != "ufunc":
        return tuple(_weakened(result, node.spelling) for result in results)
    return results


def _assign(target: RuntimeValue, value: RuntimeValue) -> RuntimeValue:
    """``target op= value``: an array keeps its dtype and shape, a number gives way."""
    if not isinstance(target, np.ndarray):
        return value
    return np.broadcast_to(data(cast(value, target.dtype, "same_kind")), target.shape)


def _weakened(result: Any, spelling: str) -> Any:
    """The result of an operation on Python numbers: a Python number, or one for each element."""
    array = np.asarray(result)
    if is_python(result) or array.dtype.kind == "b":
        return result.item() if isinstance(result, np.generic) else result
    kind = _DTYPE_WEAK.get(array.dtype.kind)
    if spelling == "math" and kind is Weak.INT:
        kind = Weak.FLOAT  # math.pow(2, 3) is 8.0
    return result if kind is None else to_weak(array[()], kind)


def _loop(row: str, operands: Sequence[RuntimeValue], weak: Sequence[Weak | None]) -> Sequence[np.dtype]:
    """The dtypes of the operands inside the operation, by NumPy's rules."""
    ufunc = numpy_ufunc(row)
    dtypes = [_dtype(value) for value in operands]
    if ufunc is not None:
        asked = [d if w is None else w.python for d, w in zip(dtypes, weak, strict=True)]
        return ufunc.resolve_dtypes((*asked, *[None] * ufunc.nout))[: ufunc.nin]
    first = 1 if row == "where" else 0  # the condition keeps its type
    joined = np.result_type(*(d if w is None else w.python(0) for d, w in list(zip(dtypes, weak, strict=True))[first:]))
    return [*dtypes[:first], *[joined] * (len(dtypes) - first)]


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


# --------------------------------------------------------------------------------------------------------
# Index maps


@dataclass(frozen=True, slots=True)
class _Places:
    """Where each element of a result lies in a source, one position array an axis."""

    shape: tuple[int, ...]  # of the result
    positions: tuple[np.ndarray, ...]  # inside the source
    outside: np.ndarray  # where the map leaves the source, which only the rule "fill" allows


def _open_extent(axis: body.Affine, length: int, edge: body.EdgeRule) -> int:
    """As long as the source allows; without an end to run into, as long as the source's own axis."""
    if edge != "none":
        return -(-length // abs(axis.step))
    return len(range(axis.start, length if axis.step > 0 else -1, axis.step))


def _places(index: IndexMap, source: tuple[int, ...]) -> _Places:
    axes = index.axes or ()
    if len(axes) != len(source):
        raise FusionValueError(f"an index map of {len(axes)} axes met an array of {len(source)} dimensions")
    dims = [axis.dim for axis in axes if not isinstance(axis, body.Fixed)]
    rank = index.rank if index.rank is not None else max(dims, default=-1) + 1
    stated: dict[int, set[int]] = {dim: set() for dim in range(rank)}
    allowed: dict[int, set[int]] = {dim: set() for dim in range(rank)}
    for axis, length in zip(axes, source, strict=True):
        if isinstance(axis, body.Affine) and axis.extent is not None:
            stated[axis.dim].add(axis.extent)
        elif isinstance(axis, body.Affine):
            allowed[axis.dim].add(_open_extent(axis, length, index.edge))
    if any(len(extents) > 1 for extents in stated.values()):
        raise FusionValueError(f"an index map gives one dimension two extents: {index}")
    shape = tuple(min(stated[dim] or allowed[dim], default=1) for dim in range(rank))
    positions: list[np.ndarray] = []
    outside = np.zeros(shape, np.bool)
    for number, (axis, length) in enumerate(zip(axes, source, strict=True)):
        if isinstance(axis, body.Stretched) and length != 1:
            raise FusionValueError(f"axis {number} of length {length} cannot be stretched")
        if isinstance(axis, body.Affine):
            along = axis.start + axis.step * np.arange(shape[axis.dim])
            along = along.reshape(-1, *[1] * (rank - 1 - axis.dim))
        else:
            along = np.asarray(axis.position if isinstance(axis, body.Fixed) else 0)
        off = (along < 0) | (along >= length)
        if off.any() and (index.edge == "none" or (length == 0 and index.edge != "fill")):
            raise FusionIndexError(f"position {along[off][0]} is outside axis {number} of length {length}")
        outside = outside | off
        last = max(length - 1, 0)
        along = along % max(length, 1) if index.edge == "wrap" else np.clip(along, 0, last)
        positions.append(np.broadcast_to(along, shape))
    return _Places(shape, tuple(positions), outside & (index.edge == "fill"))


def take(value: RuntimeValue, index: IndexMap) -> RuntimeValue:
    """The elements of a value that an index map names, arranged as it says."""
    if index.axes is None:
        return value
    if isinstance(value, WeakArray):
        taken = take(value.array, index)
        assert isinstance(taken, np.ndarray)
        return WeakArray(taken, value.kind)
    array = np.asarray(value)
    places = _places(index, array.shape)
    if not places.outside.any():
        return np.array(np.broadcast_to(array[places.positions], places.shape))
    fill = index.fill
    if fill is None:
        raise FusionValueError(f"an index map fills with nothing: {index}")
    result = np.array(np.broadcast_to(to_dtype(fill, array.dtype), places.shape))
    inside = ~places.outside
    result[inside] = array[tuple(position[inside] for position in places.positions)]
    return result


def put(array: np.ndarray, index: IndexMap, value: RuntimeValue, mask: bool | np.ndarray) -> None:
    """Write a value to the elements that an index map names, in place."""
    if index.axes is None:
        np.copyto(array, data(value), casting="unsafe", where=mask)
        return
    positions = _places(index, array.shape)
    region = np.array(np.broadcast_to(array[positions.positions], positions.shape))
    np.copyto(region, data(value), casting="unsafe", where=mask)
    array[positions.positions] = region


def gather(array: np.ndarray, indices: Sequence[Any], bounds: str, active: np.ndarray | None) -> np.ndarray:
    """Elements at computed positions; what inactive lanes ask for is not looked at."""
    if len(indices) != array.ndim:
        raise FusionIndexError(f"{len(indices)} computed indices for an array of {array.ndim} dimensions")
    positions = []
    for index, length in zip(indices, array.shape, strict=True):
        position = np.asarray(index)
        if position.dtype == np.uint64:  # too large stays too large, and does not become negative
            position = np.minimum(position, np.uint64(2**63 - 1))
        position = position.astype(np.int64)
        if bounds == "wrap-negative":
            position = np.where(position < 0, position + length, position)
        bad = (position < 0) | (position >= length)
        if bounds != "clamp" and np.any(bad if active is None else bad & active):
            raise FusionIndexError(f"a computed index is outside an axis of length {length}")
        positions.append(np.clip(position, 0, max(length - 1, 0)).astype(np.intp))
    if array.size == 0:
        shape = np.broadcast_shapes(*(position.shape for position in positions))
        if bounds == "clamp" and np.prod(shape) and (active is None or active.any()):
            raise FusionIndexError("a computed index into an empty array")
        return np.zeros(shape, array.dtype)
    return np.asarray(array[tuple(positions)])
