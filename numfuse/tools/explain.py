"""``f.explain(*args)``: the inlined function, the kernel, and what the compiler made of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numfuse.arrays import Adapter
from numfuse.errors import FusionValueError
from numfuse.launch import Options, Plan, build_plan
from numfuse.pipeline import Variant
from numfuse.runner import Job
from numfuse.tools.host_code import host_code


@dataclass(frozen=True)
class Explanation:
    """What a call compiles to. ``print`` it, or take its parts.

    Attributes
    ----------
    inlined : str
        The function with every helper inlined, as Python.
    helpers : tuple of str
        The helpers that were inlined.
    prelude : str
        What Python computes before each launch, as a function, and in its comments for which calls this
        kernel holds. (The function that runs has more checks; this one is for reading.)
    kernel : str
        The kernel as a Python module for Numba. For a GPU it is a complete ``@cuda.jit`` program that can be
        saved, imported and launched by hand.
    target : str
        "cpu" or "cuda".
    launches : int
        Kernels that one call starts.
    element_function : bool
        Whether the function is applied element by element (it asks for an element's truth value or Python
        number) rather than to whole arrays.
    counts : dict
        For a GPU, counts of instructions in the PTX: 16-byte loads and stores, float64 instructions, calls.
        Empty where numba-cuda is not installed.
    ptx : str
        For a GPU, the PTX itself.
    """

    name: str
    inlined: str
    helpers: tuple[str, ...]
    prelude: str
    kernel: str
    target: str
    launches: int
    element_function: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    ptx: str = field(default="", repr=False)

    def __str__(self) -> str:
        kind = "an element function" if self.element_function else "an array function"
        launches = "launches" if self.launches != 1 else "launch"
        where = "GPU" if self.target == "cuda" else "CPU"
        parts = [
            f"{self.name}: {kind}, {self.launches} {launches} a call on the {where}",
            f"inlined helpers: {', '.join(self.helpers) or 'none'}",
            _section("inlined", self.inlined),
            _section("on the host, before each launch", self.prelude),
            _section("kernel", self.kernel),
        ]
        if self.counts:
            lines = "\n".join(f"{key}: {value}" for key, value in self.counts.items())
            parts.append(_section("PTX", lines))
        return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"\n---- {title}\n{text.rstrip()}"


def explain(
    variant: Variant,
    names: Sequence[str],
    values: Sequence[Any],
    slots: Sequence[Any],
    adapter: Adapter,
    options: Options,
    target: str | None,
    function: Callable[..., Any],
) -> Explanation:
    """Explain a variant for the layout of some arguments; see :meth:`numfuse.fused.Fused.explain`."""
    if target not in (None, "cpu", "cuda"):
        raise FusionValueError(f"target={target!r}: it is None (where the arrays are), 'cpu' or 'cuda'")
    where = target or ("cuda" if adapter.on_device else "cpu")
    plan = build_plan(variant, names, values, slots, adapter, options, compile_kernels=False)
    counts: Mapping[str, int]
    if not plan.jobs:
        kernel, counts, ptx = "# nothing to compute: the arrays are empty\n", {}, ""
    elif where == "cuda":
        kernel, counts, ptx = _cuda(variant, plan, options)
    else:
        kernel, counts, ptx = _cpu(variant, plan.jobs, options), {}, ""
    return Explanation(
        name=variant.program.name,
        inlined=ast.unparse(variant.inlined.tree),
        helpers=tuple(variant.inlined.helpers),
        prelude=host_code(variant.prelude, variant.prelude_source, function),
        kernel=kernel,
        target=where,
        launches=min(len(plan.jobs), 1) if where == "cuda" else len(plan.jobs),
        element_function=variant.inlined.element_frame,
        counts=counts,
        ptx=ptx,
    )


def _cpu(variant: Variant, jobs: Sequence[Job], options: Options) -> str:
    from numfuse.backends.cpu_kernels import kernel_source

    sources = [kernel_source(job.nest, variant.program.name, fast=options.fast) for job in jobs]
    return "\n\n".join(source.text for source in sources)


def _cuda(variant: Variant, plan: Plan, options: Options) -> tuple[str, Mapping[str, int], str]:
    import importlib.util

    from numfuse.backends.cuda_kernels import kernel_source

    source = kernel_source(tuple(job.nest for job in plan.jobs), variant.program.name)
    if importlib.util.find_spec("numba_cuda") is None:
        return source.text, {}, ""
    from numfuse.backends import cuda

    capability = (9, 0)
    if plan.adapter.on_device:
        from numfuse.backends import driver

        capability = driver.compute_capability(plan.device or 0)
    compiled = cuda.compile_kernel(source, capability, exact=options.exact, fast=options.fast)
    return source.text, cuda.ptx_counts(compiled.ptx), compiled.ptx
