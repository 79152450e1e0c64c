"""The accepted Python, and what to write instead of the rest.

What is accepted has a method in the inliner (``do_While``, ``visit_Call``). A node of ``ast`` that has none is refused
with its row of :data:`REFUSED`, where the inliner meets it, so code that a structural test rules out (``if bias
is not None``) is never looked at.
"""

from __future__ import annotations

import ast
import re

from numfuse.errors import FusionError, FusionNotImplementedError, FusionSyntaxError, Loc

__all__ = ["REFUSED", "refusal"]

_COMPREHENSION = "write a `for` loop over the tuple or range, or name the items one by one"

#: Node type -> (error class, what it is, what to write instead).
REFUSED: dict[str, tuple[type[FusionError], str, str]] = {
    "AsyncFor": (FusionSyntaxError, "`async for`", "write a plain `for`"),
    "AsyncFunctionDef": (FusionSyntaxError, "`async def`", "write a plain `def`"),
    "AsyncWith": (FusionSyntaxError, "`async with`", "fetch the data before the call"),
    "Await": (FusionSyntaxError, "`await`", "await before the call and pass the value as an argument"),
    "ClassDef": (FusionSyntaxError, "a class", "define the class outside of the function"),
    "Delete": (FusionSyntaxError, "`del`", "leave it out: names of a fused function hold no memory"),
    "Dict": (FusionSyntaxError, "a dict", "use separate names, or a tuple"),
    "DictComp": (FusionSyntaxError, "a dict comprehension", "use separate names, or a tuple"),
    "GeneratorExp": (FusionNotImplementedError, "a generator expression", _COMPREHENSION),
    "Global": (FusionSyntaxError, "an assignment to a global", "return the value and assign it in the caller"),
    "Import": (FusionSyntaxError, "an import", "move it to the top of the module"),
    "ImportFrom": (FusionSyntaxError, "an import", "move it to the top of the module"),
    "JoinedStr": (FusionSyntaxError, "an f-string of elements", "build the text outside of the function"),
    "Lambda": (
        FusionSyntaxError,
        "a function used as a value",
        "call it, or pass it to a helper that calls it: it can't be returned or stored",
    ),
    "ListComp": (FusionNotImplementedError, "a list comprehension", _COMPREHENSION),
    "Match": (FusionNotImplementedError, "`match`", "write `if`/`elif` with `==`"),
    "NamedExpr": (FusionNotImplementedError, "`:=`", "assign on a line of its own, before"),
    "Nonlocal": (
        FusionSyntaxError,
        "an assignment to a variable of the enclosing function",
        "return the value and assign it in the caller",
    ),
    "Raise": (
        FusionSyntaxError,
        "`raise` where elements decide",
        "test Python's own numbers and strings only; for elements, give np.nan or a mask as a result",
    ),
    "Set": (FusionSyntaxError, "a set", "use a tuple"),
    "SetComp": (FusionSyntaxError, "a set comprehension", "use a tuple"),
    "Starred": (
        FusionSyntaxError,
        "a starred expression here",
        "name the items one by one (`*args` is understood in calls and in signatures of helpers)",
    ),
    "TemplateStr": (FusionSyntaxError, "a t-string", "build the text outside of the function"),
    "Try": (FusionSyntaxError, "`try`", "test the condition with `if` or np.where instead"),
    "TryStar": (FusionSyntaxError, "`try`", "test the condition with `if` or np.where instead"),
    "TypeAlias": (FusionSyntaxError, "a type alias", "move it to the top of the module"),
    "With": (
        FusionSyntaxError,
        "`with`",
        "enter the context around the call (only `with np.errstate(...)` may stand inside)",
    ),
    "Yield": (FusionSyntaxError, "`yield`", "return a tuple"),
    "YieldFrom": (FusionSyntaxError, "`yield from`", "return a tuple"),
}


def refusal(node: ast.AST | str, loc: Loc | None) -> FusionError:
    """The error for a construct outside the language."""
    name = node if isinstance(node, str) else type(node).__name__
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    unknown = (FusionSyntaxError, f"this construct ({words})", "see 'What is there' in the README for what is")
    error, what, instead = REFUSED.get(name, unknown)
    later = " yet" if error is FusionNotImplementedError else ""
    return error(f"{what} is not supported{later} in a fused function: {instead}", loc)
