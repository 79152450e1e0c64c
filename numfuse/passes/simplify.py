"""Common subexpressions are computed once; what no result needs is not computed, loaded or carried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
    Program,
    Store,
    node_operands,
    node_results,
)


def common_subexpressions(program: Program) -> Program:
    """Equal pure nodes become one; a region sees what was computed before it."""
    return replace(program, block=_Common().block(program.block, {}))


class _Common:
    def __init__(self) -> None:
        self.same: dict[int, int] = {}

    def of(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.same.get(i, i) for i in ids)

    def block(self, block: Block, seen: Mapping[object, tuple[int, ...]]) -> Block:
        scope = dict(seen)
        nodes: list[Node] = []
        for node in block.nodes:
            renamed = self.rename(node, scope)
            key = _key(renamed)
            if key is not None and key in scope:
                for value, first in zip(node_results(renamed), scope[key], strict=True):
                    self.same[value.id] = first
                continue
            if key is not None:
                scope[key] = tuple(value.id for value in node_results(renamed))
            nodes.append(renamed)
        return Block(tuple(nodes), self.of(block.yields))

    def rename(self, node: Node, scope: Mapping[object, tuple[int, ...]]) -> Node:
        match node:
            case Op():
                return replace(node, operands=self.of(node.operands))
            case Cast():
                return replace(node, operand=self.same.get(node.operand, node.operand))
            case If():
                return replace(
                    node,
                    condition=self.same.get(node.condition, node.condition),
                    then=self.block(node.then, scope),
                    orelse=self.block(node.orelse, scope),
                )
            case Loop():
                return replace(
                    node,
                    initial=self.of(node.initial),
                    condition=self.block(node.condition, scope),
                    body=self.block(node.body, scope),
                )
            case _:
                return node


def _key(node: Node) -> object | None:
    match node:
        case Op():
            return (node.row, node.operands, node.loop, tuple(v.type for v in node.results))
        case Cast():
            return ("cast", node.operand, node.result.type)
        case Const():
            # repr tells -0.0 from 0.0 and makes a NaN equal to itself
            return ("const", type(node.value), repr(node.value), node.result.type)
        case HostArg():
            return ("host", node.slot, node.result.type)
        case Load():
            return ("load", node.version, node.index)
        case _:
            return None


def dead_code(program: Program, keep: tuple[int, ...] | None = None) -> Program:
    """The program without what its yields (or only those at the positions `keep`) do not need."""
    yields = program.block.yields
    if keep is not None:
        yields = tuple(yields[i] for i in keep)
    block = _prune(Block(program.block.nodes, yields))
    return replace(program, block=block)


def _prune(block: Block) -> Block:
    needed = set(block.yields)
    nodes: list[Node] = []
    for node in reversed(block.nodes):
        results = node_results(node)
        if not isinstance(node, Store) and not any(value.id in needed for value in results):
            continue
        if isinstance(node, If):
            node = _prune_branch(node, needed)
            needed |= _free(node.then) | _free(node.orelse)
        elif isinstance(node, Loop):
            node = _prune_loop(node, needed)
            needed |= _free(node.condition) | _free(node.body)
        needed.update(node_operands(node))
        nodes.append(node)
    return Block(tuple(reversed(nodes)), block.yields)


def _prune_branch(node: If, needed: set[int]) -> If:
    kept = [k for k, value in enumerate(node.results) if value.id in needed]
    then = _prune(Block(node.then.nodes, tuple(node.then.yields[k] for k in kept)))
    orelse = _prune(Block(node.orelse.nodes, tuple(node.orelse.yields[k] for k in kept)))
    return replace(node, results=tuple(node.results[k] for k in kept), then=then, orelse=orelse)


def _prune_loop(node: Loop, needed: set[int]) -> Loop:
    kept = {k for k, value in enumerate(node.results) if value.id in needed}
    condition = _prune(node.condition)
    while True:  # a carried value is needed if the test or a needed carried value uses it
        order = sorted(kept)
        body = _prune(Block(node.body.nodes, tuple(node.body.yields[k] for k in order)))
        used = _free(condition) | _free(body)
        grown = kept | {k for k, value in enumerate(node.arguments) if value.id in used}
        if grown == kept:
            break
        kept = grown
    return replace(
        node,
        results=tuple(node.results[k] for k in order),
        initial=tuple(node.initial[k] for k in order),
        arguments=tuple(node.arguments[k] for k in order),
        condition=condition,
        body=body,
    )


def _free(block: Block) -> set[int]:
    """Ids that a block uses and does not define (loop arguments of inner loops excluded)."""
    used = set(block.yields)
    defined: set[int] = set()
    for node in block.nodes:
        used.update(node_operands(node))
        if isinstance(node, If):
            used |= _free(node.then) | _free(node.orelse)
        elif isinstance(node, Loop):
            inner = _free(node.condition) | _free(node.body)
            used |= inner - {value.id for value in node.arguments}
        defined.update(value.id for value in node_results(node))
    return used - defined
