"""Which numbers a loop computes that Python itself must compute."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from numfuse.frontend.lower_values import Abstract, Device, TupleValue
from numfuse.frontend.prelude import Host


class NumberSearch:
    """Finds what the body of a loop computes from Python numbers alone, turn after turn.

    Python computes such a number, without limits on its size and with its own exceptions, so the turns must be
    written out: in a kernel it would be an int64.
    """

    def __init__(self, env: Mapping[str, Abstract], node: ast.For) -> None:
        self.env = env
        self.body = node.body
        self.target = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        self.assigned: dict[str, list[ast.expr]] = {}
        self.tests: list[ast.If | ast.While] = []
        for child in self.walk():
            if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                value = child.iter if isinstance(child, ast.For) else child.value
                for name in (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                    self.assigned.setdefault(name, []).extend([] if value is None else [value])
            elif isinstance(child, ast.If | ast.While):
                self.tests.append(child)
        self.numbers: set[str] = set()

    def walk(self) -> Iterator[ast.AST]:
        return (child for statement in self.body for child in ast.walk(statement))

    def run(self) -> tuple[list[str], bool]:
        """Integers that are carried from turn to turn; whether something else may fail or outgrow 64 bits."""
        carried = {
            name
            for name in self.assigned
            if isinstance(host := self.env.get(name), Host) and type(host.value) is int and name not in self.target
        }
        self.numbers = set(self.assigned) | self.target
        while True:
            kept = {name for name in self.numbers if all(map(self.is_number, self.assigned.get(name, [])))}
            for test in self.tests:
                if not self.is_number(test.test):  # elements decide what is assigned there
                    kept -= {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if kept == self.numbers:
                break
            self.numbers = kept
        risky = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift)
        careful = any(
            isinstance(child, ast.BinOp) and isinstance(child.op, risky) and self.depends(child)
            for child in self.walk()
        )
        return sorted(carried & self.numbers), careful

    def is_number(self, value: ast.expr) -> bool:
        """Whether an expression uses only what Python has in every turn."""
        names = (n for n in ast.walk(value) if isinstance(n, ast.Name) and not hasattr(n, "static"))
        return all(
            n.id in self.numbers
            or (n.id not in self.assigned and not isinstance(self.env.get(n.id), Device | TupleValue | None))
            for n in names
        )

    def depends(self, value: ast.expr) -> bool:
        """Whether it is such a number, and another one in each turn."""
        changing = any(isinstance(n, ast.Name) and n.id in self.numbers for n in ast.walk(value))
        return changing and self.is_number(value)
