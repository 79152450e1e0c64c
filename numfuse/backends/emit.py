"""A stage of a typed program as an element function: Python text that both targets compile.

One line a node, every conversion written out, so that Numba has no dtype left to decide. The text is what
``explain()`` shows and what tracebacks and profilers point into.
"""

from __future__ import annotations

import builtins
import keyword
import re

import numpy as np

from numfuse import ops
from numfuse.backends.element import Argument, ElementFunction
from numfuse.body import (
    Block,
    Cast,
    Const,
    HostArg,
    If,
    Load,
    Loop,
    Node,
    Op,
    Value,
    Weak,
    walk,
)
from numfuse.dtypes.rules import dtype_of
from numfuse.errors import FusionNotImplementedError
from numfuse.passes.stages import Stage

# Names that the header of a kernel module defines.
_DTYPE_NAMES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
_LOCAL_NAMES = ["njit", "cuda", "numba", "inf", "nan", "boolean", "arguments", "start", "stop", "size", "i", "words"]
_RESERVED = frozenset([*_DTYPE_NAMES, *_LOCAL_NAMES, *dir(builtins)])
# The scalar library's names end in a dtype, and which of them a body uses is known only at its end.
_LIBRARY = re.compile(rf"_({'|'.join(_DTYPE_NAMES)})$")
_MEMORY = re.compile(r"(load|store)_")  # what kernels call to read and write memory


def usable(name: str) -> str:
    """A name like this one that means nothing else in the text of a kernel."""
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "value"
    if name[0].isdigit() or keyword.iskeyword(name) or not name.isascii():
        name = f"v_{''.join(c for c in name if c.isascii())}"
    taken = name in _RESERVED or _LIBRARY.search(name) or _MEMORY.match(name)
    return f"{name}_" if taken else name


def emit(stage: Stage, name: str, slot_names: dict[int, str]) -> ElementFunction:
    """The element function of a stage.

    Parameters
    ----------
    stage : Stage
        A typed part of a program.
    name : str
        Name of the function in the text.
    slot_names : dict
        Host slot -> the user's name for it, where there is one.
    """
    return _Emitter(stage, name, slot_names).run()


