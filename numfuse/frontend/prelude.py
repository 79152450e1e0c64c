"""The host prelude: the part of a function that Python itself runs at each call.

While a function is lowered, whatever depends only on Python numbers and captured values is computed for
real, and the same computation is written down as a Python function. At each later call that function
recomputes the numbers, checks that every decision falls as it did, and says no (returns None) otherwise; the
caller then tries another variant or lowers the function again.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_serial = itertools.count()
Prelude = Callable[..., tuple[object, ...] | None]


@dataclass(eq=False, slots=True)
class Host:
    """A value that Python has at each call.

    `code` reads it inside the prelude; `value` is what it is in the call being lowered; `static` values are
    the same in every call for which this lowering holds.
    """

    code: str
    value: Any
    static: bool = False
    typed: bool = False  # its Python type is part of the caller's key already
    name: str = ""  # the user's name for it, where there is one


class PreludeWriter:
    """Writes the prelude of one lowering."""

    def __init__(self, parameters: Sequence[str]) -> None:
        self.parameters = tuple(parameters)
        self.namespace: dict[str, object] = {}
        self.lines: list[str] = []
        self.checks: list[str] = []
        self.reads: list[str] = []
        self.slots: list[Host] = []
        self._slot_of: dict[str, int] = {}
        self._bound: dict[int, str] = {}
        self._count = 0

    def bind(self, obj: object) -> str:
        """A name for an object inside the prelude."""
        if id(obj) not in self._bound:
            name = f"_bound{len(self._bound)}"
            self.namespace[name] = obj  # keeps it alive, so the id stays its own
            self._bound[id(obj)] = name
        return self._bound[id(obj)]

    def static(self, value: object) -> Host:
        """A value that no call changes."""
        if type(value) in (bool, int, str, type(None)):
            return Host(repr(value), value, static=True)
        if type(value) is float and np.isfinite(value):
            return Host(repr(value), value, static=True)
        return Host(self.bind(value), value, static=True)

    def guard(self, expression: str, expected: object) -> None:
        """The object that `expression` reads must still be `expected`."""
        self.checks.append(f"{expression} is {self.bind(expected)}")

    def read(self, name: str, expression: str, value: object) -> Host:
        """A captured value, read at each call."""
        code = self._fresh(name)
        self.reads.append(f"{code} = {expression}")
        return Host(code, value, name=name)

    def compute(
        self, template: str, operands: Sequence[Host], function: Callable[..., object], may_fail: bool = False
    ) -> Host:
        """A value computed from others; `template` has a ``{}`` for each operand.

        `may_fail`: the plain function would compute it only for some elements, so an exception in a later
        call is no answer: that call is lowered anew.
        """
        value = function(*(operand.value for operand in operands))
        if all(operand.static for operand in operands):
            return self.static(value)
        code = self._fresh("h")
        line = f"{code} = {template.format(*(operand.code for operand in operands))}"
        if may_fail:
            line = f"try:\n        {line}\n    except Exception:\n        return None"
        self.lines.append(line)
        return Host(code, value)

    def evaluate(self, code: str, value: object) -> Host:
        """A value that `code` gives at each call, and that is `value` in this one."""
        name = self._fresh("h")
        self.lines.append(f"{name} = {code}")
        return Host(name, value)

    def decide(self, condition: Host) -> bool:
        """The truth of a condition; the prelude says no when it comes out differently."""
        taken = bool(condition.value)
        if not condition.static:
            self.lines.append(f"if {'not ' if taken else ''}{condition.code}: return None")
        return taken

    def pin(self, host: Host) -> Any:
        """The value itself, in a place where it shapes the kernel; another value is another lowering."""
        if not host.static:
            known = self.bind(host.value)
            kind = self.bind(type(host.value))
            self.lines.append(f"if type({host.code}) is not {kind} or {host.code} != {known}: return None")
        return host.value

    def within(self, host: Host, low: float, high: float) -> None:
        """The number must lie in a range for this lowering to hold."""
        tests = [f"{self.bind(low)} <= {host.code}"] if low != -np.inf else []
        tests += [f"{host.code} <= {self.bind(high)}"] if high != np.inf else []
        if tests and not host.static:
            self.lines.append(f"if not ({' and '.join(tests)}): return None")

    def slot(self, host: Host) -> int:
        """The slot in which a number travels to the kernel."""
        if host.code not in self._slot_of:
            self._slot_of[host.code] = len(self.slots)
            self.slots.append(host)
            if not (host.static or host.typed):
                kind = self.bind(type(host.value))
                self.lines.append(f"if type({host.code}) is not {kind}: return None")
        return self._slot_of[host.code]

    def mark(self) -> tuple[int, int]:
        """The present length, for :meth:`rewind`."""
        return len(self.lines), len(self.slots)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget what was written since the mark."""
        lines, slots = mark
        del self.lines[lines:]
        for host in self.slots[slots:]:
            del self._slot_of[host.code]
        del self.slots[slots:]

    def source(self) -> str:
        """The prelude as Python text."""
        head = f"def prelude({', '.join(self.parameters)}):"
        body = []
        if self.checks or self.reads:
            body.append("try:")
            if self.checks:
                body.append(f"    if not ({' and '.join(self.checks)}): return None")
            body += [f"    {line}" for line in self.reads]
            # A name that went away (global, attribute, closure cell, default) is met again while lowering,
            # which reports it with its place.
            body.append("except (KeyError, AttributeError, ValueError, IndexError, TypeError): return None")
        body += self.lines
        body.append(f"return ({''.join(host.code + ', ' for host in self.slots)})")
        return "\n".join([head, *(f"    {line}" for line in body)]) + "\n"

    def build(self, label: str) -> Prelude:
        """The compiled prelude."""
        text = self.source()
        filename = f"<numfuse prelude {label} {next(_serial)}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        namespace = dict(self.namespace)
        exec(compile(text, filename, "exec"), namespace)
        prelude: Prelude = namespace["prelude"]  # type: ignore[assignment]
        weakref.finalize(prelude, linecache.cache.pop, filename, None)
        return prelude

    def _fresh(self, stem: str) -> str:
        self._count += 1
        name = f"{stem}_{self._count}"
        while name in self.parameters:
            name += "_"
        return name
