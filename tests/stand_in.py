"""Python with the stand-in CUDA driver of ``fake_driver/``: for the launch path, where there is no GPU.

The code runs in a process of its own, whose ``libcuda.so.1`` is the stand-in. It may use ``recorded``:

``recorded.arguments(n)``
    Launches from now on have n arguments (a real driver reads that from the kernel's code).
``recorded.launches()``
    One object a launch: ``function, stream, context, grid, block, shared`` and ``words``, the arguments.
``recorded.events()``
    ``("create" | "record" | "wait" | "destroy" | "synchronise", event, stream)``, in order.
``recorded.fail_next(code)``
    The next launch answers with this error.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_SOURCE = _HERE / "fake_driver" / "stand_in.c"


@functools.cache
def library_folder() -> Path:
    """The folder of the built stand-in; skips the test where there is no C compiler (or no Linux)."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("the stand-in driver needs Linux and a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="numfuse-stand-in-"))
    command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*command, str(_SOURCE)], check=True, capture_output=True)
    return folder


def run(code: str, **environment: str) -> str:
    """Run `code` with the stand-in driver; what it printed. Its failure is the test's."""
    pytest.importorskip("cuda.bindings.driver", reason="the launch path needs cuda-bindings")
    paths = os.pathsep.join([str(_HERE), *(p for p in sys.path if p)])
    variables = {**os.environ, "LD_LIBRARY_PATH": str(library_folder()), "PYTHONPATH": paths, **environment}
    prologue = "from stand_in import Recorded\nrecorded = Recorded()\n"
    command = [sys.executable, "-W", "error", "-c", prologue + code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


class Recorded:
    """What the stand-in driver of this process has recorded."""

    def __init__(self) -> None:
        import ctypes

        class Launch(ctypes.Structure):
            _fields_ = (
                *((name, ctypes.c_uint64) for name in ("function", "stream", "context")),
                *((name, ctypes.c_uint32) for name in ("grid", "block", "shared", "count")),
                ("all_words", ctypes.c_uint64 * 64),
            )

            @property
            def words(self) -> list[int]:
                return list(self.all_words[: self.count])

        class Event(ctypes.Structure):
            _fields_ = tuple((name, ctypes.c_uint64) for name in ("kind", "first", "second"))

        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.stand_in_launch.restype = ctypes.POINTER(Launch)
        self._library.stand_in_event.restype = ctypes.POINTER(Event)
        self.arguments = self._library.stand_in_arguments
        self.fail_next = self._library.stand_in_fail_next

    def launches(self) -> list:
        return [self._library.stand_in_launch(i).contents for i in range(self._library.stand_in_launches())]

    def events(self) -> list[tuple[str, int, int]]:
        kinds = {1: "create", 2: "record", 3: "wait", 4: "destroy", 9: "synchronise"}
        found = [self._library.stand_in_event(i).contents for i in range(self._library.stand_in_events())]
        return [(kinds[e.kind], e.first, e.second) for e in found]
