"""What a row of the operation table is, and the few shapes that its scalar expressions have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from numfuse.body import Type, Weak
from numfuse.errors import FusionNotImplementedError

Loop: TypeAlias = tuple[np.dtype, ...]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS)


@dataclass(frozen=True, slots=True)
class Expression:
    """Python text for one scalar operation, the same for both targets.

    Attributes
    ----------
    template : str
        ``"{0} + {1}"``: `str.format` it with the operands' text. An operand may be used twice or not at
        all, so operands must be names or literals. Its value has exactly the output dtype of the loop.
    imports : tuple of str
        The names of :mod:`numfuse.mathlib.cpu` and :mod:`numfuse.mathlib.cuda` that the text uses.
    """

    template: str
    imports: tuple[str, ...] = ()

    def format(self, *operands: str) -> str:
        """The text with the operands filled in."""
        return self.template.format(*operands)


ExpressionRule: TypeAlias = Callable[[Loop], Expression | None]
ResolveRule: TypeAlias = Callable[[Sequence[Type]], tuple[Loop, Loop]]


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: its dtypes, its scalar implementation, how exact it is.

    Attributes
    ----------
    name : str
        NumPy's name.
    ufunc : numpy.ufunc or None
        The ufunc that is asked for dtypes; where there is none, `resolve` answers.
    nin, nout : int
        Number of operands and of results.
    resolve : callable or None
        Operand types -> (loop dtypes of the operands, dtypes of the results). Only without `ufunc`.
    scalar : callable
        Loop dtypes of the operands -> :class:`Expression`, or None where the operation has no such loop.
    exact : bool
        The CPU gives NumPy's bits (NaNs are alike, whatever their payload); else it stays within `ulps`
        of the true value.
    ulps : int
        The bound on the error in units in the last place; 0 for an exact row.
    evaluate : callable
        The operation on NumPy arrays, for the interpreter.
    """

    name: str
    ufunc: np.ufunc | None
    nin: int
    nout: int
    resolve: ResolveRule | None
    scalar: ExpressionRule
    exact: bool
    ulps: int
    evaluate: Callable[..., Any]

    def resolve_dtypes(self, operands: Sequence[Type]) -> tuple[Loop, Loop]:
        """Loop dtypes of the operands and dtypes of the results, by NumPy's rules.

        Parameters
        ----------
        operands : sequence
            For each operand its dtype, or :class:`~numfuse.body.Weak` for a Python number (a Python bool is
            ``np.dtype(bool)``: it is not weak).

        Raises
        ------
        TypeError
            What NumPy raises for operands that the operation does not take.

        Examples
        --------
        >>> from numfuse.ops import row
        >>> row("multiply").resolve_dtypes((np.dtype("f4"), Weak.FLOAT))
        ((dtype('float32'), dtype('float32')), (dtype('float32'),))
        """
        if self.resolve is not None:
            return self.resolve(operands)
        assert self.ufunc is not None
        asked = (operand.python if isinstance(operand, Weak) else operand for operand in operands)
        resolved = self.ufunc.resolve_dtypes((*asked, *[None] * self.nout))
        return tuple(resolved[: self.nin]), tuple(resolved[self.nin :])

    def expression(self, loop: Loop) -> Expression:
        """The scalar implementation for operands of these dtypes.

        Raises
        ------
        FusionNotImplementedError
            When a dtype is one that NumPy has a loop for and numfuse does not support yet.
        """
        found = self.scalar(loop)
        if found is None:
            dtypes = ", ".join(dtype.name for dtype in loop)
            raise FusionNotImplementedError(
                f"NumPy computes {self.name} in ({dtypes}) here, which is not supported yet; "
                f"cast the operands first, for example x.astype(np.float32)"
            )
        return found


# --------------------------------------------------------------------------------------------------------
# Rules for expressions


def names(loop: Loop) -> tuple[str, ...]:
    """The names of the dtypes (``int64`` for both of C's types of that size)."""
    return tuple(dtype.name for dtype in loop)


