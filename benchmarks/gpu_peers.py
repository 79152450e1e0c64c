"""The peers on an NVIDIA GPU. All work on the same memory: no array is copied between the libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from peers import NotThere, Peer, from_text, gpu_loop_text, numfuse_call, scalar_text
from timing import HostClock, WallClock
from workloads import Workload, random_array

Call = Callable[[], Any]
Arrays = tuple[Any, ...]


def optional(name: str) -> Any:
    """The module, or NotThere."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotThere("not installed") from None


def home_library() -> str:
    """The library that owns the arrays and records the events: torch, else CuPy."""
    for name in ("torch", "cupy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "cupy" or module.cuda.is_available():
            return name
    raise SystemExit("the GPU benchmark needs torch (with CUDA) or CuPy for its arrays and its clock")


class EventClock:
    """Time on the device between two events on the default stream, which all peers but JAX use."""

    def __init__(self, library: str) -> None:
        self.library = library

    def measure(self, call: Call, count: int) -> float:
        if self.library == "torch":
            events = importlib.import_module("torch").cuda.Event
            start, end = events(enable_timing=True), events(enable_timing=True)
        else:
            events = importlib.import_module("cupy").cuda.Event
            start, end = events(), events()
        call()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        if self.library == "torch":
            return start.elapsed_time(end) / 1e3
        return importlib.import_module("cupy").cuda.get_elapsed_time(start, end) / 1e3


def synchronize(result: Any = None) -> None:
    """Wait for all work on the device."""
    if home_library() == "torch":
        importlib.import_module("torch").cuda.synchronize()
    else:
        importlib.import_module("cupy").cuda.Device().synchronize()


def device_name() -> str:
    if home_library() == "torch":
        return importlib.import_module("torch").cuda.get_device_name()
    return importlib.import_module("cupy").cuda.runtime.getDeviceProperties(0)["name"].decode()


def make_arrays(workload: Workload, size: int, seed: int = 0) -> Arrays:
    """Operands on the device for about `size` results: drawn numbers, repeated there."""
    rng = np.random.default_rng(seed)
    side = int(size**0.5)
    shapes = {"full": (size,) if workload.ndim == 1 else (side, side), "row": (side,), "column": (side, 1)}
    return tuple(_repeated(rng, shapes[o.layout], np.dtype(o.dtype)) for o in workload.operands)


def _repeated(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    size = int(np.prod(shape))
    sample = random_array(rng, (min(size, 1 << 20),), dtype)
    times = -(-size // sample.size)
    if home_library() == "torch":
        torch = importlib.import_module("torch")
        return torch.from_numpy(sample).cuda().repeat(times)[:size].reshape(shape)
    cupy = importlib.import_module("cupy")
    return cupy.tile(cupy.asarray(sample), times)[:size].reshape(shape)


def free_memory() -> None:
    """Give the pools' unused memory back, so that the next workload's arrays fit."""
    for name in ("torch", "cupy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "torch":
            module.cuda.empty_cache()
        else:
            module.get_default_memory_pool().free_all_blocks()


def to_host(result: Any) -> np.ndarray:
    """Any library's array as NumPy's."""
    if hasattr(result, "copy_to_host"):
        return result.copy_to_host()
    if hasattr(result, "cpu"):
        return result.cpu().numpy()
    return result.get() if hasattr(result, "get") else np.asarray(result)


# --- other libraries' views of the same memory --------------------------------------------------------


def as_torch(arrays: Arrays) -> Arrays:
    torch = optional("torch")
    return tuple(torch.from_dlpack(a) for a in arrays)


def as_cupy(arrays: Arrays) -> Arrays:
    cupy = optional("cupy")
    return tuple(cupy.from_dlpack(a) for a in arrays)


def as_numba(arrays: Arrays) -> Arrays:
    cuda = numba_cuda()
    return tuple(cuda.as_cuda_array(a) for a in arrays)


def numba_cuda() -> Any:
    """numba.cuda of the numba-cuda package."""
    optional("numba_cuda")
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # NumPy 2.5 removed it, and numba-cuda 0.30.4 still looks it up
    return importlib.import_module("numba.cuda")


# --- the peers -----------------------------------------------------------------------------------------


def numfuse_on_torch(workload: Workload, arrays: Arrays) -> Call:
    return numfuse_call(workload, as_torch(arrays))


def numfuse_on_cupy(workload: Workload, arrays: Arrays) -> Call:
    return numfuse_call(workload, as_cupy(arrays))


def numfuse_on_numba(workload: Workload, arrays: Arrays) -> Call:
    return numfuse_call(workload, as_numba(arrays))


def torch_eager(workload: Workload, arrays: Arrays) -> Call:
    function, tensors = workload.for_module(optional("torch")), as_torch(arrays)
    return lambda: function(*tensors)


def torch_addcmul(workload: Workload, arrays: Arrays) -> Call:
    torch = optional("torch")
    if not workload.name.startswith("x*y+z"):
        raise NotThere("other function")
    x, y, z = as_torch(arrays)
    out = torch.empty_like(x)
    return lambda: torch.addcmul(z, x, y, out=out)


def torch_jiterator(workload: Workload, arrays: Arrays) -> Call:
    torch, tensors = optional("torch"), as_torch(arrays)
    parameters = ", ".join(f"T {name}" for name in workload.names)
    text = f"template <typename T> T work({parameters}) {{ return {workload.cuda}; }}"
    function = torch.cuda.jiterator._create_jit_fn(text)
    return lambda: function(*tensors)


def torch_compiled(workload: Workload, arrays: Arrays) -> Call:
    torch, tensors = optional("torch"), as_torch(arrays)
    torch._dynamo.reset()  # the same code object serves several workloads, and each has one entry here
    function = torch.compile(workload.for_module(torch), dynamic=False)
    return lambda: function(*tensors)


def cupy_eager(workload: Workload, arrays: Arrays) -> Call:
    function, operands = workload.for_module(optional("cupy")), as_cupy(arrays)
    return lambda: function(*operands)


def cupy_fuse(workload: Workload, arrays: Arrays) -> Call:
    cupy, operands = optional("cupy"), as_cupy(arrays)
    function = cupy.fuse(workload.for_module(cupy))
    return lambda: function(*operands)


def cupy_elementwise(workload: Workload, arrays: Arrays) -> Call:
    cupy, operands = optional("cupy"), as_cupy(arrays)
    letters: dict[str, str] = {workload.result: "T"}
    for operand in workload.operands:
        letters.setdefault(operand.dtype, "TUVW"[len(letters)])
    parameters = ", ".join(
        f"{letters[o.dtype]} {name}" for name, o in zip(workload.names, workload.operands, strict=True)
    )
    kernel = cupy.ElementwiseKernel(parameters, "T out", f"out = {workload.cuda}", "benchmark")
    out = cupy.empty(np.broadcast_shapes(*(a.shape for a in operands)), workload.result)
    return lambda: kernel(*operands, out)


def jax_jit(workload: Workload, arrays: Arrays) -> Call:
    jax = optional("jax")
    jax.config.update("jax_enable_x64", True)
    function = jax.jit(workload.for_module(jax.numpy))
    operands = [jax.numpy.from_dlpack(a) for a in arrays]
    if not all(a.devices() <= set(jax.devices("gpu")) for a in operands):
        raise NotThere("no GPU in JAX")
    return lambda: function(*operands)


def numba_kernel(workload: Workload, arrays: Arrays) -> Call:
    cuda = numba_cuda()
    operands = as_numba(arrays)
    scalar = cuda.jit(device=True)(from_text(scalar_text(workload), "scalar"))
    kernel = cuda.jit(from_text(gpu_loop_text(workload), "loop", scalar=scalar, cuda=cuda))
    out = cuda.device_array(np.broadcast_shapes(*(a.shape for a in operands)), workload.result)
    blocks = -(-out.size // 512)

    def call() -> Any:
        kernel[blocks, 512](*operands, out)
        return out

    return call


def throughput_peers() -> tuple[Peer, ...]:
    """Peers for large arrays, on the device's own clock. Results are preallocated where a peer can."""
    events = EventClock(home_library())
    until_ready = WallClock(lambda result: result.block_until_ready())
    return (
        Peer("numfuse", numfuse_call, events),
        Peer("torch", torch_eager, events),
        Peer("addcmul out=", torch_addcmul, events),
        Peer("jiterator", torch_jiterator, events),
        Peer("torch.compile", torch_compiled, events),
        Peer("cupy.fuse", cupy_fuse, events),
        Peer("CuPy kernel out=", cupy_elementwise, events),
        Peer("JAX", jax_jit, until_ready),
        Peer("Numba kernel out=", numba_kernel, events),
    )


def call_peers() -> tuple[Peer, ...]:
    """Peers for small arrays, on the host's clock; `out=` marks those that don't allocate their result."""
    host = HostClock(synchronize)
    return (
        Peer("numfuse, torch tensors", numfuse_on_torch, host),
        Peer("numfuse, CuPy arrays", numfuse_on_cupy, host),
        Peer("numfuse, Numba arrays", numfuse_on_numba, host),
        Peer("torch eager", torch_eager, host),
        Peer("torch.addcmul out=", torch_addcmul, host),
        Peer("torch jiterator", torch_jiterator, host),
        Peer("torch.compile", torch_compiled, host),
        Peer("CuPy eager", cupy_eager, host),
        Peer("cupy.fuse", cupy_fuse, host),
        Peer("CuPy ElementwiseKernel out=", cupy_elementwise, host),
        Peer("JAX jit", jax_jit, host),
        Peer("Numba kernel out=, Numba arrays", numba_kernel, host),
    )
