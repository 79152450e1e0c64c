"""A plan: everything about a call that depends only on dtypes and layout, worked out once.

A plan belongs to one signature (dtypes, shapes, strides, device of every array) and one
:class:`~numfuse.pipeline.Variant`. Its `run` is a function written for it (:mod:`numfuse.runner`).
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numfuse import arrays
from numfuse.arrays import Adapter, ArrayInfo, layout
from numfuse.backends.driver import Launcher, words_format
from numfuse.backends.element import Nest, parameters
from numfuse.body import HostArg
from numfuse.errors import FusionTypeError
from numfuse.passes.shapes import Extents, concrete_shapes, stays_array
from numfuse.passes.stages import group_by_shape
from numfuse.pipeline import Variant
from numfuse.runner import Job, Run, RunnerWriter

Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``fuse()`` that change machine code."""

    exact: bool = False
    fast: bool = False


@dataclass(eq=False, slots=True)
class Plan:
    """How to answer calls of one signature; :func:`build_plan` makes it.

    ``run(arguments, prelude slots)`` gives what the plain function would return.
    """

    jobs: tuple[Job, ...]
    adapter: Adapter
    device: int | None
    run: Run = field(repr=False)


def build_plan(
    variant: Variant,
    names: Sequence[str],
    args: Values,
    slots: Values,
    adapter: Adapter,
    options: Options,
    compile_kernels: bool = True,
) -> Plan:
    """The plan for calls like this one; compiles the kernel if there is anything to compute.

    Raises
    ------
    FusionValueError
        Shapes that do not broadcast, at the operation that meets them.
    """
    program = variant.program
    positions = {name: k for k, name in enumerate(names)}
    positions.update({name: len(args) + slot for name, slot in variant.captured})
    values = (*args, *slots)
    infos = {b.name: _info(values[positions[b.name]], adapter) for b in program.buffers}
    yields = concrete_shapes(program, {name: info.shape for name, info in infos.items()})
    like = next(k for k, value in enumerate(values) if arrays.adapter_of(value) is adapter)

    jobs, allocators = _jobs(variant, infos, yields, positions, adapter, values[like])
    device = adapter.device(values[like])
    writer = RunnerWriter(len(args), adapter, like)
    writer.allocate(allocators)
    if jobs and compile_kernels:
        if device is None:
            _write_cpu(writer, variant, jobs, options)
        else:
            _write_gpu(writer, variant, jobs, device, options)
    # NumPy gives results without dimensions as scalars, unless they were arrays all along.
    element = variant.inlined.element_frame
    scalar = [shape == () and (element or not stays) for shape, stays in zip(yields, stays_array(program), strict=True)]
    return Plan(tuple(jobs), adapter, device, writer.build(program, scalar, positions, program.name))


def _info(value: Any, adapter: Adapter) -> ArrayInfo:
    return (arrays.adapter_of(value) or adapter).info(value)


def _jobs(
    variant: Variant,
    infos: Mapping[str, ArrayInfo],
    yields: Sequence[Extents],
    positions: Mapping[str, int],
    adapter: Adapter,
    like: Any,
) -> tuple[list[Job], list[Callable[[Any], Any]]]:
    """The loop nests of a call, and what allocates each result."""
    groups = group_by_shape(yields)
    allocators: dict[int, Callable[[Any], Any]] = {}
    jobs: list[Job] = []
    for (stage, element), group in zip(variant.stages(groups), groups, strict=True):
        shape = yields[group[0]]
        operands = [infos[name] for name in stage.operands]
        order = layout.output_order(shape, [(info.shape, info.strides) for info in operands])
        described = [(info.shape, info.strides, info.dtype.itemsize) for info in operands]
        for position, output in zip(group, element.outputs, strict=True):
            allocators[position] = adapter.allocator(shape, output.dtype, order, like)
            strides = layout.dense_strides(shape, output.dtype.itemsize, order)
            described.append((shape, strides, output.dtype.itemsize))
        if math.prod(shape) == 0:
            continue
        arranged = layout.nest_layout(shape, described)
        count = len(operands)
        nest = Nest(
            element=element,
            ndim=len(arranged.extents),
            operands=arranged.accesses[:count],
            outputs=arranged.accesses[count:],
            in_place=(None,) * len(group),
            index_bits=arranged.index_bits,
        )
        jobs.append(
            Job(
                nest=nest,
                size=arranged.size,
                operands=tuple(positions[name] for name in stage.operands),
                outputs=group,
                extents=arranged.extents,
                strides=arranged.strides,
                offsets=arranged.offsets,
                scalars=tuple(n for n in stage.program.block.nodes if isinstance(n, HostArg)),
            )
        )
    return jobs, [allocators[k] for k in range(len(yields))]


# --------------------------------------------------------------------------------------------------------
# CPU


