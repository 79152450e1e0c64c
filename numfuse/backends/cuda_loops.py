"""The loops of a GPU kernel, as text: how a nest's elements are shared among threads and how memory is met.

Every loop is a grid-stride loop: correct for any number of blocks and threads. In one turn a thread loads all
that it needs, computes, then stores, so that enough bytes are on their way to hide the memory's latency.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numfuse.backends.element import Access, Nest, Parameter

__all__ = ["DTYPE_NAMES", "LoopNames", "NestWriter", "choose_lanes", "vector_width", "wrapped"]

_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
DTYPE_NAMES = frozenset(_INTEGERS | {"bool", "float32", "float64"})

_LINE = 110
_VECTOR_BYTES = 16  # the widest access before Blackwell
# Bytes a thread has on their way: an SM of an H100 or H200 needs 32 to 48 KB, and holds at most 2048 threads.
_BYTES_IN_FLIGHT = 32
_MOST_LANES = 16
_MOST_STRIDED = 4  # elements whose coordinates and addresses a thread computes one by one
# The element function is written out once a lane, so long ones get fewer lanes: arithmetic binds them anyway.
_MOST_OPERATIONS = 600


def vector_width(nest: Nest) -> int:
    """Neighbouring elements that one access moves: 16 bytes of the widest dtype."""
    accesses = (*nest.operands, *nest.outputs)
    vectors = nest.aligned and Access.STRIDED not in accesses and set(nest.outputs) == {Access.DENSE}
    if not vectors:
        return 1
    arrays = (*nest.element.operands, *nest.element.outputs)
    dense = [array.dtype.itemsize for array, access in zip(arrays, accesses, strict=True) if access is Access.DENSE]
    return _VECTOR_BYTES // max(dense)


def choose_lanes(nest: Nest) -> int:
    """Elements of a thread's turn, a power of two: enough bytes on their way, not too much code."""
    operands = zip(nest.element.operands, nest.operands, strict=True)
    loaded = sum(array.dtype.itemsize for array, access in operands if access in (Access.DENSE, Access.STRIDED))
    lanes = width = vector_width(nest)
    most = _MOST_STRIDED if nest.ndim > 1 and width == 1 else _MOST_LANES
    while loaded and lanes < most and lanes * loaded < _BYTES_IN_FLIGHT:
        lanes *= 2
    while lanes > 1 and lanes * nest.element.weight > _MOST_OPERATIONS:
        lanes //= 2
    return lanes


