"""The machine code of CPU kernels, read by tests that it uses the processor's vectors."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass

from numfuse.backends import cpu


def assembly(kernel: cpu.CpuKernel) -> str:
    """The machine code of a kernel as the processor's assembly text."""
    dispatcher = kernel._dispatcher
    if kernel.from_cache:  # the disk holds object code only
        with cpu._lock:
            module = types.ModuleType(f"{dispatcher.__module__}_again")
            sys.modules[module.__name__] = module
            exec(compile(kernel.source.text, f"<numfuse {kernel.source.name}>", "exec"), module.__dict__)
            dispatcher = getattr(module, kernel.source.name)
            dispatcher.compile(cpu._SIGNATURE)
    text: str = dispatcher.overloads[cpu._SIGNATURE].library.get_asm_str()
    return text


@dataclass(frozen=True, slots=True)
class VectorCounts:
    """How many instructions of an assembly text work on vectors, by width in bits, and on single floats."""

    bits_512: int
    bits_256: int
    bits_128: int
    scalar: int

    @property
    def vector(self) -> int:
        return self.bits_512 + self.bits_256 + self.bits_128


def vector_counts(text: str) -> VectorCounts:
    """Count the vector instructions in `text`, the :func:`assembly` of a kernel (x86-64 or 64-bit ARM)."""
    counts = {512: 0, 256: 0, 128: 0, 0: 0}
    for line in text.splitlines():
        match = re.match(r"\s+([a-z]\w*)\s+(.*)", line)
        if match is None:
            continue
        mnemonic, operands = match.groups()
        if "%zmm" in operands:
            counts[512] += 1
        elif "%ymm" in operands:
            counts[256] += 1
        elif "%xmm" in operands:
            single = re.search(r"s[sd](2\w+)?[lq]?$|^v?mov[dq]$", mnemonic)
            counts[0 if single else 128] += 1
        elif re.search(r"\bv\d+\.\d+[bhsd]", operands):
            counts[128] += 1
    return VectorCounts(counts[512], counts[256], counts[128], counts[0])
