"""The names under which NumPy, Python and the array libraries have the rows of the table."""

from __future__ import annotations

import builtins
import math
import operator
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from numfuse.ops.comparisons import CLIP
from numfuse.ops.spelling import Spelling
from numfuse.ops.table import row, rows

# Python's operator module: names that are not the rows' own. In-place forms change arrays and are not here.
_OPERATOR = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "neg": "negative",
    "pos": "positive",
    "abs": "absolute",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "invert",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "not_": "logical_not",
    "truth": "truth",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
# Functions of the math module whose row has another name.
_MATH = {
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "acosh": "arccosh",
    "asinh": "arcsinh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "pow": "power",
}
_MATH_SAME = (
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh hypot fabs floor ceil trunc "
    "copysign fmod isnan isinf isfinite degrees radians"
)
# Functions of torch whose row has another name.
_TORCH = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "true_divide": "divide",
    "neg": "negative",
    "abs": "absolute",
    "pow": "power",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "acosh": "arccosh",
    "asinh": "arcsinh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "bitwise_not": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "clamp": "clip",
}
# Names that every NumPy-like library has beside the rows' own.
_NUMPY = {
    "abs": "absolute",
    "true_divide": "divide",
    "mod": "remainder",
    "pow": "power",
    "conj": "conjugate",
    "bitwise_not": "invert",
    "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "acosh": "arccosh",
    "asinh": "arcsinh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "real": "identity",
}
# What scipy.special and cupyx.scipy.special share with the table.
_SPECIAL = {name: name for name in ("cbrt", "exp2", "expm1", "log1p")}
# Rows of our own, which no library has under that name.
_INTERNAL = frozenset({"truth", "identity", "select_min", "select_max"})

# These read like functions of one element, and are something else in torch.
_TORCH_NOT = frozenset({"real", "conjugate", "conj", "rint", "fabs", "cbrt", "degrees", "radians"})


def python_spellings() -> Iterator[tuple[object, Spelling]]:
    """What Python and NumPy themselves offer."""
    for name, target in _OPERATOR.items():
        yield getattr(operator, name), Spelling(target, "operator", f"operator.{name}")
    for name in (*_MATH_SAME.split(), *_MATH):
        function = getattr(math, name, None)  # math.cbrt and math.exp2 are new in Python 3.11
        if function is not None:
            yield (
                function,
                Spelling(
                    _MATH.get(name, name),
                    "math",
                    f"math.{name}",
                    python_int=name in ("floor", "ceil", "trunc"),
                    floating=name in ("pow", "fmod", "fabs", "copysign"),
                ),
            )
    yield builtins.abs, Spelling("absolute", "builtin", "abs")
    yield builtins.pow, Spelling("power", "builtin", "pow")
    yield builtins.min, Spelling("select_min", "builtin", "min")
    yield builtins.max, Spelling("select_max", "builtin", "max")
    for name, entry in rows().items():
        if entry.ufunc is not None and entry.ufunc is not CLIP:
            yield entry.ufunc, Spelling(name, "ufunc", f"np.{name}")
    yield CLIP, Spelling("clip", "ufunc", "np.clip", ("a", "a_min", "a_max"))
    yield np.clip, Spelling("clip", "ufunc", "np.clip", ("a", "a_min", "a_max"))
    yield np.where, Spelling("where", "ufunc", "np.where")
    yield np.real, Spelling("identity", "ufunc", "np.real", ("val",))


def _numpy_like(module: Mapping[str, object], written: str) -> Iterator[tuple[object, Spelling]]:
    for name in (*rows(), *_NUMPY):
        target = _NUMPY.get(name, name)
        if name in module and target not in _INTERNAL - {"identity"} and name != "identity":
            parameters = {"clip": ("a", "a_min", "a_max"), "real": ("val",)}.get(name, ())
            yield module[name], Spelling(target, "ufunc", f"{written}.{name}", parameters)


def _torch(module: Mapping[str, object]) -> Iterator[tuple[object, Spelling]]:
    for name in (*rows(), *_TORCH):
        if name not in module or name in _INTERNAL or name in _TORCH_NOT:
            continue
        target = _TORCH.get(name, name)
        parameters = {
            "clip": ("input", "min", "max"),
            "where": ("condition", "input", "other"),
            "power": ("input", "exponent"),
        }.get(target, ("input", "other")[: row(target).nin])
        yield module[name], Spelling(target, "ufunc", f"torch.{name}", parameters)


def _special(module: Mapping[str, object], written: str) -> Iterator[tuple[object, Spelling]]:
    for name, target in _SPECIAL.items():
        if name in module:
            yield module[name], Spelling(target, "ufunc", f"{written}.{name}")


_ARRAY_LIBRARIES = ("cupy", "torch", "jax.numpy")
LIBRARIES = (*_ARRAY_LIBRARIES, "scipy.special", "cupyx.scipy.special")
#: Modules whose numbers (np.pi) are constants.
CONSTANT_MODULES = frozenset({"math", "cmath", "numpy", *_ARRAY_LIBRARIES})
#: Packages whose functions the table has something to say about.
PACKAGES = frozenset({"math", "cmath", "numpy", "operator", *(name.partition(".")[0] for name in LIBRARIES)})


def library_spellings(library: str) -> Iterator[tuple[object, Spelling]]:
    """What an array library offers that somebody has imported; nothing is imported here."""
    module = sys.modules.get(library)
    if module is None:
        return iter(())
    names = vars(module)  # not getattr, which may import more of a lazy package
    if library == "torch":
        return _torch(names)
    if library.endswith("special"):
        return _special(names, library)
    return _numpy_like(names, "jnp" if library == "jax.numpy" else library)
