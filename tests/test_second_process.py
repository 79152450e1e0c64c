"""A second process answers calls on GPU arrays from the disk cache: no Numba, the same launches.

The arrays are those of a stand-in for CuPy, whose memory is the host's; the driver is a stand-in as well, which
records launches. So this runs without a GPU, and what is asserted is what a real driver would have been told.
"""

from __future__ import annotations

import struct
import textwrap
from pathlib import Path

import pytest
import stand_in

pytestmark = pytest.mark.cuda_compile

CUPY = '''
"""As much of CuPy as numfuse reads: arrays over host memory, one device, one current stream."""

import ctypes
import math
import types

import numpy as np

allocated = []  # in order, for the test


class MemoryPointer:
    def __init__(self, ptr, owner):
        self.ptr, self.owner, self.device_id = ptr, owner, 0


def alloc(nbytes):
    raw = ctypes.create_string_buffer(nbytes + 512)
    return MemoryPointer((ctypes.addressof(raw) + 511) // 512 * 512, raw)


class ndarray:
    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self.dtype, self.shape = np.dtype(dtype), tuple(shape)
        self.data = alloc(math.prod(self.shape) * self.dtype.itemsize) if memptr is None else memptr
        if memptr is None:
            allocated.append(self)
        self.strides = strides or np.empty(self.shape, self.dtype, order).strides

    def __getitem__(self, index):
        picture = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)[index]
        start = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        offset = 0
        for part, step in zip(index if isinstance(index, tuple) else (index,), start.strides):
            offset += (part.start or 0) * step
        there = MemoryPointer(self.data.ptr + offset, self.data)
        return ndarray(picture.shape, self.dtype, there, picture.strides)


class Stream:
    ptr = 0x5000


class Runtime:
    getDeviceCount = staticmethod(lambda: 1)
    getDevice = staticmethod(lambda: 0)


cuda = types.SimpleNamespace(get_current_stream=lambda device=None: Stream, runtime=Runtime, alloc=alloc)
'''

GRADING = """
import numpy as np
from numfuse import fuse

def clip01(v):
    return np.minimum(np.maximum(v, 0), 1)

@fuse
def tone(x, y, gain=1.5):
    return clip01(gain * x) + y, x > y

@fuse
def shapes(x, y):
    return x + 1, y * 2

table = np.ones(100, np.float32)

@fuse
def shifted(x):
    return (x + table,)

@fuse(exact=True)
def exact(x, y, gain=1.5):
    return clip01(gain * x) + y, x > y
"""

START = """
import sys
sys.path.insert(0, {folder!r})
import cupy
import numpy as np
from grading import exact, shapes, tone

def heavy():
    return sorted({{"numba", "llvmlite", "numba_cuda"}} & set(sys.modules))

def launched(function, *args, arguments):
    recorded.arguments(arguments)
    before, new = len(recorded.launches()), len(cupy.allocated)
    results = function(*args)
    (launch,) = recorded.launches()[before:]
    assert [r for r in results] == cupy.allocated[new:]
    assert launch.stream == 0x5000 and launch.shared == 0
    return results, launch
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for CuPy, a module of fused functions, and room for a cache."""
    path = tmp_path_factory.mktemp("second_process")
    (path / "cupy.py").write_text(CUPY)
    (path / "grading.py").write_text(GRADING)
    return path


def run(folder: Path, code: str, cache: str = "cache") -> str:
    """What a process of its own prints."""
    whole = START.format(folder=str(folder)) + textwrap.dedent(code)
    return stand_in.run(whole, NUMFUSE_CACHE_DIR=str(folder / cache)).strip()


