"""What a name can stand for while a function is lowered.

Besides these there are :class:`~numfuse.frontend.prelude.Host` (Python has the value at each call) and
:class:`~numfuse.frontend.binding.Static` (a function, module or dtype, part of the lowering's key).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numfuse.body import Value
from numfuse.frontend.binding import Static
from numfuse.frontend.prelude import Host


@dataclass(eq=False, slots=True)
class Device:
    """A value of the body. Two names for one array share the object, as they do in Python.

    `origin` names the buffer whose unchanged contents this is: the caller's own array. `partial`: only some
    paths assigned it, so reading it may be an error in the plain function. `number`: Python would have a
    number here, which a loop of the kernel changes turn after turn.
    """

    id: int
    origin: str | None = None
    partial: bool = False
    number: bool = False


@dataclass(eq=False, slots=True)
class TupleValue:
    """A Python tuple (or list display) whose items are known one by one."""

    items: tuple[Abstract, ...]
    is_list: bool = False

    def with_items(self, items: Iterable[Abstract]) -> TupleValue:
        """A tuple or list, as this one is, of other items."""
        return TupleValue(tuple(items), self.is_list)


class Unassigned:
    """A name that no path has assigned yet."""


UNASSIGNED = Unassigned()

Abstract = Host | Device | TupleValue | Static | Unassigned


@dataclass(frozen=True, slots=True)
class ArrayParameter:
    """A parameter that is an array in this call: the object itself, as seen by the prelude."""

    array: object
    element: Value  # its type is the array's dtype


@dataclass(frozen=True, slots=True)
class HostParameter:
    """A parameter that is a Python object in this call."""

    value: object
