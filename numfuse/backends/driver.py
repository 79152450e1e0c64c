"""Load a compiled kernel and launch it, through the CUDA driver (``cuda.bindings``), without Numba.

A launch is :class:`Launcher`: it packs the arguments as 8-byte words into a buffer that is used again and
hands the driver a table of their addresses, which was made once. Nothing here ever waits for the device.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from numfuse.errors import FusionError

__all__ = [
    "DriverError",
    "GpuUnavailableError",
    "LaunchFunction",
    "Launcher",
    "compute_capability",
    "current_device",
    "device_count",
    "load",
    "order",
]


class GpuUnavailableError(FusionError, ImportError):
    """A package that the GPU back end needs is missing or is the wrong one: what to install."""


class DriverError(FusionError, RuntimeError):
    """The CUDA driver answered with an error.

    Parameters
    ----------
    message : str
        What was asked of the driver, and the error's name and text.
    code : int
        The driver's number of the error (``CUresult``).
    """

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[DriverError], tuple[str, int]]:  # type: ignore[override]
        return type(self), (self.message, self.code)


_FORKED = (
    "the CUDA driver was in use when this process was forked, and a child cannot use it. "
    'Start workers with multiprocessing.get_context("spawn") (or "forkserver"), or call the function for the '
    "first time in the child."
)
_INVALID_CONTEXT, _CONTEXT_IS_DESTROYED, _INVALID_HANDLE = 201, 709, 400

_lock = threading.RLock()
_driver: Any = None  # cuda.bindings.driver, once it is imported and initialised
_launch_kernel: Callable[..., tuple[Any]] | None = None  # its cuLaunchKernel; after a fork, _refuse
_contexts: dict[int, Any] = {}  # primary context of each device; never released, like CuPy's and torch's


def _refuse(*_: Any) -> tuple[Any]:
    raise DriverError(_FORKED)


def _after_fork_in_child() -> None:
    global _driver, _launch_kernel, _lock
    _lock = threading.RLock()  # a thread that no longer exists may have held it
    if _driver is not None:
        _driver, _launch_kernel = _Forked(), _refuse


class _Forked:
    """Stands for the driver in a child process: any use of it is an error that says why."""

    def __getattr__(self, name: str) -> Any:
        raise DriverError(_FORKED)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _get_driver() -> Any:
    """``cuda.bindings.driver`` after ``cuInit``."""
    global _driver, _launch_kernel
    if _driver is not None:
        return _driver
    with _lock:
        if _driver is None:
            try:
                from cuda.bindings import driver
            except ImportError as error:
                raise GpuUnavailableError(
                    "arrays on a GPU need the package cuda-bindings, which is not installed: "
                    'pip install "numfuse[cu13]" (or "numfuse[cu12]")'
                ) from error
            try:
                (error_code,) = driver.cuInit(0)
            except RuntimeError as error:  # cuda.bindings: the driver's library could not be loaded
                raise DriverError(f"no NVIDIA driver was found: {error}") from error
            _check(driver, error_code, "initialising the CUDA driver")
            _launch_kernel = driver.cuLaunchKernel
            _driver = driver
    return _driver


def _check(driver: Any, code: Any, what: str) -> None:
    if code:
        raise _error(driver, code, what)


def _error(driver: Any, code: Any, what: str) -> DriverError:
    number = int(code)
    texts = []
    for ask in (driver.cuGetErrorName, driver.cuGetErrorString):
        failed, text = ask(code)
        texts.append(text.decode(errors="replace") if not failed and text else f"error {number}")
    return DriverError(f"{what} failed: {texts[0]} ({texts[1]})", number)


def _call(what: str, function: str, *args: Any) -> Any:
    """Call the driver's `function`; its result, or None where it has none."""
    driver = _get_driver()
    code, *results = getattr(driver, function)(*args)
    _check(driver, code, what)
    return results[0] if results else None


@lru_cache(maxsize=1)
def device_count() -> int:
    """The number of CUDA devices; raises :class:`DriverError` where there is no driver."""
    return int(_call("counting the CUDA devices", "cuDeviceGetCount"))