CALLS = """
x, y = (cupy.ndarray((100, 50), np.float32) for _ in range(2))
assert heavy() == []

(total, above), launch = launched(tone, x, y, arguments=6)
assert (total.dtype, total.shape, above.dtype, above.shape) == (np.float32, (100, 50), np.bool_, (100, 50))
words = launch.words
assert words[:5] == [5000, x.data.ptr, y.data.ptr, total.data.ptr, above.data.ptr], words
print(launch.grid, launch.block, words[5])

(total, _), launch = launched(tone, x, y, 2.5, arguments=6)
assert launch.words[3] == total.data.ptr
print(launch.grid, launch.block, launch.words[5])

(_, _), launch = launched(tone, cupy.ndarray((1 << 22,), np.float32), cupy.ndarray((1 << 22,), np.float32), arguments=6)
print(launch.grid, launch.block, launch.words[0])

shift = cupy.ndarray((5001,), np.float32)[1:]
flat = cupy.ndarray((5000,), np.float32)
(total, _), launch = launched(tone, shift, flat, arguments=6)
assert launch.words[1] % 16 == 4 and launch.words[1:3] == [shift.data.ptr, flat.data.ptr]

row = cupy.ndarray((50,), np.int8)
(first, second), launch = launched(shapes, x, row, arguments=6)
assert (first.shape, first.dtype, second.shape, second.dtype) == ((100, 50), np.float32, (50,), np.int8)
assert set(launch.words) == {5000, 50, *(a.data.ptr for a in (x, row, first, second))}

step = x[:, ::2]
(total, _), launch = launched(tone, step, step, arguments={strided})
assert total.shape == (100, 25)

print(heavy())
"""


def strided_arguments(folder: Path) -> int:
    """How many arguments the kernel for two strided operands has, as its text says."""
    code = """
    import ast
    step = cupy.ndarray((100, 50), np.float32)[:, ::2]
    recorded.arguments(64)
    text = tone.explain(step, step).kernel
    kernel = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)][-1]
    print(len(kernel.args.args))
    """
    return int(run(folder, code, "explained"))


