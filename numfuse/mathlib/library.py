"""From the name of a scalar function to its definition and types, for both targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numfuse.mathlib import floats, integers, selection
from numfuse.mathlib.writer import Definition, Target, Writer

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float32", "float64")
_DTYPES = ("bool", *_INTEGERS, *_FLOATS)
_PREDICATES = frozenset({"isnan", "isinf", "isfinite", "signbit"})
_ARITY = {
    **dict.fromkeys(("where", "clip"), 3),
    **dict.fromkeys(
        ("arctan2", "copysign", "floor_divide", "fmax", "fmin", "fmod", "hypot", "left_shift", "maximum"), 2
    ),
    **dict.fromkeys(
        ("minimum", "power", "remainder", "right_shift", "select_max", "select_min", "add", "subtract", "multiply"), 2
    ),
}
_MIXED = (("uint64", "int64"), ("int64", "uint64"))


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A scalar function: operand dtypes, result dtype, and what writes its instructions."""

    name: str
    operands: tuple[np.dtype, ...]
    result: np.dtype
    computed: np.dtype  # the dtype that the definition is for
    definition: Definition


def _catalogue() -> dict[str, ScalarFunction]:
    found: dict[str, ScalarFunction] = {}
    families = (
        (integers.DEFINITIONS, _INTEGERS),
        (integers.WRAPPING, ("int64",)),
        (floats.DEFINITIONS, _FLOATS),
        (selection.DEFINITIONS, _DTYPES),
    )
    boolean = np.dtype(bool)
    for definitions, dtypes in families:
        for operation, definition in definitions.items():
            for dtype in map(np.dtype, dtypes):
                operands = [dtype] * _ARITY.get(operation, 1)
                if operation == "where":
                    operands[0] = boolean
                result = boolean if operation in _PREDICATES else dtype
                name = f"{operation}_{dtype.name}"
                found[name] = ScalarFunction(name, tuple(operands), result, dtype, definition)
    for operation, definition in selection.MIXED_COMPARISONS.items():
        for pair in _MIXED:
            first, second = map(np.dtype, pair)
            name = f"{operation}_{first.name}_{second.name}"
            found[name] = ScalarFunction(name, (first, second), boolean, first, definition)
    return found


CATALOGUE: dict[str, ScalarFunction] = _catalogue()


def build(name: str, target: Target, intrinsic: Callable[..., Any], types: Any) -> Any:
    """The scalar function of that name, as an intrinsic of a target.

    Parameters
    ----------
    name : str
        ``<operation>_<dtype>``.
    target : "cpu" or "cuda"
        Whose functions its instructions call.
    intrinsic : callable
        The target's decorator (``numba.extending.intrinsic`` or its twin in ``numba.cuda``).
    types : module
        The target's types by name.

    Raises
    ------
    AttributeError
        When there is no such function, as a module does for a name it lacks.
    """
    function = CATALOGUE.get(name)
    if function is None:
        raise AttributeError(f"numfuse's scalar library has no function {name!r}")
    operands = tuple(_numba_type(types, dtype) for dtype in function.operands)
    signature = _numba_type(types, function.result)(*operands)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return function.definition(Writer(builder, function.computed, target), *args)

    # An intrinsic's arity is read from its signature. What it is given is cast to the dtypes of the name.
    def one(typingctx: Any, x: Any) -> Any:
        return signature, generate

    def two(typingctx: Any, x: Any, y: Any) -> Any:
        return signature, generate

    def three(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
        return signature, generate

    python = {1: one, 2: two, 3: three}[len(operands)]
    python.__name__ = python.__qualname__ = name
    return intrinsic(python)


def _numba_type(types: Any, dtype: np.dtype) -> Any:
    return types.boolean if dtype.kind == "b" else getattr(types, dtype.name)
