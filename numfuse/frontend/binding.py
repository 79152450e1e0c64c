"""What is known of a value before types are: who computes it, and whether it is structural.

The inliner walks each frame forwards, path by path, and keeps one :class:`Abstract` a name. Paths that meet
are joined; loops are walked until nothing changes. The same knowledge says which calls Python can run itself
and which frames are element functions.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import enum
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from numfuse.errors import FusionNotImplementedError, FusionTypeError, Loc
from numfuse.frontend.scope import Resolved

if TYPE_CHECKING:
    from numfuse.frontend.frames import Frame

__all__ = [
    "ELEMENT",
    "HOST",
    "UNASSIGNED",
    "UNIFORM",
    "UNKNOWN",
    "Abstract",
    "Argument",
    "Kind",
    "LocalFunction",
    "Static",
    "Values",
    "join",
    "join_values",
    "match_arguments",
    "needs_number",
    "of_kind",
    "of_tuple",
    "refuse_star_parameters",
    "same",
    "same_known",
]


class Kind(enum.IntEnum):
    """Who computes a value."""

    HOST = 0  #: Python, once a call
    UNIFORM = 1  #: one value a call, but perhaps in the kernel: it changes in a loop that has element work
    ELEMENT = 2  #: the kernel: it depends on array elements, or is a tuple holding such values


@dataclass(frozen=True)
class Static:
    """A structural value: a function, module, type, string, enum member, None."""

    value: object

    def __deepcopy__(self, memo: object) -> Static:
        """The same: copies of a tree denote the same objects."""
        return self


class Unknown(enum.Enum):
    """The value of something that is only known when the function runs."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, eq=False)
class LocalFunction:
    """A nested ``def`` or a lambda, with the frame whose names it sees."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame
    defaults: Mapping[str, tuple[ast.expr, Abstract]]

    @property
    def name(self) -> str:
        """As Python would call it."""
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(frozen=True)
class Abstract:
    """What is known of a value.

    `known` is the value itself where it cannot differ from call to call (constants, structural values);
    `resolved` is its place where it is a captured one; `items` are those of a tuple; `optional`: None on some
    path.
    """

    kind: Kind
    known: object = UNKNOWN
    resolved: Resolved | None = None
    items: tuple[Abstract, ...] | None = None
    optional: bool = False

    def raised(self, control: Kind) -> Abstract:
        """The same value, assigned where a test of kind `control` decides."""
        if self.kind >= control:
            return self
        items = None if self.items is None else tuple(item.raised(control) for item in self.items)
        return replace(self, kind=control, items=items)

    @property
    def function_like(self) -> bool:
        """Whether this is something that only the front end can use: a function, module or type."""
        if isinstance(self.known, LocalFunction):
            return True
        if isinstance(self.known, enum.Enum):
            return False
        return self.resolved is not None and self.resolved.category == "static" and not self.plain

    @property
    def holds_functions(self) -> bool:
        """Whether this is, or holds, something that only the front end can use."""
        return self.function_like or any(item.holds_functions for item in self.items or ())

    @property
    def plain(self) -> bool:
        """Whether `known` can be written as a constant."""
        return self.known is None or isinstance(self.known, bool | int | float | complex | str | bytes)


HOST = Abstract(Kind.HOST)
UNIFORM = Abstract(Kind.UNIFORM)
ELEMENT = Abstract(Kind.ELEMENT)
#: What a name holds that only an earlier turn of a loop assigns: it adds nothing to what it is joined with.
UNASSIGNED = Abstract(Kind.HOST)


def of_kind(kind: Kind) -> Abstract:
    """A value of which nothing but the kind is known."""
    return (HOST, UNIFORM, ELEMENT)[kind]


def of_tuple(items: tuple[Abstract, ...]) -> Abstract:
    """A tuple of values."""
    return Abstract(max((item.kind for item in items), default=Kind.HOST), items=items)


def same_known(a: object, b: object) -> bool:
    """Whether two known values are the same constant or the same object."""
    if a is b:
        return True
    plain = bool | int | float | complex | str | bytes
    return isinstance(a, plain) and type(a) is type(b) and a == b and repr(a) == repr(b)


def join(a: Abstract, b: Abstract) -> Abstract:
    """What is known where two paths meet."""
    if a is b or b is UNASSIGNED:
        return a
    if a is UNASSIGNED:
        return b
    known = a.known if same_known(a.known, b.known) else UNKNOWN
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True))
    resolved = a.resolved
    if resolved is not None and (b.resolved is None or b.resolved.reference.key != resolved.reference.key):
        resolved = None
    missing = known is UNKNOWN and (a.known is None or b.known is None)
    return Abstract(max(a.kind, b.kind), known, resolved, items, a.optional or b.optional or missing)


Values = dict[str, Abstract]


def join_values(a: Values | None, b: Values | None) -> Values | None:
    """Join the names of two paths; None is a path that is never taken."""
    if a is None or b is None:
        return a if b is None else b
    return {name: join(a[name], b[name]) if name in a and name in b else a.get(name) or b[name] for name in {**a, **b}}


def same(a: Abstract, b: Abstract) -> bool:
    """Whether the same is known of two values."""
    if a is b or a is UNASSIGNED or b is UNASSIGNED:
        return a is b
    places = [None if x.resolved is None else x.resolved.reference.key for x in (a, b)]
    if a.kind != b.kind or a.optional != b.optional or places[0] != places[1]:
        return False
    if (a.items is None) != (b.items is None) or not same_known(a.known, b.known):
        return False
    x, y = a.items or (), b.items or ()
    return len(x) == len(y) and all(map(same, x, y))


_TRUTH_OPERATIONS = {
    *(f for f in vars(math).values() if callable(f)),
    *(f for f in vars(cmath).values() if callable(f)),
    builtins.int, builtins.float, builtins.complex, builtins.bool, builtins.round, builtins.any, builtins.all,
    builtins.min, builtins.max, builtins.range,
    operator.not_, operator.truth, operator.index, operator.contains,
}  # fmt: skip


def needs_number(function: object) -> bool:
    """Whether a call of it on an array would need one element's truth value or Python number."""
    try:
        return function in _TRUTH_OPERATIONS
    except TypeError:  # not hashable
        return False


