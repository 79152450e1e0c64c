"""The text of a GPU kernel: loop nests -> a module that numba.cuda compiles, and a person can read.

The module is complete: executed or imported, its kernel is an ordinary ``@cuda.jit`` function that can be
launched with ``kernel[blocks, threads](*arguments)``. The loops are written by
:mod:`numfuse.backends.cuda_loops`. Nothing here needs numba.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from numfuse.backends.cuda_loops import DTYPE_NAMES, LoopNames, NestWriter, choose_lanes, wrapped
from numfuse.backends.element import ElementFunction, Nest, Parameter, parameters, words_format
from numfuse.errors import FusionNotImplementedError

__all__ = ["KernelSource", "choose_block", "choose_lanes", "kernel_source"]

_MAX_BLOCKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as text, and what is needed to compile and launch it.

    Attributes
    ----------
    text : str
        The module. Executed, it defines the kernel as `name`.
    name : str
        The kernel's Python name; its entry name in the machine code too, if it is ASCII.
    parameters : tuple of Parameter
        The kernel's arguments in order; names are those in the text.
    block : int
        Threads of a block.
    lanes : tuple of int
        For each nest, how many elements a thread computes before it moves on.
    """

    text: str
    name: str
    parameters: tuple[Parameter, ...]
    block: int
    lanes: tuple[int, ...]

    @property
    def format(self) -> str:
        """The :mod:`struct` format of the packed arguments."""
        return words_format([p.dtype for p in self.parameters])

    def grid(self, *sizes: int) -> int:
        """Number of blocks for nests of these numbers of elements: so many that no thread moves on."""
        blocks = max(-(-size // (self.block * lanes)) for size, lanes in zip(sizes, self.lanes, strict=True))
        return max(1, min(blocks, _MAX_BLOCKS))


def choose_block(nests: Sequence[Nest]) -> int:
    """Threads of a block: 512 reach the memory's speed; long bodies leave each thread more registers."""
    return 512 if max(nest.element.weight for nest in nests) <= 64 else 256


def kernel_source(
    nests: tuple[Nest, ...], name: str, lanes: tuple[int, ...] | None = None, block: int | None = None
) -> KernelSource:
    """Write the kernel that runs `nests`, one after another, in one launch.

    Parameters
    ----------
    nests : tuple of Nest
        None may read what another one writes: blocks run in any order.
    name : str
        A Python identifier for the kernel.
    lanes : tuple of int, optional
        Elements of a thread for each nest, powers of two; :func:`choose_lanes` by default.
    block : int, optional
        Threads of a block; :func:`choose_block` by default.

    Raises
    ------
    FusionNotImplementedError
        An array or scalar has a dtype that kernels can't hold yet.
    """
    _check_dtypes(nests)
    lanes = tuple(map(choose_lanes, nests)) if lanes is None else lanes
    functions, function_names = _element_functions(nests, name)
    names = LoopNames({name, *function_names, *_global_names(nests)})
    renamed = tuple(replace(p, name=names.fresh(p.name)) for p in parameters(nests))

    readonly = not any(on is not None for nest in nests for on in nest.in_place)
    thread = (names.fresh("thread"), names.fresh("block"), names.fresh("threads"), names.fresh("blocks"))
    places = ("threadIdx", "blockIdx", "blockDim", "gridDim")
    body = [f"{variable} = uint64(cuda.{place}.x)" for variable, place in zip(thread, places, strict=True)]
    for k, (nest, count) in enumerate(zip(nests, lanes, strict=True)):
        own = [p for p in renamed if p.nest == k]
        writer = NestWriter(nest, own, function_names[k], count, thread, names, readonly)
        body += writer.lines()
        functions += writer.functions

    text = "\n".join(
        [
            *_header(nests, functions, body, sorted(names.memory)),
            *functions,
            "@cuda.jit",
            *wrapped(f"def {name}(", [p.name for p in renamed], "):"),
            *("    " + line if line else "" for line in body),
            "",
        ]
    )
    return KernelSource(text, name, renamed, choose_block(nests) if block is None else block, lanes)


def _check_dtypes(nests: tuple[Nest, ...]) -> None:
    for nest in nests:
        element = nest.element
        for argument in (*element.operands, *element.scalars, *element.outputs):
            if argument.dtype.name not in DTYPE_NAMES:
                raise FusionNotImplementedError(
                    f"GPU kernels do not take dtype {argument.dtype} yet ({argument.name} of "
                    f"{element.name}); convert it with astype before the call"
                )


def _element_functions(nests: tuple[Nest, ...], kernel_name: str) -> tuple[list[str], list[str]]:
    """The text of each different element function, and for each nest the name of its one."""
    texts: list[str] = []
    by_element: dict[ElementFunction, str] = {}
    taken = LoopNames({kernel_name, *_global_names(nests)})
    for nest in nests:
        element = nest.element
        if element in by_element:
            continue
        chosen = by_element[element] = taken.fresh(element.name)
        source = re.sub(rf"\bdef {re.escape(element.name)}\b", f"def {chosen}", element.source.strip("\n"), count=1)
        texts += ["@cuda.jit(device=True, forceinline=True)", *source.split("\n"), "", ""]
    return texts, [by_element[nest.element] for nest in nests]


def _global_names(nests: tuple[Nest, ...]) -> set[str]:
    """Names that the kernel's own variables may not take: they mean something in the module."""
    builtin = {"cuda", "boolean", "bool_", "inf", "nan", *DTYPE_NAMES, *keyword.kwlist}
    return builtin.union(*(nest.element.imports for nest in nests))


def _header(nests: tuple[Nest, ...], functions: list[str], body: list[str], memory: list[str]) -> list[str]:
    used = _names_in("\n".join(functions)) | _names_in("\n".join(body))
    types = sorted(({*DTYPE_NAMES, "boolean", "bool_"} - {"bool"}) & used)
    lines = ["from numba import cuda"]
    if types:
        lines += wrapped("from numba.cuda.types import ", types, "")
    lines.append("")
    if constants := sorted({"inf", "nan"} & used):
        lines.insert(0, f"from math import {', '.join(constants)}")
    lines += wrapped("from numfuse.backends.memory import ", memory, "")
    imports = sorted(set().union(*(nest.element.imports for nest in nests)))
    if imports:
        lines += wrapped("from numfuse.mathlib.cuda import ", imports, "")
    return [*lines, "", ""]


def _names_in(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
