"""The typed body: what a fused function means, once names, calls and early exits are gone.

A :class:`Program` is structured SSA. Every node has one or more :class:`Value` results; operands refer to
values by id. Nothing is mutated: a pass builds new nodes. Regions (:class:`If`, :class:`Loop`) hold blocks
whose last act is to yield values; they hold no stores.

Everything that later capabilities need (reductions, scans, views, gathers, in-place stores, external
functions) can be constructed, printed (:mod:`numfuse.body_text`) and interpreted
(:mod:`numfuse.interpreter`), even where the emitters still refuse it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from numfuse.errors import Loc


class Weak(enum.Enum):
    """The type of a Python number, which takes the dtype of what it meets (NEP 50)."""

    INT = "int"
    FLOAT = "float"
    COMPLEX = "complex"

    @property
    def python(self) -> type[int] | type[float] | type[complex]:
        """The Python type, as ``ufunc.resolve_dtypes`` takes it for a weak scalar."""
        return {"int": int, "float": float, "complex": complex}[self.value]

    @property
    def loop_dtype(self) -> np.dtype:
        """The dtype in which a kernel computes with such a number when nothing else decides.

        Not called `dtype`: NumPy takes any object with that attribute for a dtype, and float64 would equal
        ``Weak.FLOAT``.
        """
        return np.dtype({"int": np.int64, "float": np.float64, "complex": np.complex128}[self.value])


Type: TypeAlias = np.dtype | Weak


class Variance(enum.IntEnum):
    """On what a value depends; a value takes the largest variance of its operands."""

    STATIC = 0  # known when the function is lowered
    HOST_UNIFORM = 1  # one value a call, computed by Python before the launch
    DEVICE_UNIFORM = 2  # one value a launch, computed in the kernel
    VARYING = 3  # one value an element


@dataclass(frozen=True, slots=True)
class Shape:
    """A symbolic shape: the broadcast of the shapes of some buffers and of literal extents.

    The rank stays open, so one program serves operands of any rank. `literal` is the shape of values made
    with a known shape (views of known extent, ``np.ones((3, 1))``); ``()`` adds nothing.
    """

    buffers: frozenset[str] = frozenset()
    literal: tuple[int, ...] = ()

    def __or__(self, other: Shape) -> Shape:
        return Shape(self.buffers | other.buffers, np.broadcast_shapes(self.literal, other.literal))


SCALAR_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node. Passes fill in `type`, `shape` and `variance`."""

    id: int
    type: Type | None = None
    shape: Shape | None = None
    variance: Variance | None = None


# --------------------------------------------------------------------------------------------------------
# Indexing


@dataclass(frozen=True, slots=True)
class Affine:
    """Source axis position = start + step * (index along result dimension `dim`)."""

    dim: int
    start: int = 0
    step: int = 1
    extent: int | None = None  # length of the result dimension; None: as long as the source allows


@dataclass(frozen=True, slots=True)
class Fixed:
    """Source axis position is one integer; the axis disappears."""

    position: int


@dataclass(frozen=True, slots=True)
class Stretched:
    """Source axis of length one, repeated along a result dimension."""

    dim: int


EdgeRule: TypeAlias = Literal["none", "wrap", "clamp", "fill"]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """How positions of a result map to positions of a source, axis by axis.

    ``axes=None`` is the identity of open rank: element for element, with NumPy's broadcasting. `rank` is
    the number of result dimensions when `axes` is given; result dimensions that no axis names have length 1.
    """

    axes: tuple[Affine | Fixed | Stretched, ...] | None = None
    rank: int | None = None
    edge: EdgeRule = "none"
    fill: int | float | complex | bool | None = None


IDENTITY = IndexMap()


# --------------------------------------------------------------------------------------------------------
# Buffers

