"""What a call's key holds for each argument, and what each argument is to the compiler."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from numfuse import arrays
from numfuse.arrays import Refusal
from numfuse.body import BufferResult, HostResult, Program, ValueResult, Weak, node_results
from numfuse.errors import FusionError
from numfuse.frontend.binding import Static
from numfuse.frontend.lower import Parameter
from numfuse.frontend.lower_values import HostParameter
from numfuse.frontend.scope import is_structural
from numfuse.pipeline import array_parameter

_BY_VALUE = (str, bytes, np.dtype, enum.Enum, type, types.MethodType, type(None), type(...))

# --------------------------------------------------------------------------------------------------------
# What a call's key holds for each argument: for an array what its adapter says, for a number its type, for
# something structural the object itself.

SIGNERS: dict[type, Callable[[Any], Any]] = dict.fromkeys(
    (
        *(bool, int, float, complex, tuple, list, dict),
        # Of NumPy's scalars the numbers: a np.str_ is a string, and decides which code there is.
        *(kind for kind in set(np.sctypeDict.values()) if issubclass(kind, np.number | np.bool_)),
    ),
    type,
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


def named_signature(phrase: str, value: Any) -> Any:
    """The key of a value; `phrase` names it in the error for an array that can't be used.

    Raises
    ------
    FusionError
        For such an array.
    """
    try:
        return signer(value)(value)
    except Refusal as refusal:
        raise refusal.labelled(phrase) from None


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
    try:
        return all(signer(slots[slot])(slots[slot]) == signature for slot, signature in captured)
    except Refusal:  # it became one that can't be used; lowering says so, with its name
        return False


def same_dtypes(captured: tuple[tuple[str, int], ...], slots: tuple[Any, ...], program: Program) -> bool:
    """Whether captured arrays have the dtypes for which a program was made."""
    try:
        return all(array_dtype(slots[slot], name) == program.buffer(name).dtype for name, slot in captured)
    except FusionError:  # as in `unchanged`
        return False


def is_receiver(parameter: Parameter | None) -> TypeGuard[HostParameter]:
    """Whether a first argument may be the object of a method: no number, and no container of Python's own."""
    if not isinstance(parameter, HostParameter):
        return False
    value = parameter.value
    plain = isinstance(value, int | float | complex | np.generic) or type(value).__module__ == "builtins"
    return not plain


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


def loop_types(kinds: tuple[Any, ...], program: Program) -> str:
    """A lowering as NumPy writes a loop of a ufunc: ``ff->f``.

    Parameters
    ----------
    kinds : tuple
        What :func:`kind_key` says of each parameter.
    program : Program
        The typed program.
    """
    types_of = {value.id: value.type for node in program.block.nodes for value in node_results(node)}
    results = ""
    for result in program.results:
        match result:
            case ValueResult():
                results += _letter(types_of[result.value])
            case BufferResult():
                results += _letter(program.buffer(result.buffer).dtype)
            case HostResult():
                results += _letter(program.host_slots[result.slot])
    return f"{''.join(map(_letter, kinds))}->{results}"


def _letter(kind: Any) -> str:
    """NumPy's letter for a dtype, a weak number, a Python type or a key; ``O`` for all that is no number."""
    match kind:
        case ("array", np.dtype() as dtype):
            return str(dtype.char)
        case np.dtype():
            return str(kind.char)
        case Weak():
            return str(kind.loop_dtype.char)
        case type() if kind in (bool, int, float, complex) or issubclass(kind, np.generic):
            return str(np.dtype(kind).char)
    return "O"


def identifier(name: str) -> str:
    """The name as a Python identifier: ``<lambda>`` becomes ``fused_lambda``."""
    if name == "<lambda>":
        return "fused_lambda"
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text.isidentifier() else f"fused_{text}"
