"""A plan: everything about a call that depends only on dtypes and layout, worked out once.

A plan belongs to one signature (dtypes, shapes, strides, device of every array) and one
:class:`~numfuse.pipeline.Variant`. Its `run` is a function written for it (:mod:`numfuse.runner`).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numfuse import arrays
from numfuse.arrays import Adapter, ArrayInfo, Refusal, layout
from numfuse.backends.element import Access, Nest, parameters, words_format
from numfuse.body import HostArg
from numfuse.errors import FusionTypeError
from numfuse.passes.shapes import Extents, concrete_shapes, stays_array
from numfuse.passes.stages import group_by_shape
from numfuse.pipeline import Variant
from numfuse.runner import Job, Run, RunnerWriter

if TYPE_CHECKING:
    from numfuse.backends.driver import Launcher

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
    FusionTypeError
        A captured array of another library or device than the arguments; strides that a GPU can't follow.
    """
    program = variant.program
    positions = {name: k for k, name in enumerate(names)}
    positions.update({name: len(args) + slot for name, slot in variant.captured})
    labels = {k: f"argument {name!r}" for k, name in enumerate(names)}
    labels.update({len(args) + slot: f"captured array {name!r}" for name, slot in variant.captured})
    values = (*args, *slots)
    like = next(k for k, value in enumerate(args) if arrays.adapter_of(value) is adapter)
    arrays.common_adapter([(names[like], args[like])], [(name, slots[slot]) for name, slot in variant.captured])
    infos = {}
    for buffer in program.buffers:
        position = positions[buffer.name]
        infos[buffer.name] = _info(values[position], adapter, labels[position])
    yields = concrete_shapes(program, {name: info.shape for name, info in infos.items()})

    jobs, allocators = _jobs(variant, infos, yields, positions, adapter, values[like])
    device = adapter.device(values[like])
    writer = RunnerWriter(len(args), adapter, like, labels)
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


