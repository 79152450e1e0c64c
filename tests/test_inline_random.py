"""Random programs, with every statement and in any nesting: inlining changes neither results nor their order."""

from __future__ import annotations

import ast
import linecache
import random

import pytest
from inlining import fuse, runnable

from numfuse.errors import FusionSyntaxError
from numfuse.frontend.binding import Kind
from numfuse.frontend.escapes import remove_escapes


class TooLong(Exception):
    """A program that runs for too long to be of use."""


class Programs:
    """Writes a few helpers and a function `f` that calls them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.helpers: list[tuple[str, bool]] = []
        self.counters = 0

    def pick(self, *options):
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def expression(self, names, depth=1):
        def part():
            return self.expression(names, depth - 1)

        if depth <= 0:
            return self.pick(*names, *names, str(self.random.randint(-3, 4)), "GAIN")
        shape = self.pick("leaf", "leaf", "operator", "ternary", "logic", "item", "host", "lambda", "helper", "helper")
        if shape == "operator":
            return f"({part()} {self.pick('+', '-', '*')} {part()})"
        if shape == "ternary":
            return f"({part()} if {self.test(names, depth - 1)} else {part()})"
        if shape == "logic":
            return f"({part()} {self.pick('and', 'or')} {part()} {self.pick('and', 'or')} {part()})"
        if shape == "item":
            return f"({part()}, abs({part()}))[{self.pick(0, 1, -1)}]"
        if shape == "host":
            return f"note({part()})"
        if shape == "lambda":
            return f"(lambda v, w={part()}: v * w - {self.pick(*names)})({part()})"
        if shape == "helper" and self.helpers:
            name, optional = self.pick(*self.helpers)
            if self.chance(0.2):
                return f"{name}(*({part()}, {part()}))"
            keyword = f", k={part()}" if optional and self.chance(0.5) else ""
            return f"{name}({part()}, {part()}{keyword})"
        return self.expression(names, 0)

    def test(self, names, depth=1):
        a, b, c = (self.expression(names, depth) for _ in range(3))
        return self.pick(
            f"{a} {self.pick('<', '>', '==', '!=')} {b}",
            f"{a} < {b} <= {c}",
            f"not {a} > {b}",
            f"({a} > {b} {self.pick('and', 'or')} {b} < {c})",
        )

    def block(self, names, indent, depth, in_loop):
        pad, lines = "    " * indent, []

        def inner(head, more=(), loop=in_loop):
            return [f"{pad}{head}:", *self.block([*names, *more], indent + 1, depth - 1, loop)]

        kinds = ["assign", "assign", "update", "tuple", "return", "note", *["escape"] * in_loop]
        for _ in range(self.random.randint(1, 3)):
            kind = self.pick(*kinds, *["if", "if", "for", "for", "while"] * (depth > 0))
            target = self.pick("a", "b", "x", "y")
            if kind == "assign":
                lines.append(f"{pad}{target} = {self.expression(names)}")
            elif kind == "update":
                lines.append(f"{pad}{target} {self.pick('+', '-')}= {self.expression(names)}")
            elif kind == "tuple":
                lines.append(f"{pad}a, b = {self.expression(names)}, {self.expression(names)}")
            elif kind == "note":
                lines.append(f"{pad}note({self.expression(names)})")
            elif kind == "return":
                return [*lines, f"{pad}return {self.expression(names)}"]
            elif kind == "escape":
                return [*lines, pad + self.pick("break", "continue")]
            elif kind == "if":
                lines += inner(f"if {self.test(names)}")
                lines += inner("else") if self.chance(0.5) else []
            else:
                if kind == "for":
                    index = self.pick("i", "j", "a")
                    sequence = f"({self.expression(names)}, {self.pick(*names)}, 2)"
                    turns = self.pick("range(3)", f"range(abs({self.pick(*names)}) % 3)", sequence)
                    lines += inner(f"for {index} in {turns}", [index], True)
                else:
                    self.counters += 1
                    count = f"c{self.counters}"
                    lines += [f"{pad}{count} = 0", f"{pad}while {count} < 3 and {self.test(names)}:"]
                    lines += [f"{pad}    {count} = {count} + 1", *inner("else", [count], True)[1:]]
                lines += inner("else") if self.chance(0.4) else []
        return lines

    def function(self, name, parameters):
        names = ["a", "b", *(p.split("=")[0] for p in parameters)]
        head = [f"def {name}({', '.join(parameters)}):", "    a, b = x, 1"]
        return "\n".join([*head, *self.block(names, 1, 2, False), "    return a - b"])

    def module(self):
        parts = []
        for number in range(2):
            optional = self.chance(0.5)
            parts.append(self.function(f"h{number}", ["x", "y", *["k=2"] * optional]))
            self.helpers.append((f"h{number}", optional))
        return "\n\n".join([*parts, self.function("f", ["x", "y", "z"])]) + "\n"


@pytest.mark.parametrize("start", range(0, 100, 10))
def test_random_programs(start):
    log: list[object] = []

    def note(value):
        log.append(value)
        if len(log) > 300 or abs(value) > 10**9:
            raise TooLong
        return value

    def outcome(function, arguments):
        log.clear()
        try:
            return function(*arguments), log.copy()
        except (TooLong, UnboundLocalError):
            return None

    compared = 0
    for seed in range(start, start + 10):
        program = Programs(seed).module()
        filename = f"<random program {seed}>"
        linecache.cache[filename] = (len(program), None, program.splitlines(keepends=True), filename)
        namespace = {"note": note, "GAIN": 3}
        exec(compile(program, filename, "exec"), namespace)
        numbers = random.Random(seed)
        # Only host calls may have side effects, so these programs are inlined with everything on the host
        # or, without regard to order, on the elements.
        kinds = {name: numbers.choice(list(Kind)) for name in "xyz"}
        try:
            inlined = fuse(namespace["f"], operations=(abs, range, note), **kinds)
        except FusionSyntaxError as error:
            if "this changes nothing" not in error.message:
                raise
            continue
        for tree in (inlined.tree, remove_escapes(inlined.tree)):
            again = runnable(inlined, tree)
            for _ in range(5):
                arguments = [numbers.randint(-3, 4) for _ in range(3)]
                expected, got = outcome(namespace["f"], arguments), outcome(again, arguments)
                if expected is None or got is None:
                    continue
                compared += 1
                assert got[0] == expected[0], (program, ast.unparse(tree), arguments)
                assert sorted(got[1]) == sorted(expected[1]), (program, ast.unparse(tree), arguments)
    assert compared > 20
