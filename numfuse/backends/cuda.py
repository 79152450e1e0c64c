"""Compile the text of a kernel to machine code, through numba.cuda. Needs no GPU and no driver.

This module owns the contact with numba-cuda's compiler; the kernels' intrinsics in
:mod:`numfuse.backends.memory` and the scalar functions in :mod:`numfuse.mathlib` use only its public
extension API. It is imported when a kernel is missing from the cache, not before.
"""

from __future__ import annotations

import hashlib
import linecache
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from numfuse.backends.cuda_kernels import KernelSource
from numfuse.backends.driver import GpuUnavailableError
from numfuse.errors import FusionError, FusionValueError

__all__ = ["Compiled", "compile_kernel", "kernel_function", "ptx_counts"]

_FAST_FUNCTIONS = "sinf|cosf|tanf|expf|exp10f|logf|log2f|log10f|powf|fdividef"  # float32 only
_INSTALL = 'pip install "numfuse[cu13]" (or "numfuse[cu12]" for CUDA 12)'


def _import_numba_cuda() -> Any:
    """numba.cuda from the package numba-cuda, complete enough that compiling imports nothing more of it."""
    try:
        import _numba_cuda_redirector  # noqa: F401 # a .pth file does this, but only in site directories
    except ImportError:
        raise GpuUnavailableError(
            f"compiling for a GPU needs the package numba-cuda, which is not installed: {_INSTALL}. "
            "The numba.cuda inside numba itself is deprecated and cannot be used"
        ) from None
    try:
        from numba import cuda
    except ImportError as error:
        raise GpuUnavailableError(f"numba.cuda could not be imported ({error}): {_INSTALL}") from error
    if getattr(cuda, "implementation", None) != "NVIDIA":
        raise GpuUnavailableError(
            "numba.cuda is the deprecated one inside numba: it was imported before the package numba-cuda "
            f"could take its place. Install numba-cuda where Python finds its .pth files: {_INSTALL}"
        )
    # numba-cuda 0.30 reads numpy.row_stack, which NumPy 2.5 removed, when this part of it is imported.
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack  # type: ignore[attr-defined, unused-ignore]
    try:
        from numba.cuda.np import arrayobj  # noqa: F401
    finally:
        if missing:
            del np.row_stack  # type: ignore[attr-defined, unused-ignore]
    return cuda


with warnings.catch_warnings():
    # Under NumPy 2.5, numba-cuda 0.30 uses what that deprecates while it is imported. No user can mend it.
    warnings.simplefilter("ignore", DeprecationWarning)
    _numba_cuda = _import_numba_cuda()
    from numba.cuda import dispatcher as _dispatcher
    from numba.cuda import types as _types