class _Emitter:
    def __init__(self, stage: Stage, name: str, slot_names: dict[int, str]) -> None:
        self.stage = stage
        self.taken: set[str] = set(_RESERVED)
        self.name = self.fresh(name)
        self.slot_names = slot_names
        self.text: dict[int, str] = {}  # value id -> name or literal
        self.dtype: dict[int, np.dtype] = {}
        self.imports: dict[str, None] = {}
        self.lines: list[str] = []
        self.operands: list[Argument] = []
        self.scalars: list[Argument] = []
        self.count = 0

    def run(self) -> ElementFunction:
        block = self.stage.program.block
        names = {buffer: self.fresh(buffer) for buffer in self.stage.operands}
        operands = {
            buffer: Argument(names[buffer], self.stage.program.buffer(buffer).dtype) for buffer in self.stage.operands
        }
        for node in block.nodes:
            if isinstance(node, Load):
                self.define(node.result, operands[node.version.buffer].name)
            elif isinstance(node, HostArg):
                self.host_argument(node)
        for node in block.nodes:
            self.node(node, "    ")
        outputs = []
        for position, i in enumerate(block.yields):
            outputs.append(
                Argument(self.fresh(f"result_{position}" if len(block.yields) > 1 else "result"), self.dtype[i])
            )
        results = "".join(f"{self.text[i]}, " for i in block.yields)
        arguments = ", ".join(a.name for a in (*operands.values(), *self.scalars))
        lines = [f"def {self.name}({arguments}):", *self.lines, f"    return ({results.rstrip(' ')})"]
        return ElementFunction(
            name=self.name,
            source="\n".join(lines) + "\n",
            operands=tuple(operands.values()),
            scalars=tuple(self.scalars),
            outputs=tuple(outputs),
            imports=tuple(self.imports),
            weight=sum(1 for _ in walk(block)),
        )

    # ---- names

    def fresh(self, stem: str) -> str:
        """A name like `stem` that nothing else has."""
        stem = usable(stem)
        name, tail = stem, 0
        while name in self.taken:
            tail += 1
            name = f"{stem}_{tail}"
        self.taken.add(name)
        return name

    def temporary(self) -> str:
        self.count += 1
        return self.fresh(f"t{self.count}")

    def define(self, value: Value, text: str) -> None:
        self.text[value.id] = text
        self.dtype[value.id] = dtype_of(value.type if value.type is not None else Weak.FLOAT)

    def host_argument(self, node: HostArg) -> None:
        dtype = dtype_of(node.result.type if node.result.type is not None else Weak.FLOAT)
        stem = self.slot_names.get(node.slot) or f"number_{node.slot}"
        name = self.fresh(stem)
        self.scalars.append(Argument(name, dtype))
        self.define(node.result, name)

    # ---- nodes

    def node(self, node: Node, indent: str) -> None:
        match node:
            case Load() | HostArg():
                pass
            case Const(result, value):
                self.define(result, ops.literal(value))  # type: ignore[arg-type]
            case Cast(result, operand, _):
                source = self.dtype[operand]
                target = dtype_of(result.type if result.type is not None else Weak.FLOAT)
                self.assign(result, self.expand(ops.cast_expression(source, target), [operand]), indent)
            case Op():
                self.operation(node, indent)
            case If():
                self.branch(node, indent)
            case Loop():
                self.loop(node, indent)
            case _:
                raise FusionNotImplementedError(
                    f"{type(node).__name__} nodes are not compiled in this version", node.loc
                )

    def operation(self, node: Op, indent: str) -> None:
        if node.row == "assign":  # an array changed in place: its new elements
            self.define(node.results[0], self.text[node.operands[1]])
            return
        loop = node.loop or tuple(self.dtype[i] for i in node.operands)
        expression = self.expand(ops.row(node.row).expression(loop), list(node.operands))
        if len(node.results) == 1:
            self.assign(node.results[0], expression, indent)
            return
        names = [self.temporary() for _ in node.results]
        self.lines.append(f"{indent}{', '.join(names)} = {expression}")
        for value, name in zip(node.results, names, strict=True):
            self.define(value, name)

    def expand(self, expression: ops.Expression, operands: list[int]) -> str:
        self.imports.update(dict.fromkeys(expression.imports))
        return expression.template.format(*(self.text[i] for i in operands))

    def assign(self, result: Value, text: str, indent: str) -> None:
        name = self.temporary()
        self.lines.append(f"{indent}{name} = {text}")
        self.define(result, name)

    def branch(self, node: If, indent: str) -> None:
        names = [self.temporary() for _ in node.results]
        self.lines.append(f"{indent}if {self.text[node.condition]}:")
        self.arm(node.then, names, indent + "    ")
        if node.orelse.nodes or names:
            self.lines.append(f"{indent}else:")
            self.arm(node.orelse, names, indent + "    ")
        for value, name in zip(node.results, names, strict=True):
            self.define(value, name)

    def arm(self, block: Block, names: list[str], indent: str) -> None:
        for node in block.nodes:
            self.node(node, indent)
        self.lines += [f"{indent}{n} = {self.text[i]}" for n, i in zip(names, block.yields, strict=True)]
        if not block.nodes and not names:
            self.lines.append(f"{indent}pass")

    def loop(self, node: Loop, indent: str) -> None:
        names = [self.temporary() for _ in node.arguments]
        for name, start, argument in zip(names, node.initial, node.arguments, strict=True):
            self.lines.append(f"{indent}{name} = {self.text[start]}")
            self.define(argument, name)
        self.lines.append(f"{indent}while True:")
        inner = indent + "    "
        for child in node.condition.nodes:
            self.node(child, inner)
        self.lines.append(f"{inner}if not {self.text[node.condition.yields[0]]}:")
        self.lines.append(f"{inner}    break")
        for child in node.body.nodes:
            self.node(child, inner)
        # All carried values change at once: a value that another one reads is set aside first.
        nexts = [self.text[i] for i in node.body.yields]
        changed = [(n, t) for n, t in zip(names, nexts, strict=True) if n != t]
        needed = {t for _, t in changed}
        aside = {n: self.temporary() for n, _ in changed if n in needed}
        self.lines += [f"{inner}{temporary} = {name}" for name, temporary in aside.items()]
        self.lines += [f"{inner}{name} = {aside.get(text, text)}" for name, text in changed]
        for value, name in zip(node.results, names, strict=True):
            self.define(value, name)
