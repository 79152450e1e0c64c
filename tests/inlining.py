"""Inlining for tests: the operations they know, and the inlined tree as a function; some helpers to inline."""

from __future__ import annotations

import ast
import math
import operator

import numpy as np

from numfuse.frontend.binding import Kind
from numfuse.frontend.escapes import remove_escapes
from numfuse.frontend.frames import static_of
from numfuse.frontend.inline import inline

E, U, H = Kind.ELEMENT, Kind.UNIFORM, Kind.HOST
OPERATIONS = (
    np.sin, np.cos, np.sqrt, np.exp, np.minimum, np.maximum, np.where, np.zeros_like, np.float32,
    math.sqrt, math.exp, math.floor, operator.add,
    abs, min, max, round, len, range, float, int, bool, sum, divmod, pow,
)  # fmt: skip


def fuse(function, operations=OPERATIONS, **kinds):
    """Inline with the operations of these tests."""
    return inline(
        function,
        kinds,
        is_array=lambda value: isinstance(value, np.ndarray),
        operation=lambda value: any(value is known for known in operations),
    )


def runnable(inlined, tree=None):
    """The inlined tree as a Python function, captured values read now."""
    nodes = [node for node in ast.walk(tree or inlined.tree) if isinstance(node, ast.Name)]
    namespace = {node.id: static.value for node in nodes if (static := static_of(node)) is not None}
    namespace.update({name: capture.read() for name, capture in inlined.captured.items()})
    text = ast.unparse(tree or inlined.tree)
    exec(compile(text, "<inlined>", "exec"), namespace)
    return namespace[inlined.tree.name]


def check(function, *rows, **kinds):
    """Compare the inlined function, also without escapes, with the plain one on some arguments."""
    inlined = fuse(function, **kinds)
    plain = remove_escapes(inlined.tree)
    assert not any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(plain))
    assert not any(node.orelse for node in ast.walk(plain) if isinstance(node, ast.For | ast.While))
    for tree in (inlined.tree, plain):
        returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        assert returns == [tree.body[-1]]
        again = runnable(inlined, tree)
        for row in rows:
            expected = function(*row)
            got = again(*row)
            assert repr(got) == repr(expected), (row, ast.unparse(tree))
    assert holds(inlined)
    return inlined


def holds(inlined):
    """Whether every guarded place still holds the same object."""
    return all(guard.reference.read() is guard.expected for guard in inlined.guards)


def text(inlined):
    """The body as text, without the head."""
    return "\n".join(ast.unparse(statement) for statement in inlined.tree.body)


def clip01(v):
    return np.minimum(np.maximum(v, 0), 1)


def early(x, n=3):
    """Returns from inside of two loops."""
    for i in range(n):
        for j in range(3):
            if x * j > 3 + i:
                return x + j
        x = x + 1
    return -x


def grade(x, *, low=0.0, high=1.0):
    if x < low:
        return low
    if x > high:
        return high
    return x