_compile_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of one kernel.

    Attributes
    ----------
    cubin : bytes
        For exactly the architecture that was asked for.
    entry : str
        The kernel's name in it.
    ptx : str
        What the cubin was made from.
    info : dict
        ``counts`` (see :func:`ptx_counts`), ``registers``, ``spill_bytes`` and ``stack_bytes`` (of a thread),
        ``compute_capability``. All of it can be written as JSON.
    """

    cubin: bytes
    entry: str
    ptx: str
    info: dict[str, Any] = field(default_factory=dict)


def kernel_function(source: KernelSource) -> Any:
    """The kernel as a ``numba.cuda`` dispatcher: what a user gets who executes the text.

    Its lines are known to :mod:`linecache`, so tracebacks of the compiler show them.
    """
    return _execute(source)[source.name]


def _execute(source: KernelSource) -> dict[str, Any]:
    digest = hashlib.sha256(source.text.encode()).hexdigest()[:12]
    filename = f"<numfuse {source.name} {digest}>"
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"numfuse_kernel_{digest}"}
    exec(compile(source.text, filename, "exec"), namespace)
    return namespace


def compile_kernel(
    source: KernelSource, compute_capability: tuple[int, int], *, exact: bool = False, fast: bool = False
) -> Compiled:
    """Compile a kernel to a cubin.

    Parameters
    ----------
    source : KernelSource
        From :func:`numfuse.backends.cuda_kernels.kernel_source`.
    compute_capability : (int, int)
        Of the device that will run it, such as ``(9, 0)``.
    exact : bool
        Round every product and sum by itself, as NumPy does: no fused multiply-add.
    fast : bool
        Numba's ``fastmath``: approximate divisions, square roots and functions; subnormals become 0.

    Raises
    ------
    GpuUnavailableError
        numba-cuda or a part of the CUDA toolkit is missing.
    FusionValueError
        Both `exact` and `fast`.
    FusionError
        The compiler or the linker refused the text: numfuse should have refused the function earlier.
    """
    if exact and fast:
        raise FusionValueError("a kernel can be exact or fast, not both")
    with _compile_lock, _device_stand_in(compute_capability):
        namespace = _execute(source)
        if fast:
            _make_fast(namespace)
        ptx = _to_ptx(source, namespace[source.name].py_func, compute_capability, exact, fast)
    ptx, entry = _rename_entry(ptx, source.name)
    cubin, log = _to_cubin(ptx, entry, compute_capability)
    info = {"counts": ptx_counts(ptx), "compute_capability": list(compute_capability), **_resources(log)}
    return Compiled(cubin, entry, ptx, info)


@contextmanager
def _device_stand_in(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Let calls of device functions compile for this capability, whether or not there is a device.

    Numba asks the current device when the call of a ``cuda.jit(device=True)`` function is met. The
    replacement answers in this thread only, so other threads' own compilations go on undisturbed.
    """
    original, thread = _dispatcher.get_current_device, threading.get_ident()
    device = SimpleNamespace(compute_capability=compute_capability)

    def get_current_device() -> Any:
        return device if threading.get_ident() == thread else original()

    _dispatcher.get_current_device = get_current_device
    try:
        yield
    finally:
        _dispatcher.get_current_device = original


def _make_fast(namespace: dict[str, Any]) -> None:
    """Replace the device functions of a kernel's module by ones with fastmath.

    Those that it imports become copies: the originals stay as they are for other kernels.
    """
    jit = _numba_cuda.jit(device=True, forceinline=True, fastmath=True)
    for name, value in list(namespace.items()):
        if isinstance(value, _dispatcher.CUDADispatcher) and value.targetoptions.get("device"):
            namespace[name] = jit(value.py_func)


def _numba_type(dtype: np.dtype[Any]) -> Any:
    return _types.boolean if dtype.kind == "b" else getattr(_types, dtype.name)


def _to_ptx(source: KernelSource, function: Any, compute_capability: tuple[int, int], exact: bool, fast: bool) -> str:
    # Not cuda.compile, which has no way to switch the contraction of a*b+c off.
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.core.errors import NumbaError
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.error import CCSupportError, NvvmError

    options: dict[str, Any] = {"opt": 3, "fastmath": fast}
    if exact:
        options["fma"] = 0
    arguments = tuple(_numba_type(p.dtype) for p in source.parameters)
    try:
        result = compile_cuda(
            function, _types.void, arguments, fastmath=fast, nvvm_options=options, cc=compute_capability
        )
        library = result.library
        kernel = library.get_function(result.fndesc.llvm_func_name)
        library._entry_name = result.fndesc.llvm_func_name
        kernel_fixup(kernel, False)
        nvvm.set_launch_bounds(kernel, source.block)
        if fast:
            library._llvm_strs = [_fast_functions(module) for module in library.llvm_strs]
        return str(library.get_asm_str(cc=compute_capability))
    except NumbaError as error:
        raise FusionError(f"Numba refused kernel {source.name}: {error}") from error
    except (ImportError, DynamicLibNotFoundError) as error:
        raise GpuUnavailableError(
            f"compiling for a GPU needs NVVM and NVRTC, of which one was not found ({error}): {_INSTALL}"
        ) from error
    except (NvvmError, CCSupportError) as error:
        version = ".".join(map(str, compute_capability))
        raise FusionError(
            f"NVVM refused kernel {source.name} for a device of compute capability {version}: {error}"
        ) from error


def _fast_functions(module: str) -> str:
    """LLVM assembly with libdevice's approximate functions in the place of the accurate ones.

    Numba does this for its own ``math.exp``, not for the intrinsics of numfuse's scalar library.
    """

    def fast(match: re.Match[str]) -> str:
        name = f"__nv_fast_{match[1]}"
        # A module that declares both would declare the fast one twice.
        return match[0] if f'"{name}"' in module else f'@"{name}"'

    return re.sub(rf'@"__nv_({_FAST_FUNCTIONS})"', fast, module)