def _uniform(loop: Loop) -> str | None:
    """The dtype's name where all operands have one dtype, and it is one of ours."""
    first, *rest = names(loop)
    return first if first in DTYPES and all(other == first for other in rest) else None


def by_dtype(templates: Mapping[str, str | ExpressionRule]) -> ExpressionRule:
    """One rule for each dtype that all operands share; a string is a template without imports."""

    def rule(loop: Loop) -> Expression | None:
        dtype = _uniform(loop)
        chosen = templates.get(dtype) if dtype is not None else None
        return chosen(loop) if callable(chosen) else Expression(chosen) if chosen is not None else None

    return rule


def call(operation: str, dtypes: Sequence[str] = DTYPES) -> ExpressionRule:
    """A call of the scalar library, ``operation_float32({0}, {1})``."""

    def rule(loop: Loop) -> Expression | None:
        dtype = _uniform(loop)
        if dtype is None or dtype not in dtypes:
            return None
        return library_call(f"{operation}_{dtype}", len(loop))

    return rule


def library_call(name: str, arity: int) -> Expression:
    """A call of one name of the scalar library."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Expression(f"{name}({operands})", (name,))


def same(template: str, dtypes: Sequence[str] = DTYPES) -> ExpressionRule:
    """One template whatever the dtype; it must give the right dtype by itself."""
    return by_dtype(dict.fromkeys(dtypes, template))


def widened(template: str, dtypes: Sequence[str] = INTEGERS) -> ExpressionRule:
    """A template that Numba computes in 64 bits for every integer, cast back to the operands' dtype.

    LLVM narrows the operation again: low bits of a sum depend on low bits of the operands only.
    """
    wide = {"int64", "uint64"}
    return by_dtype({d: template if d in wide else f"{d}({template})" for d in dtypes})


def wrapping(operation: str, template: str) -> ExpressionRule:
    """A sum or product that wraps at its own width.

    Numba computes it in 64 bits, where no sum or product of narrower integers overflows; of two int64 it
    promises LLVM that it does not, so there the scalar library's is called.
    """
    return by_dtype({**{d: widened(template) for d in INTEGERS}, "int64": call(operation, ("int64",))})


def zero(dtype: str) -> str:
    """The zero of a dtype as text. A plain 0 would compare a float32 in float64."""
    return {"bool": "False", "float32": "float32(0.0)", "float64": "0.0"}.get(dtype, f"{dtype}(0)")


def truth_of(position: int, dtype: str) -> str:
    """Text for the truth value of an operand; NaN is true."""
    return f"{{{position}}}" if dtype == "bool" else f"({{{position}}} != {zero(dtype)})"


# --------------------------------------------------------------------------------------------------------
# Rows


def ufunc_row(
    ufunc: np.ufunc,
    scalar: ExpressionRule,
    *,
    ulps: int = 0,
    name: str | None = None,
) -> Row:
    """The row of a ufunc; it is exact unless `ulps` says how far off it may be."""
    return Row(
        name=name or ufunc.__name__,
        ufunc=ufunc,
        nin=ufunc.nin,
        nout=ufunc.nout,
        resolve=None,
        scalar=scalar,
        exact=ulps == 0,
        ulps=ulps,
        evaluate=ufunc,
    )


def plain_row(
    name: str,
    nin: int,
    resolve: ResolveRule,
    scalar: ExpressionRule,
    evaluate: Callable[..., Any],
) -> Row:
    """The row of an operation that is no ufunc; all of these are exact."""
    return Row(
        name=name,
        ufunc=None,
        nin=nin,
        nout=1,
        resolve=resolve,
        scalar=scalar,
        exact=True,
        ulps=0,
        evaluate=evaluate,
    )


def strong(operand: Type) -> np.dtype:
    """The dtype of an operand; a weak number alone gets NumPy's default dtype for its kind."""
    return operand.loop_dtype if isinstance(operand, Weak) else operand


def joined(operands: Sequence[Type]) -> np.dtype:
    """The dtype that holds all of them, Python numbers being weak (``np.result_type``)."""
    return np.result_type(*(o.python(0) if isinstance(o, Weak) else o for o in operands))
