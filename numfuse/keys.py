"""What a call's key holds for each argument, and what each argument is to the compiler."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from numfuse import arrays
from numfuse.arrays import Refusal
from numfuse.frontend.binding import Static
from numfuse.frontend.lower import Parameter
from numfuse.frontend.lower_values import HostParameter
from numfuse.pipeline import array_parameter

_STRUCTURAL = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    type,
    np.ufunc,
    np.dtype,
    str,
    bytes,
    enum.Enum,
    type(None),
    type(...),
)


_BY_VALUE = (str, bytes, np.dtype, enum.Enum, type, types.MethodType, type(None), type(...))

# --------------------------------------------------------------------------------------------------------
# What a call's key holds for each argument: for an array what its adapter says, for a number its type, for
# something structural the object itself.

SIGNERS: dict[type, Callable[[Any], Any]] = dict.fromkeys(
    (bool, int, float, complex, *set(np.sctypeDict.values()), tuple, list, dict), type
)


def signer(value: Any) -> Callable[[Any], Any]:
    """What gives the key of a value, remembered by its type."""
    kind = type(value)
    found = SIGNERS.get(kind)
    if found is None:
        adapter = arrays.adapter_of(value)
        other = structural_key if is_structural(value) else type
        found = other if adapter is None else adapter.signature
        SIGNERS[kind] = found
    return found


def is_structural(value: object) -> bool:
    """Whether a value decides which code there is: a function, a module, a type, a string, None."""
    # A member of an IntEnum is a number.
    return not isinstance(value, int | float | complex) and (isinstance(value, _STRUCTURAL) or callable(value))


def structural_key(value: Any) -> Any:
    """By value where equal ones are the same thing, by identity where an object may have state."""
    return ("static", type(value), value) if isinstance(value, _BY_VALUE) else _Identity(value)


class _Identity:
    """Compares an object by identity, and keeps it alive so that the identity stays its own."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def unchanged(captured: tuple[tuple[int, Any], ...], slots: tuple[Any, ...]) -> bool:
    """Whether captured arrays still have the signatures that a plan was made for."""
    return all(signer(slots[slot])(slots[slot]) == signature for slot, signature in captured)


def parameter_of(name: str, value: Any) -> Parameter:
    """What an argument is to the compiler."""
    dtype = array_dtype(value, name)
    if dtype is not None:
        return array_parameter(value, dtype)
    return Static(value) if is_structural(value) else HostParameter(value)


def array_dtype(value: Any, name: str) -> np.dtype | None:
    """The dtype of an array; None for anything else."""
    try:
        adapter = arrays.adapter_of(value)
        return None if adapter is None else adapter.info(value).dtype
    except Refusal as refusal:
        raise refusal.named(name) from None


def kind_key(parameter: Parameter) -> Any:
    """What of an argument a lowering depends on."""
    if isinstance(parameter, Static):
        return structural_key(parameter.value)
    element = getattr(parameter, "element", None)
    return ("array", element.type) if element is not None else type(getattr(parameter, "value", None))


def identifier(name: str) -> str:
    """The name as a Python identifier: ``<lambda>`` becomes ``fused_lambda``."""
    if name == "<lambda>":
        return "fused_lambda"
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text.isidentifier() else f"fused_{text}"
