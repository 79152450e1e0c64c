"""The reader of the text form of a Program; :mod:`numfuse.body_text` prints it and describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, get_args

import numpy as np

from numfuse import body
from numfuse.body import (
    UNDEFINED,
    Block,
    IndexMap,
    Node,
    Program,
    Shape,
    Type,
    Value,
    Variance,
    Version,
    Weak,
)
from numfuse.errors import FusionSyntaxError

__all__ = ["NAME", "parse_number", "parse_program"]

NAME = r"[^\W\d]\w*(?:-[^\W\d]\w*)*"  # what is printed bare; other names are quoted

_TOKEN = re.compile(
    rf"""(?P<skip>\s+|\#[^\n]*)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<id>%-?\d+)
    |(?P<name>{NAME})
    |(?P<number>-?(?:0x[0-9a-fA-F]+|\d+\.?\d*(?:e[+-]?\d+)?)|-inf\b)
    |(?P<mark>[{{}}()\[\],;:.=@*+])""",
    re.VERBOSE,
)
_VARIANCES = {variance.name.lower().replace("_", "-"): variance for variance in Variance}
_T = TypeVar("_T")


def parse_program(text: str) -> Program:
    """The program that :func:`numfuse.body_text.print_program` printed.

    Raises
    ------
    FusionSyntaxError
        If the text is not that of a program; the message says at which line.
    """
    return _Parser(text).program()


def parse_number(text: str) -> object:
    """A Python or NumPy number from its text form, such as ``1.5`` or ``float32(1.5)``."""
    return _Parser(text).number()


class _Parser:
    """Recursive descent over the tokens; each method reads what its name says."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, line
        self.position = 0
        start, line = 0, 1
        while start < len(text):
            match = _TOKEN.match(text, start)
            if match is None:
                raise FusionSyntaxError(f"line {line} of the program's text: what is {text[start : start + 30]!r}?")
            kind = str(match.lastgroup)
            if kind != "skip":
                self.tokens.append((kind, match[0], line))
            line += match[0].count("\n")
            start = match.end()
        self.tokens.append(("end", "end of text", line))

    # Tokens

    def fail(self, wanted: str) -> NoReturn:
        _, text, line = self.tokens[self.position]
        raise FusionSyntaxError(f"line {line} of the program's text: expected {wanted}, found {text!r}")

    def kind(self) -> str:
        return self.tokens[self.position][0]

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of `texts`; quoted text never is."""
        kind, text, _ = self.tokens[self.position]
        return kind in ("name", "mark") and text in texts

    def maybe(self, text: str) -> bool:
        found = self.at(text)
        self.position += found
        return found

    def take(self, text: str) -> None:
        if not self.maybe(text):
            self.fail(repr(text))

    def read(self, *kinds: str) -> str:
        kind, text, _ = self.tokens[self.position]
        if kind not in kinds:
            self.fail(" or ".join(kinds))
        self.position += 1
        return text

    def choice(self, choices: Sequence[_T]) -> _T:
        for choice in choices:
            if self.maybe(str(choice)):
                return choice
        self.fail(" or ".join(map(str, choices)))

    def listing(self, item: Callable[[], _T], close: str) -> tuple[_T, ...]:
        """Items separated by commas, then `close`."""
        items: list[_T] = []
        while not self.maybe(close):
            if items:
                self.take(",")
            items.append(item())
        return tuple(items)

    def series(self, item: Callable[[], _T]) -> tuple[_T, ...]:
        """Items separated by commas, one at least."""
        items = [item()]
        while self.maybe(","):
            items.append(item())
        return tuple(items)

    def option(self, keyword: str, item: Callable[[], _T]) -> _T | None:
        """The item after a keyword that may be absent; on a new line the word would begin another node."""
        same_line = self.tokens[self.position][2] == self.tokens[self.position - 1][2]
        return item() if same_line and self.maybe(keyword) else None

    # Leaves

    def string(self) -> str:
        return str(json.loads(self.read("text")))

    def name(self) -> str:
        return self.string() if self.kind() == "text" else self.read("name")

    def integer(self) -> int:
        text = self.read("number")
        try:
            return int(text, 0)
        except ValueError:
            self.position -= 1
            self.fail("an integer")

    def id(self) -> int:
        return int(self.read("id")[1:])

    def ids(self) -> tuple[int, ...]:
        self.take("(")
        return self.listing(self.id, ")")

    def ints(self) -> tuple[int, ...]:
        self.take("(")
        return self.listing(self.integer, ")")

    def type(self) -> Type:
        if self.at("int", "float", "complex"):
            return Weak(self.read("name"))
        return self.dtype()

    def dtype(self) -> np.dtype:
        name = self.name()
        try:
            return np.dtype(name)
        except TypeError:
            self.position -= 1
            self.fail("a dtype")

    def number(self) -> object:
        if self.at("True", "False"):
            return self.read("name") == "True"
        if self.maybe("undefined"):
            return UNDEFINED
        if self.at("inf", "nan"):
            return float(self.read("name"))
        if self.kind() == "number":
            text = self.read("number")
            return int(text, 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text) else float(text)
        python = self.at("float", "complex")
        dtype = np.dtype(self.read("name")) if python else self.dtype()
        self.take("(")
        scalar = np.zeros(1, dtype)
        if self.maybe("bits"):
            scalar = np.frombuffer(bytes.fromhex(self.string()), dtype)
        elif dtype.kind == "c":
            # Part by part: a sum with 1j * imag would make NaNs of infinities and lose signs of zero.
            scalar.real = self.part(scalar.real.dtype)
            self.take(",")
            scalar.imag = self.part(scalar.imag.dtype)
        else:
            scalar[0] = self.part(dtype)
        self.take(")")
        return scalar[0].item() if python else scalar[0]

    def part(self, dtype: np.dtype) -> Any:
        text = self.read("number", "name")
        if dtype.kind == "b":
            return text == "True"
        return int(text) if dtype.kind in "iu" else dtype.type(text)

    def value(self) -> Value:
        id = self.id()
        type = self.option(":", self.type)
        shape = self.shape() if self.at("{") else None
        variance = _VARIANCES[self.read("name")] if self.at(*_VARIANCES) else None
        return Value(id, type, shape, variance)

    def shape(self) -> Shape:
        self.take("{")
        buffers: set[str] = set()
        literal: tuple[int, ...] = ()
        for item in self.listing(lambda: self.ints() if self.at("(") else self.name(), "}"):
            if isinstance(item, str):
                buffers.add(item)
            else:
                literal = item
        return Shape(frozenset(buffers), literal)

    def version(self) -> Version:
        name = self.name()
        self.take("@")
        return Version(name, self.integer())

    def dim(self) -> int:
        name = self.read("name")
        if not re.fullmatch(r"d\d+", name):
            self.position -= 1
            self.fail("a dimension such as d0")
        return int(name[1:])

    def axis(self) -> body.Affine | body.Fixed | body.Stretched:
        if self.maybe("stretch"):
            return body.Stretched(self.dim())
        start, step = 0, 1
        if self.kind() == "number":
            step = self.integer()
            if not self.at("+", "*"):
                return body.Fixed(step)
            if self.maybe("+"):
                start, step = step, self.integer() if self.kind() == "number" else 1
            self.maybe("*")
        return body.Affine(self.dim(), start, step, self.option("extent", self.integer))

    def index(self) -> IndexMap:
        self.take("[")
        axes = None
        if not self.maybe("*"):
            axes = () if self.at(";", "]") else self.series(self.axis)
        rank, edge, fill = None, "none", None
        while self.maybe(";"):
            if self.maybe("rank"):
                rank = self.integer()
            elif self.maybe("edge"):
                edge = self.choice(get_args(body.EdgeRule))
            else:
                self.take("fill")
                fill = self.number()
        self.take("]")
        return IndexMap(axes, rank, edge, fill)  # type: ignore[arg-type]

    def place(self) -> tuple[Version, IndexMap]:
        version = self.version()
        return version, self.index() if self.at("[") else IndexMap()

    # Blocks and nodes

    def block(self) -> Block:
        """Nodes and yields up to the closing brace; the opening one has been read."""
        nodes: list[Node] = []
        while not self.maybe("yield"):
            nodes.append(self.node())
        return Block(tuple(nodes), self.listing(self.id, "}"))

    def node(self) -> Node:
        if self.kind() == "id":
            results = self.series(self.value)
            self.take("=")
        elif self.tokens[self.position + 1][1] == "@":
            after = self.version()
            self.take("=")
            return self.store(after)
        else:
            results = ()
        word = self.name()
        if self.maybe("."):
            loop = self.name(), self.ids(), self.option("loop", self.dtypes)
            return body.Op(results, word, loop[1], loop[0], loop[2])
        match word:
            case "external":
                symbol, operands = self.name(), self.ids()
                gradient = self.option("gradient", self.string)
                self.take("signature")
                signature = self.string()
                self.take("source")
                return body.External(results, symbol, self.string(), signature, operands, gradient)
            case "if":
                condition = self.id()
                self.take("{")
                return body.If(results, condition, *self.two_blocks("else"))
            case "loop":
                initial = self.ids()
                self.take("as")
                self.take("(")
                arguments = self.listing(self.value, ")")
                trip = self.option("trip", lambda: "uniform" if self.maybe("uniform") else self.integer())
                self.take("{")
                return body.Loop(results, initial, arguments, *self.two_blocks("do"), trip)  # type: ignore[arg-type]
        if len(results) != 1:
            self.fail(f"a node with {len(results)} results")
        return self.single(results[0], word)

    def two_blocks(self, between: str) -> tuple[Block, Block]:
        first = self.block()
        self.take(between)
        self.take("{")
        return first, self.block()

    def dtypes(self) -> tuple[np.dtype, ...]:
        self.take("(")
        return self.listing(self.dtype, ")")

    def single(self, result: Value, word: str) -> Node:
        """A node of the kinds that have one result."""
        match word:
            case "const":
                return body.Const(result, self.number())
            case "host":
                return body.HostArg(result, self.integer())
            case "index":
                return body.Index(result, self.integer())
            case "load":
                return body.Load(result, *self.place())
            case "gather":
                version, indices = self.version(), self.ids()
                return body.Gather(result, version, indices, self.choice(("wrap-negative", "clamp", "unchecked")))
            case "cast":
                operand = self.id()
                return body.Cast(result, operand, self.choice(get_args(body.CastRule)))
            case "view":
                operand = self.id()
                return body.View(result, operand, self.index())
            case "reduce":
                row, operand = self.name(), self.id()
                axes = self.option("axes", self.ints)
                keepdims = self.option("keepdims", lambda: True) or False
                dtype, initial = self.option("dtype", self.dtype), self.option("initial", self.id)
                where = self.option("where", self.id)
                return body.Reduce(result, row, operand, axes, keepdims, dtype, initial, where)
            case "scan":
                row, operand = self.name(), self.id()
                self.take("axis")
                axis = self.integer()
                return body.Scan(result, row, operand, axis, self.option("dtype", self.dtype))
        self.position -= 1
        self.fail("a node")

    def store(self, after: Version) -> body.Store:
        self.take("store")
        operand = self.id()
        self.take("into")
        before, index = self.place()
        return body.Store(before, after, operand, index, self.option("where", self.id))

    # The whole

    def program(self) -> Program:
        self.take("program")
        name = self.name()
        buffers: list[body.Buffer] = []
        while self.maybe("buffer"):
            buffer = self.name()
            self.take(":")
            kind: body.BufferKind = self.choice(get_args(body.BufferKind))
            buffers.append(body.Buffer(buffer, kind, self.dtype()))
        slots: list[Type | None] = []
        while self.maybe("host"):
            if self.integer() != len(slots):
                self.fail("host slots in order")
            slots.append(self.option(":", self.type))
        self.take("{")
        block = self.block()
        self.take("results")
        results = () if self.at("structure") else self.series(self.result)
        self.take("structure")
        structure = self.structure()
        self.read("end")
        return Program(name, tuple(buffers), block, results, structure, tuple(slots))

    def result(self) -> body.Result:
        if self.maybe("buffer"):
            return body.BufferResult(self.name())
        if self.maybe("host"):
            return body.HostResult(self.integer())
        return body.ValueResult(self.id())

    def structure(self) -> object:
        if self.maybe("none"):
            return None
        if self.maybe("["):
            return list(self.listing(self.structure, "]"))
        return self.listing(self.structure, ")") if self.maybe("(") else self.integer()
