"""Stages: which results are computed in one loop nest.

Elementwise results of one concrete shape share a nest. Results of other shapes get a nest of their own in
the same kernel, so a function is still one launch; work that both need is done in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numfuse.body import Load, Program
from numfuse.passes.simplify import dead_code


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a program over one domain.

    `program` yields the results at positions `yields` of the whole program; `operands` are the buffers it
    loads, in the order of the element function's operands.
    """

    program: Program
    yields: tuple[int, ...]
    operands: tuple[str, ...]


def partition(program: Program, groups: Sequence[tuple[int, ...]]) -> tuple[Stage, ...]:
    """One stage for each group of yields."""
    return tuple(_stage(program, group) for group in groups)


def _stage(program: Program, group: tuple[int, ...]) -> Stage:
    part = dead_code(program, group)
    loaded = {node.version.buffer for node in part.block.nodes if isinstance(node, Load)}
    operands = tuple(buffer.name for buffer in program.buffers if buffer.name in loaded)
    return Stage(part, group, operands)


def group_by_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Positions of equal shapes, together, in order of first appearance."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(position)
    return tuple(tuple(group) for group in groups.values())
