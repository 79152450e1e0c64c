"""The launch path: what reaches the CUDA driver, recorded by a stand-in for it."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import stand_in
from conftest import why_no_gpu

from numfuse.backends import driver
from numfuse.backends.element import words_format
from numfuse.errors import FusionError, FusionNotImplementedError

CUBIN = "b'\\x7fELF' + bytes(60)"


def test_words_are_eight_bytes_each_low_bytes_first():
    dtypes = [np.dtype(t) for t in ("?", "i1", "u2", "i4", "u4", "f4", "f8", "i8", "u8")]
    values = (True, -1, 65535, -2, 7, 1.5, 2.5, -3, 2**64 - 1)
    packed = struct.pack(words_format(dtypes), *values)
    assert len(packed) == 8 * len(dtypes)
    for k, (dtype, value) in enumerate(zip(dtypes, values, strict=True)):
        word = packed[8 * k : 8 * k + 8]
        assert np.frombuffer(word[: dtype.itemsize], dtype)[0] == value
        assert not any(word[dtype.itemsize :])


def test_words_of_another_dtype_are_refused():
    with pytest.raises(FusionNotImplementedError, match="float16"):
        words_format([np.dtype("f8"), np.dtype("f2")])


def test_a_launch_reaches_the_driver():
    stand_in.run(f"""
import sys, struct
import numpy as np
from numfuse.backends import driver
from numfuse.backends.element import words_format
assert driver.device_count() == 1
assert driver.compute_capability(0) == (9, 0)
assert driver.current_device() is None
function = driver.load({CUBIN}, "tone", 0)
assert driver.current_device() == 0
format = words_format([np.dtype(t) for t in ("i8", "u8", "u8", "f4", "?")])
launcher = driver.Launcher(function, format, 512)
recorded.arguments(5)
launcher.launch(7, 0x3000, 1000, 1 << 40, 2**64 - 16, np.float32(1.5), np.bool_(True))
launcher.launch(8, 0, -1, 1, 2, 0.25, False)
first, second = recorded.launches()
assert (first.grid, first.block, first.shared, first.stream) == (7, 512, 0, 0x3000)
small = struct.unpack("<QQ", struct.pack("<f4x?7x", 1.5, True))
assert first.words == [1000, 1 << 40, 2**64 - 16, *small], first.words
assert (second.grid, second.stream, second.words[0], second.words[4]) == (8, 0, 2**64 - 1, 0)
assert first.function == second.function == int(function.function)
assert first.context == 0xC000
assert recorded.events() == []  # nothing waited
assert not {{"numba", "llvmlite"}} & set(sys.modules)
""")


def test_values_that_do_not_fit_are_errors_and_nothing_is_launched():
    stand_in.run(f"""
import struct
import numpy as np
from numfuse.backends import driver
from numfuse.backends.element import words_format
launcher = driver.Launcher(driver.load({CUBIN}, "tone", 0), words_format([np.dtype("i1")]), 128)
for values in ((300,), (1.5,), (), (1, 2)):
    try:
        launcher.launch(1, 0, *values)
    except struct.error:
        continue
    raise AssertionError(values)
assert recorded.launches() == []
""")


def test_errors_have_the_drivers_name_and_text():
    stand_in.run(f"""
from numfuse.backends import driver
from numfuse.errors import FusionError
launcher = driver.Launcher(driver.load({CUBIN}, "tone", 0), "<", 128)
recorded.fail_next(719)
try:
    launcher.launch(3, 0)
except RuntimeError as error:
    assert isinstance(error, driver.DriverError) and isinstance(error, FusionError)
    assert error.code == 719
    text = str(error)
    assert text == ("launching kernel tone (3 blocks of 128 threads) failed: "
                    "CUDA_ERROR_LAUNCH_FAILED (text of the error)"), text
else:
    raise AssertionError
launcher.launch(3, 0)
for cubin, entry in ((b"none" * 9, "tone"), ({CUBIN}, "missing")):
    try:
        driver.load(cubin, entry, 0)
    except driver.DriverError as error:
        assert f"loading kernel {{entry}} on device 0 failed" in str(error)
    else:
        raise AssertionError
""")


def test_a_launch_inside_of_a_launch_has_its_own_buffer():
    stand_in.run(f"""
import numpy as np
from numfuse.backends import driver
from numfuse.backends.element import words_format
launcher = driver.Launcher(driver.load({CUBIN}, "tone", 0), words_format([np.dtype("i8")] * 2), 32)
recorded.arguments(2)
original = driver._launch_kernel
def interrupted(*args):
    driver._launch_kernel = original
    launcher.launch(1, 0, 3, 4)  # as a signal handler may do
    return original(*args)
for _ in range(2):
    driver._launch_kernel = interrupted
    launcher.launch(1, 0, 1, 2)
assert [launch.words for launch in recorded.launches()] == [[3, 4], [1, 2]] * 2
assert len(launcher.words.free) == 2
""")


def test_threads_have_their_own_buffers_and_get_a_context():
    stand_in.run(f"""
import sys, threading
import numpy as np
from numfuse.backends import driver
from numfuse.backends.element import words_format
sys.setswitchinterval(1e-6)
launcher = driver.Launcher(driver.load({CUBIN}, "tone", 0), words_format([np.dtype("i8")] * 2), 32)
recorded.arguments(2)
def work(k):
    for i in range(200):
        launcher.launch(1, k, k, k * 1000 + i)
threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 6)]
for t in threads: t.start()
for t in threads: t.join()
launches = recorded.launches()
assert len(launches) == 1000
for launch in launches:
    assert launch.words[0] == launch.stream == launch.words[1] // 1000
assert len({{tuple(launch.words) for launch in launches}}) == 1000
""")


def test_several_devices_keep_the_callers_current_one():
    stand_in.run(
        f"""
from cuda.bindings import driver as cuda
from numfuse.backends import driver
assert driver.device_count() == 2
launchers = [driver.Launcher(driver.load({CUBIN}, "tone", k), "<", 32) for k in (0, 1)]
assert driver.current_device() == 0  # the first that was needed; loading on the other left it so
launchers[1].launch(1, 0)
launchers[0].launch(1, 0)
assert driver.current_device() == 0
with driver.on_device(1):
    assert driver.current_device() == 1
    launchers[0].launch(1, 0)
    assert driver.current_device() == 1
assert [launch.context for launch in recorded.launches()] == [0xC001, 0xC000, 0xC000]
""",
        STAND_IN_DEVICES="2",
    )


def test_streams_are_ordered_by_an_event_and_nobody_waits():
    stand_in.run("""
from numfuse.backends import driver
driver.order(5, 6, 0)
driver.order(6, 6, 0)
kinds = [event[0] for event in recorded.events()]
assert kinds == ["create", "record", "wait", "destroy"], kinds
create, record, wait, destroy = recorded.events()
assert create[1] == 2  # no timing
assert record[2] == 5 and wait[2] == 6 and record[1] == wait[1] == destroy[1]
""")


def test_after_a_fork_the_child_is_told_why():
    stand_in.run(f"""
import os
from numfuse.backends import driver
from numfuse.backends.element import words_format
launcher = driver.Launcher(driver.load({CUBIN}, "tone", 0), "<", 32)
child = os.fork()
if child == 0:
    for use in (lambda: launcher.launch(1, 0), lambda: driver.load({CUBIN}, "tone", 0)):
        try:
            use()
        except driver.DriverError as error:
            if "forked" not in str(error) or "spawn" not in str(error):
                os._exit(2)
        else:
            os._exit(3)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
launcher.launch(1, 0)
assert len(recorded.launches()) == 1
""")


@pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("cuda.bindings", "from numfuse.backends import driver; driver.device_count()"),
        ("_numba_cuda_redirector", "import numfuse.backends.cuda"),
        ("numba.cuda", "import _numba_cuda_redirector, numfuse.backends.cuda"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(missing, use):
    code = f"""
import sys
sys.modules[{missing!r}] = None
from numfuse.errors import FusionError
try:
    {use}
except ImportError as error:
    assert isinstance(error, FusionError), error
    assert 'pip install "numfuse[cu13]"' in str(error), error
else:
    raise AssertionError("no error")
"""
    if missing == "numba.cuda":
        pytest.importorskip("numba_cuda")
    paths = [p for p in sys.path if p]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(why_no_gpu() is None, reason="this machine has a GPU")
def test_without_a_driver_the_error_says_so():
    pytest.importorskip("cuda.bindings.driver")
    with pytest.raises(RuntimeError, match="driver") as caught:
        driver.device_count()
    assert isinstance(caught.value, FusionError)


def test_errors_survive_pickling():
    copy = pickle.loads(pickle.dumps(driver.DriverError("no device", 100)))
    assert (str(copy), copy.code) == ("no device", 100)


@pytest.mark.cuda_compile
def test_a_second_process_runs_a_cached_kernel_without_numba(tmp_path):
    code = """
import sys
import numpy as np
from numfuse.backends import driver
from numfuse.backends.cuda_kernels import kernel_source
from numfuse.backends.cuda_store import gpu_kernel
from numfuse.backends.element import Access, Argument, ElementFunction, Nest
f4 = np.dtype("f4")
operands = tuple(Argument(n, f4) for n in "xyz")
text = "def fma(x, y, z):\\n    return (x * y + z,)\\n"
element = ElementFunction("fma", text, operands, (), (Argument("out", f4),))
source = kernel_source((Nest(element, 1, (Access.DENSE,) * 3, (Access.DENSE,)),), "fma_kernel")
cubin, entry, info = gpu_kernel(source, driver.compute_capability(0))
launcher = driver.Launcher(driver.load(cubin, entry, 0), source.format, source.block)
recorded.arguments(len(source.parameters))
launcher.launch(source.grid(5000), 0, 5000, 16, 32, 48, 64)
(launch,) = recorded.launches()
assert launch.words == [5000, 16, 32, 48, 64]
assert (launch.grid, launch.block) == (3, 512)
assert entry == "fma_kernel" and info["counts"]["loads_16_bytes"] == 3
print(info["cached"], "numba" in sys.modules or "llvmlite" in sys.modules)
"""
    assert stand_in.run(code, NUMFUSE_CACHE_DIR=str(tmp_path)).split() == ["False", "True"]
    assert stand_in.run(code, NUMFUSE_CACHE_DIR=str(tmp_path)).split() == ["True", "False"]
    assert stand_in.run(code, NUMFUSE_CACHE_DIR=str(tmp_path), NUMFUSE_CACHE="0").split() == ["False", "True"]
