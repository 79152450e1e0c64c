"""A plan: everything about a call that depends only on dtypes and layout, worked out once.

What is left for each call is to read addresses, allocate the results, pack and launch. A plan belongs to one
signature (dtypes, shapes, strides, device of every array) and one :class:`~numfuse.pipeline.Variant`.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numfuse import arrays
from numfuse.arrays import Adapter, ArrayInfo, layout
from numfuse.backends.element import Nest, Parameter, parameters
from numfuse.body import BufferResult, HostResult, ValueResult
from numfuse.errors import FusionOverflowError, FusionTypeError
from numfuse.passes.shapes import concrete_shapes, stays_array
from numfuse.passes.stages import group_by_shape
from numfuse.pipeline import Variant

Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``fuse()`` that change machine code."""

    exact: bool = False
    fast: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One loop nest of a call: its layout, and where each word of its arguments comes from."""

    nest: Nest
    size: int
    operands: tuple[int, ...]  # positions in arguments + prelude slots
    outputs: tuple[int, ...]  # positions in the plan's outputs
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # operands, then outputs
    offsets: tuple[int, ...]
    slots: tuple[int, ...]  # prelude slot of each scalar


class Plan:
    """How to answer calls of one signature; :func:`build_plan` makes it.

    `run` takes the arguments and the values of the prelude and gives the results.
    """

    def __init__(
        self,
        variant: Variant,
        adapter: Adapter,
        allocators: Sequence[Callable[[Any], Any]],
        jobs: Sequence[Job],
        like: int,
        device: int | None,
        assemble: Callable[[Values, Values, list[Any]], Any],
    ) -> None:
        self.variant = variant
        self.adapter = adapter
        self.allocators = tuple(allocators)
        self.jobs = tuple(jobs)
        self.like = like
        self.device = device
        self.uses_slots = bool(variant.captured)
        self.assemble = assemble
        self.launch: Callable[[Values, Values, list[Any]], None] | None = None

    def prepare(self, launch: Callable[[Values, Values, list[Any]], None] | None) -> Plan:
        """Set what starts the kernels (None: there is nothing to compute)."""
        self.launch = launch
        return self

    def run(self, args: Values, slots: Values) -> Any:
        """Answer one call."""
        like = args[self.like] if self.like < len(args) else slots[self.like - len(args)]
        outputs = [allocate(like) for allocate in self.allocators]
        if self.launch is not None:
            self.launch((*args, *slots) if self.uses_slots else args, slots, outputs)
        return self.assemble(args, slots, outputs)


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
    positions = {name: k for k, name in enumerate(names)}
    positions.update({name: len(args) + slot for name, slot in variant.captured})
    values = (*args, *slots)
    program = variant.program
    infos: dict[str, ArrayInfo] = {}
    for buffer in program.buffers:
        found = arrays.adapter_of(values[positions[buffer.name]]) or adapter
        infos[buffer.name] = found.info(values[positions[buffer.name]])
    shapes = {name: info.shape for name, info in infos.items()}
    yields = concrete_shapes(program, shapes)
    groups = group_by_shape(yields)
    like = _position_of_like(program.buffers[0].name, positions, values, adapter)

    allocators: list[Callable[[Any], Any]] = [_nothing] * len(yields)
    jobs: list[Job] = []
    for (stage, element), group in zip(variant.stages(groups), groups, strict=True):
        shape = yields[group[0]]
        operands = [infos[name] for name in stage.operands]
        order = layout.output_order(shape, [(info.shape, info.strides) for info in operands])
        described = [(info.shape, info.strides, info.dtype.itemsize) for info in operands]
        for position, output in zip(group, element.outputs, strict=True):
            allocators[position] = adapter.allocator(shape, output.dtype, order, values[like])
            strides = arrays.dense_strides(shape, output.dtype.itemsize, order)
            described.append((shape, strides, output.dtype.itemsize))
        size = math.prod(shape)
        if size == 0:
            continue
        arranged = layout.nest_layout(shape, described)
        count = len(operands)
        jobs.append(
            Job(
                nest=Nest(
                    element=element,
                    ndim=len(arranged.extents),
                    operands=arranged.accesses[:count],
                    outputs=arranged.accesses[count:],
                    in_place=(None,) * len(group),
                    index_bits=arranged.index_bits,
                ),
                size=size,
                operands=tuple(positions[name] for name in stage.operands),
                outputs=group,
                extents=arranged.extents,
                strides=arranged.strides,
                offsets=arranged.offsets,
                slots=tuple(slot for slot in element.slots),
            )
        )
    device = adapter.device(values[like])
    assemble = _assembler(variant, adapter, positions, yields)
    plan = Plan(variant, adapter, allocators, jobs, like, device, assemble)
    if not jobs or not compile_kernels:
        return plan
    launch: Callable[[Values, Values, list[Any]], None] = (
        GpuLaunch(variant, plan.jobs, adapter, device, options, like)
        if device is not None
        else CpuLaunch(variant, plan.jobs, adapter, options)
    )
    return plan.prepare(launch)


def _position_of_like(first: str, positions: Mapping[str, int], values: Values, adapter: Adapter) -> int:
    """The array whose library, device and stream the results take: the first one."""
    for position, value in enumerate(values):
        if arrays.adapter_of(value) is adapter:
            return position
    return positions[first]


def _nothing(like: Any) -> Any:
    raise AssertionError("every result belongs to a stage")


# --------------------------------------------------------------------------------------------------------
# Argument words


@dataclass(frozen=True, slots=True)
class _Words:
    """How the packed arguments of a kernel are filled in at each call."""

    template: list[Any]
    format: str
    operands: tuple[tuple[int, int, int], ...]  # word, position in arguments, byte offset
    outputs: tuple[tuple[int, int, int], ...]
    scalars: tuple[tuple[int, int, Callable[[Any], Any] | None], ...]  # word, slot, conversion
    itemsizes: Mapping[int, int]  # of the arrays whose addresses these words are

    def fill(
        self, adapter: Adapter, args: Values, slots: Values, outputs: list[Any]
    ) -> tuple[list[Any], int]:
        """The words of a call, and the union of the bits of all addresses."""
        words = self.template.copy()
        bits = 0
        address = adapter.address
        for word, position, offset in self.operands:
            words[word] = where = address(args[position]) + offset
            bits |= where
        for word, position, offset in self.outputs:
            words[word] = where = address(outputs[position]) + offset
            bits |= where
        for word, slot, convert in self.scalars:
            words[word] = slots[slot] if convert is None else convert(slots[slot])
        return words, bits


_FORMATS = {
    "b1": "?7x", "i1": "b7x", "i2": "h6x", "i4": "i4x", "i8": "q",
    "u1": "B7x", "u2": "H6x", "u4": "I4x", "u8": "Q", "f4": "f4x", "f8": "d",
}  # fmt: skip


def _words(jobs: Sequence[Job], declared: Sequence[Parameter]) -> _Words:
    template: list[Any] = []
    operands, outputs, itemsizes = [], [], {}
    scalars: list[tuple[int, int, Callable[[Any], Any] | None]] = []
    seen = [0] * len(jobs)
    for word, parameter in enumerate(declared):
        job = jobs[parameter.nest]
        template.append(0)
        if parameter.role == "size":
            template[word] = job.size
        elif parameter.role == "extent":
            template[word] = job.extents[parameter.axis or 0]
        elif parameter.role == "stride":
            template[word] = job.strides[parameter.array or 0][parameter.axis or 0]
        elif parameter.role == "address":
            array = parameter.array or 0
            count = len(job.operands)
            offset = job.offsets[array]
            described = (*job.nest.element.operands, *job.nest.element.outputs)
            itemsizes[word] = described[array].dtype.itemsize
            if array < count:
                operands.append((word, job.operands[array], offset))
            else:
                outputs.append((word, job.outputs[array - count], offset))
        else:
            slot = job.slots[seen[parameter.nest]]
            seen[parameter.nest] += 1
            scalars.append((word, slot, _conversion(parameter.dtype, parameter.name)))
    codes = (f"{p.dtype.kind}{p.dtype.itemsize}" for p in declared)
    return _Words(
        template,
        "<" + "".join(_FORMATS[code] for code in codes),
        tuple(operands),
        tuple(outputs),
        tuple(scalars),
        itemsizes,
    )


def _conversion(dtype: np.dtype, name: str) -> Callable[[Any], Any] | None:
    """What turns a host number into one that `struct` packs as this dtype, the way NumPy would."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)

        def whole(value: Any) -> int:
            if isinstance(value, np.generic):
                return int(value.astype(dtype))
            if not low <= value <= high:
                raise FusionOverflowError(
                    f"Python integer {value} out of bounds for {dtype}: {name} is used with an array of "
                    f"that dtype; convert the array or choose a number that fits"
                )
            return int(value)

        return whole
    if dtype == np.float32:

        def single(value: Any) -> float:
            with np.errstate(all="ignore"):
                return float(np.float32(value))

        def fast(value: Any) -> float:
            # struct refuses a double that would round to infinity; NumPy makes it infinity.
            return value if type(value) is float and -1e38 < value < 1e38 else single(value)

        return fast
    return float if dtype.kind == "f" else bool


