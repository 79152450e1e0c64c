"""Compile the text of a CPU kernel with Numba, or take it from the disk cache.

With a cache folder the text is kept there as a module whose file name is a hash of everything that decides
what the kernel computes. Such a file never changes, so Numba's own cache, which looks only at the file that
holds a function, is safe for it. Without a folder the kernel lives for this process. Either way the text is
in :mod:`linecache`, so that tracebacks and profilers show real lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import re
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba

from numfuse import cache
from numfuse.backends.cpu_kernels import KernelSource

__all__ = ["CpuKernel", "VectorCounts", "assembly", "compile_kernel", "vector_counts"]

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
    """
    key = hashlib.sha256(f"{cache.fingerprint()}\n{source.text}".encode()).hexdigest()[:32]
    kernel = _compiled.get(key)
    if kernel is None:
        with _lock:
            kernel = _compiled.get(key)
            if kernel is None:
                dispatcher = _from_folder(source, key)
                if dispatcher is None:
                    dispatcher = _from_text(source, key, f"<numfuse {source.name} {key[:8]}>")
                    dispatcher.compile(_SIGNATURE)
                kernel = _compiled[key] = CpuKernel(source, dispatcher)
    return kernel


def _cache_folder() -> Path | None:
    """Where modules are kept, or None: the cache is off, or the folder is not safe to load code from."""
    return cache._safe_directory(create=True)


def _from_folder(source: KernelSource, key: str) -> Any:
    """The compiled dispatcher through the disk cache, or None where there is none that works."""
    folder = _cache_folder()
    if folder is None:
        return None
    path = folder / f"{key}.py"
    try:
        _keep(path, source.text)
        dispatcher = _from_text(source, key, str(path))
        dispatcher.enable_caching()
        dispatcher.compile(_SIGNATURE)
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


def assembly(kernel: CpuKernel) -> str:
    """The machine code of a kernel as the processor's assembly text."""
    dispatcher = kernel._dispatcher
    if kernel.from_cache:  # the disk holds object code only
        with _lock:
            module = types.ModuleType(f"{dispatcher.__module__}_again")
            sys.modules[module.__name__] = module
            exec(compile(kernel.source.text, f"<numfuse {kernel.source.name}>", "exec"), module.__dict__)
            dispatcher = getattr(module, kernel.source.name)
            dispatcher.compile(_SIGNATURE)
    text: str = dispatcher.overloads[_SIGNATURE].library.get_asm_str()
    return text


@dataclass(frozen=True, slots=True)
class VectorCounts:
    """How many instructions of an assembly text work on vectors, by width in bits, and on single floats."""

    bits_512: int
    bits_256: int
    bits_128: int
    scalar: int

    @property
    def vector(self) -> int:
        return self.bits_512 + self.bits_256 + self.bits_128


def vector_counts(text: str) -> VectorCounts:
    """Count the vector instructions in `text`, the :func:`assembly` of a kernel (x86-64 or 64-bit ARM)."""
    counts = {512: 0, 256: 0, 128: 0, 0: 0}
    for line in text.splitlines():
        match = re.match(r"\s+([a-z]\w*)\s+(.*)", line)
        if match is None:
            continue
        mnemonic, operands = match.groups()
        if "%zmm" in operands:
            counts[512] += 1
        elif "%ymm" in operands:
            counts[256] += 1
        elif "%xmm" in operands:
            single = re.search(r"s[sd](2\w+)?[lq]?$|^v?mov[dq]$", mnemonic)
            counts[0 if single else 128] += 1
        elif re.search(r"\bv\d+\.\d+[bhsd]", operands):
            counts[128] += 1
    return VectorCounts(counts[512], counts[256], counts[128], counts[0])
