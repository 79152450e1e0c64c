"""What to write instead of a function, a builtin or a method that is no operation."""

from __future__ import annotations

import builtins
import difflib
import sys
from typing import Any

import numpy as np

from numfuse.errors import FusionAttributeError, FusionError, FusionNotImplementedError, Loc
from numfuse.ops.names import METHODS

__all__ = ["advice", "advice_builtin", "advice_method", "method_error"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REDUCTIONS = _words(
    "sum prod mean std var min max amin amax argmin argmax all any ptp median average nansum nanmean nanmax nanmin "
    "count_nonzero dot vdot trace percentile quantile nanstd nanvar norm logsumexp softmax log_softmax"
)
_SCANS = _words("cumsum cumprod cummax cummin nancumsum nancumprod cumulative_sum cumulative_prod")
_WHOLE_ARRAY = _words(
    "sort argsort partition unique searchsorted matmul einsum tensordot inner outer concatenate stack vstack "
    "hstack convolve correlate interp bincount histogram digitize nonzero argwhere meshgrid linspace arange "
    "tile repeat pad solve inv fft ifft diff gradient cross kron choose take put flatten tolist item "
    "dump tofile resize"
)
_VIEWS = _words(
    "reshape ravel transpose swapaxes squeeze expand_dims moveaxis rollaxis roll flip fliplr flipud rot90 "
    "broadcast_to atleast_1d atleast_2d atleast_3d"
)
_ROUND = "np.rint(x) rounds to whole numbers, np.rint(x * 100) / 100 to two decimals"
_NO_CLOSED_FORM = "compute it before the call (scipy.special has it for arrays) and pass the result in"
_INSTEAD = {
    "round": _ROUND,
    "around": _ROUND,
    "fix": "np.trunc(x) does the same",
    "float_power": "np.power(x.astype(np.float64), y) does the same",
    "divmod": "write x // y and x % y",
    "heaviside": "write np.where(x < 0, 0, np.where(x > 0, 1, y))",
    "sinc": "write np.where(x == 0, 1, np.sin(np.pi * x) / (np.pi * x))",
    "nan_to_num": "write np.where(np.isnan(x), 0, x)",
    "logaddexp": "write np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y)))",
    "select": "nest np.where calls",
    "piecewise": "nest np.where calls",
    "iscomplex": "complex numbers are not supported yet",
    "isclose": "write np.abs(x - y) <= atol + rtol * np.abs(y)",
    "sigmoid": "write 1 / (1 + np.exp(-x))",
    "expit": "write 1 / (1 + np.exp(-x))",
    "relu": "write np.maximum(x, 0)",
    "rsqrt": "write 1 / np.sqrt(x)",
    "lerp": "write x + w * (y - x)",
    "erf": _NO_CLOSED_FORM,
    "erfc": _NO_CLOSED_FORM,
    "gamma": _NO_CLOSED_FORM,
    "lgamma": _NO_CLOSED_FORM,
    "gammaln": _NO_CLOSED_FORM,
    "polyval": "write Horner's rule: (p[0] * x + p[1]) * x + p[2]",
}
# Functions that make an array of one number: inside a fused function the number itself broadcasts.
_CONSTANT_ARRAYS = {
    "zeros_like": "use 0, or x * 0",
    "ones_like": "use 1, or x * 0 + 1",
    "full_like": "use the number itself, or x * 0 + number",
    "empty_like": "use 0, or x * 0",
    "zeros": "use 0, or x * 0",
    "ones": "use 1, or x * 0 + 1",
    "full": "use the number itself, or x * 0 + number",
    "empty": "use 0, or x * 0",
}
_COMPARES_TWO = {
    "min": "minimum", "amin": "minimum", "nanmin": "fmin", "max": "maximum", "amax": "maximum", "nanmax": "fmax",
}  # fmt: skip
_NOT_HERE = "{}() of elements is not supported in a fused function: "
_BUILTINS: dict[Any, str] = {
    builtins.print: "return the value and print that",
    builtins.map: "write (f(a), f(b)), or a `for` over a tuple",
    builtins.filter: "select with np.where or `if`",
    builtins.sum: "of a tuple, write a + b + c, or a `for` loop that adds; the sum of an array is a reduction: "
    "compute it before the call and pass it in",
    builtins.isinstance: "leave the test out, or make it before the call and pass the answer in",
    builtins.type: "x.dtype tells the dtype",
    builtins.sorted: "np.minimum(a, b) and np.maximum(a, b) sort two",
    builtins.any: "write a | b, or a `for` loop",
    builtins.all: "write a & b, or a `for` loop",
    builtins.round: _ROUND,
    builtins.str: "return the value and write that",
    builtins.repr: "return the value and write that",
    builtins.format: "return the value and write that",
}
_OF_BUILTIN = {id(function): _NOT_HERE.format(function.__name__) + instead for function, instead in _BUILTINS.items()}


def advice(obj: object) -> str:
    """Why a function can't be used in a fused function, and what to write instead."""
    of_builtin = advice_builtin(obj)
    if of_builtin is not None:
        return of_builtin
    name = getattr(obj, "__name__", None)
    if not isinstance(name, str):
        return f"{obj!r:.60} is not something that a fused function can call"
    written = _written(obj, name)
    return _advice(name, written, f"{written} is not an operation that numfuse knows")


def _written(obj: object, name: str) -> str:
    """The function as a user writes it: ``np.linalg.norm``."""
    if getattr(np, name, None) is obj:  # ufuncs do not say where they live
        return f"np.{name}"
    module = getattr(obj, "__module__", None)
    if not isinstance(module, str) or module == "builtins" or isinstance(obj, np.ufunc):
        return name
    parts = module.split(".")
    if parts[0] == "numpy":
        parts = ["np", *parts[1:]]
    return ".".join([*(part for part in parts if not part.startswith("_")), name])


def advice_builtin(obj: object) -> str | None:
    """What to write instead of a builtin function on elements, or None."""
    return _OF_BUILTIN.get(id(obj))


def advice_method(name: str) -> str:
    """Why a method of arrays can't be used in a fused function, and what to write instead."""
    written = f"x.{name}"
    if not _is_method(name):
        close = difflib.get_close_matches(name, [*METHODS, "astype", "copy", "dtype", "shape", "ndim", "size"], n=1)
        return f"arrays have no attribute {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    return _advice(name, written, f"{written} is not an operation that numfuse knows")


def method_error(name: str, loc: Loc | None = None) -> FusionError:
    """The error for a method of arrays that is no operation: unknown, or not supported."""
    kind = FusionNotImplementedError if _is_method(name) else FusionAttributeError
    return kind(advice_method(name), loc)


def _is_method(name: str) -> bool:
    """Whether arrays of some library have such a method."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    known = name in _INSTEAD or name in _REDUCTIONS or name in _SCANS or name in _WHOLE_ARRAY or name in _VIEWS
    return known or hasattr(np.ndarray, name) or hasattr(tensor, name)


def _advice(name: str, written: str, otherwise: str) -> str:
    if name in _INSTEAD:
        return f"{written} is not in the table yet: {_INSTEAD[name]}"
    if name in _CONSTANT_ARRAYS:
        return f"{written} is not needed in a fused function, where a number broadcasts: {_CONSTANT_ARRAYS[name]}"
    if name in _REDUCTIONS:
        two = f" (np.{_COMPARES_TWO[name]}(a, b) compares two)" if name in _COMPARES_TWO else ""
        call = f"{written}()" if written.startswith("x.") else f"{written}(x)"
        return (
            f"{written} reduces an array, and reductions come in a later version: compute it before the call and "
            f"pass it in: f(x, {call}){two}"
        )
    if name in _SCANS:
        return (
            f"{written} is a scan (each result depends on all elements before), and scans come in a later version: "
            f"call it outside the fused function"
        )
    if name in _WHOLE_ARRAY:
        return f"{written} is not elementwise: call it outside the fused function"
    if name in _VIEWS:
        return f"{written} rearranges an array: call it on the arguments, before the fused function"
    if isinstance(getattr(np, name, None), np.ufunc):
        return f"{written} is not in the table yet: write it with +, -, *, / and functions that are"
    return f"{otherwise}: write it with NumPy's elementwise functions, or call it outside the fused function"