def _write_cpu(writer: RunnerWriter, variant: Variant, jobs: Sequence[Job], options: Options) -> None:
    """One compiled loop for each nest, split over threads when there is enough to do."""
    from numfuse.backends import threads

    for k, job in enumerate(jobs):
        declared = parameters((job.nest,))
        words = writer.words([job], declared)
        packer = struct.Struct(words_format([p.dtype for p in declared]))
        element = job.nest.element
        moved = sum(a.dtype.itemsize for a in (*element.operands, *element.outputs))
        cost = threads.element_cost(moved, element.weight)
        kernel = cpu_kernel(variant, job.nest, options)
        names = writer.namespace
        names[f"pack_{k}"] = packer.pack_into
        names[f"kernel_{k}"] = kernel.run
        names[f"buffer_{k}"] = _ThreadBuffer(packer.size)
        if job.size * cost < threads.WORTHWHILE:
            # Nothing else runs on this thread between the packing and the end of the kernel, so the thread
            # keeps one buffer.
            writer.lines += [
                f"try: words, where = buffer_{k}.prepared",
                f"except AttributeError: words, where = buffer_{k}.prepare()",
                f"pack_{k}(words, 0, {', '.join(words)})",
                f"kernel_{k}(where, 0, {job.size})",
            ]
        else:
            names["threads_run"] = threads.run
            writer.lines += [
                f"words, where = buffer_{k}.new()",
                f"pack_{k}(words, 0, {', '.join(words)})",
                f"threads_run(kernel_{k}, where, {job.size}, {cost!r})",
            ]


class _ThreadBuffer(threading.local):
    """Memory for packed arguments: one for each thread, or a new one."""

    prepared: tuple[Any, int]

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)

    def new(self) -> tuple[Any, int]:
        """A new buffer, and its address."""
        buffer = ctypes.create_string_buffer(self.size)
        return buffer, ctypes.addressof(buffer)

    def prepare(self) -> tuple[Any, int]:
        """This thread's buffer, made."""
        self.prepared = self.new()
        return self.prepared


def cpu_kernel(variant: Variant, nest: Nest, options: Options) -> Any:
    """The compiled CPU kernel of a nest."""
    key = ("cpu", nest, options)
    with variant.lock:
        if key not in variant.kernels:
            from numfuse.backends import cpu, cpu_kernels

            source = cpu_kernels.kernel_source(nest, variant.program.name, fast=options.fast)
            variant.kernels[key] = cpu.compile_kernel(source)
        return variant.kernels[key]


# --------------------------------------------------------------------------------------------------------
# GPU


def _write_gpu(writer: RunnerWriter, variant: Variant, jobs: Sequence[Job], device: int, options: Options) -> None:
    """One launch for all nests, on the arrays' own current stream."""
    nests = tuple(job.nest for job in jobs)
    words = ", ".join(writer.words(jobs, parameters(nests)))
    launcher, grid = _launcher(variant, jobs, device, options, aligned=True)
    names = writer.namespace
    names["narrow"] = _Narrow(variant, jobs, device, options)
    addresses = _address_texts(writer, jobs)
    stream = writer.adapter.stream_code.format(writer.array(writer.like), device)
    statements, used = launcher.statements(grid, stream, words)
    names |= used
    writer.lines += [
        f"if ({' | '.join(text for text, _ in addresses)}) & 15:",
        f"    launch_narrow, grid = narrow({', '.join(f'({text}, {size})' for text, size in addresses)})",
        f"    launch_narrow(grid, {stream}, {words})",
        "else:",
        *(f"    {line}" for line in statements),
    ]


def _address_texts(writer: RunnerWriter, jobs: Sequence[Job]) -> list[tuple[str, int]]:
    """Each address that the kernel gets, as text, and the size of what lies there."""
    texts: dict[str, int] = {}
    for job in jobs:
        described = (*job.nest.element.operands, *job.nest.element.outputs)
        wheres = [writer.array(position) for position in job.operands]
        wheres += [f"out_{position}" for position in job.outputs]
        for where, offset, argument in zip(wheres, job.offsets, described, strict=True):
            name = writer.address(where)
            texts[f"{name} + {offset}" if offset else name] = argument.dtype.itemsize
    return list(texts.items())


def _launcher(
    variant: Variant, jobs: Sequence[Job], device: int, options: Options, aligned: bool
) -> tuple[Launcher, int]:
    nests = tuple(replace(job.nest, aligned=aligned) for job in jobs)
    source, launcher = gpu_kernel(variant, nests, device, options)
    return launcher, source.grid(*(job.size for job in jobs))


class _Narrow:
    """The kernel for addresses that are no multiples of 16 bytes, compiled when first met."""

    def __init__(self, variant: Variant, jobs: Sequence[Job], device: int, options: Options) -> None:
        self.arguments = (variant, jobs, device, options)
        self.found: tuple[Callable[..., None], int] | None = None
        self.lock = threading.Lock()

    def __call__(self, *addresses: tuple[int, int]) -> tuple[Callable[..., None], int]:
        for address, itemsize in addresses:
            if address % itemsize:
                raise FusionTypeError(
                    f"an array of {itemsize}-byte elements starts at an address that is not a multiple of "
                    f"{itemsize}, where a GPU can't load it: copy it first"
                )
        with self.lock:
            if self.found is None:
                launcher, grid = _launcher(*self.arguments, aligned=False)
                self.found = launcher.launch, grid
            return self.found


def gpu_kernel(variant: Variant, nests: tuple[Nest, ...], device: int, options: Options) -> tuple[Any, Any]:
    """The text of a GPU kernel, and the launcher of its machine code on a device."""
    key = ("cuda", nests, device, options)
    with variant.lock:
        if key not in variant.kernels:
            from numfuse.backends import cuda_kernels, cuda_store, driver

            source = cuda_kernels.kernel_source(nests, variant.program.name)
            cubin, entry, _ = cuda_store.gpu_kernel(
                source, driver.compute_capability(device), exact=options.exact, fast=options.fast
            )
            function = driver.load(cubin, entry, device)
            variant.kernels[key] = (source, driver.Launcher(function, source.format, source.block))
        found: tuple[Any, Any] = variant.kernels[key]  # type: ignore[assignment]
        return found
