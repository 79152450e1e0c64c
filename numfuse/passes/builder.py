"""The pen with which passes write new nodes: fresh ids, the node list of the current block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from numfuse.body import Block, Node, Program, Type, Value, node_results, walk


@dataclass
class Builder:
    """Collects the nodes of one program.

    `entry` is emitted before everything else, so what is put there (numbers, loads) can be used anywhere.
    """

    ids: Iterator[int] = field(default_factory=itertools.count)
    entry: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def value(self, kind: Type | None = None) -> Value:
        """A fresh value."""
        return Value(next(self.ids), kind)

    def add(self, node: Node) -> None:
        """Append a node to the current block."""
        self.nodes.append(node)

    @contextmanager
    def block(self) -> Iterator[list[Node]]:
        """Collect the nodes written inside the ``with`` into a list of their own."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def finish(self, yields: tuple[int, ...]) -> Block:
        """The whole program's block."""
        return Block((*self.entry, *self.nodes), yields)


def ids_after(program: Program) -> Iterator[int]:
    """Fresh ids that no value of the program has."""
    used = [value.id for node in walk(program.block) for value in node_results(node)]
    for node in walk(program.block):
        if hasattr(node, "arguments"):
            used += [value.id for value in node.arguments]
    return itertools.count(max(used, default=-1) + 1)
