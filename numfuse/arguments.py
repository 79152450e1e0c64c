"""The arguments of a call: which parameter each one belongs to, and what is said of those that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from numfuse import arrays
from numfuse.arrays import Adapter
from numfuse.errors import FusionNotImplementedError, FusionTypeError

# Keywords that every ufunc takes, and how to write the same today.
_OF_UFUNCS = {
    "out": "assign the result instead, out[...] = {call}",
    "where": "select instead, np.where(condition, {call}, otherwise)",
    "dtype": "convert instead, {call}.astype(dtype)",
    "casting": "convert the arguments instead, x.astype(dtype, casting=...)",
    "order": "copy the result instead, {call}.copy(order)",
}


def bind(
    function: Callable[..., Any], label: str, args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The value of each parameter, defaults filled in.

    Raises
    ------
    FusionTypeError
        Arguments missing, too many, or of other names.
    FusionNotImplementedError
        Keywords of ufuncs that fused functions don't have yet.
    """
    signature = inspect.signature(function)  # each time: defaults as they are now
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        problem = error
    else:
        bound.apply_defaults()
        return tuple(bound.arguments.values())
    unknown = [name for name in keywords if name not in signature.parameters]
    if unknown and all(name in _OF_UFUNCS for name in unknown):
        call = f"{label}({', '.join(required(signature))})"
        raise FusionNotImplementedError(f"{unknown[0]}= is not there yet: {_OF_UFUNCS[unknown[0]].format(call=call)}")
    unknown = [name for name in unknown if name not in _OF_UFUNCS]
    # Python names an unknown argument first, `bind` a missing one.
    reason = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(problem)
    raise FusionTypeError(f"{label}(): {reason}; it is called as {label}{spelled(signature)}")


def required(signature: inspect.Signature) -> list[str]:
    """The parameters that have no default."""
    return [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]


def spelled(signature: inspect.Signature) -> str:
    """The signature as text, without annotations."""
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def holds_arrays(value: object) -> bool:
    """Whether there is an array among the items of a tuple, list or dict, at any depth."""
    items: Iterable[object] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, tuple | list):
        items = value
    return any(arrays.is_array(item) or holds_arrays(item) for item in items)


def refuse_held_arrays(name: str, value: object) -> None:
    """Refuse a tuple, list or dict that holds arrays: what an array is must show in the call's key."""
    if holds_arrays(value):
        of_numpy = isinstance(value, tuple | list) and all(isinstance(item, np.ndarray) for item in value)
        stacked = f", or np.asarray({name})" if of_numpy else ""
        raise FusionTypeError(
            f"argument {name!r} is a {type(value).__name__} that holds arrays: pass each array as an argument of "
            f"its own{stacked}"
        )


def common_adapter(names: Sequence[str], values: Sequence[Any], device: str | None, label: str) -> Adapter | None:
    """The library of the arrays of a call; None if there are no arrays.

    Raises
    ------
    FusionTypeError
        Arrays of two libraries or devices, on another device than asked for, or hidden in containers.
    """
    found = []
    for name, value in zip(names, values, strict=True):
        if arrays.is_array(value):
            found.append((name, value))
        elif isinstance(value, tuple | list):
            refuse_held_arrays(name, value)
    if not found:
        for name, value in zip(names, values, strict=True):
            refuse_held_arrays(name, value)  # in a dict: the plain call would compute with them, unfused
        return None
    adapter = arrays.common_adapter(found)
    if device is not None and adapter.on_device != (device == "cuda"):
        where = "on a GPU" if adapter.on_device else "in host memory"
        raise FusionTypeError(
            f"argument {found[0][0]!r} is a {adapter.name} array {where}, and {label} was made with device={device!r}"
        )
    return adapter
