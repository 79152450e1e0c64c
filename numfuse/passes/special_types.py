"""Typing rules that NumPy keeps outside of its loops: where the value of a Python number decides.

Comparisons and ``np.clip`` look at integers that do not fit, ``np.where`` wraps them, small exponents are other
functions, and an array changed in place keeps its dtype.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numfuse.body import Op, Type, Weak
from numfuse.dtypes.rules import dtype_of
from numfuse.errors import FusionTypeError, FusionValueError, Loc

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
# What a comparison with an integer above (or below) every value of the dtype is: NumPy compares by value.
_WHEN_ABOVE = {"equal": False, "not_equal": True, "less": True, "less_equal": True}
_WHEN_BELOW = {"equal": False, "not_equal": True, "greater": True, "greater_equal": True}
_MIRRORED = {
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}


@dataclass(frozen=True, slots=True)
class RangeGuard:
    """The typed program holds only while ``low <= value of slot <= high``."""

    slot: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ref:
    """A value during inference: computed (`id`), or a number that waits for its dtype."""

    kind: Type | None  # None: undefined
    source: Literal["value", "const", "host"]
    id: int = -1
    number: object = None  # const: the number; host: its value in this call, for range checks
    slot: int = -1


# The rows that np.clip lowers to, and the bounds that each one has.
CLIPS = {"clip": ("low", "high"), "clip_low": ("low",), "clip_high": ("high",)}


class SpecialTyping:
    """The part of type inference that knows these rules; ``types.py`` has the rest."""

    guards: dict[RangeGuard, None]

    @abstractmethod
    def emit(
        self,
        row: str,
        operands: tuple[int, ...],
        loop: tuple[np.dtype, ...],
        outputs: tuple[Type, ...],
        node: Op,
    ) -> list[Ref]:
        """Write a typed operation."""

    @abstractmethod
    def cast(self, ref: Ref, dtype: np.dtype, loc: Loc | None) -> int:
        """The id of the value in that dtype."""

    def index(self, node: Op, ref: Ref) -> Ref:
        """A bound of a range: an integer."""
        kind = ref.kind
        if kind is not Weak.INT and not (isinstance(kind, np.dtype) and kind.kind in "iu"):
            raise FusionTypeError(f"range() takes integers, and this is {kind}: convert it with int()", node.loc)
        return ref

    def clip(self, row: str, refs: list[Ref]) -> tuple[str, list[Ref]]:
        """``np.clip`` leaves out a bound that is a Python integer beyond the dtype's range."""
        kept = []
        for name, ref in zip(CLIPS[row], refs[1:], strict=True):
            kind = refs[0].kind
            if ref.kind is Weak.INT and ref.source != "value" and isinstance(kind, np.dtype) and kind.kind in "iu":
                limit = int(getattr(np.iinfo(kind), "min" if name == "low" else "max"))
                number = int(ref.number)  # type: ignore[call-overload]
                beyond = number <= limit if name == "low" else number >= limit
                inside = (limit + 1, math.inf) if name == "low" else (-math.inf, limit - 1)
                outside = (-math.inf, limit) if name == "low" else (limit, math.inf)
                if ref.source == "host":
                    self.guards[RangeGuard(ref.slot, *(outside if beyond else inside))] = None
                if beyond:
                    continue
            kept.append((name, ref))
        names = tuple(name for name, _ in kept)
        operation = {("low", "high"): "clip", ("low",): "maximum", ("high",): "minimum", (): "positive"}[names]
        return operation, [refs[0], *(ref for _, ref in kept)]

    def assign(self, node: Op, target: Ref, value: Ref) -> Ref:
        """``target op= value`` on an array: the target keeps its dtype and its shape."""
        kind = target.kind
        if kind is None or isinstance(kind, Weak):
            return value
        given = value.kind or kind
        asked = given.python(0) if isinstance(given, Weak) else given
        fits = (
            np.can_cast(np.result_type(asked, kind), kind, "same_kind")
            if isinstance(given, Weak)
            else np.can_cast(given, kind, "same_kind")
        )
        if not fits:
            raise FusionTypeError(
                f"Cannot cast the result from dtype('{dtype_of(given)}') to dtype('{kind}') in place with "
                f"casting rule 'same_kind': write a = a + b, which makes a new array of the wider dtype",
                node.loc,
            )
        old, new = self.cast(target, kind, node.loc), self.cast(value, kind, node.loc)
        return self.emit("assign", (old, new), (kind, kind), (kind,), node)[0]

    def power(self, node: Op, refs: list[Ref], loop: np.dtype, out: Type) -> Ref | None:
        """Exponents known to be whole and small are products; negative ones of integers are NumPy's error.

        An exponent 0.5 or -1 of an array (spelling "array") is the square root or the reciprocal, as in NumPy.
        """
        base, exponent = refs
        if exponent.source == "value" or not isinstance(exponent.number, int | float | np.number):
            return None
        if loop.kind == "i":
            if exponent.number < 0:
                raise FusionValueError("Integers to negative integer powers are not allowed.", node.loc)
            if exponent.source == "host":
                self.guards[RangeGuard(exponent.slot, 0, math.inf)] = None
        if exponent.source != "const" or loop.kind not in "iuf":
            return None
        number = exponent.number
        if node.spelling == "array" and loop.kind == "f" and number in (0.5, -1):
            row = "sqrt" if number == 0.5 else "reciprocal"
            return self.emit(row, (self.cast(base, loop, node.loc),), (loop,), (out,), node)[0]
        if number not in ((2, 3, 4) if loop.kind == "f" else (2,)):
            return None
        x = self.cast(base, loop, node.loc)
        square = self.emit("multiply", (x, x), (loop, loop), (out,), node)[0]
        if number == 2:
            return square
        other = x if number == 3 else square.id
        return self.emit("multiply", (square.id, other), (loop, loop), (out,), node)[0]

    def out_of_range(self, node: Op, row: str, refs: list[Ref]) -> Ref | None:
        """A comparison of an integer dtype with a Python int that does not fit it."""
        for position, (number, array) in enumerate(((refs[1], refs[0]), (refs[0], refs[1]))):
            kind = array.kind
            if number.kind is not Weak.INT or number.source == "value":
                continue
            if not isinstance(kind, np.dtype) or kind.kind not in "iu" or array.source != "value":
                continue
            value = int(number.number)  # type: ignore[call-overload]
            info = np.iinfo(kind)
            low, high = int(info.min), int(info.max)
            span: tuple[float, float] = (low, high)
            if not low <= value <= high:
                span = (high + 1, math.inf) if value > high else (-math.inf, low - 1)
            if number.source == "host":
                self.guards[RangeGuard(number.slot, *span)] = None
            if low <= value <= high:
                return None
            asked = row if position == 0 else _MIRRORED.get(row, row)
            truth = (_WHEN_ABOVE if value > high else _WHEN_BELOW).get(asked, False)
            # x == x for a true one, x != x for a false one: integers, so this is exact and keeps x's shape.
            same = "equal" if truth else "not_equal"
            return self.emit(same, (array.id, array.id), (kind, kind), (np.dtype(bool),), node)[0]
        return None

    def wrapped(self, ref: Ref, dtype: np.dtype, loc: Loc | None) -> int:
        """The id of an operand of ``np.where``, which makes an int64 of a Python integer and casts that."""
        if ref.kind is not Weak.INT or ref.source == "value" or dtype.kind not in "iu":
            return self.cast(ref, dtype, loc)
        whole = np.dtype(np.uint64 if int(ref.number) > np.iinfo(np.int64).max else np.int64)  # type: ignore[call-overload]
        if ref.source == "host":
            limit = 2**63
            self.guards[RangeGuard(ref.slot, *((limit, math.inf) if whole.kind == "u" else (-math.inf, limit - 1)))] = (
                None
            )
        converted = self.cast(ref, whole, loc)
        return self.cast(Ref(whole, "value", converted), dtype, loc)
