"""Where the examples put their arrays: a GPU through CuPy, torch or Numba where one works, else the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Device:
    """A place for arrays. `library` is "numpy" on the CPU."""

    library: str
    name: str
    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]
    synchronize: Callable[[], None]

    @property
    def is_gpu(self) -> bool:
        return self.library != "numpy"

    def __str__(self) -> str:
        return f"{self.name} ({self.library})"


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _numpy() -> Device:
    return Device("numpy", processor(), np.asarray, np.asarray, lambda: None)


def _cupy() -> Device:
    cupy = importlib.import_module("cupy")
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return Device("cupy", name, cupy.asarray, cupy.asnumpy, cupy.cuda.Device().synchronize)


def _torch() -> Device:
    torch = importlib.import_module("torch")
    return Device(
        "torch",
        torch.cuda.get_device_name(),
        lambda a: torch.from_numpy(a).cuda(),
        lambda t: t.cpu().numpy(),
        torch.cuda.synchronize,
    )


def _numba() -> Device:
    cuda = importlib.import_module("numba.cuda")
    name = cuda.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else name
    return Device("numba", name, cuda.to_device, lambda a: a.copy_to_host(), cuda.synchronize)


_MAKERS = {"cupy": _cupy, "torch": _torch, "numba": _numba, "numpy": _numpy}


def choose(wanted: str = "auto") -> Device:
    """The device of the library named, or with "auto" the first GPU that works, else the CPU.

    numfuse compiles for a GPU with numba-cuda, so without it "auto" means the CPU.
    """
    if wanted != "auto":
        return _MAKERS[wanted]()
    if importlib.util.find_spec("numba_cuda"):
        for library in ("cupy", "torch", "numba"):
            try:
                return _MAKERS[library]()
            except Exception as error:  # not installed, no driver, no device: each library has its own
                if importlib.util.find_spec(library):
                    print(f"no GPU through {library}: {' '.join(str(error).split())[:90]}")
    return _numpy()


def median_ms(call: Callable[[], Any], device: Device, runs: int = 7) -> float:
    """The median time of `call` in milliseconds, after one call that warms everything up.

    On a GPU a run is a batch of calls, so that waiting for the device at its end does not count for much.
    """
    batch = 50 if device.is_gpu else 1
    call()
    device.synchronize()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        device.synchronize()
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times) * 1e3
