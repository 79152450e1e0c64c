"""What a peer is, and the Python text of the loops that one writes by hand for Numba."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timing import Clock
from workloads import Workload


class NotThere(Exception):
    """A peer that can't take part: not installed, or without what a workload needs."""


@dataclass(frozen=True)
class Peer:
    """A way to run a workload: `prepare(workload, arrays)` gives a call to repeat, or raises NotThere."""

    name: str
    prepare: Callable[[Workload, tuple[Any, ...]], Callable[[], Any]]
    clock: Clock


def numfuse_call(workload: Workload, arrays: tuple[Any, ...]) -> Callable[[], Any]:
    """The workload fused, as a user calls it."""
    from numfuse import fuse

    fused = fuse(workload.fused or workload.function)
    return lambda: fused(*arrays)


_compiled = 0


def from_text(text: str, name: str, **names: Any) -> Callable[..., Any]:
    """The function `name` of Python source, registered so that tools find its lines."""
    global _compiled
    _compiled += 1
    filename = f"<benchmark {_compiled}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope: dict[str, Any] = {"math": math, **names}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]


def scalar_text(workload: Workload) -> str:
    return f"def scalar({', '.join(workload.names)}):\n    return {workload.element}\n"


def _items(workload: Workload, indices: dict[str, str]) -> str:
    pairs = zip(workload.names, workload.operands, strict=True)
    return ", ".join(f"{name}[{indices[operand.layout]}]" for name, operand in pairs)


def cpu_loop_text(workload: Workload, range_name: str) -> str:
    """A plain loop over the result, `range_name` being range or prange."""
    head = f"def loop({', '.join(workload.names)}, out):\n"
    if workload.ndim == 1:
        items = _items(workload, {"full": "i"})
        return head + f"    for i in {range_name}(out.size):\n        out[i] = scalar({items})\n"
    items = _items(workload, {"full": "i, j", "row": "j", "column": "i, 0"})
    return (
        head
        + f"    for i in {range_name}(out.shape[0]):\n"
        + "        for j in range(out.shape[1]):\n"
        + f"            out[i, j] = scalar({items})\n"
    )


def gpu_loop_text(workload: Workload) -> str:
    """A grid-stride loop over the result."""
    head = f"def loop({', '.join(workload.names)}, out):\n"
    each = "    for k in range(cuda.grid(1), out.size, cuda.gridsize(1)):\n"
    if workload.ndim == 1:
        return head + each + f"        out[k] = scalar({_items(workload, {'full': 'k'})})\n"
    items = _items(workload, {"full": "i, j", "row": "j", "column": "i, 0"})
    return head + each + f"        i, j = divmod(k, out.shape[1])\n        out[i, j] = scalar({items})\n"
