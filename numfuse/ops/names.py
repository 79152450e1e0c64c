"""What an object that a function calls means: by identity, however it was imported."""

from __future__ import annotations

import sys
import types

import numpy as np

from numfuse.ops.libraries import LIBRARIES, library_spellings, python_spellings
from numfuse.ops.spelling import Spelling

# id of the function object -> the object (kept alive, so the id stays its own) and its spelling.
_known: dict[int, tuple[object, Spelling]] = {}
_read: dict[str, types.ModuleType] = {}


def _remember(library: str) -> None:
    for obj, spelling in library_spellings(library):
        _known.setdefault(id(obj), (obj, spelling))


for _obj, _spelling in python_spellings():
    _known.setdefault(id(_obj), (_obj, _spelling))


def find(obj: object) -> Spelling | None:
    """The operation that a function object names, or None.

    Functions of cupy, torch, jax.numpy and scipy.special are known once somebody has imported the library;
    none is imported for this.

    Examples
    --------
    >>> import math, operator
    >>> find(math.atan2).row, find(operator.mul).form
    ('arctan2', 'operator')
    """
    entry = _known.get(id(obj))
    if entry is None and callable(obj):
        for library in LIBRARIES:
            module = sys.modules.get(library)
            if module is not None and _read.get(library) is not module:
                _remember(library)
                _read[library] = module
        entry = _known.get(id(obj))
    return entry[1] if entry is not None and entry[0] is obj else None


def is_operation(obj: object) -> bool:
    """Whether a function object names an operation of the table."""
    return find(obj) is not None


_METHODS = {
    "clip": Spelling("clip", "ufunc", "x.clip", ("a", "min", "max")),
    "conj": Spelling("identity", "ufunc", "x.conj"),
    "conjugate": Spelling("identity", "ufunc", "x.conjugate"),
    "astype": Spelling("astype", "special", "x.astype"),
    # torch's name for clip
    "clamp": Spelling("clip", "ufunc", "x.clamp", ("a", "min", "max")),
}


def method(name: str) -> Spelling | None:
    """The operation that a method of an array names, or None; the array is its first operand."""
    return _METHODS.get(name)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REDUCTIONS = _words(
    "sum prod mean std var min max amin amax argmin argmax all any ptp median average cumsum cumprod "
    "nansum nanmean nanmax nanmin count_nonzero dot vdot trace percentile quantile nanstd nanvar "
    "logsumexp softmax log_softmax"
)
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
_INSTEAD = {
    "round": "np.rint(x) rounds to whole numbers, np.rint(x * 100) / 100 to two decimals",
    "around": "np.rint(x) rounds to whole numbers, np.rint(x * 100) / 100 to two decimals",
    "fix": "np.trunc(x) does the same",
    "float_power": "np.power(x.astype(np.float64), y) does the same",
    "divmod": "write x // y and x % y",
    "heaviside": "write np.where(x < 0, 0, np.where(x > 0, 1, y))",
    "sinc": "write np.where(x == 0, 1, np.sin(np.pi * x) / (np.pi * x))",
    "nan_to_num": "write np.where(np.isnan(x), 0, x)",
    "logaddexp": "write np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y)))",
    "select": "nest np.where calls",
    "piecewise": "nest np.where calls",
    "print": "take it out: a kernel has nobody to print for",
    "iscomplex": "complex numbers are not supported yet",
    "isclose": "write np.abs(x - y) <= atol + rtol * np.abs(y)",
    "sigmoid": "write 1 / (1 + np.exp(-x))",
    "expit": "write 1 / (1 + np.exp(-x))",
    "relu": "write np.maximum(x, 0)",
    "rsqrt": "write 1 / np.sqrt(x)",
    "lerp": "write x + w * (y - x)",
}


def advice(obj: object) -> str:
    """Why a function can't be used in a fused function, and what to write instead."""
    name = getattr(obj, "__name__", None)
    if not isinstance(name, str):
        return f"{obj!r:.60} is not something that a fused function can call"
    module = getattr(obj, "__module__", None)
    root = module.partition(".")[0] if isinstance(module, str) else ""
    written = {"numpy": f"np.{name}", "builtins": name, "": name}.get(root, f"{module}.{name}")
    if isinstance(obj, np.ufunc):  # also those of scipy.special, which do not say where they live
        written = f"np.{name}" if getattr(np, name, None) is obj else name
    return _advice(name, written, f"{written} is not an operation that numfuse knows")


def advice_method(name: str) -> str:
    """Why a method of arrays can't be used in a fused function, and what to write instead."""
    return _advice(name, f"x.{name}", f"x.{name} is not an operation that numfuse knows")


def _advice(name: str, written: str, otherwise: str) -> str:
    if name in _INSTEAD:
        return f"{written} is not in the table yet: {_INSTEAD[name]}"
    if name in _REDUCTIONS:
        return (
            f"{written} reduces an array, and reductions come in a later version: "
            f"call it outside the fused function, on its result"
        )
    if name in _WHOLE_ARRAY:
        return f"{written} is not elementwise: call it outside the fused function"
    if name in _VIEWS:
        return f"{written} rearranges an array: call it on the arguments, before the fused function"
    if isinstance(getattr(np, name, None), np.ufunc):
        return f"{written} is not in the table yet: write it with +, -, *, / and functions that are"
    return f"{otherwise}: write it with NumPy's elementwise functions, or call it outside the fused function"
