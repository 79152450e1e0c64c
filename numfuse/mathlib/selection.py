"""What chooses one of its operands, for every dtype, and comparisons of int64 with uint64."""

from __future__ import annotations

from numfuse.mathlib.writer import Definition, Scalar, Writer


def _extreme(symbol: str, *, skip_nan: bool) -> Definition:
    """The smaller or larger of two; equal ones (zeros of either sign) give the second, as NumPy does."""

    def definition(w: Writer, a: Scalar, b: Scalar) -> Scalar:
        nan = w.isnan(b if skip_nan else a)
        return w.select(w.any(w.compare(symbol, a, b), nan), a, b)

    return definition


def _clip(w: Writer, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """The upper bound wins over the lower; a NaN bound gives NaN."""
    x = w.select(w.any(w.compare("<", x, low), w.isnan(low)), low, x)
    return w.select(w.any(w.compare(">", x, high), w.isnan(high)), high, x)


def _python_extreme(symbol: str) -> Definition:
    def definition(w: Writer, a: Scalar, b: Scalar) -> Scalar:
        return w.select(w.compare(symbol, b, a), b, a)

    return definition


def _where(w: Writer, condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    return w.select(condition, then, otherwise)


DEFINITIONS: dict[str, Definition] = {
    "clip": _clip,
    "fmax": _extreme(">", skip_nan=True),
    "fmin": _extreme("<", skip_nan=True),
    "maximum": _extreme(">", skip_nan=False),
    "minimum": _extreme("<", skip_nan=False),
    "select_max": _python_extreme(">"),
    "select_min": _python_extreme("<"),
    "where": _where,
}

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def _mixed(symbol: str) -> Definition:
    """uint64 against int64, by value: a negative number is below every unsigned one."""

    def definition(w: Writer, a: Scalar, b: Scalar) -> Scalar:
        # The dtype is that of the first operand: look from the unsigned one.
        unsigned, signed, seen = (b, a, _MIRRORED[symbol]) if w.is_signed else (a, b, symbol)
        builder = w.builder
        negative = builder.icmp_signed("<", signed, w.constant(0))
        by_value = builder.icmp_unsigned(seen, unsigned, signed)
        if seen in (">", ">=", "!="):
            return w.any(negative, by_value)
        return w.all(builder.not_(negative), by_value)

    return definition


MIXED_COMPARISONS: dict[str, Definition] = {
    "equal": _mixed("=="),
    "greater": _mixed(">"),
    "greater_equal": _mixed(">="),
    "less": _mixed("<"),
    "less_equal": _mixed("<="),
    "not_equal": _mixed("!="),
}