# --------------------------------------------------------------------------------------------------------
# Launches


class CpuLaunch:
    """Runs the nests on the CPU, one compiled loop each."""

    def __init__(self, variant: Variant, jobs: Sequence[Job], adapter: Adapter, options: Options) -> None:
        from numfuse.backends import threads

        self.adapter = adapter
        self.threads = threads
        self.steps = []
        for job in jobs:
            kernel = cpu_kernel(variant, job.nest, options)
            words = _words([job], parameters((job.nest,)))
            element = job.nest.element
            moved = sum(a.dtype.itemsize for a in (*element.operands, *element.outputs))
            cost = threads.element_cost(moved, element.weight)
            packer = struct.Struct(words.format)
            self.steps.append((kernel, words, packer.pack_into, packer.size, job.size, cost))

    def __call__(self, args: Values, slots: Values, outputs: list[Any]) -> None:
        for kernel, words, pack_into, length, size, cost in self.steps:
            values, _ = words.fill(self.adapter, args, slots, outputs)
            buffer = ctypes.create_string_buffer(length)
            pack_into(buffer, 0, *values)
            self.threads.run(kernel.run, ctypes.addressof(buffer), size, cost)


def cpu_kernel(variant: Variant, nest: Nest, options: Options) -> Any:
    """The compiled CPU kernel of a nest."""
    key = ("cpu", nest, options)
    with variant.lock:
        if key not in variant.kernels:
            from numfuse.backends import cpu, cpu_kernels

            source = cpu_kernels.kernel_source(nest, variant.program.name, fast=options.fast)
            variant.kernels[key] = cpu.compile_kernel(source)
        return variant.kernels[key]


