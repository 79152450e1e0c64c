"""Fused functions on a real device: values, libraries, streams, layouts, the text that explain() prints."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import random_functions
import test_random_functions
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from numfuse import FusionError, FusionTypeError, fuse

pytestmark = pytest.mark.gpu

FUNCTIONS = int(os.environ.get("NUMFUSE_RANDOM_FUNCTIONS", "110"))


def clip01(v: Any) -> Any:
    return np.minimum(np.maximum(v, 0), 1)


@fuse(exact=True)
def tone(x: Any, gain: Any = 1.0, offset: Any = 0.25) -> Any:
    return clip01(gain * x + offset), x > offset


@fuse(exact=True)
def affine(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def test_every_library_gets_its_own_arrays_back(device_kind: Any) -> None:
    x = np.linspace(-1, 2, 1001, dtype=np.float32)
    got = tone(device_kind.from_numpy(x), 1.5)
    want = tone.py_func(x, 1.5)
    for one, other in zip(got, want, strict=True):
        assert isinstance(one, device_kind.array_type)
        np.testing.assert_array_equal(device_kind.to_numpy(one), other, strict=True)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 31, 1000, 4097, 1 << 20])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "bool"])
def test_sizes(device_kind: Any, size: int, dtype: str) -> None:
    values = [random_functions.values(dtype, (size,), seed) for seed in range(3)]
    with np.errstate(all="ignore"):
        want = affine.py_func(*values)
    got = device_kind.to_numpy(affine(*map(device_kind.from_numpy, values)))
    np.testing.assert_array_equal(got, want, strict=True)


def test_views_of_every_sort(device_kind: Any) -> None:
    base = np.random.default_rng(0).normal(size=(6, 8, 10)).astype(np.float32)
    whole = device_kind.from_numpy(base)
    views = [np.s_[1:], np.s_[:, 1:, ::2], np.s_[:, :, 3], np.s_[2:3], np.s_[:, :, 1:]]
    if device_kind.name == "cupy":  # torch and Numba have no negative steps
        views += [np.s_[::-1], np.s_[:, ::-1, ::-2]]
    for view in views:
        x = base[view]
        row = np.ascontiguousarray(x[0])
        got = affine(whole[view], device_kind.from_numpy(row), 2.0)
        np.testing.assert_array_equal(device_kind.to_numpy(got), x * row + np.float32(2), strict=True)


def test_misaligned_addresses() -> None:
    cupy = pytest.importorskip("cupy")
    base = cupy.arange(1003, dtype=np.float32)
    for start in range(4):
        x = base[start : start + 999]
        np.testing.assert_array_equal(cupy.asnumpy(affine(x, x, x)), affine.py_func(*[cupy.asnumpy(x)] * 3))
    raw = cupy.zeros(4001, np.uint8)[1:].view(np.uint8)
    odd = cupy.ndarray((1000,), np.float32, raw.data)
    with pytest.raises(FusionTypeError, match="not a multiple of"):
        affine(odd, odd, odd)


def test_orders(device_kind: Any) -> None:
    if device_kind.name == "numba":
        pytest.skip("a transposed Numba array has no .T of more than two dimensions in C order")
    x = np.random.default_rng(1).normal(size=(33, 65)).astype(np.float32)
    y = np.ascontiguousarray(x.T)
    got = affine(device_kind.from_numpy(x), device_kind.from_numpy(y).T, 1.0)
    np.testing.assert_array_equal(device_kind.to_numpy(got), x * x + np.float32(1), strict=True)
    transposed = affine(device_kind.from_numpy(x).T, 2.0, 1.0)
    np.testing.assert_array_equal(device_kind.to_numpy(transposed), x.T * 2 + 1, strict=True)


def test_unrelated_shapes_are_one_launch(device_kind: Any) -> None:
    @fuse
    def several(x: Any, y: Any) -> Any:
        return x + 1, y * 2, x

    x, y = np.arange(5.0), np.arange(7.0, dtype=np.float32)
    one, other, same = several(device_kind.from_numpy(x), device_kind.from_numpy(y))
    np.testing.assert_array_equal(device_kind.to_numpy(one), x + 1, strict=True)
    np.testing.assert_array_equal(device_kind.to_numpy(other), y * 2, strict=True)
    np.testing.assert_array_equal(device_kind.to_numpy(same), x, strict=True)


def test_work_runs_on_the_current_stream_of_torch() -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    with torch.cuda.stream(stream):
        # Compiling, loading torch's own kernel and taking memory for this stream wait for the device.
        x += 0
        affine(x, x, x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)  # cycles: what follows on this stream must wait for about a second
        x += 1
        y = affine(x, x, x)
    # Nothing waited for the device.
    assert not stream.query()
    stream.synchronize()
    assert float(y.min()) == float(y.max()) == 2.0


def test_numba_arrays_of_different_streams_are_ordered() -> None:
    cuda = pytest.importorskip("numba.cuda")
    one, other = cuda.stream(), cuda.stream()
    ones = np.ones(1 << 24, np.float32)
    x, y = (cuda.to_device(0 * ones).bind(stream) for stream in (one, other))
    affine(x, y, x)
    cuda.synchronize()
    y.copy_to_device(ones, stream=other)
    for k in range(2, 6):
        # Each copy comes after the kernel before it has read, and before the next one reads.
        result = affine(x, y, y)
        y.copy_to_device(k * ones, stream=other)
        assert int(result.stream.handle) == int(one.handle)
        got = result.copy_to_host(stream=one)
        one.synchronize()
        assert set(np.unique(got)) == {k - 1}


def test_work_runs_on_the_current_stream_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    affine(*[cupy.zeros(1 << 22, np.float32)] * 3)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1 << 22, np.float32)
        for _ in range(50):
            x += 1
        y = affine(x, x, x)
    stream.synchronize()
    assert float(y.min()) == float(y.max()) == 50.0 * 50 + 50


def test_torch_graph_capture() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(1000, device="cuda", dtype=torch.float32)
    affine(x, x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = affine(x, x, x)
    x += 1
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(y.cpu().numpy(), (x * x + x).cpu().numpy())


def test_refusals() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, device="cuda")
    with pytest.raises(FusionTypeError, match="'y' is a NumPy array in host memory"):
        affine(x, np.ones(3, np.float32), 1.0)
    with pytest.raises(FusionError, match="requires grad"):
        affine(x, torch.ones(3, device="cuda", requires_grad=True), 1.0)
    with torch.no_grad():
        affine(x, torch.ones(3, device="cuda", requires_grad=True), 1.0)
    with pytest.raises(FusionTypeError, match="device='cpu'"):
        fuse(device="cpu")(lambda v: v + 1)(x)


def test_exact_and_contracted() -> None:
    cupy = pytest.importorskip("cupy")
    values = [np.random.default_rng(k).normal(size=100_000).astype(np.float32) for k in range(3)]
    want = affine.py_func(*values)
    arrays = [cupy.asarray(v) for v in values]
    np.testing.assert_array_equal(cupy.asnumpy(affine(*arrays)), want)
    contracted = cupy.asnumpy(fuse(affine.py_func)(*arrays))
    exact = [v.astype(np.float64) for v in values]
    once = (exact[0] * exact[1] + exact[2]).astype(np.float32)
    assert (contracted != want).any()
    assert (contracted != once).mean() < 1e-4  # rounded once (the float64 sum rounds too, rarely visibly)


@pytest.mark.filterwarnings("ignore:.*Grid size")  # Numba finds small grids worth a warning
def test_the_printed_kernel_is_a_kernel() -> None:
    """explain() prints a complete program: through Numba's own dispatcher it gives the same bits."""
    cupy = pytest.importorskip("cupy")
    from numba import cuda

    @fuse
    def shade(x: Any, y: Any, gain: Any) -> Any:
        if x > y:
            return np.sqrt(x) * gain
        return np.exp(y)

    x = cupy.linspace(0.1, 2, 1003, dtype=np.float32)
    y = cupy.full(1003, 0.7, np.float32)
    got = shade(x, y, 1.25)
    explanation = shade.explain(x, y, 1.25)
    assert "@cuda.jit" in explanation.kernel
    assert explanation.counts["loads_16_bytes"] >= 2
    assert explanation.counts["stores_16_bytes"] >= 1
    assert explanation.counts["f64"] == 0
    namespace: dict[str, Any] = {}
    exec(compile(explanation.kernel, "<explained>", "exec"), namespace)
    out = cupy.empty_like(x)
    words = [np.int64(1003), *(np.uint64(a.data.ptr) for a in (x, y, out)), np.float32(1.25)]
    stream = cuda.external_stream(cupy.cuda.get_current_stream().ptr)
    namespace["shade"][8, 128, stream](*words)
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), cupy.asnumpy(got))


