"""Short ways to write a program as text, run it, and compare what comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numfuse.body import Program
from numfuse.body_text import parse_program, print_program, programs_equal
from numfuse.interpreter import interpret
from numfuse.verifier import verify

X = np.array([3.0, -1.5, 0.0, np.nan, 2.25, -0.0], np.float32)


def run(program: Program | str, host_values: Sequence[object] = (), **arrays: np.ndarray) -> object:
    """The result of a program, checked and sent through its text form on the way."""
    if isinstance(program, str):
        program = parse_program(program)
    verify(program)
    assert programs_equal(parse_program(print_program(program)), program)
    return interpret(program, arrays, host_values)


def body(nodes: str, result: str = "%9", **dtypes: str) -> str:
    """A program text with one result: buffers by dtype (x: float32 where none is named), then nodes."""
    buffers = "".join(f"buffer {name}: parameter {dtype}\n" for name, dtype in dtypes.items())
    return f"program f\n{buffers or 'buffer x: parameter float32' + chr(10)}{{\n{nodes}\nyield {result}\n}}\n" + (
        f"results {result}\nstructure 0\n"
    )


def assert_same(found: object, expected: object) -> None:
    """Same dtype, shape and bits (a Python number: same type)."""
    if not isinstance(expected, np.ndarray | np.generic):
        assert type(found) is type(expected)
        assert found == expected
        return
    assert isinstance(found, np.ndarray | np.generic)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
