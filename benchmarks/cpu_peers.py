"""The peers on the CPU: each allocates its result, as a user's call does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from peers import NotThere, Peer, cpu_loop_text, from_text, numfuse_call, scalar_text
from timing import WallClock
from workloads import Workload

Call = Callable[[], Any]
Arrays = tuple[np.ndarray, ...]


def numpy_call(workload: Workload, arrays: Arrays) -> Call:
    return lambda: workload.function(*arrays)


def result_shape(arrays: Arrays) -> tuple[int, ...]:
    return np.broadcast_shapes(*(a.shape for a in arrays))


def _numba_loop(workload: Workload, arrays: Arrays, parallel: bool) -> Call:
    import numba

    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    scalar = numba.njit(**options)(from_text(scalar_text(workload), "scalar"))
    names = {"scalar": scalar, "prange": numba.prange}
    text = cpu_loop_text(workload, "prange" if parallel else "range")
    loop = numba.njit(parallel=parallel, **options)(from_text(text, "loop", **names))
    shape, dtype = result_shape(arrays), np.dtype(workload.result)

    def call() -> np.ndarray:
        out = np.empty(shape, dtype)
        loop(*arrays, out)
        return out

    return call


def numba_loop(workload: Workload, arrays: Arrays) -> Call:
    return _numba_loop(workload, arrays, parallel=False)


def numba_parallel(workload: Workload, arrays: Arrays) -> Call:
    return _numba_loop(workload, arrays, parallel=True)


def numba_vectorize(workload: Workload, arrays: Arrays) -> Call:
    import numba

    ufunc = numba.vectorize(from_text(scalar_text(workload), "scalar"))
    return lambda: ufunc(*arrays)


def numexpr_call(workload: Workload, arrays: Arrays) -> Call:
    try:
        numexpr = importlib.import_module("numexpr")
    except ImportError:
        raise NotThere("not installed") from None
    if workload.numexpr is None:
        raise NotThere("lacks dtype")
    operands = dict(zip(workload.names, arrays, strict=True))
    return lambda: numexpr.evaluate(workload.numexpr, local_dict=operands, global_dict={})


def jax_call(workload: Workload, arrays: Arrays) -> Call:
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        raise NotThere("not installed") from None
    jax.config.update("jax_enable_x64", True)
    cpu = jax.devices("cpu")[0]
    function = jax.jit(workload.for_module(jax.numpy))
    operands = [jax.device_put(a, cpu) for a in arrays]
    return lambda: function(*operands).block_until_ready()


CPU_PEERS = (
    Peer("numfuse", numfuse_call, WallClock()),
    Peer("NumPy", numpy_call, WallClock()),
    Peer("Numba loop", numba_loop, WallClock()),
    Peer("Numba parallel", numba_parallel, WallClock()),
    Peer("Numba vectorize", numba_vectorize, WallClock()),
    Peer("numexpr", numexpr_call, WallClock()),
    Peer("JAX", jax_call, WallClock()),
)
