"""Float arithmetic and functions, float32 in float32 throughout.

Predicates look at the bits, so that they hold under fast-math options too.
"""

from __future__ import annotations

from numfuse.mathlib.writer import Definition, Scalar, Writer

# NumPy's name -> the C library's (C99, and libdevice's after its prefix).
C_FUNCTIONS = {
    "absolute": "fabs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "cbrt": "cbrt",
    "ceil": "ceil",
    "copysign": "copysign",
    "cos": "cos",
    "cosh": "cosh",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "floor": "floor",
    "fmod": "fmod",
    "hypot": "hypot",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "power": "pow",
    "rint": "rint",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc",
}


def _c_function(name: str) -> Definition:
    def definition(w: Writer, *operands: Scalar) -> Scalar:
        return w.call(name, *operands)

    return definition


def _divmod(w: Writer, x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """Python's and NumPy's float division: exact remainder first, then the quotient made whole.

    The remainder has the divisor's sign, also when it is zero; a zero quotient has the sign of x/y.
    """
    b, zero, one = w.builder, w.constant(0.0), w.constant(1.0)
    remainder = w.call("fmod", x, y)
    quotient = b.fdiv(b.fsub(x, remainder), y)
    left = w.compare("!=", remainder, zero)
    below = b.xor(w.compare("<", y, zero), w.compare("<", remainder, zero))
    adjust = w.all(left, below)
    quotient = w.select(adjust, b.fsub(quotient, one), quotient)
    remainder = w.select(adjust, b.fadd(remainder, y), remainder)
    remainder = w.select(left, remainder, w.call("copysign", zero, y))
    whole = w.call("floor", quotient)
    nearer_above = w.compare(">", b.fsub(quotient, whole), w.constant(0.5))
    whole = w.select(nearer_above, b.fadd(whole, one), whole)
    ratio = b.fdiv(x, y)
    whole = w.select(w.compare("!=", quotient, zero), whole, w.call("copysign", zero, ratio))
    # Divided by zero, fmod has made the remainder a NaN already.
    return w.select(w.compare("==", y, zero), ratio, whole), remainder


def _floor_divide(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    return _divmod(w, x, y)[0]


def _remainder(w: Writer, x: Scalar, y: Scalar) -> Scalar:
    return _divmod(w, x, y)[1]


def _negative(w: Writer, x: Scalar) -> Scalar:
    return w.negate(x)


def _sign(w: Writer, x: Scalar) -> Scalar:
    """-1, 0, 1 or NaN; the sign of a zero is dropped."""
    zero = w.constant(0.0)
    rest = w.select(w.compare("==", x, zero), zero, x)
    rest = w.select(w.compare("<", x, zero), w.constant(-1.0), rest)
    return w.select(w.compare(">", x, zero), w.constant(1.0), rest)


def _magnitude(w: Writer, x: Scalar) -> tuple[Scalar, Scalar]:
    """The bits without the sign, and the bits of infinity."""
    digits = 23 if w.bits == 32 else 52
    infinity = ((1 << (w.bits - 1)) - 1) >> digits << digits
    mask = w.integer((1 << (w.bits - 1)) - 1)
    return w.builder.and_(w.representation(x), mask), w.integer(infinity)


def _isnan(w: Writer, x: Scalar) -> Scalar:
    return w.builder.icmp_signed(">", *_magnitude(w, x))


def _isinf(w: Writer, x: Scalar) -> Scalar:
    return w.builder.icmp_signed("==", *_magnitude(w, x))


def _isfinite(w: Writer, x: Scalar) -> Scalar:
    return w.builder.icmp_signed("<", *_magnitude(w, x))


def _signbit(w: Writer, x: Scalar) -> Scalar:
    return w.builder.icmp_signed("<", w.representation(x), w.integer(0))


DEFINITIONS: dict[str, Definition] = {
    **{operation: _c_function(name) for operation, name in C_FUNCTIONS.items()},
    "floor_divide": _floor_divide,
    "isfinite": _isfinite,
    "isinf": _isinf,
    "isnan": _isnan,
    "negative": _negative,
    "remainder": _remainder,
    "sign": _sign,
    "signbit": _signbit,
}
