"""Small element functions, and calls of their CPU kernels, for the tests of the CPU back end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import numpy as np

from numfuse.backends import cpu
from numfuse.backends.cpu_kernels import kernel_source
from numfuse.backends.element import Access, Argument, ElementFunction, Nest, parameters

DENSE, SCALAR, REPEATED, STRIDED = Access.DENSE, Access.SCALAR, Access.REPEATED, Access.STRIDED


def element(text: str, outputs: str, scalars: str = "") -> ElementFunction:
    """An element function from ``"x: float32, y: int8 -> x + y"``-like parts."""
    head, expression = (part.strip() for part in text.split("->"))
    operands, extra, results = (arguments_of(part) for part in (head, scalars, outputs))
    names = ", ".join(argument.name for argument in (*operands, *extra))
    source = f"def f({names}):\n    return ({expression},)\n"
    return ElementFunction("f", source, operands, extra, results)


def arguments_of(text: str) -> tuple[Argument, ...]:
    pairs = (item.split(":") for item in text.split(",") if item.strip())
    return tuple(Argument(name.strip(), np.dtype(dtype.strip())) for name, dtype in pairs)


def flat(function: ElementFunction) -> Nest:
    return Nest(function, 1, (DENSE,) * len(function.operands), (DENSE,) * len(function.outputs))


def pack(nest: Nest, shape: tuple[int, ...], arrays: list[np.ndarray], scalars: Sequence[object] = ()) -> np.ndarray:
    """The packed words of a call on `arrays` (operands, then outputs), all of `shape`."""
    wanted = parameters((nest,))
    words = np.zeros(len(wanted), np.uint64)
    left = iter(scalars)
    for position, parameter in enumerate(wanted):
        if parameter.role == "size":
            value: object = int(np.prod(shape))
        elif parameter.role == "extent":
            value = shape[parameter.axis]
        elif parameter.role == "address":
            value = arrays[parameter.array].ctypes.data
        elif parameter.role == "stride":
            value = arrays[parameter.array].strides[parameter.axis]
        else:
            value = next(left)
        words[position : position + 1].view(parameter.dtype)[0] = value
    return words


def run(nest: Nest, arrays: list[np.ndarray], scalars: Sequence[object] = (), bounds: object = None) -> None:
    """Apply a kernel to `arrays`, over the linear range `bounds` or over everything."""
    shape = arrays[-1].shape
    words = pack(nest, shape, arrays, scalars)
    start, stop = bounds or (0, int(np.prod(shape)))
    cpu.compile_kernel(kernel_source(nest, "f"))(words.ctypes.data, start, stop)


def numbers(dtype: np.dtype, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype.kind == "f":
        return random.uniform(-4, 4, shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return random.integers(max(info.min, -100), 100, shape).astype(dtype)


def python(program: str, **environment: str) -> str:
    """What a fresh Python process prints."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()
