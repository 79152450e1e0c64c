"""How an operation is written: the call's arguments become a row's operands, in order."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from numfuse.errors import FusionNotImplementedError, FusionTypeError
from numfuse.ops.table import row

Form = Literal["operator", "ufunc", "math", "builtin"]
Operand = TypeVar("Operand")


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write an operation.

    Attributes
    ----------
    row : str
        Name of the row.
    form : str
        "operator" and "builtin" keep Python numbers weak; "ufunc" makes them strong; "math" is a function of
        :mod:`math`: weak on Python numbers, NumPy's function of the same meaning on elements.
    written : str
        As a user writes it, for messages: ``np.clip``.
    parameters : tuple of str
        Names of the parameters, where they may be given by name; empty: positional only.
    python_int : bool
        The function returns a Python int (``math.floor``): an int64 in an element function.
    floating : bool
        The function computes in floats whatever it is given (``math.pow``): integers become float64 first.
    """

    row: str
    form: Form
    written: str
    parameters: tuple[str, ...] = ()
    python_int: bool = False
    floating: bool = False


def is_none(operand: object) -> bool:
    """Whether an operand is None, or stands for it (a host value or constant that is None)."""
    return operand is None or getattr(operand, "value", operand) is None


def arrange(
    spelling: Spelling,
    args: Sequence[Operand],
    keywords: Mapping[str, Operand],
) -> tuple[str, list[Operand]]:
    """The row that a call means, and its operands in order.

    Parameters
    ----------
    spelling : Spelling
        What is called (of a method: the array is the first argument).
    args, keywords
        The arguments, in whatever form the caller has them; one that is None (see :func:`is_none`) is no bound:
        ``np.clip(x, None, 1)`` is a minimum.

    Returns
    -------
    tuple of str and list
        For ``math.log(x, base)`` the row is "log" with both operands: log(x)/log(base).

    Raises
    ------
    FusionTypeError
        For a wrong number of arguments or an unknown keyword.
    FusionNotImplementedError
        For ``out=``, ``where=``, ``dtype=`` and other options of ufuncs.

    Examples
    --------
    >>> from numfuse.ops import find
    >>> import numpy as np
    >>> arrange(find(np.clip), ["x"], {"max": "hi"})
    ('minimum', ['x', 'hi'])
    """
    if spelling.row == "clip":
        return _arrange_clip(spelling, args, keywords)
    operands = _bind(spelling, args, keywords)
    wanted = row(spelling.row).nin
    if spelling.row == "where" and len(operands) == 1:
        raise FusionNotImplementedError(
            f"{spelling.written}(condition) gives indices, which is not elementwise; "
            f"{spelling.written}(condition, x, y) selects"
        )
    if len(operands) != wanted and not (spelling.written == "math.log" and len(operands) == 2):
        raise _count_error(spelling, wanted, len(operands))
    return spelling.row, operands


def _bind(spelling: Spelling, args: Sequence[Operand], keywords: Mapping[str, Operand]) -> list[Operand]:
    if not keywords:
        return list(args)
    missing = spelling.parameters[len(args) :]
    for name in keywords:
        if name in missing:
            continue
        if name in spelling.parameters:
            raise FusionTypeError(f"{spelling.written}() got multiple values for argument {name!r}")
        raise _keyword_error(spelling, name)
    given = [keywords[name] for name in missing if name in keywords]
    if len(given) != len(missing) and list(keywords) != list(missing[: len(given)]):
        raise FusionTypeError(f"{spelling.written}() is missing an argument")
    return [*args, *given]


def _arrange_clip(
    spelling: Spelling,
    args: Sequence[Operand],
    keywords: Mapping[str, Operand],
) -> tuple[str, list[Operand]]:
    """Bounds may be None or missing, and NumPy has two pairs of names for them."""
    array_name, low_name, high_name = spelling.parameters
    synonyms = {array_name: "array", low_name: "low", high_name: "high", "min": "low", "max": "high"}
    bound = dict(zip(("array", "low", "high"), args, strict=False))
    if len(args) > 3:
        raise _count_error(spelling, 3, len(args))
    for name, value in keywords.items():
        if name not in synonyms:
            raise _keyword_error(spelling, name)
        if synonyms[name] in bound:
            raise FusionTypeError(f"{spelling.written}() got multiple values for argument {name!r}")
        bound[synonyms[name]] = value
    if "array" not in bound:
        raise FusionTypeError(f"{spelling.written}() is missing the array")
    x = bound["array"]
    low = [bound["low"]] if "low" in bound and not is_none(bound["low"]) else []
    high = [bound["high"]] if "high" in bound and not is_none(bound["high"]) else []
    if low and high:
        return "clip", [x, *low, *high]
    if low or high:
        return ("maximum" if low else "minimum"), [x, *low, *high]
    return "identity", [x]


def _count_error(spelling: Spelling, wanted: int, given: int) -> FusionTypeError:
    operands = "operand" if wanted == 1 else "operands"
    was = "was" if given == 1 else "were"
    return FusionTypeError(f"{spelling.written} takes {wanted} {operands}, and {given} {was} given")


_OPTIONS = {
    "out": "assign the result instead: y[...] = {}(...)",
    "where": "select instead: np.where(condition, {}(...), y)",
    "dtype": "cast the operands instead: {}(x.astype(dtype))",
    "casting": "cast the result instead: {}(...).astype(dtype)",
}


def _keyword_error(spelling: Spelling, name: str) -> FusionTypeError | FusionNotImplementedError:
    if name in _OPTIONS or name in (
        "order",
        "subok",
        "signature",
        "rounding_mode",
        "alpha",
        "key",
        "default",
    ):
        instead = _OPTIONS.get(name, "leave it out").format(spelling.written)
        return FusionNotImplementedError(
            f"{name}= of {spelling.written} can't be used inside a fused function; {instead}"
        )
    return FusionTypeError(f"{spelling.written}() got an unexpected keyword argument {name!r}")


# --------------------------------------------------------------------------------------------------------
# Operators of the language

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
}
_UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "negative",
    ast.UAdd: "positive",
    ast.Invert: "invert",
    ast.Not: "logical_not",
}
_COMPARISON: dict[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}


def binary_operator(kind: type[ast.operator]) -> str | None:
    """The row of a binary operator of the language; None for ``@``."""
    return _BINARY.get(kind)


def unary_operator(kind: type[ast.unaryop]) -> str:
    """The row of a unary operator of the language."""
    return _UNARY[kind]


def comparison(kind: type[ast.cmpop]) -> str | None:
    """The row of a comparison; None for ``is`` and ``in``."""
    return _COMPARISON.get(kind)