def test_the_second_process_does_not_import_numba(folder: Path) -> None:
    code = CALLS.replace("{strided}", str(strided_arguments(folder)))
    first = run(folder, code).split("\n")
    second = run(folder, code).split("\n")
    assert first[:3] == second[:3]
    assert "numba" in first[3]
    assert second[3] == "[]"
    (grid, block, gain), (_, _, changed), (large, _, size) = (map(int, line.split()) for line in second[:3])
    assert size == 1 << 22
    # A thread takes the four elements of a 16-byte load, and there are enough of them for one turn each.
    assert (grid, large) == (-(-5000 // (4 * block)), size // (4 * block))
    for word, number in ((gain, 1.5), (changed, 2.5)):
        assert struct.unpack("<fI", struct.pack("<Q", word)) == (number, 0)


def test_other_options_are_other_machine_code(folder: Path) -> None:
    code = """
    x = cupy.ndarray((100,), np.float32)
    for function in (tone, exact):
        launched(function, x, x, arguments=6)
        print(bool(heavy()))
    """
    assert run(folder, code, "options").split() == ["True", "True"]
    assert run(folder, code, "options").split() == ["False", "False"]
    assert len(list((folder / "options").rglob("*.cubin"))) == 2


def test_a_spoilt_cache_is_compiled_around(folder: Path) -> None:
    code = """
    x = cupy.ndarray((100,), np.float32)
    launched(tone, x, x, arguments=6)
    print(bool(heavy()))
    """
    assert run(folder, code, "spoilt") == "True"
    assert run(folder, code, "spoilt") == "False"
    for path in (folder / "spoilt").rglob("*"):
        if path.is_file() and "cubin" in path.name:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert run(folder, code, "spoilt") == "True"


def test_empty_arrays_launch_nothing(folder: Path) -> None:
    code = """
    x = cupy.ndarray((0, 5), np.float32)
    total, above = tone(x, x)
    assert (type(total), total.shape, total.dtype) == (cupy.ndarray, (0, 5), np.float32)
    assert (above.shape, above.dtype) == ((0, 5), np.bool_)
    print(len(recorded.launches()), heavy())
    """
    assert run(folder, code, "empty") == "0 []"


def test_host_and_device_arrays_do_not_mix(folder: Path) -> None:
    code = """
    x = cupy.ndarray((5,), np.float32)
    for args in ((x, np.ones(5)), (np.ones(5), x)):
        try:
            tone(*args)
        except TypeError as error:
            print(error)
    for number in (np.float32(2), 2, True):
        launched(tone, x, number, arguments=6)
    """
    first, second = run(folder, code).split("\n")
    assert first == (
        "argument 'y' is a NumPy array in host memory and argument 'x' is a cupy array on a GPU; nothing is copied "
        "behind your back: move one of them to where the other is"
    )
    assert second.startswith("argument 'x' is a NumPy array in host memory and argument 'y' is a cupy array on a GPU")


def test_alignment_is_asked_of_vectors_only(folder: Path) -> None:
    code = """
    def view(shape, offset, strides=None):
        whole = cupy.ndarray((4096,), np.uint8)
        there = cupy.MemoryPointer(whole.data.ptr + offset, whole.data)
        return cupy.ndarray(shape, np.float32, there, strides)

    x = cupy.ndarray((512,), np.float32)
    (_, first) = launched(tone, x, x, arguments=6)
    # One element, or elements apart, at a multiple of 4: no other kernel than for multiples of 16.
    square = view((16, 16), 0, (96, 4))
    for one, other, count in ((x, view((), 4), 6), (square, view((16, 16), 4, (4, 64)), 16)):
        aligned = view(other.shape, 0, other.strides)
        (_, wide) = launched(tone, one, aligned, arguments=count)
        (_, same) = launched(tone, one, other, arguments=count)
        assert (wide.function, wide.grid) == (same.function, same.grid)
    (_, narrow) = launched(tone, view((512,), 4), x, arguments=6)
    assert narrow.function != first.function
    before = len(recorded.launches())
    for arguments in (
        (x, view((512,), 2)),
        (x, view((), 2)),
        (view((8, 2), 0, (10, 4)), view((8, 2), 0)),
    ):
        try:
            tone(*arguments)
        except TypeError as error:
            print(error)
    assert len(recorded.launches()) == before
    """
    first, second, third = run(folder, code, "alignment").split("\n")
    assert first == (
        "argument 'y' has elements of 4 bytes and starts at an address that is not a multiple of 4, where a GPU can't "
        "load it: copy it first"
    )
    assert second == first
    assert third == (
        "argument 'x' has elements of 4 bytes and strides that are no multiples of 4, where a GPU can't load them: "
        "copy it first"
    )


def test_streams_of_arrays_are_ordered(folder: Path) -> None:
    # As with Numba's arrays, each of which may be bound to a stream.
    code = """
    from numfuse.arrays.cupy_arrays import CupyAdapter
    CupyAdapter.stream_of_array, CupyAdapter.stream_code = True, "{}.stream"
    x, y = (cupy.ndarray((100,), np.float32) for _ in range(2))
    x.stream = y.stream = 0x5000
    launched(tone, x, y, arguments=6)
    assert recorded.events() == []
    y.stream = 0x6000
    launched(tone, x, y, arguments=6)
    kinds = [(kind, stream) for kind, _, stream in recorded.events() if kind in ("record", "wait")]
    assert kinds == [("record", 0x6000), ("wait", 0x5000), ("record", 0x5000), ("wait", 0x6000)], kinds
    """
    run(folder, code, "streams")


def test_a_captured_array_of_another_library(folder: Path) -> None:
    code = """
    import grading
    from grading import shifted
    x = cupy.ndarray((100,), np.float32)
    try:
        shifted(x)
    except TypeError as error:
        print(error)
    grading.table = x
    (result,), _ = launched(shifted, x, arguments=4)
    assert result.shape == (100,)
    """
    assert run(folder, code, "captured").startswith(
        "captured array 'table' is a NumPy array in host memory and argument 'x' is a cupy array on a GPU;"
    )
