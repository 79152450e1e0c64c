"""Functions made of functions: what fits inside one kernel, checked against the plain functions.

    python examples/compose.py

It runs on a GPU if CuPy, torch or numba-cuda finds one. `exact=True` keeps a GPU from contracting `a * b + c`
into one operation with one rounding, so that the answers below are NumPy's to the last bit on both.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from device import Device, choose
from numfuse import fuse

# --- helpers of helpers, with tuples, defaults and keywords ---------------------------------------


def times(a, b, c, d):
    """(a + ib)(c + id) as a pair."""
    return a * c - b * d, a * d + b * c


def over(a, b, c, d):
    """(a + ib) / (c + id) as a pair."""
    real, imaginary = times(a, b, c, -d)
    length = c * c + d * d
    return real / length, imaginary / length


def moebius_plain(x, y, shift=0.5, twist=0.25):
    """(z + shift) / (i twist z + 1), for z = x + iy: two results from one kernel."""
    down_x, down_y = times(0.0, twist, x, y)
    return over(x + shift, y, down_x + 1, d=down_y)


moebius = fuse(moebius_plain, exact=True)


# --- functions as arguments -----------------------------------------------------------------------


def slope(f, x, step=1e-3):
    """The central difference of any function."""
    return (f(x + step) - f(x - step)) / (2 * step)


def twice(f, x):
    return f(f(x))


def cubic(x):
    return x * x * x - 2 * x


def flow_plain(x):
    """Two steps downhill on the cubic."""
    return twice(lambda p: p - 0.1 * slope(cubic, p), x)


flow = fuse(flow_plain, exact=True)


# --- one element at a time: branches, loops, early returns ----------------------------------------

LIMIT = 60


def in_the_bulbs(x, y):
    """Whether c = x + iy lies in the main cardioid or the disc left of it, where no orbit escapes."""
    q = (x - 0.25) * (x - 0.25) + y * y
    if q * (q + (x - 0.25)) <= 0.25 * y * y:
        return True
    return (x + 1) * (x + 1) + y * y <= 0.0625


def escape_plain(x, y):
    """After how many steps z -> z*z + c leaves the disc of radius 2, at most LIMIT."""
    if in_the_bulbs(x, y):
        return LIMIT
    a, b, count = x, y, 1
    while count < LIMIT and a * a + b * b <= 4:
        a, b = times(a, b, a, b)
        a, b = a + x, b + y
        count += 1
    return count


escape = fuse(escape_plain, exact=True)


# --- checks ---------------------------------------------------------------------------------------


def check(fused, expected) -> None:
    """The same dtype, the same shape and the same bits."""
    assert fused.dtype == expected.dtype, (fused.dtype, expected.dtype)
    assert fused.shape == expected.shape, (fused.shape, expected.shape)
    np.testing.assert_array_equal(fused, expected)


def element_by_element(function, *arrays: np.ndarray) -> np.ndarray:
    """The plain function of each element as a NumPy scalar: what an element function stands for."""
    results = [function(*scalars) for scalars in zip(*(a.flat for a in arrays), strict=True)]
    return np.array(results).reshape(arrays[0].shape)


def show_pairs(device: Device, x: np.ndarray, y: np.ndarray) -> None:
    results = moebius(device.put(x), device.put(y), twist=0.5)
    for result, expected in zip(results, moebius_plain(x, y, twist=0.5), strict=True):
        check(device.get(result), expected)
    print(f"moebius   two {x.dtype} results through helpers of helpers: equal to the plain function")


def show_functions_as_arguments(device: Device, x: np.ndarray) -> None:
    check(device.get(flow(device.put(x))), flow_plain(x))
    print("flow      a lambda and a function passed to helpers: equal to the plain function")


def show_elements(device: Device, x: np.ndarray, y: np.ndarray) -> None:
    global LIMIT
    on_device = device.put(x), device.put(y)
    counts = device.get(escape(*on_device))
    check(counts, element_by_element(escape_plain, x, y))
    print(f"escape    a loop with early returns on each element, {counts.dtype}: equal to the plain function")
    for row in counts[:: max(1, len(counts) // 20)]:
        print("          " + "".join(" .:-=+*#%@"[min(9, int(9 * np.sqrt(n / LIMIT)))] for n in row))

    LIMIT = 90
    start = time.perf_counter()
    more = device.get(escape(*on_device))
    spent = (time.perf_counter() - start) * 1e3
    check(more, element_by_element(escape_plain, x, y))
    assert more.max() == 90
    print(f"escape    the global LIMIT is 90 now, and the next call knows: {spent:.1f} ms, nothing compiled")


def show_changed_helper(device: Device, x: np.ndarray, y: np.ndarray) -> None:
    global in_the_bulbs

    def in_the_bulbs(x, y):
        return False

    counts = device.get(escape(device.put(x), device.put(y)))
    check(counts, element_by_element(escape_plain, x, y))
    print("escape    its helper was replaced, and the next call knows that too")


def main() -> None:
    parser = argparse.ArgumentParser(description="Functions made of functions, each one kernel.")
    parser.add_argument("--size", type=int, default=72, help="columns of the grid (default: %(default)s)")
    parser.add_argument("--device", choices=("auto", "numpy", "cupy", "torch", "numba"), default="auto")
    options = parser.parse_args()
    device = choose(options.device)
    print(f"device    {device}")

    across = np.linspace(-2.1, 0.7, options.size)
    down = np.linspace(-1.2, 1.2, max(2, options.size // 3))
    x, y = (np.ascontiguousarray(grid) for grid in np.meshgrid(across, down))
    show_pairs(device, x.astype(np.float32), y.astype(np.float32))
    show_functions_as_arguments(device, x.astype(np.float32))
    show_elements(device, x, y)
    show_changed_helper(device, x, y)


if __name__ == "__main__":
    main()
