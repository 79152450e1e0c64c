"""Compiled CPU kernels: their machine code, and the disk cache."""

from __future__ import annotations

import linecache
import os
import platform
import threading
from pathlib import Path

import numpy as np
import pytest
from cpu_calls import DENSE, REPEATED, SCALAR, element, flat, pack, python
from machine_code import VectorCounts, assembly, vector_counts

from numfuse import cache
from numfuse.backends import cpu
from numfuse.backends.cpu_kernels import KernelSource, kernel_source
from numfuse.backends.element import Access, Nest

needs_x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="reads x86-64 assembly")


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in memory; the tests of the disk cache set a folder of their own."""
    monkeypatch.setattr(cache, "safe_directory", lambda create: None)


# --- the machine code ---------------------------------------------------------------------------------------


def counts(nest: Nest) -> VectorCounts:
    return vector_counts(assembly(cpu.compile_kernel(kernel_source(nest, "f"))))


@needs_x86
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_flat_loops_vectorise(dtype: str) -> None:
    head = f"x: {dtype}, y: {dtype}, z: {dtype}"
    plain = element(f"{head} -> x * y + z", f"o: {dtype}")
    branch = element(f"{head} -> (x * y if x > z else z - y * g)", f"o: {dtype}", f"g: {dtype}")
    for function in (plain, branch):
        text = assembly(cpu.compile_kernel(kernel_source(flat(function), "f")))
        assert packed(text, "mul") >= 2  # unrolled
        assert single(text, "mul") <= 2  # the rest that fills no vector


@needs_x86
def test_many_arrays_vectorise() -> None:
    # Far more pairs of arrays than LLVM would check for overlap at run time.
    head = ", ".join(f"x{k}: float32" for k in range(13))
    results = ", ".join(f"x{k} * x{k + 1} * x{k + 2}" for k in range(11))
    function = element(f"{head} -> {results}", ", ".join(f"o{k}: float32" for k in range(11)))
    text = assembly(cpu.compile_kernel(kernel_source(flat(function), "f")))
    assert packed(text, "mul") >= 22
    assert single(text, "mul") <= 22


@needs_x86
def test_mixed_widths_and_bools_vectorise() -> None:
    assert counts(flat(element("x: uint8, y: uint8 -> float32(x) * float32(y)", "o: float32"))).vector > 8
    assert counts(flat(element("x: float64, y: float64 -> x > y", "o: bool"))).vector > 8
    assert counts(flat(element("c: bool, y: int32 -> (y if c else int32(0))", "o: int32"))).vector > 8


@needs_x86
@pytest.mark.parametrize("operand", [DENSE, REPEATED, SCALAR])
def test_rows_vectorise(operand: Access) -> None:
    function = element("x: float32, y: float32 -> x * y", "o: float32")
    text = assembly(cpu.compile_kernel(kernel_source(Nest(function, 2, (DENSE, operand), (DENSE,)), "f")))
    assert packed(text, "mul") >= 2
    assert single(text, "mul") <= 2


def test_one_text_in_place_and_out_of_place() -> None:
    function = element("x: float32, y: float32 -> x * y", "o: float32")
    source = kernel_source(flat(function), "f")
    in_place = Nest(function, 1, (DENSE,) * 2, (DENSE,), in_place=(0,), aligned=False)
    assert source == kernel_source(in_place, "f")


def packed(text: str, operation: str) -> int:
    return sum(text.count(f"{operation}{suffix}\t") for suffix in ("ps", "pd"))


def single(text: str, operation: str) -> int:
    return sum(text.count(f"{operation}{suffix}\t") for suffix in ("ss", "sd"))


def test_vector_counts() -> None:
    text = "\tvmulps\t%zmm0, %zmm1, %zmm2\n\tvaddpd\t(%rax), %ymm0, %ymm0\n\tvmulss\t%xmm0, %xmm1, %xmm2\n"
    text += "\tvmovd\t%eax, %xmm0\n\tvpaddd\t%xmm0, %xmm1, %xmm2\n\taddq\t$1, %rax\n"
    text += "\tfmul\tv0.4s, v1.4s, v2.4s\n"
    assert vector_counts(text) == VectorCounts(1, 1, 2, 2)
    assert vector_counts(text).vector == 4


@needs_x86
def test_full_vector_width(tmp_path: Path) -> None:
    # Processors on which LLVM would choose 256 bits by itself.
    program = """
        import numpy as np
        from numfuse.backends import cpu
        from numfuse.backends.cpu_kernels import kernel_source
        from numfuse.backends.element import Access, Argument, ElementFunction, Nest
        cpu.cache.safe_directory = lambda create: None
        x, o = (Argument(name, np.dtype("float32")) for name in "xo")
        function = ElementFunction("f", "def f(x):\\n    return (x * x,)\\n", (x,), (), (o,))
        kernel = cpu.compile_kernel(kernel_source(Nest(function, 1, (Access.DENSE,), (Access.DENSE,)), "f"))
        from machine_code import assembly, vector_counts
        print(vector_counts(assembly(kernel)).bits_512)
    """
    features = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+prefer-256-bit"
    settings = {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": features}
    assert int(python(program, **settings)) > 4


# --- compiling and the disk cache ---------------------------------------------------------------------------


SOURCE = kernel_source(flat(element("x: float32 -> x + x", "o: float32")), "twice")


def works(kernel: cpu.CpuKernel) -> bool:
    x, o = np.arange(100, dtype=np.float32), np.empty(100, np.float32)
    kernel(pack(flat(element("x: float32 -> x", "o: float32")), x.shape, [x, o]).ctypes.data, 0, 100)
    return bool((o == 2 * x).all())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "safe_directory", lambda create: tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(cpu, "_compiled", {})
    return tmp_path


def test_same_text_same_kernel() -> None:
    first = cpu.compile_kernel(SOURCE)
    assert cpu.compile_kernel(KernelSource(SOURCE.text, SOURCE.name)) is first
    assert works(first)
    assert not first.from_cache
    assert repr(first) == "<CpuKernel twice_kernel>"


def test_second_process_compiles_nothing(folder: Path) -> None:
    program = f"""
        import sys
        from pathlib import Path
        from numfuse.backends import cpu
        from numfuse.backends.cpu_kernels import KernelSource
        cpu.cache.safe_directory = lambda create: Path({str(folder)!r})
        kernel = cpu.compile_kernel(KernelSource({SOURCE.text!r}, {SOURCE.name!r}))
        import numpy as np
        x, o = np.arange(9, dtype=np.float32), np.empty(9, np.float32)
        words = np.array([9, x.ctypes.data, o.ctypes.data], np.uint64)
        kernel(words.ctypes.data, 0, 9)
        assert (o == 2 * x).all()
        from machine_code import assembly
        assert len(assembly(kernel)) > 100
        print(kernel.from_cache)
    """
    assert python(program) == "False"
    (module,) = folder.glob("*.py")
    stamp = module.stat().st_mtime_ns
    assert python(program) == "True"
    assert module.stat().st_mtime_ns == stamp
    assert module.read_text() == SOURCE.text


def test_cached_kernel_in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cpu.compile_kernel(SOURCE).from_cache
    monkeypatch.setattr(cpu, "_compiled", {})
    kernel = cpu.compile_kernel(SOURCE)
    assert kernel.from_cache
    assert works(kernel)
    monkeypatch.setattr(cpu, "_compiled", {})
    monkeypatch.setattr(cache, "fingerprint", lambda: "another")
    assert not cpu.compile_kernel(SOURCE).from_cache


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
def test_damaged_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    cpu.compile_kernel(SOURCE)
    for file in folder.glob(f"__pycache__/{pattern}"):
        file.write_bytes(b"nonsense")
    monkeypatch.setattr(cpu, "_compiled", {})
    assert works(cpu.compile_kernel(SOURCE))
    monkeypatch.setattr(cpu, "_compiled", {})
    assert works(cpu.compile_kernel(SOURCE))  # written afresh
    monkeypatch.setattr(cpu, "_compiled", {})
    assert cpu.compile_kernel(SOURCE).from_cache


def test_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = folder / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(cache, "safe_directory", lambda create: blocked / "kernels")
    assert works(cpu.compile_kernel(SOURCE))


def test_compile_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_compiled", {})
    found: list[cpu.CpuKernel] = []
    threads = [threading.Thread(target=lambda: found.append(cpu.compile_kernel(SOURCE))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(map(id, found))) == 1


def test_text_is_written_without_numba() -> None:
    program = "import sys; import numfuse.backends.cpu_kernels; print('numba' in sys.modules)"
    assert python(program) == "False"


def test_traceback_shows_the_text() -> None:
    kernel = cpu.compile_kernel(SOURCE)
    filename = kernel._dispatcher.py_func.__code__.co_filename
    linecache.checkcache()
    assert "twice_kernel" in "".join(linecache.getlines(filename))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_another_thread_compiles() -> None:
    program = f"""
        import os, sys, threading, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks with threads
        from numfuse.backends import cpu
        from numfuse.backends.cpu_kernels import KernelSource
        cpu.cache.safe_directory = lambda create: None
        def kernel(k):
            return cpu.compile_kernel(KernelSource({SOURCE.text!r} + "# " + str(k), {SOURCE.name!r}))
        other = threading.Thread(target=lambda: [kernel(k) for k in range(4)])
        other.start()
        for k in range(3):
            time.sleep(0.05)
            child = os.fork()
            if child == 0:
                kernel(100 + k)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        other.join()
        print("done")
    """
    assert python(program) == "done"
