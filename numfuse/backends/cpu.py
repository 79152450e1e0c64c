"""Compile the text of a CPU kernel with Numba, or take it from the disk cache.

With a cache folder the text is kept there as a module whose file name is a hash of everything that decides
what the kernel computes. Such a file never changes, so Numba's own cache, which looks only at the file that
holds a function, is safe for it. The hash does not name the processor: Numba's cache holds its name and
features, and compiles again where they differ. Without a folder the kernel lives for this process. Either
way the text is in :mod:`linecache`, so that tracebacks and profilers show real lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.errors import NumbaError

from numfuse import cache
from numfuse.backends.cpu_kernels import KernelSource
from numfuse.errors import FusionError

__all__ = ["CpuKernel", "compile_kernel"]

# Addresses are int64 like the range: a Python int is int64 to Numba's dispatcher, which then needs no
# conversion.
_SIGNATURE = (numba.types.int64, numba.types.int64, numba.types.int64)

_lock = threading.RLock()
_compiled: dict[str, CpuKernel] = {}

# Hold the lock across a fork: otherwise a child forked while another thread compiles would find it, and
# Numba's compiler lock, taken for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class CpuKernel:
    """A compiled kernel: call it with the address of its packed arguments and a range of elements.

    Attributes
    ----------
    run : callable
        ``run(arguments_address, start, stop)``, the compiled entry itself: the cheapest way to call. The
        GIL is released meanwhile. It raises nothing.
    source : KernelSource
    from_cache : bool
        Whether the machine code came from the disk.
    """

    __slots__ = ("_dispatcher", "from_cache", "run", "source")

    def __init__(self, source: KernelSource, dispatcher: Any) -> None:
        self.source = source
        self._dispatcher = dispatcher
        self.from_cache = bool(dispatcher.stats.cache_hits)
        # The wrapper under the dispatcher: 0.14 us a call in place of 0.22.
        self.run: Callable[[int, int, int], None] = dispatcher.overloads[_SIGNATURE].entry_point

    def __call__(self, arguments: int, start: int, stop: int) -> None:
        self.run(arguments, start, stop)

    def __repr__(self) -> str:
        return f"<CpuKernel {self.source.name}>"


def compile_kernel(source: KernelSource) -> CpuKernel:
    """Compile `source` now, or load it from the cache folder.

    The same text gives the same kernel object. Safe to call from several threads.

    Parameters
    ----------
    source : KernelSource
        From :func:`numfuse.backends.cpu_kernels.kernel_source`.

    Returns
    -------
    CpuKernel

    Raises
    ------
    FusionError
        What Numba says of a text that it can't compile.
    """
    key = hashlib.sha256(f"{cache.fingerprint()}\n{source.text}".encode()).hexdigest()[:32]
    kernel = _compiled.get(key)
    if kernel is None:
        with _lock:
            kernel = _compiled.get(key)
            if kernel is None:
                try:
                    dispatcher = _from_folder(source, key)
                    if dispatcher is None:
                        dispatcher = _from_text(source, key, f"<numfuse {source.name} {key[:8]}>")
                        dispatcher.compile(_SIGNATURE)
                except NumbaError as error:
                    raise FusionError(f"Numba refused kernel {source.name}: {error}") from error
                kernel = _compiled[key] = CpuKernel(source, dispatcher)
    return kernel


def _from_folder(source: KernelSource, key: str) -> Any:
    """The compiled dispatcher through the disk cache, or None where there is none that works."""
    folder = cache.safe_directory(create=True)
    if folder is None:
        return None
    path = folder / f"{key}.py"
    try:
        _keep(path, source.text)
        dispatcher = _from_text(source, key, str(path))
        dispatcher.enable_caching()
        dispatcher.compile(_SIGNATURE)
    except NumbaError:  # of the kernel's text: it would not compile without the cache either
        raise
    except Exception:  # a full disk, a damaged entry (unpickling raises anything): not worth failing a call
        for damaged in folder.glob(f"__pycache__/{key}.*"):
            with contextlib.suppress(OSError):
                damaged.unlink()
        return None
    return dispatcher


def _keep(path: Path, text: str) -> None:
    """Write the module once. An equal file is left alone: Numba's cache goes by its modification time."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _from_text(source: KernelSource, key: str, filename: str) -> Any:
    """Run the module and return the kernel's dispatcher, not compiled yet."""
    lines = source.text.splitlines(keepends=True)
    linecache.cache[filename] = (len(source.text), None, lines, filename)
    # Numba looks the module up by name when it loads machine code from the disk.
    module = types.ModuleType(f"numfuse_kernel_{key}")
    module.__file__ = filename
    sys.modules[module.__name__] = module
    exec(compile(source.text, filename, "exec"), module.__dict__)
    return getattr(module, source.name)
