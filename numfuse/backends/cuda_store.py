"""Machine code of GPU kernels: from the disk cache, else compiled. Numba is imported only to compile."""

from __future__ import annotations

import threading
from typing import Any

from numfuse import cache
from numfuse.backends.cuda_kernels import KernelSource

__all__ = ["gpu_kernel"]

_lock = threading.RLock()  # two threads that miss the same kernel compile it once


def gpu_kernel(
    source: KernelSource, compute_capability: tuple[int, int], *, exact: bool = False, fast: bool = False
) -> tuple[bytes, str, dict[str, Any]]:
    """Machine code for `source` on devices of one compute capability.

    Parameters
    ----------
    source : KernelSource
    compute_capability : (int, int)
        Such as ``(9, 0)``.
    exact, fast : bool
        See :func:`numfuse.backends.cuda.compile_kernel`.

    Returns
    -------
    cubin : bytes
    entry : str
        The kernel's name in it.
    info : dict
        What :class:`numfuse.backends.cuda.Compiled` describes, and ``"cached"``: whether it came from disk.
    """
    dtypes = [p.dtype.str for p in source.parameters]
    key = cache.key(
        source.text, source.name, dtypes, source.block, compute_capability, exact, fast, cache.fingerprint()
    )
    with _lock:
        found = cache.load(key, "cubin")
        if found is not None:
            cubin, info = found
            return cubin, info.pop("entry"), {**info, "cached": True}

        from numfuse.backends.cuda import compile_kernel

        compiled = compile_kernel(source, compute_capability, exact=exact, fast=fast)
        cache.store(key, "cubin", compiled.cubin, {**compiled.info, "entry": compiled.entry})
        return compiled.cubin, compiled.entry, {**compiled.info, "cached": False}
