"""The scalar library for ``numba.njit``: names are built on first use and kept."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.extending import intrinsic

from numfuse.mathlib.floats import C_FUNCTIONS
from numfuse.mathlib.library import build


def _provide_symbols() -> None:
    """Tell LLVM where the C library's functions are; on other systems it sees them in the process itself."""
    runtime = ctypes.CDLL("ucrtbase")
    for name in C_FUNCTIONS.values():
        for symbol in (name, f"{name}f"):
            function = getattr(runtime, symbol, None)
            if function is not None:
                llvm.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)


if sys.platform == "win32":
    _provide_symbols()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    function = globals()[name] = build(name, "cpu", intrinsic, types)
    return function
