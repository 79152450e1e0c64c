"""What the tests of former faults share: some arrays, and what it is for two answers to agree."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from comparing import same

from numfuse import FusionError

F = np.linspace(-2, 3, 7).astype(np.float32)
D = np.linspace(-2, 3, 7)
N = np.arange(-3, 4)
I8 = np.array([127, -128, 5], np.int8)
# Children find the package where this checkout has it, installed or not.
CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
HEAD = "import numpy as np\nfrom numfuse import fuse\n"


def agree(plain, fused, *args):
    try:
        want = plain(*args)
    except Exception as error:
        with pytest.raises(type(error)):
            fused(*args)
        return
    try:
        got = fused(*args)
    except FusionError:
        return  # a refusal by name is within the contract
    same_result(want, got)


def same_result(want, got):
    same(got, want, any_nan=True)


def child(program, timeout=30):
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=timeout, env=CHILD
    )
    assert answer.returncode == 0, answer.stderr[-800:]