def _info(array: Any, adapter: Adapter, label: str) -> ArrayInfo:
    try:
        return adapter.info(array)
    except Refusal as refusal:
        raise refusal.labelled(label) from None


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
        names[f"free_{k}"] = []
        names[f"new_{k}"] = partial(_new_buffer, packer.size // 8)
        if job.size * cost < threads.WORTHWHILE:
            launch = f"kernel_{k}(where, 0, {job.size})"
        else:
            names["threads_run"] = threads.run
            launch = f"threads_run(kernel_{k}, where, {job.size}, {cost!r})"
        # A call takes its buffer out of the list: another thread, or a signal handler that calls this function
        # once more, finds another one or makes it.
        writer.lines += [
            f"try: taken = free_{k}.pop()",
            f"except IndexError: taken = new_{k}()",
            "words, where = taken",
            f"pack_{k}(words, 0, {', '.join(words)})",
            launch,
            f"free_{k}.append(taken)",
        ]


def _new_buffer(words: int) -> tuple[Any, int]:
    """Memory for packed arguments, and its address, a multiple of 8."""
    buffer = (ctypes.c_uint64 * words)()
    return buffer, ctypes.addressof(buffer)


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
    """One launch for all nests, on the stream of the array that the results are made like."""
    _check_strides(writer, jobs)
    nests = tuple(job.nest for job in jobs)
    words = ", ".join(writer.words(jobs, parameters(nests)))
    launcher, grid = _launcher(variant, jobs, device, options, aligned=True)
    writer.lines.append(f"stream = {writer.adapter.stream_code.format(writer.array(writer.like), device)}")
    others = _order_streams(writer, jobs, device)
    statements, used = launcher.statements(grid, "stream", words)
    writer.namespace |= used
    starts = _starts(writer, jobs)
    misaligned = _misaligned(starts)
    if misaligned:
        writer.namespace["narrow"] = _Narrow(variant, jobs, device, options, starts)
        writer.lines += [
            f"if {misaligned}:",
            f"    launch_narrow, grid = narrow({', '.join(start.text for start in starts)})",
            f"    launch_narrow(grid, stream, {words})",
            "else:",
            *(f"    {line}" for line in statements),
        ]
    else:
        writer.lines += statements
    # What is given to the other streams from now on may overwrite what the kernel reads.
    writer.lines += [f"if {other} != stream: order(stream, {other}, {device})" for other in others]


def _check_strides(writer: RunnerWriter, jobs: Sequence[Job]) -> None:
    """Refuse operands with elements at addresses that a GPU can't load from, wherever they start."""
    for job in jobs:
        for argument, strides, position in zip(job.nest.element.operands, job.strides, job.operands, strict=False):
            itemsize = argument.dtype.itemsize
            if any(stride % itemsize for stride in strides):
                raise FusionTypeError(
                    f"{writer.labels[position]} has elements of {itemsize} bytes and strides that are no multiples "
                    f"of {itemsize}, where a GPU can't load them: copy it first"
                )


def _order_streams(writer: RunnerWriter, jobs: Sequence[Job], device: int) -> list[str]:
    """Let the kernel wait for the streams of its further operands; the names of these streams.

    Only for libraries whose arrays are bound to streams. The arrays of the others are all on the current one.
    """
    if not writer.adapter.stream_of_array:
        return []
    from numfuse.backends import driver

    further = {position for job in jobs for position in job.operands} - {writer.like}
    others = []
    for position in sorted(further):
        others.append(f"stream_{position}")
        writer.lines += [
            f"{others[-1]} = {writer.adapter.stream_code.format(writer.array(position), device)}",
            f"if {others[-1]} != stream: order({others[-1]}, stream, {device})",
        ]
    if others:
        writer.namespace["order"] = driver.order
    return others


@dataclass(slots=True)
class _Start:
    """An address that the kernel gets: its text, what lies there, and whether vectors are loaded from there."""

    text: str
    itemsize: int
    label: str
    wide: bool


def _starts(writer: RunnerWriter, jobs: Sequence[Job]) -> list[_Start]:
    """Each address that the kernel gets, once."""
    from numfuse.backends.cuda_loops import vector_width

    starts: dict[str, _Start] = {}
    for job in jobs:
        nest = job.nest
        vectors = vector_width(nest) > 1
        described = (*nest.element.operands, *nest.element.outputs)
        accesses = (*nest.operands, *nest.outputs)
        labels = [writer.labels[position] for position in job.operands] + ["a new result"] * len(job.outputs)
        for text, argument, access, label in zip(writer.job_addresses(job), described, accesses, labels, strict=True):
            start = starts.setdefault(text, _Start(text, argument.dtype.itemsize, label, False))
            start.wide |= vectors and access is Access.DENSE
    return list(starts.values())


def _misaligned(starts: Sequence[_Start]) -> str:
    """A test for addresses that the kernel can't take: no multiples of 16 for vectors, else of the element's size."""
    masks: dict[int, list[str]] = {}
    for start in starts:
        masks.setdefault(16 if start.wide else start.itemsize, []).append(start.text)
    return " | ".join(f"({' | '.join(texts)}) & {size - 1}" for size, texts in masks.items() if size > 1)


def _launcher(
    variant: Variant, jobs: Sequence[Job], device: int, options: Options, aligned: bool
) -> tuple[Launcher, int]:
    nests = tuple(replace(job.nest, aligned=aligned) for job in jobs)
    source, launcher = gpu_kernel(variant, nests, device, options)
    return launcher, source.grid(*(job.size for job in jobs))


class _Narrow:
    """The kernel for addresses that are no multiples of 16 bytes, compiled when first met."""

    def __init__(
        self, variant: Variant, jobs: Sequence[Job], device: int, options: Options, starts: Sequence[_Start]
    ) -> None:
        self.arguments = (variant, jobs, device, options)
        self.starts = starts
        self.found: tuple[Callable[..., None], int] | None = None

    def __call__(self, *addresses: int) -> tuple[Callable[..., None], int]:
        for address, start in zip(addresses, self.starts, strict=True):
            if address % start.itemsize:
                raise FusionTypeError(
                    f"{start.label} has elements of {start.itemsize} bytes and starts at an address that is not a "
                    f"multiple of {start.itemsize}, where a GPU can't load it: copy it first"
                )
        if self.found is None:  # two threads may both come here: they find one kernel
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