class GpuLaunch:
    """Launches one CUDA kernel for all nests, on the arrays' own stream."""

    def __init__(
        self,
        variant: Variant,
        jobs: Sequence[Job],
        adapter: Adapter,
        device: int,
        options: Options,
        like: int,
    ) -> None:
        self.variant = variant
        self.jobs = jobs
        self.adapter = adapter
        self.device = device
        self.options = options
        self.like = like
        self.words = _words(jobs, parameters(tuple(job.nest for job in jobs)))
        self.aligned = self._launcher(aligned=True)
        self.unaligned: tuple[Callable[..., None], int] | None = None
        self.lock = threading.Lock()

    def _launcher(self, aligned: bool) -> tuple[Callable[..., None], int]:
        nests = tuple(replace(job.nest, aligned=aligned) for job in self.jobs)
        source, launcher = gpu_kernel(self.variant, nests, self.device, self.options)
        return launcher.launch, source.grid(*(job.size for job in self.jobs))

    def __call__(self, args: Values, slots: Values, outputs: list[Any]) -> None:
        values, bits = self.words.fill(self.adapter, args, slots, outputs)
        launch, grid = self.aligned if not bits & 15 else self._unaligned(args)
        launch(grid, self.adapter.stream(args[self.like]), *values)

    def _unaligned(self, args: Values) -> tuple[Callable[..., None], int]:
        """The kernel for addresses that are no multiples of 16 bytes."""
        for word, position, offset in self.words.operands:
            itemsize = self.words.itemsizes[word]
            if (self.adapter.address(args[position]) + offset) % itemsize:
                raise FusionTypeError(
                    f"an array of {itemsize}-byte elements starts at an address that is not a multiple of "
                    f"{itemsize}, where a GPU can't load it: copy it first"
                )
        if self.unaligned is None:
            with self.lock:
                if self.unaligned is None:
                    self.unaligned = self._launcher(aligned=False)
        return self.unaligned


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
            launcher = driver.Launcher(function, source.format, source.block)
            variant.kernels[key] = (source, launcher)
        found: tuple[Any, Any] = variant.kernels[key]  # type: ignore[assignment]
        return found


# --------------------------------------------------------------------------------------------------------
# Results


def _assembler(
    variant: Variant,
    adapter: Adapter,
    positions: Mapping[str, int],
    yields: Sequence[tuple[int, ...]],
) -> Callable[[Values, Values, list[Any]], Any]:
    """What turns outputs into what the plain function would return."""
    program = variant.program
    element = variant.inlined.element_frame
    # Results without dimensions that NumPy would give as scalars.
    scalar = [
        shape == () and (element or not stays)
        for shape, stays in zip(yields, stays_array(program), strict=True)
    ]
    finish = adapter.finish
    if program.structure == 0 and isinstance(program.results[0], ValueResult):
        if not scalar[0]:
            return lambda args, slots, outputs: outputs[0]
        return lambda args, slots, outputs: finish(outputs[0])

    output_of: dict[int, int] = {}  # position in the results -> position in the outputs
    for k, result in enumerate(program.results):
        if isinstance(result, ValueResult):
            output_of[k] = len(output_of)

    def assemble(args: Values, slots: Values, outputs: list[Any]) -> Any:
        done = [finish(out) if is_scalar else out for out, is_scalar in zip(outputs, scalar, strict=True)]

        def build(structure: Any) -> Any:
            if isinstance(structure, tuple):
                return tuple(build(item) for item in structure)
            result = program.results[structure]
            if isinstance(result, BufferResult):
                position = positions[result.buffer]
                return args[position] if position < len(args) else slots[position - len(args)]
            if isinstance(result, HostResult):
                return slots[result.slot]
            return done[output_of[structure]]

        return build(program.structure)

    return assemble
