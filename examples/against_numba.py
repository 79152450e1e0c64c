"""One function, written once for numfuse and by hand for each of Numba's decorators.

    python examples/against_numba.py
    python examples/against_numba.py --size 1000 --runs 3

The table gives, for each: lines of code, the dtype that comes out of float32 arrays, how many of the values
are NumPy's to the last bit, and the time of one call. The constants in the function are Python floats, so
NumPy computes and answers in float32; Numba takes them for float64. `numba.cuda.jit` is in the table where
there is a GPU, which by default may contract `a * b + c` into one operation with one rounding: hence not all
bits there.
"""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from device import Device, choose, median_ms
from numfuse import fuse

# --- with numfuse ---------------------------------------------------------------------------------


@fuse
def spring(x, v):
    force = -2.5 * x - 0.1 * v
    energy = 0.5 * v * v + 1.25 * x * x
    return np.where(energy > 1.0, force / np.sqrt(energy), force)


# --- the same by hand, for the CPU ----------------------------------------------------------------


@numba.njit(error_model="numpy")
def njit_loop(x, v):
    out = np.empty_like(x)
    for i in range(x.size):
        force = -2.5 * x[i] - 0.1 * v[i]
        energy = 0.5 * v[i] * v[i] + 1.25 * x[i] * x[i]
        if energy > 1.0:
            out[i] = force / math.sqrt(energy)
        else:
            out[i] = force
    return out


@numba.njit(error_model="numpy")
def njit_arrays(x, v):
    force = -2.5 * x - 0.1 * v
    energy = 0.5 * v * v + 1.25 * x * x
    return np.where(energy > 1.0, force / np.sqrt(energy), force)


@numba.vectorize
def vectorized(x, v):
    force = -2.5 * x - 0.1 * v
    energy = 0.5 * v * v + 1.25 * x * x
    if energy > 1.0:
        return force / math.sqrt(energy)
    return force


# --- the same by hand, for a GPU ------------------------------------------------------------------


def cuda_kernel(x, v, out):
    start = numba.cuda.grid(1)
    for i in range(start, x.size, numba.cuda.gridsize(1)):
        force = -2.5 * x[i] - 0.1 * v[i]
        energy = 0.5 * v[i] * v[i] + 1.25 * x[i] * x[i]
        if energy > 1.0:
            out[i] = force / math.sqrt(energy)
        else:
            out[i] = force


def cuda_call(kernel, empty_like: Callable[[Any], Any]):
    def call(x, v):
        out = empty_like(x)
        threads = 256
        kernel[(x.shape[0] + threads - 1) // threads, threads](x, v, out)
        return out

    return call


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """One way to write the function; `written` are the functions whose lines count."""

    name: str
    call: Callable[..., Any]
    written: tuple[Any, ...]


def lines_of_code(function: Any) -> int:
    """Lines of source without blank ones, comments and the docstring."""
    plain = getattr(function, "py_func", None) or getattr(function, "__wrapped__", function)
    lines = (line.strip() for line in inspect.getsource(plain).splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


def share_equal(result: np.ndarray, expected: np.ndarray) -> float:
    """The share of values that equal NumPy's, in per cent; a result of a wider dtype is compared as it is."""
    return 100 * float(np.mean(result == expected))


def in_numpy(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    return spring.py_func(x, v)


def contestants(device: Device) -> list[Contestant]:
    fused = Contestant("numfuse", spring, (spring,))
    if not device.is_gpu:
        return [
            fused,
            Contestant("NumPy", in_numpy, (spring,)),
            Contestant("numba.njit, loop", njit_loop, (njit_loop,)),
            Contestant("numba.njit, arrays", njit_arrays, (njit_arrays,)),
            Contestant("numba.vectorize", vectorized, (vectorized,)),
        ]
    return [fused, Contestant("numba.cuda.jit", hand_written_kernel(device), (cuda_kernel, cuda_call))]


def hand_written_kernel(device: Device) -> Callable[..., Any]:
    """The kernel above behind a function that allocates its result, as the others do."""
    import numba.cuda

    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # NumPy 2.5 removed it, and numba-cuda 0.30.4 still looks it up
    kernel = numba.cuda.jit(cuda_kernel)
    if device.library == "cupy":
        import cupy

        return cuda_call(kernel, cupy.empty_like)
    if device.library == "torch":
        import torch

        return cuda_call(kernel, torch.empty_like)
    return cuda_call(kernel, numba.cuda.device_array_like)


def compare(device: Device, size: int, runs: int) -> None:
    """Print the table for arrays of `size` elements."""
    rng = np.random.default_rng(0)
    x, v = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    expected = in_numpy(x, v)
    arguments = device.put(x), device.put(v)
    print(f"\n{device}, {size:,} elements of float32")
    print(f"{'':20}{'lines':>6}{'dtype':>10}{'as NumPy':>12}{'ms':>10}")
    for way in contestants(device):
        result = device.get(way.call(*arguments))
        lines = sum(lines_of_code(f) for f in way.written)
        spent = median_ms(lambda call=way.call: call(*arguments), device, runs)
        equal = share_equal(result, expected)
        print(f"{way.name:20}{lines:6}{result.dtype.name:>10}{equal:10.1f} %{spent:10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="One function with numfuse and by hand with Numba.")
    parser.add_argument("--size", type=int, default=1 << 22, help="elements (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=9, help="timed runs (default: %(default)s)")
    parser.add_argument("--device", choices=("auto", "numpy", "cupy", "torch", "numba"), default="auto")
    options = parser.parse_args()
    device = choose(options.device)
    compare(choose("numpy"), options.size, options.runs)
    if device.is_gpu:
        compare(device, options.size, options.runs)
    else:
        print("\nno GPU here, so numba.cuda.jit is not in the table")


if __name__ == "__main__":
    main()