class LoopNames:
    """Fresh variable names of one kernel, and the memory functions that it has used."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self.memory: set[str] = set()

    def fresh(self, base: str) -> str:
        name, n = base, 1
        while name in self._taken:
            name, n = f"{base}_{n}", n + 1
        self._taken.add(name)
        return name

    def use(self, memory_function: str) -> str:
        self.memory.add(memory_function)
        return memory_function


@dataclass(slots=True)
class _Array:
    name: str
    dtype: np.dtype[Any]
    access: Access
    base: str
    strides: list[str]
    value: str | None = None  # the variable that holds it, where it is loaded once before the loop


@dataclass(slots=True)
class _Turn:
    """What a thread does in one turn, by kind, so that all loads come first and all stores last."""

    places: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [*self.places, *self.loads, *self.calls, *self.stores]


class NestWriter:
    """Writes the loops of one nest.

    Parameters
    ----------
    nest : Nest
    own : list of Parameter
        The kernel's arguments that belong to this nest, in order, with their names in the text.
    function : str
        The element function's name in the text.
    lanes : int
        Elements of one turn.
    thread : tuple of str
        Variables (uint64) that hold the thread's number, the block's, and how many of each there are.
    names : LoopNames
    readonly : bool
        No array that is loaded is also stored by this kernel.
    """

    def __init__(
        self,
        nest: Nest,
        own: list[Parameter],
        function: str,
        lanes: int,
        thread: tuple[str, str, str, str],
        names: LoopNames,
        readonly: bool,
    ) -> None:
        self.nest, self.function, self.names = nest, function, names
        self.thread, self.block, self.threads, self.blocks = thread
        self.width = min(vector_width(nest), lanes)
        self.unroll = lanes // self.width
        self.load = "load_readonly" if readonly else "load"
        # Coordinates of several dimensions cost divisions, which are much dearer in 64 bits. A lone linear
        # index costs nothing worth saving.
        self.index = "uint32" if nest.ndim > 1 and nest.index_bits == 32 else "uint64"
        self.size = next(p.name for p in own if p.role == "size")
        self.extents = [p.name for p in own if p.role == "extent"]
        self.scalars = [(p.name, p.dtype) for p in own if p.role == "scalar"]
        self.functions: list[str] = []  # lines of functions that the loops call
        self.arrays: list[_Array] = []
        described = zip((*nest.element.operands, *nest.element.outputs), (*nest.operands, *nest.outputs), strict=True)
        for k, (argument, access) in enumerate(described):
            (address,) = (p.name for p in own if p.role == "address" and p.array == k)
            strides = [p.name for p in own if p.role == "stride" and p.array == k]
            self.arrays.append(_Array(argument.name, argument.dtype, access, address, strides))

    def lines(self) -> list[str]:
        lines = self._preamble()
        if self.nest.ndim <= 1:
            return lines + self._one_dimension()
        return lines + self._more_dimensions()

    def _preamble(self) -> list[str]:
        """Arguments at their own types, whatever a dispatcher made of numbers; and values loaded once."""
        lines = []
        for array in self.arrays:
            base = self.names.fresh(f"{array.name}_base")
            lines.append(f"{base} = uint64({array.base})")
            array.base = base
        values = []
        for name, dtype in self.scalars:
            value = self.names.fresh(f"{name}_value")
            lines.append(f"{value} = {'boolean' if dtype.kind == 'b' else dtype.name}({name})")
            values.append(value)
        self.scalar_values = values
        once = (Access.SCALAR, Access.REPEATED) if self.nest.ndim <= 1 else (Access.SCALAR,)
        for array in self._operands():
            if array.access in once:
                array.value = self.names.fresh(f"{array.name}_value")
                lines.append(f"{array.value} = {self._load(array, 1)}({array.base})")
        return lines

    def _operands(self) -> list[_Array]:
        return self.arrays[: len(self.nest.operands)]

    def _load(self, array: _Array, width: int) -> str:
        lanes = f"x{width}" if width > 1 else ""
        return self.names.use(f"{self.load}_{array.dtype.name}{lanes}")

    # Loops

    def _one_dimension(self) -> list[str]:
        size = self.names.fresh("count")
        lines = [f"{size} = uint64({self.size})"]
        if self.width == 1:
            return lines + self._loop(size, 1, self.unroll, self._linear_places)
        whole = self.names.fresh("vectors")
        lines.append(f"{whole} = {size} // uint64({self.width})")
        lines += self._loop(whole, self.width, self.unroll, self._linear_places)
        index, turn = self.names.fresh("index"), _Turn()
        first = f"{whole} * uint64({self.width}) + {self.block} * {self.threads} + {self.thread}"
        self._write_turn(turn, index, 1, self._linear_places)
        return [
            *lines,
            f"{index} = {first}",
            f"while {index} < {size}:  # the rest, one element a thread",
            *_indent([*turn.lines(), f"{index} += {self.blocks} * {self.threads}"]),
        ]

    def _more_dimensions(self) -> list[str]:
        size = self.names.fresh("count")
        lines = [f"{size} = {self.index}({self.size})"]
        lengths = [self.names.fresh(f"length_{d}") for d in range(1, self.nest.ndim)]
        lines += [f"{n} = {self.index}({e})" for n, e in zip(lengths, self.extents[1:], strict=True)]
        lines += self._write_offsets(lengths)
        scalar = self._loop(size, 1, min(self.unroll * self.width, _MOST_STRIDED), self._strided_places)
        if self.width == 1:
            return lines + scalar
        whole = self.names.fresh("vectors")
        vector = [
            f"{whole} = {self._narrow(f'{size} // {self.index}({self.width})')}",
            *self._loop(whole, self.width, self.unroll, self._strided_places),
        ]
        return [
            *lines,
            f"if {self._rows_are_aligned()}:  # each row is whole vectors",
            *_indent(vector),
            "else:",
            *_indent(scalar),
        ]

    def _rows_are_aligned(self) -> str:
        strides: dict[int, list[str]] = {}
        for array in self.arrays:
            if array.access is Access.DENSE:
                strides.setdefault(self.width * array.dtype.itemsize, []).extend(array.strides[:-1])
        tests = [f"({self.extents[-1]} & int64({self.width - 1})) == int64(0)"]
        tests += [f"(({' | '.join(s)}) & int64({size - 1})) == int64(0)" for size, s in strides.items() if size > 1]
        return " and ".join(tests)

    def _narrow(self, expression: str) -> str:
        """`expression` in the type of the index: Numba makes 64-bit integers of sums of 32-bit ones."""
        return f"uint32({expression})" if self.index == "uint32" else expression

    def _loop(self, count: str, width: int, unroll: int, places: Any) -> list[str]:
        """A grid-stride loop over `count` items of `width` elements, `unroll` of them in a turn.

        The items of a turn lie a whole block apart, so that a warp's accesses are neighbours.
        """
        first, stride = self.names.fresh("item"), self.names.fresh("stride")
        step = self.threads if self.index == "uint64" else f"uint32({self.threads})"
        block_items = f"({self.threads} * uint64({unroll}))" if unroll > 1 else self.threads
        turn = _Turn()
        for u in range(unroll):
            index = first
            if u:
                index = self.names.fresh(f"{first}_{u}")
                turn.places.append(f"{index} = {self._narrow(f'{first} + {self.index}({u}) * {step}')}")
            self._write_turn(turn, index, width, places)
        lines = [
            f"{first} = {self._narrow(f'{self.block} * {block_items} + {self.thread}')}",
            f"{stride} = {self._narrow(f'{self.blocks} * {block_items}')}",
        ]
        last = f"{first} + {self.index}({unroll - 1}) * {step}" if unroll > 1 else first
        lines.append(f"while {last} < {count}:")
        lines += _indent([*turn.lines(), f"{first} = {self._narrow(f'{first} + {stride}')}"])
        if unroll > 1:
            turn = _Turn()
            self._write_turn(turn, first, width, places)
            lines.append(f"while {first} < {count}:  # what is left of the last turn")
            lines += _indent([*turn.lines(), f"{first} = {self._narrow(f'{first} + {step}')}"])
        return lines

    # One turn

    def _write_turn(self, turn: _Turn, index: str, width: int, places: Any) -> None:
        """Load, compute and store the `width` elements of item number `index`."""
        at = places(turn, index, width)
        lanes: list[list[str]] = []  # for each operand, the expression of each lane
        for array, address in zip(self._operands(), at, strict=False):
            if array.value is not None:
                lanes.append([array.value] * width)
                continue
            loaded = width if array.access is Access.DENSE else 1
            name = self.names.fresh(f"{array.name}_item")
            turn.loads.append(f"{name} = {self._load(array, loaded)}({address})")
            lanes.append([f"{name}[{k}]" for k in range(width)] if loaded > 1 else [name] * width)
        results = []
        for k in range(width):
            name = self.names.fresh("result")
            arguments = [*(lane[k] for lane in lanes), *self.scalar_values]
            turn.calls.append(f"{name} = {self.function}({', '.join(arguments)})")
            results.append(name)
        outputs = zip(self.arrays[len(self.nest.operands) :], at[len(self.nest.operands) :], strict=True)
        for k, (array, address) in enumerate(outputs):
            values = [f"{result}[{k}]" for result in results]
            store = self.names.use(f"store_{array.dtype.name}" + (f"x{width}" if width > 1 else ""))
            opening, closing = ("(", "))") if width > 1 else ("", ")")
            turn.stores += wrapped(f"{store}({address}, {opening}", values, closing)

    def _linear_places(self, turn: _Turn, index: str, width: int) -> list[str]:
        """The address of item number `index` of each array, in one dimension."""
        places = []
        offsets: dict[int, str] = {}  # by the bytes of an item: each is computed once
        for array in self.arrays:
            if array.access is Access.DENSE:
                size = width * array.dtype.itemsize
                if size not in offsets:
                    offsets[size] = self.names.fresh("at")
                    turn.places.append(f"{offsets[size]} = {index} * uint64({size})")
                places.append(f"{array.base} + {offsets[size]}")
            elif array.access is Access.STRIDED:
                places.append(f"{array.base} + uint64(int64({index}) * {array.strides[0]})")
            else:
                places.append(array.base)
        return places

    def _strided_places(self, turn: _Turn, index: str, width: int) -> list[str]:
        """The address of item number `index` of each array, by the function of :meth:`_write_offsets`."""
        moving = [array for array in self.arrays if array.access is not Access.SCALAR]
        offsets = {id(array): self.names.fresh(f"{array.name}_at") for array in moving}
        element = self._narrow(f"{index} * {self.index}({width})") if width > 1 else index
        targets = ", ".join(offsets.values()) if len(offsets) > 1 else f"({next(iter(offsets.values()))},)"
        turn.places.append(f"{targets} = {self.offsets}({element}, {', '.join(self.layout)})")
        return [f"{array.base} + {offsets[id(array)]}" if id(array) in offsets else array.base for array in self.arrays]

    def _write_offsets(self, lengths: list[str]) -> list[str]:
        """A function of the text: the number of an element -> its byte offset in each array.

        Returns the lines that make its other arguments: the lengths and the strides.
        """
        self.offsets, index = self.names.fresh("offsets"), self.names.fresh("index")
        self.layout = (self.names.fresh("lengths"), self.names.fresh("strides"))
        quotient = self.names.use(f"quotient_{self.index}")
        lines, rest = [], index
        coordinates: list[str] = []
        for axis in range(self.nest.ndim - 1, 0, -1):
            whole = self.names.fresh("i_0" if axis == 1 else f"rows_{axis}")
            coordinate = self.names.fresh(f"i_{axis}")
            length = lengths[axis - 1]
            lines.append(f"{whole} = {quotient}({rest}, {length})")
            lines.append(f"{coordinate} = {self._narrow(f'{rest} - {whole} * {length}')}")
            coordinates.insert(0, coordinate)
            rest = whole
        coordinates.insert(0, rest)
        results, strides = [], []
        for array in self.arrays:
            if array.access is Access.SCALAR:
                continue
            steps: list[str | None] = [*array.strides[:-1]]
            if array.access is Access.DENSE:
                steps.append(f"int64({array.dtype.itemsize})")
            elif array.access is Access.STRIDED:
                steps.append(array.strides[-1])
            strides += [step for step in steps if step in array.strides]
            terms = [f"int64({i}) * {step}" for i, step in zip(coordinates, steps, strict=False)]
            results.append(f"uint64({' + '.join(terms)})")
        unpack = [*_tuple("", lengths, f" = {self.layout[0]}"), *_tuple("", strides, f" = {self.layout[1]}")]
        self.functions = [
            "@cuda.jit(device=True, forceinline=True)",
            f"def {self.offsets}({index}, {', '.join(self.layout)}):",
            *_indent([*unpack, *lines, "return (", *(f"    {result}," for result in results), ")"]),
            "",
            "",
        ]
        return [*_tuple(f"{self.layout[0]} = ", lengths, ""), *_tuple(f"{self.layout[1]} = ", strides, "")]


def wrapped(head: str, items: list[str], tail: str) -> list[str]:
    """``head item, item tail``, over several lines where it is long."""
    one = f"{head}{', '.join(items)}{tail}"
    if len(one) <= _LINE:
        return [one]
    rows = textwrap.wrap(", ".join(items) + ",", _LINE - 4, break_long_words=False)
    opening = "" if head.endswith("(") else "("
    closing = tail if head.endswith("(") else f"){tail}"
    return [head + opening, *("    " + row for row in rows), closing]


def _tuple(head: str, items: list[str], tail: str) -> list[str]:
    return wrapped(f"{head}(", items, f"){tail}") if len(items) > 1 else [f"{head}({items[0]},){tail}"]


def _indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
