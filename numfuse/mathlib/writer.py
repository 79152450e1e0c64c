"""LLVM instructions for one scalar operation, the same for the CPU and the GPU.

The GPU's compiler reads the instructions of LLVM 7: nothing newer is written here (no ``fneg``, no
``freeze``, no saturating intrinsics).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from llvmlite import ir

Target: TypeAlias = Literal["cpu", "cuda"]
# An LLVM value; llvmlite has no types of its own.
Scalar: TypeAlias = Any
Definition: TypeAlias = Callable[..., Scalar]

_BOOL = ir.IntType(1)
# Of these LLVM itself knows what the instruction is; the rest are calls of the C library.
_LLVM_INTRINSICS = frozenset({"sqrt", "floor", "ceil", "trunc", "rint", "fabs", "copysign"})


def llvm_type(dtype: np.dtype) -> Any:
    """The LLVM type of a value of this dtype; a bool is one bit."""
    if dtype.kind == "b":
        return _BOOL
    if dtype.kind == "f":
        return ir.FloatType() if dtype.itemsize == 4 else ir.DoubleType()
    return ir.IntType(8 * dtype.itemsize)


class Writer:
    """Writes instructions for operands of one dtype.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where the instructions go.
    dtype : numpy.dtype
        Of the operands that are compared and computed with.
    target : "cpu" or "cuda"
        Whose mathematical functions are called.
    """

    def __init__(self, builder: Any, dtype: np.dtype, target: Target) -> None:
        self.builder = builder
        self.dtype = dtype
        self.target = target
        self.type = llvm_type(dtype)

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"

    @property
    def bits(self) -> int:
        """Width of the dtype."""
        return 8 * self.dtype.itemsize

    def constant(self, value: float) -> Scalar:
        """A constant of the operands' dtype."""
        return ir.Constant(self.type, float(value) if self.is_float else int(value))

    def select(self, condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
        """One of two values, without a branch."""
        return self.builder.select(condition, then, otherwise)

    def any(self, first: Scalar, *rest: Scalar) -> Scalar:
        """Whether one of the conditions holds."""
        for condition in rest:
            first = self.builder.or_(first, condition)
        return first

    def all(self, first: Scalar, *rest: Scalar) -> Scalar:
        """Whether all of the conditions hold."""
        for condition in rest:
            first = self.builder.and_(first, condition)
        return first

    def compare(self, symbol: str, a: Scalar, b: Scalar) -> Scalar:
        """A comparison with Python's meaning: with a NaN only ``!=`` holds."""
        if self.is_float:
            ordered = self.builder.fcmp_unordered if symbol == "!=" else self.builder.fcmp_ordered
            return ordered(symbol, a, b)
        if self.is_signed:
            return self.builder.icmp_signed(symbol, a, b)
        return self.builder.icmp_unsigned(symbol, a, b)

    def isnan(self, x: Scalar) -> Scalar:
        """NaN or not; never for integers."""
        return self.builder.fcmp_unordered("uno", x, x) if self.is_float else ir.Constant(_BOOL, 0)

    def negate(self, x: Scalar) -> Scalar:
        """The negative; a float zero changes its sign."""
        if self.is_float:
            return self.builder.fsub(self.constant(-0.0), x)
        return self.builder.sub(self.constant(0), x)

    def representation(self, x: Scalar) -> Scalar:
        """The bits of a float as an integer of the same width."""
        return self.builder.bitcast(x, ir.IntType(self.bits))

    def integer(self, value: int) -> Scalar:
        """An integer constant as wide as the dtype."""
        return ir.Constant(ir.IntType(self.bits), value)

    def call(self, function: str, *operands: Scalar) -> Scalar:
        """A function of the C library in the operands' precision (``expf`` for float32), by its C name.

        On the GPU it is libdevice's function of that name, which NVVM puts inline.
        """
        suffix = "f" if self.bits == 32 else ""
        if self.target == "cuda":
            name = f"__nv_{function}{suffix}"
        elif function in _LLVM_INTRINSICS:
            name = f"llvm.{function}.f{self.bits}"
        else:
            name = f"{function}{suffix}"
        return self.builder.call(self._declare(name, len(operands)), operands)

    def _declare(self, name: str, arity: int) -> Any:
        module = self.builder.module
        declared = module.globals.get(name)
        if declared is None:
            declared = ir.Function(module, ir.FunctionType(self.type, [self.type] * arity), name)
            if self.target == "cpu" and not name.startswith("llvm."):
                # They may set errno, which nobody reads: let LLVM merge equal calls and hoist them.
                declared.attributes.add("nounwind")
                declared.attributes.add("readnone")
        return declared
