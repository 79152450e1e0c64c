"""What all tests share: the GPU marker, hypothesis profiles, and the kinds of array that numfuse takes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# Compiled kernels are kept between runs, here and not in the user's own cache.
os.environ.setdefault("NUMFUSE_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "numfuse"))

# Runs must be repeatable, and the first example that meets a new dtype compiles: no deadline.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
}
hypothesis.settings.register_profile("ci", derandomize=True, **_COMMON)
hypothesis.settings.register_profile("long", max_examples=2000, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("NUMFUSE_HYPOTHESIS_PROFILE", "ci"))


@functools.cache
def why_no_gpu() -> str | None:
    """Why GPU tests can't run here, or None. Asks the driver itself, so that nothing heavy is imported."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"no CUDA driver ({library} does not load)"
    status = driver.cuInit(0)
    if status != 0:
        return f"the CUDA driver does not start (cuInit answered {status})"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return "the CUDA driver finds no device"
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine can't run."""
    no_gpu = why_no_gpu()
    no_compiler = None if importlib.util.find_spec("numba_cuda") else "numba-cuda is not installed"
    for item in items:
        # The stand-in driver needs the same packages: cuda-bindings comes with numba-cuda.
        if "stand_in" in vars(getattr(item, "module", None) or object):
            item.add_marker(pytest.mark.cuda_compile)
        reason = None
        if item.get_closest_marker("gpu"):
            reason = no_gpu or no_compiler
        elif item.get_closest_marker("cuda_compile"):
            reason = no_compiler
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class ArrayKind:
    """One array library: how its arrays are made from NumPy's and turned back."""

    name: str
    array_type: type
    from_numpy: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]


def _numpy_kind() -> ArrayKind:
    return ArrayKind("numpy", np.ndarray, lambda a: a, lambda a: a)


def _cupy_kind() -> ArrayKind:
    cupy = pytest.importorskip("cupy")
    return ArrayKind("cupy", cupy.ndarray, cupy.asarray, cupy.asnumpy)


def _torch_kind() -> ArrayKind:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")

    def from_numpy(array: np.ndarray) -> Any:
        # torch knows one of C's two names for a 64-bit integer.
        return torch.from_numpy(array.view(array.dtype.name)).cuda()

    return ArrayKind("torch", torch.Tensor, from_numpy, lambda t: t.cpu().numpy())


def _numba_kind() -> ArrayKind:
    cuda = pytest.importorskip("numba.cuda")
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    return ArrayKind("numba", DeviceNDArray, cuda.to_device, lambda a: a.copy_to_host())


_KINDS = {"numpy": _numpy_kind, "cupy": _cupy_kind, "torch": _torch_kind, "numba": _numba_kind}
_DEVICE_KINDS = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cupy", "torch", "numba")]


@pytest.fixture(params=["numpy", *_DEVICE_KINDS])
def array_kind(request: pytest.FixtureRequest) -> ArrayKind:
    """Each array library in turn: NumPy everywhere, the others on a machine with a GPU."""
    return _KINDS[request.param]()


@pytest.fixture(params=_DEVICE_KINDS)
def device_kind(request: pytest.FixtureRequest) -> ArrayKind:
    """Each library of device arrays in turn (skipped without a GPU)."""
    return _KINDS[request.param]()
