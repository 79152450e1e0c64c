"""The scalar library for ``numba.cuda.jit``: names are built on first use and kept.

Mathematical functions are libdevice's. Importing this module imports ``numba.cuda``, but needs neither a GPU
nor a driver.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.extending import intrinsic

from numfuse.mathlib.library import build


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    function = globals()[name] = build(name, "cuda", intrinsic, types)
    return function
