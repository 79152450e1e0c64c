"""Integer arithmetic with NumPy's rules: everything wraps at its own width, nothing traps.

Division by zero gives 0 (quotient and remainder), MIN // -1 wraps to MIN, quotients are rounded down and
remainders have the sign of the divisor (fmod's: of the dividend), shift counts too large (or negative, which
count as huge) give 0 or the sign.
"""

from __future__ import annotations

from llvmlite import ir

from numfuse.mathlib.writer import Definition, Scalar, Writer


def _divide(w: Writer, x: Scalar, y: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Quotient towards zero, remainder, and the divisor used: 1 where y is 0 or -1, which must not divide."""
    b = w.builder
    special = w.compare("==", y, w.constant(0))
    if w.is_signed:
        special = w.any(special, w.compare("==", y, w.constant(-1)))
    divisor = w.select(special, w.constant(1), y)
    quotient = b.sdiv(x, divisor) if w.is_signed else b.udiv(x, divisor)
    return quotient, b.sub(x, b.mul(quotient, divisor)), divisor


def _round_down(w: Writer, remainder: Scalar, divisor: Scalar) -> Scalar:
    """Whether rounding towards zero went up: signs differ and something is left."""
    negative = w.compare("<", w.builder.xor(remainder, divisor), w.constant(0))
    return w.all(negative, w.compare("!=", remainder, w.constant(0)))


def _floor_divide(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    quotient, remainder, divisor = _divide(w, x, y)
    if w.is_signed:
        up = _round_down(w, remainder, divisor)
        quotient = w.builder.sub(quotient, w.builder.zext(up, w.type))
        quotient = w.select(w.compare("==", y, w.constant(-1)), w.negate(x), quotient)
    return w.select(w.compare("==", y, w.constant(0)), w.constant(0), quotient)


def _remainder(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    # Divided by 1 instead of 0 or -1, nothing is left: 0, as it must be.
    _, remainder, divisor = _divide(w, x, y)
    if w.is_signed:
        up = _round_down(w, remainder, divisor)
        remainder = w.builder.add(remainder, w.select(up, divisor, w.constant(0)))
    return remainder


def _fmod(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    return _divide(w, x, y)[1]


def _power(w: Writer, base: Scalar, exponent: Scalar) -> Scalar:
    """Squaring and multiplying; for a negative exponent the reciprocal, cut to an integer."""
    b = w.builder
    one, zero = w.constant(1), w.constant(0)
    negative = w.compare("<", exponent, zero) if w.is_signed else ir.Constant(ir.IntType(1), 0)
    count = w.select(negative, zero, exponent)

    before = b.block
    head = b.append_basic_block("power.head")
    body = b.append_basic_block("power.body")
    done = b.append_basic_block("power.done")
    b.branch(head)
    b.position_at_end(head)
    result, square, left = b.phi(w.type), b.phi(w.type), b.phi(w.type)
    b.cbranch(b.icmp_unsigned("!=", left, zero), body, done)
    b.position_at_end(body)
    odd = b.trunc(left, ir.IntType(1))
    next_result = w.select(odd, b.mul(result, square), result)
    next_square = b.mul(square, square)
    next_left = b.lshr(left, one)
    b.branch(head)
    for phi, start, following in (
        (result, one, next_result),
        (square, base, next_square),
        (left, count, next_left),
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(following, body)
    b.position_at_end(done)
    if not w.is_signed:
        return result
    minus_one = w.constant(-1)
    of_minus_one = w.select(b.trunc(exponent, ir.IntType(1)), minus_one, one)
    reciprocal = w.select(w.compare("==", base, minus_one), of_minus_one, zero)
    reciprocal = w.select(w.compare("==", base, one), one, reciprocal)
    return w.select(negative, reciprocal, result)


def _reciprocal(w: Writer, x: Scalar) -> Scalar:
    """1 and -1 stay; of 0 NumPy has what x86 makes of infinity: MIN for int32 and int64, else 0."""
    lowest = -(2 ** (w.bits - 1)) if w.is_signed and w.bits >= 32 else 0
    unit = w.compare("==", x, w.constant(1))
    if w.is_signed:
        unit = w.any(unit, w.compare("==", x, w.constant(-1)))
    other = w.select(w.compare("==", x, w.constant(0)), w.constant(lowest), w.constant(0))
    return w.select(unit, x, other)


def _absolute(w: Writer, x: Scalar) -> Scalar:
    """MIN wraps to itself."""
    return w.select(w.compare("<", x, w.constant(0)), w.negate(x), x) if w.is_signed else x


def _sign(w: Writer, x: Scalar) -> Scalar:
    above = w.builder.zext(w.compare(">", x, w.constant(0)), w.type)
    if not w.is_signed:
        return above
    return w.builder.sub(above, w.builder.zext(w.compare("<", x, w.constant(0)), w.type))


def _left_shift(w: Writer, x: Scalar, count: Scalar) -> Scalar:
    b = w.builder
    large = b.icmp_unsigned(">=", count, w.constant(w.bits))
    return w.select(large, w.constant(0), b.shl(x, w.select(large, w.constant(0), count)))


def _right_shift(w: Writer, x: Scalar, count: Scalar) -> Scalar:
    b = w.builder
    large = b.icmp_unsigned(">=", count, w.constant(w.bits))
    if w.is_signed:  # one bit less than all leaves the sign in every bit
        return b.ashr(x, w.select(large, w.constant(w.bits - 1), count))
    return w.select(large, w.constant(0), b.lshr(x, w.select(large, w.constant(0), count)))


def _add(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    # Numba's own sum of two int64 promises LLVM that it does not overflow.
    return w.builder.add(x, y)


def _subtract(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    return w.builder.sub(x, y)


def _multiply(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    return w.builder.mul(x, y)


def _negative(w: Writer, x: Scalar) -> Scalar:
    return w.negate(x)


DEFINITIONS: dict[str, Definition] = {
    "absolute": _absolute,
    "floor_divide": _floor_divide,
    "fmod": _fmod,
    "left_shift": _left_shift,
    "negative": _negative,
    "power": _power,
    "reciprocal": _reciprocal,
    "remainder": _remainder,
    "right_shift": _right_shift,
    "sign": _sign,
}

# Only int64 needs these: narrower sums are computed in 64 bits, and unsigned ones promise nothing.
WRAPPING: dict[str, Definition] = {"add": _add, "multiply": _multiply, "subtract": _subtract}
