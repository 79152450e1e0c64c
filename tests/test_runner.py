"""The functions that are written for the calls of one plan."""

from __future__ import annotations

import gc
import linecache
import signal
import warnings
from typing import Any

import numpy as np
import pytest

from numfuse import FusionError, fuse
from numfuse.backends import cpu
from numfuse.backends.cpu_kernels import KernelSource
from numfuse.errors import FusionOverflowError
from numfuse.runner import conversion


@fuse
def scaled(x: Any, gain: Any) -> Any:
    return x * gain + 1


def runner_texts() -> set[str]:
    return {name for name in linecache.cache if name.startswith("<numfuse call of ")}


def test_every_runner_has_a_file_name_of_its_own_for_as_long_as_it_lives() -> None:
    def fresh() -> Any:
        return fuse(scaled.py_func)

    gc.collect()
    before = runner_texts()
    alive = []
    for size in range(1, 6):
        alive.append(fresh())
        alive[-1](np.ones(size), 2.0)
        fresh()(np.ones(size), 2.0)  # comes and goes
    gc.collect()
    assert len(runner_texts() - before) == 5
    del alive[:]
    gc.collect()
    assert runner_texts() <= before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_a_signal_handler_may_call_the_same_function() -> None:
    x, inner = np.arange(50, dtype=np.float32), np.full(50, 7, np.float32)
    wanted, other = scaled.py_func(x, 2.0), scaled.py_func(inner, 3.0)
    scaled(x, 2.0)
    met = []

    def handler(*_: object) -> None:
        met.append(bool((scaled(inner, 3.0) == other).all()))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        for _ in range(20_000):
            assert scaled(x, 2.0).tobytes() == wanted.tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert met
    assert all(met)


def test_numbers_are_converted_as_numpy_does_without_a_warning() -> None:
    i4, f4 = np.dtype(np.int32), np.dtype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(conversion(i4, None)(np.float64("nan"))) is int
        assert conversion(i4, None)(np.int64(2**40 + 5)) == 5
        assert conversion(f4, None)(1e300) == float("inf")
        assert conversion(f4, None)(0.1) == 0.1  # packing rounds it
        assert conversion(np.dtype(bool), None)(np.bool_(True)) is True
    with pytest.raises(FusionOverflowError, match="3000000000 out of bounds for int32"):
        conversion(i4, None)(3_000_000_000)


@pytest.mark.parametrize("folder", [True, False])
def test_what_numba_refuses_is_an_error_of_ours(folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not folder:
        monkeypatch.setattr(cpu.cache, "safe_directory", lambda create: None)
    text = "from numba import njit\n\n\n@njit\ndef bad_kernel(a, b, c):\n    return undefined_name\n"
    with pytest.raises(FusionError, match=r"(?s)Numba refused kernel bad_kernel.*undefined_name") as caught:
        cpu.compile_kernel(KernelSource(text, "bad_kernel"))
    assert caught.value.__cause__ is not None
