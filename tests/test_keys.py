"""Which calls are told apart, whose method is lowered for which object, and locks after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from comparing import X, same

from numfuse import FusionAttributeError, FusionTypeError, fuse
from numfuse.keys import signer, unchanged

# --------------------------------------------------------------------------------------------------------
# Keys


@pytest.mark.parametrize(("one", "other"), [(np.str_("a"), np.str_("b")), (np.bytes_(b"a"), np.bytes_(b"b"))])
def test_numpy_strings_are_told_apart(one, other):
    fused = fuse(lambda x, mode: x + 1 if mode == one else x * 3)
    for mode in (one, other, one):
        same(fused(X, mode), X + 1 if mode == one else X * 3)


@pytest.mark.parametrize("wrap", [lambda v: (v, 2), lambda v: [v], lambda v: {"v": v}, lambda v: ([v],)])
def test_a_plain_call_says_nothing_of_what_the_next_container_holds(wrap):
    fused = fuse(lambda v: v)
    for _ in range(2):
        assert fused(wrap(1)) == wrap(1)
        with pytest.raises(FusionTypeError, match=r"^argument 'v' is a (tuple|list|dict) that holds arrays"):
            fused(wrap(X))


def test_a_captured_array_that_can_no_longer_be_used_fits_no_plan():
    key = signer(X)(X)
    assert unchanged(((0, key),), (X.copy(),))
    assert not unchanged(((0, key),), (np.ma.array(X),))


# --------------------------------------------------------------------------------------------------------
# The objects of methods


class Filter:
    """Methods that call each other on elements; the receiver has any name."""

    def __init__(self, gain: Any) -> None:
        self.gain = gain

    def scale(this, v):
        return v * this.gain

    def broken(this, v):
        return np.sqroot(v)

    @fuse
    def run(this, x):
        return this.scale(x) + 1

    @fuse
    def fail(this, x):
        return this.broken(x) + 1

    @fuse
    def fail_first(this, x):
        y = x + np.sqroot(x)
        return this.scale(y)


def test_the_receiver_is_the_first_argument_whatever_its_name():
    for gain in (2.0, 3.0):
        same(Filter(gain).run(X), X * np.float32(gain) + 1)


@pytest.mark.parametrize(("method", "place"), [("fail", "broken"), ("fail_first", "fail_first")])
def test_of_two_errors_the_one_further_on_is_raised(method, place):
    with pytest.raises(FusionAttributeError, match="sqroot") as caught:
        getattr(Filter(2.0), method)(X)
    assert caught.value.loc.function == f"Filter.{place}"


# --------------------------------------------------------------------------------------------------------
# Fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_does_not_wait_for_a_thread_that_stayed_behind(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text("""
import os, signal, threading
import numpy as np
from numfuse import fuse
lowering, done = threading.Event(), threading.Event()
class Slow:
    @property
    def gain(self):
        if threading.current_thread() is not threading.main_thread():
            lowering.set()
            done.wait()
        return 2.0
slow = Slow()
f = fuse(lambda x: x * slow.gain)
thread = threading.Thread(target=f, args=(np.empty((0, 3)),))
thread.start()
lowering.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if f(np.empty((0, 2))).shape == (0, 2) else 1)
_, status = os.waitpid(child, 0)
done.set()
thread.join()
print(status, f(np.empty((0, 4))).shape)
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "ignore", str(script)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.stdout.strip() == "0 (0, 4)", finished.stderr