BufferKind: TypeAlias = Literal["parameter", "captured", "temporary", "output"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that nodes load from and store to. Its version 0 is what it holds when the program starts."""

    name: str
    kind: BufferKind
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a buffer: each store makes the next."""

    buffer: str
    number: int = 0


# --------------------------------------------------------------------------------------------------------
# Nodes


class Undefined:
    """The value of a variable on a path that did not assign it; no path that reads it was taken."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED = Undefined()


@dataclass(frozen=True, slots=True)
class Const:
    """A number known now: a Python scalar (weak, or bool) or a NumPy scalar; or `UNDEFINED`."""

    result: Value
    value: object
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class HostArg:
    """A number computed on the host at each call (slot of the host prelude), in the dtype of `result`.

    Before types are inferred its type is what the host value has: weak or a dtype. After, each dtype in
    which a slot is used is a HostArg of its own, converted and range-checked on the host.
    """

    result: Value
    slot: int
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Index:
    """The element's own position along an axis of the stage's domain, as int64."""

    result: Value
    axis: int
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a buffer."""

    result: Value
    version: Version
    index: IndexMap = IDENTITY
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Gather:
    """An element of a buffer at computed positions, one value an axis."""

    result: Value
    version: Version
    indices: tuple[int, ...]
    bounds: Literal["wrap-negative", "clamp", "unchecked"] = "wrap-negative"
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of the table, by the name of its row.

    `spelling` says how it was written ("operator" keeps Python numbers weak, "ufunc" makes them strong);
    `loop` is the dtype of each operand inside the operation, known after types are inferred.
    """

    results: tuple[Value, ...]
    row: str
    operands: tuple[int, ...]
    spelling: str = "ufunc"
    loop: tuple[np.dtype, ...] | None = None
    loc: Loc | None = field(default=None, compare=False)


CastRule: TypeAlias = Literal["unsafe", "same_kind", "safe", "weak"]


@dataclass(frozen=True, slots=True)
class Cast:
    """The operand in another type. `rule` is what NumPy would allow here; "weak" never fails."""

    result: Value
    operand: int
    rule: CastRule = "unsafe"
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class View:
    """Another arrangement of any value: slice, newaxis, transpose, flip, roll, pad."""

    result: Value
    operand: int
    index: IndexMap
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction by a row of the table (add, maximum ...) over axes of the operand; None: all axes."""

    result: Value
    row: str
    operand: int
    axes: tuple[int, ...] | None = None
    keepdims: bool = False
    dtype: np.dtype | None = None
    initial: int | None = None  # id of a value
    where: int | None = None  # id of a value
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """A running reduction along one axis (``ufunc.accumulate``)."""

    result: Value
    row: str
    operand: int
    axis: int
    dtype: np.dtype | None = None
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class External:
    """A call of a function that is not ours, such as CUDA C++ source."""

    results: tuple[Value, ...]
    symbol: str
    source: str
    signature: str
    operands: tuple[int, ...]
    gradient: str | None = None
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes in order, then the ids of the values that the block yields."""

    nodes: tuple[Node, ...]
    yields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Results are what the taken block yields, position by position."""

    results: tuple[Value, ...]
    condition: int
    then: Block
    orelse: Block
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Loop:
    """``while condition: body`` over carried values.

    `arguments` are the carried values inside both blocks; they start as `initial`, `condition` yields one
    bool, `body` yields the next carried values, `results` are the carried values after the loop. `trip` is
    the number of turns where it is known ("static": the same for every call that shares this program).
    """

    results: tuple[Value, ...]
    initial: tuple[int, ...]
    arguments: tuple[Value, ...]
    condition: Block
    body: Block
    trip: int | Literal["uniform"] | None = None
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Store:
    """The buffer with some elements replaced: a new version. Elements where `mask` is false keep theirs."""

    before: Version
    after: Version
    operand: int
    index: IndexMap = IDENTITY
    mask: int | None = None
    loc: Loc | None = field(default=None, compare=False)


Node: TypeAlias = (
    Const | HostArg | Index | Load | Gather | Op | Cast | View | Reduce | Scan | External | If | Loop | Store
)


# --------------------------------------------------------------------------------------------------------
# Programs


@dataclass(frozen=True, slots=True)
class ValueResult:
    """A result that the kernel computes."""

    value: int


@dataclass(frozen=True, slots=True)
class BufferResult:
    """A result that IS a parameter or captured array: the caller gets the same object back."""

    buffer: str


@dataclass(frozen=True, slots=True)
class HostResult:
    """A result that Python computed on the host (slot of the host prelude)."""

    slot: int


Result: TypeAlias = ValueResult | BufferResult | HostResult


@dataclass(frozen=True, slots=True)
class Program:
    """A whole fused function.

    `results` is flat; `structure` says how they nest in what the function returns: an int is a position
    in `results`, a tuple is a tuple, a list a list,
    None is None. `host_slots` is the type of each slot of the host prelude.
    """

    name: str
    buffers: tuple[Buffer, ...]
    block: Block  # its yields are the values of the ValueResults, in order
    results: tuple[Result, ...]
    structure: object = 0
    host_slots: tuple[Type | None, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)


def node_results(node: Node) -> tuple[Value, ...]:
    """The values that a node defines."""
    if isinstance(node, Op | External | If | Loop):
        return node.results
    if isinstance(node, Store):
        return ()
    return (node.result,)


def node_operands(node: Node) -> tuple[int, ...]:
    """Ids of the values that a node uses directly (not those used inside its blocks)."""
    match node:
        case Const() | HostArg() | Index() | Load():
            return ()
        case Gather():
            return node.indices
        case Op() | External():
            return node.operands
        case Cast() | View() | Scan():
            return (node.operand,)
        case Reduce():
            extra = (node.initial, node.where)
            return (node.operand, *(i for i in extra if i is not None))
        case If():
            return (node.condition,)
        case Loop():
            return node.initial
        case Store():
            return (node.operand,) if node.mask is None else (node.operand, node.mask)


def node_blocks(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node."""
    if isinstance(node, If):
        return (node.then, node.orelse)
    if isinstance(node, Loop):
        return (node.condition, node.body)
    return ()


def walk(block: Block) -> Iterator[Node]:
    """Every node of a block and of the blocks inside it, in order."""
    for node in block.nodes:
        yield node
        for inner in node_blocks(node):
            yield from walk(inner)
