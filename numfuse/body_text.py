"""The text form of a Program: :func:`print_program` and its exact inverse :func:`parse_program`.

One node a line, blocks indented::

    program tone
    buffer x: parameter float32
    host 0: float
    {
      %0: float32 {x} varying = load x@0
      %1: float32 {} host-uniform = host 0
      %2: float32 {x} varying = multiply.operator(%0, %1) loop(float32, float32)
      yield %2
    }
    results %2
    structure 0

Everything but source places survives the round trip, down to the bits of NaNs; ``locs=True`` prints the
places as comments. Names that are not identifiers (or are ``yield``), and all other text, are JSON strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import numpy as np

from numfuse import body
from numfuse.body import UNDEFINED, Block, IndexMap, Node, Program, Type, Value, Version, Weak
from numfuse.body_parser import NAME, parse_number, parse_program
from numfuse.errors import FusionTypeError

__all__ = ["parse_program", "print_program", "programs_equal"]


def print_program(program: Program, *, locs: bool = False) -> str:
    """The program as text.

    Parameters
    ----------
    program : Program
        Any program, well-formed or not, typed or not.
    locs : bool
        Whether to end each line with a comment saying where in the user's source it comes from.

    Raises
    ------
    FusionTypeError
        If a constant is neither a Python number nor a NumPy number, or the structure holds anything but
        integers, tuples and None.
    """
    lines = [f"program {_name(program.name)}"]
    lines += [f"buffer {_name(b.name)}: {b.kind} {_type(b.dtype)}" for b in program.buffers]
    for slot, host_type in enumerate(program.host_slots):
        lines.append(f"host {slot}" + (f": {_type(host_type)}" if host_type is not None else ""))
    lines += ["{", *_block_lines(program.block, "  ", locs), "}"]
    lines.append(f"results {', '.join(map(_result, program.results))}".rstrip())
    lines.append(f"structure {_structure(program.structure)}")
    return "\n".join(lines) + "\n"


def programs_equal(first: Program, second: Program) -> bool:
    """Whether two programs are the same but for source places, constants compared by type and bits.

    ``==`` on programs finds a NaN different from itself, and ``True``, ``1`` and ``1.0`` the same.
    """
    return print_program(first) == print_program(second)


# --------------------------------------------------------------------------------------------------------
# Printing


def _name(name: str) -> str:
    bare = re.fullmatch(NAME, name) and name != "yield"  # which ends a block
    return name if bare else json.dumps(name)


def _type(kind: Type) -> str:
    if isinstance(kind, Weak):
        return kind.value
    for name in (kind.name, kind.str):  # the name says nothing of byte order
        try:
            if np.dtype(name) == kind:
                return _name(name)
        except TypeError:
            continue
    raise FusionTypeError(f"{kind!r} is not the dtype of a number")


def _number(number: object) -> str:
    """A Python number bare (``1.5``), a NumPy number with its dtype (``float32(1.5)``)."""
    if isinstance(number, np.generic):
        kind = _type(number.dtype)
        if number.dtype.kind in "biufc":
            text = f"{kind}({_parts(number)})"
            parsed = parse_number(text)
            if isinstance(parsed, np.generic) and parsed.tobytes() == number.tobytes():
                return text
        # A NaN with a payload, or a float whose decimal form does not lead back to it.
        return f'{kind}(bits "{number.tobytes().hex()}")'
    if type(number) is int:
        return hex(number) if number.bit_length() > 10_000 else str(number)
    if type(number) is bool or number is UNDEFINED:
        return str(number)
    if type(number) is float or type(number) is complex:
        strong = np.float64(number) if isinstance(number, float) else np.complex128(number)
        text = _number(strong)
        if "bits" not in text and type(number) is float:
            return repr(number)
        return text.replace(_type(strong.dtype), type(number).__name__, 1)
    raise FusionTypeError(f"a constant must be a Python number or a NumPy number, not {number!r}")


def _parts(number: np.generic) -> str:
    if isinstance(number, np.complexfloating):
        return f"{number.real!s}, {number.imag!s}"
    return str(number)


def _value(value: Value) -> str:
    text = f"%{value.id}"
    if value.type is not None:
        text += f": {_type(value.type)}"
    if value.shape is not None:
        items = [_name(buffer) for buffer in sorted(value.shape.buffers)]
        items += [_ints(value.shape.literal)] if value.shape.literal else []
        text += f" {{{', '.join(items)}}}"
    if value.variance is not None:
        text += f" {value.variance.name.lower().replace('_', '-')}"
    return text


def _ints(numbers: Sequence[int]) -> str:
    return f"({', '.join(map(str, numbers))})"


def _ids(ids: Sequence[int]) -> str:
    return f"({', '.join(f'%{i}' for i in ids)})"


def _version(version: Version) -> str:
    return f"{_name(version.buffer)}@{version.number}"


def _axis(axis: body.Affine | body.Fixed | body.Stretched) -> str:
    match axis:
        case body.Fixed():
            return str(axis.position)
        case body.Stretched():
            return f"stretch d{axis.dim}"
        case body.Affine():
            text = f"{axis.step}*d{axis.dim}" if axis.step != 1 else f"d{axis.dim}"
            text = f"{axis.start} + {text}" if axis.start != 0 else text
            return text if axis.extent is None else f"{text} extent {axis.extent}"


def _index(index: IndexMap) -> str:
    items = ["*" if index.axes is None else ", ".join(map(_axis, index.axes))]
    items += [f"rank {index.rank}"] if index.rank is not None else []
    items += [f"edge {index.edge}"] if index.edge != "none" else []
    items += [f"fill {_number(index.fill)}"] if index.fill is not None else []
    return f"[{'; '.join(items)}]"


def _place(version: Version, index: IndexMap) -> str:
    text = _index(index)
    return _version(version) + (text if text != "[*]" else "")


def _result(result: body.Result) -> str:
    match result:
        case body.ValueResult():
            return f"%{result.value}"
        case body.BufferResult():
            return f"buffer {_name(result.buffer)}"
        case body.HostResult():
            return f"host {result.slot}"


def _structure(structure: object) -> str:
    if isinstance(structure, tuple):
        return f"({', '.join(map(_structure, structure))})"
    if isinstance(structure, list):
        return f"[{', '.join(map(_structure, structure))}]"
    if structure is None:
        return "none"
    if type(structure) is int:
        return str(structure)
    raise FusionTypeError(f"the structure of a result is made of integers, tuples, lists and None, not {structure!r}")


def _block_lines(block: Block, indent: str, locs: bool) -> Iterator[str]:
    for node in block.nodes:
        left = ", ".join(map(_value, body.node_results(node)))
        if isinstance(node, body.Store):
            left = _version(node.after)
        head = f"{left} = {_head(node)}" if left else _head(node)
        comment = f"  # {node.loc.filename}:{node.loc.line}".replace("\n", " ") if locs and node.loc else ""
        blocks = body.node_blocks(node)
        if not blocks:
            yield indent + head + comment
            continue
        yield f"{indent}{head} {{{comment}"
        yield from _block_lines(blocks[0], indent + "  ", locs)
        yield f"{indent}}} {'else' if isinstance(node, body.If) else 'do'} {{"
        yield from _block_lines(blocks[1], indent + "  ", locs)
        yield indent + "}"
    yield f"{indent}yield {', '.join(f'%{i}' for i in block.yields)}".rstrip()


def _head(node: Node) -> str:
    """A node's own line, without what stands left of ``=`` and without its blocks."""
    match node:
        case body.Const():
            return f"const {_number(node.value)}"
        case body.HostArg():
            return f"host {node.slot}"
        case body.Index():
            return f"index {node.axis}"
        case body.Load():
            return f"load {_place(node.version, node.index)}"
        case body.Gather():
            return f"gather {_version(node.version)}{_ids(node.indices)} {node.bounds}"
        case body.Op():
            loop = f" loop({', '.join(map(_type, node.loop))})" if node.loop is not None else ""
            return f"{_name(node.row)}.{_name(node.spelling)}{_ids(node.operands)}{loop}"
        case body.Cast():
            return f"cast %{node.operand} {node.rule}"
        case body.View():
            return f"view %{node.operand}{_index(node.index)}"
        case body.Reduce():
            text = f"reduce {_name(node.row)} %{node.operand}"
            text += f" axes {_ints(node.axes)}" if node.axes is not None else ""
            text += " keepdims" if node.keepdims else ""
            text += f" dtype {_type(node.dtype)}" if node.dtype is not None else ""
            text += f" initial %{node.initial}" if node.initial is not None else ""
            return text + (f" where %{node.where}" if node.where is not None else "")
        case body.Scan():
            text = f"scan {_name(node.row)} %{node.operand} axis {node.axis}"
            return text + (f" dtype {_type(node.dtype)}" if node.dtype is not None else "")
        case body.External():
            text = f"external {_name(node.symbol)}{_ids(node.operands)}"
            text += f" gradient {json.dumps(node.gradient)}" if node.gradient is not None else ""
            return f"{text} signature {json.dumps(node.signature)} source {json.dumps(node.source)}"
        case body.If():
            return f"if %{node.condition}"
        case body.Loop():
            arguments = ", ".join(map(_value, node.arguments))
            trip = f" trip {node.trip}" if node.trip is not None else ""
            return f"loop {_ids(node.initial)} as ({arguments}){trip}"
        case body.Store():
            mask = f" where %{node.mask}" if node.mask is not None else ""
            return f"store %{node.operand} into {_place(node.before, node.index)}{mask}"
