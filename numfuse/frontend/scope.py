"""What a name means that the function does not assign: where its value is found, and what sort of value it is.

A :class:`Reference` says where: an owner (a namespace, a closure cell, a function, an object) and the steps
from there. Values that are numbers, arrays or plain objects become a :class:`Capture`, read afresh at each
call; structural ones (functions, modules, types, strings, None) become a :class:`Guard`: they are used as they
are now, and must still be the same objects when the fused function is called again.
"""

from __future__ import annotations

import builtins
import difflib
import enum
import functools
import keyword
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

__all__ = [
    "Attribute",
    "Bind",
    "Capture",
    "Category",
    "Default",
    "FunctionScope",
    "Guard",
    "Item",
    "Reference",
    "Resolved",
    "Step",
    "categorize",
    "did_you_mean",
    "is_structural",
    "reaches_array",
    "wrapped_function",
]

Bind = Callable[[object], str]
Category = Literal["number", "array", "object", "static"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """``.name``"""

    name: str

    def read(self, value: object) -> object:
        """The attribute of a value."""
        return getattr(value, self.name)

    def text(self) -> str:
        """As Python source behind an expression."""
        return f".{self.name}"


@dataclass(frozen=True, slots=True)
class Item:
    """``[key]`` with a constant key."""

    key: str | int | float | bool | None

    def read(self, value: object) -> object:
        """The item of a value."""
        return value[self.key]  # type: ignore[index]

    def text(self) -> str:
        """As Python source behind an expression."""
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class Default:
    """``.get(key)``: the item of a namespace, or None where it has none."""

    key: str

    def read(self, value: object) -> object:
        """The item of a namespace or None."""
        assert isinstance(value, Mapping)
        return value.get(self.key)

    def text(self) -> str:
        """As Python source behind an expression."""
        return f".get({self.key!r})"


Step = Attribute | Item | Default


@dataclass(frozen=True)
class Reference:
    """A value's place: `steps` taken from `owner`. The first `rooted` steps are what the root name means."""

    owner: object = field(compare=False)
    name: str
    steps: tuple[Step, ...] = ()
    rooted: int = 0

    @property
    def key(self) -> tuple[int, tuple[Step, ...]]:
        """Equal for equal places."""
        return id(self.owner), self.steps

    def then(self, *steps: Step) -> Reference:
        """The place some steps further."""
        return Reference(self.owner, self.name, self.steps + steps, self.rooted)

    def root(self) -> Reference:
        """The place that the root name alone stands for."""
        return Reference(self.owner, self.name, self.steps[: self.rooted], self.rooted)

    def read(self) -> object:
        """The value there now."""
        value = self.owner
        for step in self.steps:
            value = step.read(value)
        return value

    def expression(self, bind: Bind) -> str:
        """Python source that reads the value; `bind` gives a name for the owner."""
        return bind(self.owner) + "".join(step.text() for step in self.steps)

    def spelled(self) -> str:
        """As a user would write it, for messages: ``helpers.clip01``."""
        return self.name + "".join(step.text() for step in self.steps[self.rooted :])

    def identifier(self) -> str:
        """A Python name that says the same: ``params_sigma``."""
        text = re.sub(r"\W+", "_", self.spelled()).strip("_")
        return f"{text}_" if keyword.iskeyword(text) or not text.isidentifier() else text


@dataclass(frozen=True)
class Capture:
    """A value that is read afresh at each call.

    `kind` is what it was when the function was inlined. A place that holds something of another kind at a
    later call means that the function has to be inlined again.
    """

    kind: Literal["number", "array", "object"]
    reference: Reference

    def read(self) -> object:
        """The value now."""
        return self.reference.read()

    def expression(self, bind: Bind) -> str:
        """Python source that reads it; `bind(owner)` gives a name for a namespace, cell, function or object."""
        return self.reference.expression(bind)


@dataclass(frozen=True)
class Guard:
    """A place that must still hold the same object (compared by ``is``).

    Evaluating the expression may raise (a deleted global, say), which also means that the guard fails.
    """

    reference: Reference
    expected: object

    def expression(self, bind: Bind) -> str:
        """Python source that reads the object to compare."""
        return self.reference.expression(bind)


@dataclass(frozen=True)
class Resolved:
    """A value known when the function is inlined, and its place."""

    value: object
    reference: Reference
    category: Category


_STRUCTURAL_TYPES = (
    type(None),
    str,
    bytes,
    type(Ellipsis),
    enum.Enum,
    type,
    np.dtype,
    np.ufunc,
    np.vectorize,
    functools.partial,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GenericAlias,
)


def is_structural(value: object) -> bool:
    """Whether a value decides which code there is: a function, a module, a type, a string, an enum member, None.

    Anything else that can be called counts as an argument, whose code is inlined. A captured object of that
    sort may hold state, which :func:`categorize` has read afresh at each call.
    """
    return not _is_number(value) and (isinstance(value, _STRUCTURAL_TYPES) or callable(value))


def _is_number(value: object) -> bool:
    """Numbers first: a member of an IntEnum is one, and so is np.float64, which is a float."""
    return isinstance(value, bool | int | float | complex) or (
        isinstance(value, np.generic) and not isinstance(value, str | bytes)
    )


def categorize(value: object, is_array: Callable[[object], bool], operation: Callable[[object], bool]) -> Category:
    """What sort of value a function refers to."""
    if _is_number(value):
        return "number"
    if is_structural(value):
        stateless = isinstance(value, _STRUCTURAL_TYPES) or operation(value) or wrapped_function(value) is not None
        return "static" if stateless else "array" if is_array(value) else "object"
    return "array" if is_array(value) else "object"


def wrapped_function(value: object) -> tuple[Callable[..., object], str] | None:
    """The Python function behind a fused, compiled or vectorised one, and the attribute that leads to it.

    numfuse and numba keep it in `py_func`, ``np.vectorize`` in `pyfunc`, ``numba.vectorize`` in the
    dispatcher of its ufunc, ``functools.lru_cache`` in `__wrapped__`.
    """
    if isinstance(value, types.FunctionType | types.ModuleType | type) or not callable(value):
        return None
    paths = ["py_func", "pyfunc", "_dispatcher.py_func"]
    if isinstance(value, functools._lru_cache_wrapper):
        paths = ["__wrapped__"]
    for path in paths:
        inner: object = value
        for attribute in path.split("."):
            inner = getattr(inner, attribute, None)
        if inner is not None and callable(inner):
            return inner, path
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or nothing."""
    close = difflib.get_close_matches(name, [k for k in known if not k.startswith("__")], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class FunctionScope:
    """The names around a real Python function: closure cells, then globals, then builtins."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def find(self, name: str) -> tuple[Reference, Guard | None] | None:
        """The place of a name, and a guard where a global that is missing now could hide it later."""
        if name in self.cells:
            cell = self.cells[name]
            try:
                cell.cell_contents  # noqa: B018  (an empty cell raises)
            except ValueError:
                return None
            return Reference(cell, name, (Attribute("cell_contents"),), 1), None
        namespace = self.function.__globals__
        if name in namespace:
            return Reference(namespace, name, (Item(name),), 1), None
        if hasattr(builtins, name):
            shadow = Guard(Reference(namespace, name, (Default(name),), 1), None)
            return Reference(builtins, name, (Attribute(name),), 1), shadow
        return None

    def names(self) -> set[str]:
        """Every name that could be meant, for suggestions."""
        return {*self.cells, *self.function.__globals__, *dir(builtins)}


def reaches_array(function: types.FunctionType, is_array: Callable[[object], bool]) -> bool:
    """Whether a function or the helpers that it names refer to an array in a global or a closure cell."""
    seen: set[types.CodeType] = set()
    pending = [function]
    while pending:
        current = pending.pop()
        if current.__code__ in seen:
            continue
        seen.add(current.__code__)
        values = [current.__globals__[n] for n in current.__code__.co_names if n in current.__globals__]
        for cell in current.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # an empty cell
                continue
        for value in values:
            if is_array(value):
                return True
            inner = wrapped_function(value)
            value = value if inner is None else inner[0]
            if isinstance(value, types.FunctionType):
                pending.append(value)
    return False