@cache
def compute_capability(device: int) -> tuple[int, int]:
    """The compute capability of device number `device`, such as ``(9, 0)``."""
    attribute = _get_driver().CUdevice_attribute
    what = f"asking for the compute capability of device {device}"
    handle = _call(what, "cuDeviceGet", device)
    major = _call(what, "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
    minor = _call(what, "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)
    return int(major), int(minor)


def current_device() -> int | None:
    """The number of the device that is current in this thread, or None."""
    if not int(_call("asking for the current context", "cuCtxGetCurrent")):
        return None
    return int(_call("asking for the current device", "cuCtxGetDevice"))


def _primary_context(device: int) -> Any:
    context = _contexts.get(device)
    if context is None:
        with _lock:
            context = _contexts.get(device)
            if context is None:
                handle = _call(f"opening device {device}", "cuDeviceGet", device)
                context = _call(f"opening device {device}", "cuDevicePrimaryCtxRetain", handle)
                _contexts[device] = context
    return context


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make the primary context of `device` current, and the caller's one again afterwards.

    A thread that had none keeps this one, as after a first call of CuPy or torch.
    """
    context = _primary_context(device)
    before = int(_call("asking for the current context", "cuCtxGetCurrent"))
    if before == int(context):
        yield
    elif not before:
        _call(f"selecting device {device}", "cuCtxSetCurrent", context)
        yield
    else:
        _call(f"selecting device {device}", "cuCtxPushCurrent", context)
        try:
            yield
        finally:
            _call("selecting the device that was current before", "cuCtxPopCurrent")


@dataclass(frozen=True, slots=True, eq=False)
class LaunchFunction:
    """A kernel that is loaded on one device. It stays loaded until the process ends: no launch of it that is
    still running could be hurt, and the caller keeps few of them."""

    name: str
    device: int
    function: Any  # CUfunction
    library: Any  # CUlibrary
    image: bytes  # the driver may read it lazily


def load(cubin: bytes, entry: str, device: int) -> LaunchFunction:
    """Load a cubin on a device and find its kernel.

    Parameters
    ----------
    cubin : bytes
        Machine code for the architecture of the device.
    entry : str
        The kernel's name in it.
    device : int
        Device number.

    Raises
    ------
    DriverError
        Such as ``CUDA_ERROR_NO_BINARY_FOR_GPU`` for a cubin of another architecture.
    """
    with on_device(device):
        what = f"loading kernel {entry} on device {device}"
        library = _call(what, "cuLibraryLoadData", cubin, None, None, 0, None, None, 0)
        kernel = _call(what, "cuLibraryGetKernel", library, entry.encode())
        function = _call(what, "cuKernelGetFunction", kernel)
    return LaunchFunction(entry, device, function, library, cubin)


class Launcher:
    """Launches one loaded kernel with blocks of one size.

    Parameters
    ----------
    function : LaunchFunction
        What to launch.
    format : str
        From :func:`numfuse.backends.element.words_format`: how the arguments are packed.
    block : int
        Threads of a block.

    Attributes
    ----------
    launch : callable
        ``launch(grid, stream, *values)`` starts the kernel with `grid` blocks on a stream given by its
        handle (an int; 0 is the legacy default stream) and returns at once. A value that does not fit its
        dtype is a :class:`struct.error`. Errors of the driver, also such as an earlier kernel left behind,
        are :class:`DriverError`. Threads may call it at the same time.

    Notes
    -----
    With one device in the machine, a context is looked at only when the driver complains that there is
    none; with several, each launch makes sure that the kernel's own device is current.
    """

    __slots__ = ("block", "format", "function", "launch", "words")

    def __init__(self, function: LaunchFunction, format: str, block: int) -> None:
        self.function, self.format, self.block = function, format, block
        self.words = _Words(format)
        one_device = device_count() == 1
        self.launch = _fast_launch(self) if one_device else _checked_launch(self, _fast_launch(self))

    def statements(self, grid: int, stream: str, values: str) -> tuple[list[str], dict[str, Any]]:
        """What ``launch(grid, stream, *values)`` does, as Python statements, and the objects that they name.

        For functions that are written for one launch: spelled out where it stands, it costs a fifth less.
        `stream` is the name of a variable.
        """
        names: dict[str, Any] = {"launch": self.launch}
        if device_count() != 1:
            return [f"launch({grid}, {stream}, {values})"], names
        names |= {"gpu": sys.modules[__name__], "pack": self.words.pack}
        names |= {"free_words": self.words.free, "new_words": self.words.new}
        names |= {"function": self.function.function, "retry": lambda *rest: _retry(self, *rest)}
        lines = [
            "try: taken = free_words.pop()",
            "except IndexError: taken = new_words()",
            "buffer, pointers, _ = taken",
            f"pack({', '.join(filter(None, ('buffer', '0', values)))})",
            f"code = gpu._launch_kernel(function, {grid}, 1, 1, {self.block}, 1, 1, 0, {stream}, pointers, 0)[0]",
            f"if code: retry(code, {grid}, {stream}, pointers)",
            "free_words.append(taken)",
        ]
        return lines, names


class _Words:
    """Buffers for packed arguments, each with the array of pointers to its words that the driver takes.

    A launch takes one out of `free` and puts it back once the driver has copied the words: whatever runs in
    between (another thread, a signal handler) gets a buffer of its own.
    """

    def __init__(self, format: str) -> None:
        words = struct.Struct(format)
        self.count, self.pack = max(words.size // 8, 1), words.pack_into
        self.free: list[tuple[Any, int, Any]] = []  # the buffer, the address of its pointers, the pointers

    def new(self) -> tuple[Any, int, Any]:
        """One more, for launches at the same time."""
        buffer = (ctypes.c_uint64 * self.count)()
        start = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * self.count)(*(start + 8 * k for k in range(self.count)))
        return buffer, ctypes.addressof(pointers), pointers


def _fast_launch(launcher: Launcher) -> Callable[..., None]:
    function, block, words = launcher.function.function, launcher.block, launcher.words
    free, new, pack = words.free, words.new, words.pack

    def launch(grid: int, stream: int, *values: Any) -> None:
        try:
            taken = free.pop()
        except IndexError:
            taken = new()
        buffer, pointers, _ = taken
        pack(buffer, 0, *values)
        # Looked up at each call: a fork replaces it.
        code = _launch_kernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers, 0)[0]  # type: ignore[misc]
        if code:
            _retry(launcher, code, grid, stream, pointers)
        free.append(taken)

    return launch


def _checked_launch(launcher: Launcher, fast: Callable[..., None]) -> Callable[..., None]:
    device = launcher.function.device
    context = int(_primary_context(device))

    def launch(grid: int, stream: int, *values: Any) -> None:
        code, current = _get_driver().cuCtxGetCurrent()
        if not code and int(current) == context:
            fast(grid, stream, *values)
        else:
            with on_device(device):
                fast(grid, stream, *values)

    return launch


def _retry(launcher: Launcher, code: Any, grid: int, stream: int, pointers: int) -> None:
    """After a refused launch: again with the device's context current, where that was what was missing."""
    driver, function = _get_driver(), launcher.function
    if int(code) in (_INVALID_CONTEXT, _CONTEXT_IS_DESTROYED, _INVALID_HANDLE):
        with on_device(function.device):
            (code,) = driver.cuLaunchKernel(function.function, grid, 1, 1, launcher.block, 1, 1, 0, stream, pointers, 0)
    _check(driver, code, f"launching kernel {function.name} ({grid} blocks of {launcher.block} threads)")


def order(before: int, after: int, device: int) -> None:
    """Let all work given to stream `after` from now on wait for all work that stream `before` has now.

    Both are handles of streams of `device`. The device waits; the caller does not.
    """
    if before == after:
        return
    with on_device(device):
        what = "ordering two streams"
        event = _call(what, "cuEventCreate", _get_driver().CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        try:
            _call(what, "cuEventRecord", event, before)
            _call(what, "cuStreamWaitEvent", after, event, 0)
        finally:
            _call(what, "cuEventDestroy", event)  # the driver frees it once the wait is over
