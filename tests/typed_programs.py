"""Functions lowered and typed without compiling anything, and run by the interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numfuse import ops
from numfuse.body import Program
from numfuse.frontend.binding import Static
from numfuse.frontend.lower_values import HostParameter as host_parameter
from numfuse.interpreter import interpret
from numfuse.pipeline import Variant, array_parameter, build_variant


@dataclass(frozen=True)
class Typed:
    """One variant of a function, and the arguments for which it was made."""

    variant: Variant
    arguments: dict[str, Any]

    @property
    def program(self) -> Program:
        """The program after all passes."""
        return self.variant.program

    def run(self, program: Program | None = None) -> Any:
        """What the interpreter makes of the program (or of another state of it) for these arguments."""
        program = program or self.program
        slots = self.variant.prelude(*self.arguments.values())
        assert slots is not None
        arrays = {b.name: self.arguments[b.name] for b in program.buffers if b.kind == "parameter"}
        arrays |= {name: slots[slot] for name, slot in self.variant.captured}
        return interpret(program, arrays, slots, evaluate=_evaluate)


def _evaluate(row: str) -> Callable[..., Any]:
    """What a row computes; `assign` (``z += e`` of a computed array) has no row, since it computes nothing."""
    return (lambda _, new: new) if row == "assign" else ops.row(row).evaluate


def typed(function: Callable[..., Any], *args: Any) -> Typed:
    """Lower and type a function for arguments."""
    bound = inspect.signature(function).bind(*args)
    bound.apply_defaults()
    parameters = {
        name: array_parameter(value, value.dtype)
        if isinstance(value, np.ndarray)
        else Static(value)
        if callable(value)
        else host_parameter(value)
        for name, value in bound.arguments.items()
    }
    variant = build_variant(
        function,
        "f",
        parameters,
        lambda value: value.dtype if isinstance(value, np.ndarray) else None,
        lambda loc, value: 1,
    )
    return Typed(variant, dict(bound.arguments))


def elementwise(function: Callable[..., Any], *args: Any, dtypes: Any) -> Any:
    """The meaning of an element function: the function of each element as a NumPy scalar.

    `dtypes` are those of the results: a dtype, or a sequence for a function that returns a tuple.
    """
    arrays = [(k, a) for k, a in enumerate(args) if isinstance(a, np.ndarray)]
    spread = np.broadcast_arrays(*(a for _, a in arrays))
    answers = []
    for index in np.ndindex(spread[0].shape):
        values = list(args)
        for (position, _), array in zip(arrays, spread, strict=True):
            values[position] = array[index]
        answers.append(function(*values))
    shape = spread[0].shape
    with np.errstate(all="ignore"):
        if isinstance(answers[0], tuple):
            columns = zip(zip(*answers, strict=True), dtypes, strict=True)
            return tuple(_column(column, np.dtype(dtype), shape) for column, dtype in columns)
        return _column(answers, np.dtype(dtypes), shape)


def _column(answers: Sequence[Any], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.array([np.asarray(answer).astype(dtype) for answer in answers], dtype).reshape(shape)
