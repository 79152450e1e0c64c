"""The errors of numfuse: what was met, where, through which helper calls, and what to write instead.

Every error is a :class:`FusionError` and also the built-in exception that Python or NumPy would have
raised at that place, so ``except TypeError`` keeps working when a function gains ``@fuse``.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, replace

__all__ = [
    "FusionAttributeError",
    "FusionError",
    "FusionIndexError",
    "FusionKeyError",
    "FusionNameError",
    "FusionNotImplementedError",
    "FusionOverflowError",
    "FusionRecursionError",
    "FusionSyntaxError",
    "FusionTypeError",
    "FusionValueError",
    "Loc",
]


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the user's source.

    Columns count characters from 0, as in ``ast`` after conversion from bytes. `call_site` is the place
    of the helper call through which this code was inlined, so the chain reads like a traceback.
    """

    filename: str
    line: int
    column: int
    end_column: int
    function: str
    call_site: Loc | None = None

    def inlined_at(self, call_site: Loc) -> Loc:
        """The same place, reached through `call_site` (appended to the outer end of the chain)."""
        if self.call_site is None:
            return replace(self, call_site=call_site)
        return replace(self, call_site=self.call_site.inlined_at(call_site))

    def chain(self) -> tuple[Loc, ...]:
        """All places from the decorated function inwards, this one last."""
        outer = self.call_site.chain() if self.call_site is not None else ()
        return (*outer, self)

    def render(self) -> str:
        """The chain as text: file, line, function, the source line and carets under the code meant."""
        return "\n".join(_render_one(loc) for loc in self.chain())


def _render_one(loc: Loc) -> str:
    head = f'  File "{loc.filename}", line {loc.line}, in {loc.function}'
    text = linecache.getline(loc.filename, loc.line).rstrip("\n")
    code = text.lstrip()
    if not code:
        return head
    indent = len(text) - len(code)
    start = max(loc.column - indent, 0)
    width = max(min(loc.end_column, len(text)) - max(loc.column, indent), 1)
    return f"{head}\n    {code}\n    {' ' * start}{'^' * width}"


class FusionError(Exception):
    """Base class of everything that numfuse raises about a function or a call that can't be fused.

    Parameters
    ----------
    message : str
        What was met, and what to write instead.
    loc : Loc, optional
        Where; its chain of helper calls is printed under the message.
    """

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        self.message = message
        self.loc = loc
        super().__init__(message)

    def __str__(self) -> str:
        if self.loc is None:
            return self.message
        return f"{self.message}\n{self.loc.render()}"

    def bare(self) -> FusionError:
        """Itself, without the compiler's own frames and causes, which would bury the place that it points at."""
        if isinstance(self.__cause__, FusionError):
            self.__cause__ = None
        elif self.__cause__ is not None:
            self.__cause__.__traceback__ = None
        return self.with_traceback(None)

    def reached(self) -> tuple[tuple[int, int], ...]:
        """How far into the decorated function its place lies; greater is further."""
        return () if self.loc is None else tuple((loc.line, loc.column) for loc in self.loc.chain())

    def __reduce__(self) -> tuple[type[FusionError], tuple[str, Loc | None]]:
        return type(self), (self.message, self.loc)


class FusionTypeError(FusionError, TypeError):
    """An operand, dtype or argument of a kind that does not fit here."""


class FusionNameError(FusionError, NameError):
    """A name that is not defined where the function uses it."""


class FusionAttributeError(FusionError, AttributeError):
    """An attribute that the object does not have, or that cannot be used in a fused function."""


class FusionValueError(FusionError, ValueError):
    """A value that does not fit, such as shapes that do not broadcast."""


class FusionIndexError(FusionError, IndexError):
    """A constant index outside a tuple."""


class FusionKeyError(FusionError, KeyError):
    """A constant key that a captured mapping does not have."""


class FusionOverflowError(FusionError, OverflowError):
    """A Python integer that does not fit the dtype in which it is used."""


class FusionSyntaxError(FusionError, SyntaxError):
    """A Python construct that is not part of the accepted language."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        FusionError.__init__(self, message, loc)
        # SyntaxError's own fields, so that tools which show them (IDEs, IPython) point at the user's line.
        self.msg = message
        if loc is not None:
            self.filename, self.lineno = loc.filename, loc.line
            self.offset, self.end_offset = loc.column + 1, loc.end_column + 1
            self.text = linecache.getline(loc.filename, loc.line) or None


class FusionRecursionError(FusionError, RecursionError):
    """A helper that calls itself, directly or through others."""


class FusionNotImplementedError(FusionError, NotImplementedError):
    """Something that numfuse means to support and does not support yet."""