@dataclass(frozen=True)
class Argument:
    """An argument of a helper call, already in terms of the caller's names."""

    value: ast.expr
    abstract: Abstract
    name: str | None = None  # of a keyword argument


def match_arguments(
    name: str, parameters: ast.arguments, arguments: list[Argument], loc: Loc
) -> tuple[dict[str, Argument], list[Argument], list[Argument]]:
    """Match call arguments with parameters, as Python does.

    Returns
    -------
    named : the argument of each parameter that was given one
    extra : what ``*args`` takes
    keywords : what ``**kwargs`` takes

    Raises
    ------
    FusionTypeError
        The call does not fit the signature (defaults are the caller's business).
    """
    positional = [a.arg for a in [*parameters.posonlyargs, *parameters.args]]
    by_name = {a.arg for a in [*parameters.args, *parameters.kwonlyargs]}
    named: dict[str, Argument] = {}
    extra: list[Argument] = []
    keywords: list[Argument] = []
    given = [a for a in arguments if a.name is None]
    for position, argument in enumerate(given):
        if position < len(positional):
            named[positional[position]] = argument
        else:
            extra.append(argument)
    if extra and parameters.vararg is None:
        raise FusionTypeError(
            f"{name}() takes {len(positional)} positional argument{'s' * (len(positional) != 1)} but "
            f"{len(given)} {'were' if len(given) != 1 else 'was'} given",
            loc,
        )
    for argument in arguments:
        if argument.name is None:
            continue
        if argument.name in by_name:
            if argument.name in named:
                raise FusionTypeError(f"{name}() got multiple values for argument {argument.name!r}", loc)
            named[argument.name] = argument
        elif parameters.kwarg is not None:
            keywords.append(argument)
        else:
            raise FusionTypeError(f"{name}() got an unexpected keyword argument {argument.name!r}", loc)
    return named, extra, keywords


def refuse_star_parameters(name: str, parameters: ast.arguments, loc: Loc) -> None:
    """The decorated function itself needs a fixed signature."""
    star = parameters.vararg or parameters.kwarg
    if star is not None:
        raise FusionNotImplementedError(
            f"{name}() is decorated itself and takes *{star.arg}, which is not supported yet: name its parameters "
            "(helpers that it calls may take *args)",
            loc,
        )