SECOND_PROCESS = """
import sys
import cupy, numpy as np
sys.path.insert(0, {tests!r})
from numfuse import fuse
import fused_in_a_file
x = cupy.arange(1000, dtype=np.float32)
got = fused_in_a_file.function(x, 2.0)
assert float(got[3]) == 3 * 2.0 + 1, got[:5]
print("numba" in sys.modules)
"""


def test_a_second_process_does_not_import_numba(tmp_path: Any) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "fused_in_a_file.py").write_text(
        "import numpy as np\nfrom numfuse import fuse\n\n\ndef helper(v):\n    return v + 1\n\n\n"
        "@fuse\ndef function(x, gain):\n    return helper(x * gain)\n"
    )
    environment = {**os.environ, "NUMFUSE_CACHE_DIR": str(tmp_path / "cache")}
    text = SECOND_PROCESS.format(tests=str(tmp_path))
    answers = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.strip())
    assert answers == ["True", "False"]


@settings(
    max_examples=FUNCTIONS,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(drawn=random_functions.functions(), seed=st.integers(0, 10_000))
def _random_functions_on_the_device(drawn: random_functions.Drawn, seed: int) -> None:
    import cupy

    fused = fuse(exact=True)(drawn.function)

    def through_the_device(*args: Any) -> Any:
        sent = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        got = fused(*sent)
        fetch = lambda r: cupy.asnumpy(r) if isinstance(r, cupy.ndarray) else r  # noqa: E731
        return tuple(map(fetch, got)) if isinstance(got, tuple) else fetch(got)

    through_the_device.fused = fused  # type: ignore[attr-defined]
    for arrays in random_functions.layouts(drawn.dtypes, seed):
        try:
            test_random_functions.compare(drawn, arrays, through_the_device, scalars_are_arrays=True)
        except Exception as error:
            error.add_note(drawn.source)
            error.add_note(f"arguments: {[(a.dtype, a.shape) for a in arrays]} {drawn.scalars} seed {seed}")
            raise


def test_random_functions_on_the_device() -> None:
    pytest.importorskip("cupy")
    test_random_functions.counts.clear()
    _random_functions_on_the_device()
    counts = test_random_functions.counts
    print(dict(counts))
    assert counts["drawn"] >= 5 * FUNCTIONS * 0.9
    assert counts["refused"] <= test_random_functions.MAX_REFUSED * counts["drawn"]