def _rename_entry(ptx: str, name: str) -> tuple[str, str]:
    """Replace Numba's mangled name of the kernel, hundreds of characters long, by its Python name."""
    found = re.findall(r"\.entry\s+([\w$]+)", ptx)
    if len(found) != 1:
        raise FusionError(f"kernel {name} was compiled to {len(found)} entry points instead of one")
    entry = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not re.match(r"[A-Za-z]", entry):
        entry = f"kernel{entry}"
    return re.sub(rf"(?<![\w$]){re.escape(found[0])}(?![\w$])", entry, ptx), entry


def _to_cubin(ptx: str, entry: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Assemble PTX with nvJitLink: the driver may be older than the PTX's version, a cubin it takes."""
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        raise GpuUnavailableError(f"cuda-bindings is not installed: {_INSTALL}") from error
    major, minor = compute_capability
    options = [f"-arch=sm_{major}{minor}", "-O3", "-verbose"]
    try:
        handle = nvjitlink.create(len(options), options)
    except (RuntimeError, nvjitlink.nvJitLinkError) as error:  # no library, or one too old for the device
        raise GpuUnavailableError(f"nvJitLink could not be used for sm_{major}{minor} ({error}): {_INSTALL}") from error
    try:
        code = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, code, len(code), f"{entry}.ptx")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    except nvjitlink.nvJitLinkError as error:
        log = _log(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        raise FusionError(
            f"nvJitLink refused kernel {entry} ({error}): {log.strip()}\nIf it says that the PTX version is "
            "unsupported, nvidia-nvjitlink is older than nvidia-nvvm: install both from one CUDA release"
        ) from error
    finally:
        nvjitlink.destroy(handle)


def _log(size_of: Any, get: Any, handle: int) -> str:
    size = size_of(handle)
    if not size:
        return ""
    buffer = bytearray(size)
    get(handle, buffer)
    return buffer.decode(errors="replace").strip("\x00")


def _resources(log: str) -> dict[str, int]:
    """Registers and local memory of a thread, from the assembler's own report."""
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack_bytes": r"(\d+) bytes stack frame",
        "spill_bytes": r"(\d+) bytes spill stores",
    }
    found = {key: re.search(pattern, log) for key, pattern in patterns.items()}
    return {key: int(match[1]) for key, match in found.items() if match}


def ptx_counts(ptx: str) -> dict[str, int]:
    """How often PTX holds the instructions that decide a kernel's speed.

    Returns
    -------
    dict
        ``loads_16_bytes``, ``stores_16_bytes``, ``other_loads`` and ``other_stores`` (of global memory);
        ``f64`` (instructions on float64 values, conversions included, moves not); ``fma`` (float32 and
        float64); ``divisions_64_bit`` (of integers); ``calls``; ``instructions``; ``entries``.
    """
    body = re.sub(r"//[^\n]*", "", ptx)
    operations = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)[^\n]*;", body, re.M)
    wide = re.compile(r"(ld|st)\.global\S*\.v(?:4\.\w(?:32)|2\.\w(?:64))$")

    def count(pattern: str) -> int:
        matcher = re.compile(pattern)
        return sum(1 for operation in operations if matcher.match(operation))

    loads, stores = count(r"ld\.global"), count(r"st\.global")
    wide_kinds = [match[1] for match in map(wide.match, operations) if match]
    return {
        "loads_16_bytes": wide_kinds.count("ld"),
        "stores_16_bytes": wide_kinds.count("st"),
        "other_loads": loads - wide_kinds.count("ld"),
        "other_stores": stores - wide_kinds.count("st"),
        # Moving a float64 is no arithmetic: a load, store or mov of that type does not count.
        "f64": count(r"(?!ld\b|st\b|mov\b)\S*\.f64"),
        "fma": count(r"fma\.\S*f(?:32|64)"),
        "divisions_64_bit": count(r"(?:div|rem)\.[su]64"),
        "calls": count(r"call\b"),
        "instructions": len(operations),
        "entries": len(re.findall(r"\.entry\b", body)),
    }
