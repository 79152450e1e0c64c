"""The Python function that answers calls of one plan, written out.

A call costs microseconds, so everything known when the plan is made is spelled into the text of one function:
which array sits where, how its library tells the address, the constant words of the packed arguments, how
the results nest. What is left are attribute reads, one allocation a result, one pack and one launch.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numfuse.arrays import Adapter
from numfuse.backends.element import Nest, Parameter
from numfuse.body import BufferResult, HostArg, HostResult, Program, ValueResult
from numfuse.errors import FusionOverflowError, Loc

Run = Callable[[Sequence[Any], Sequence[Any]], Any]

_numbers = itertools.count()  # of runners: each has a file name of its own in linecache


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
    scalars: tuple[HostArg, ...]  # the numbers, in the order of the element function's scalars


@dataclass
class RunnerWriter:
    """Writes one runner.

    Parameters
    ----------
    count : int
        Number of arguments; positions beyond it are prelude slots.
    adapter : Adapter
        The library of the arrays.
    like : int
        Position of the array that results are allocated like.
    labels : mapping
        What errors call the array at each position: ``argument 'x'``, ``captured array 'table'``.
    """

    count: int
    adapter: Adapter
    like: int
    labels: Mapping[int, str]
    namespace: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)  # array expression -> name of its address

    def __post_init__(self) -> None:
        self.namespace.update(self.adapter.names)

    def array(self, position: int) -> str:
        """The array at a position, as text."""
        return f"args[{position}]" if position < self.count else f"slots[{position - self.count}]"

    def allocate(self, allocators: Sequence[Callable[[Any], Any]]) -> None:
        """One new array a result."""
        if allocators:
            self.lines.append(f"like = {self.array(self.like)}")
        for k, allocator in enumerate(allocators):
            self.namespace[f"allocate_{k}"] = allocator
            self.lines.append(f"out_{k} = allocate_{k}(like)")

    def address(self, position: int) -> str:
        """The name of the address of the array at a position, read once."""
        array = self.array(position)
        if array not in self.addresses:
            reading = self._read_address(array)
            if self.adapter.address_error is None:
                self.lines.append(reading)
            else:
                self.namespace |= {"address_error": self.adapter.address_error, "no_address": self.adapter.no_address}
                label = self.labels[position]
                self.lines += [
                    f"try: {reading}",
                    f"except address_error: raise no_address({array}).labelled({label!r}) from None",
                ]
        return self.addresses[array]

    def out_address(self, output: int) -> str:
        """The name of the address of a new array, read once."""
        array = f"out_{output}"
        if array not in self.addresses:
            self.lines.append(self._read_address(array))
        return self.addresses[array]

    def _read_address(self, array: str) -> str:
        name = self.addresses[array] = f"address_{len(self.addresses)}"
        return f"{name} = {self.adapter.address_code.format(array)}"

    def job_addresses(self, job: Job) -> list[str]:
        """The text of the address at which each operand, then each output of a nest starts."""
        names = [self.address(position) for position in job.operands]
        names += [self.out_address(output) for output in job.outputs]
        return [f"{name} + {offset}" if offset else name for name, offset in zip(names, job.offsets, strict=True)]

    def words(self, jobs: Sequence[Job], declared: Sequence[Parameter]) -> list[str]:
        """The text of each word of the packed arguments."""
        seen = [0] * len(jobs)
        addresses = [self.job_addresses(job) for job in jobs]
        texts = []
        for parameter in declared:
            job = jobs[parameter.nest]
            array, axis = parameter.array or 0, parameter.axis or 0
            match parameter.role:
                case "size":
                    texts.append(str(job.size))
                case "extent":
                    texts.append(str(job.extents[axis]))
                case "stride":
                    texts.append(str(job.strides[array][axis]))
                case "address":
                    texts.append(addresses[parameter.nest][array])
                case "scalar":
                    node = job.scalars[seen[parameter.nest]]
                    seen[parameter.nest] += 1
                    convert = f"convert_{node.slot}_{parameter.dtype.name}"
                    if convert not in self.namespace:
                        self.namespace[convert] = conversion(parameter.dtype, node.loc)
                    texts.append(f"{convert}(slots[{node.slot}])")
        return texts

    def build(self, program: Program, scalar: Sequence[bool], positions: dict[str, int], label: str) -> Run:
        """Finish with the results, nested as the plain function returns them."""
        outputs: dict[int, int] = {}  # position in the results -> position in the outputs
        for k, result in enumerate(program.results):
            if isinstance(result, ValueResult):
                outputs[k] = len(outputs)
        self.namespace["finish"] = self.adapter.finish
        finished = []
        for k, is_scalar in enumerate(scalar):
            finished.append(f"out_{k}")
            if is_scalar:  # once, so that a result that stands in two places is one object
                self.lines.append(f"out_{k} = finish(out_{k})")

        def text(structure: Any) -> str:
            if structure is None:
                return "None"
            if isinstance(structure, tuple):
                return f"({''.join(text(item) + ', ' for item in structure)})"
            if isinstance(structure, list):
                return f"[{', '.join(map(text, structure))}]"
            result = program.results[structure]
            if isinstance(result, BufferResult):
                return self.array(positions[result.buffer])
            if isinstance(result, HostResult):
                return f"slots[{result.slot}]"
            return finished[outputs[structure]]

        self.lines.append(f"return {text(program.structure)}")
        source = "def run(args, slots):\n" + "".join(f"    {line}\n" for line in self.lines)
        filename = f"<numfuse call of {label} {next(_numbers)}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), self.namespace)
        run: Run = self.namespace["run"]
        weakref.finalize(run, linecache.cache.pop, filename, None)
        return run


def conversion(dtype: np.dtype, loc: Loc | None) -> Callable[[Any], Any]:
    """What turns a host number into one that `struct` packs as this dtype, the way NumPy would."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)

        def whole(value: Any) -> int:
            if isinstance(value, np.generic):
                with np.errstate(all="ignore"):
                    return int(value.astype(dtype))
            if not low <= value <= high:
                raise FusionOverflowError(f"Python integer {value} out of bounds for {dtype}", loc)
            return int(value)

        return whole
    if dtype == np.float32:

        def single(value: Any) -> float:
            # struct refuses a double that would round to infinity; NumPy makes it infinity.
            if type(value) is float and -1e38 < value < 1e38:
                return value
            with np.errstate(all="ignore"):
                return float(np.float32(value))

        return single
    return float if dtype.kind == "f" else bool
