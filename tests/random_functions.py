"""Random NumPy-style functions, as source text: the grammar behind ``test_random_functions.py``.

A drawn function uses operations whose results NumPy and a kernel must agree on to the last bit; functions
with errors of their own (exp, sin, power ...) stand only at the very end, where the error is still known.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS)

BINARY = ("+", "-", "*")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ROUNDED = ("exp", "log", "sin", "cos", "tan", "tanh")  # functions with an error of their own

_serial = itertools.count()


@dataclass
class Drawn:
    """A drawn function and how to call it."""

    source: str
    function: Callable[..., Any]
    dtypes: tuple[str, ...]  # of the array operands
    scalars: tuple[Any, ...]  # further arguments: Python and NumPy numbers
    rounded: bool  # the results end in a function with an error of its own
    element: bool  # an element function: the plain one takes NumPy scalars


class _Writer:
    """Draws expressions over the names in scope."""

    def __init__(
        self,
        draw: Callable[..., Any],
        names: list[str],
        numbers: list[str],
        whole: Set[str] = frozenset(),
        steady: str = "",
    ) -> None:
        self.draw = draw
        self.steady = steady  # "float" or "int": every expression is of that kind
        self.whole = whole  # names of arrays of integers or bools
        self.helper = bool(names) and names[0] != "a"  # the helper itself has no helper
        self.names = names
        self.numbers = numbers

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def atom(self) -> str:
        if self.pick(0, 0, 0, 1):
            return self.literal()
        return self.pick(*self.names, *self.numbers)

    def literal(self) -> str:
        if self.steady == "float":
            return self.pick("0.0", "1.0", "0.5", "2.0", "1.25", "-1.5", "100.0")
        if self.steady == "int":
            return self.pick("0", "1", "2", "3", "5", "100")
        return self.pick("0", "1", "2", "3", "5", "0.5", "2.0", "1.25", "-1", "True", "100")

    def array(self) -> str:
        return self.pick(*self.names)

    def expression(self, depth: int) -> str:
        if depth <= 0:
            return self.atom()
        without = {"": (), "float": (10, 11), "int": (5, 11)}[self.steady]
        kind = self.pick(*(k for k in range(14 if self.helper else 13) if k not in without))
        one, two = lambda: self.expression(depth - 1), lambda: self.expression(depth - 2)
        if kind < 5:
            return f"({one()} {self.pick(*BINARY)} {two()})"
        if kind == 5:
            return f"({one()} / {two()})"
        if kind == 6:
            return f"({one()} {self.pick('//', '%')} {two()})"
        if kind == 7:
            return f"np.where({self.condition(depth - 1)}, {one()}, {two()})"
        if kind == 8:
            return f"np.{self.pick('minimum', 'maximum')}({one()}, {two()})"
        if kind == 9:
            keeping = ("abs", "negative", "square", "sign")
            names = keeping if self.steady == "int" else (*keeping, "sqrt", "floor", "ceil", "rint")
            return f"np.{self.pick(*names)}({one()})"
        if kind == 10:
            return f"({one()} {self.pick('&', '|', '^')} {two()})"
        if kind == 11:
            # A float that an integer can't hold becomes whatever the processor makes of it, in NumPy too.
            name = self.array()
            targets = (*INTEGERS, *FLOATS) if name in self.whole else FLOATS
            return f"{name}.astype(np.{self.pick(*targets)})"
        if kind == 12:
            return f"np.clip({one()}, {self.pick('0', '1', '-2')}, {self.pick('3', '7', '50')})"
        return f"helper({one()}, {two()})"

    def condition(self, depth: int) -> str:
        kind = self.pick(0, 0, 0, 1, 2)
        if kind == 0:
            return f"({self.expression(depth)} {self.pick(*COMPARISONS)} {self.expression(depth - 1)})"
        if kind == 1:
            return f"np.isfinite({self.expression(depth)})"
        left = f"({self.expression(depth)} {self.pick(*COMPARISONS)} {self.atom()})"
        return f"({left} {self.pick('&', '|')} np.isnan({self.array()}))"


@st.composite
def functions(draw: Callable[..., Any]) -> Drawn:
    """An array function or an element function of one to three arrays and perhaps a number."""
    count = draw(st.sampled_from((1, 2, 2, 2, 3)))
    element = draw(st.sampled_from((False, False, True)))
    dtypes = tuple(draw(st.sampled_from((*DTYPES, *FLOATS))) for _ in range(count))
    scalars = draw(st.sampled_from(((), (), (2,), (0.5,), (np.float32(1.5),), (np.int16(3),), (True,), (-1.75,))))
    steady = ""
    if element:
        # A variable that is of one dtype on some paths and of another on others is of the wider one in a kernel,
        # and rounds as that one does: the plain function decides it element by element. So an element function
        # stays with one kind of number.
        dtypes = (draw(st.sampled_from((*FLOATS, *FLOATS, "int64", "int16", "uint8"))),) * count
        steady = "float" if dtypes[0] in FLOATS else "int"
        scalars = draw(st.sampled_from(((), (0.5,), (-1.75,)) if steady == "float" else ((), (2,))))
    names = [f"x{i}" for i in range(count)]
    numbers = ["g"] if scalars else []
    whole = {name for name, dtype in zip(names, dtypes, strict=True) if dtype not in FLOATS}
    writer = _Writer(draw, list(names), numbers, whole, steady)
    lines = _element_body(writer) if element else _array_body(writer)
    rounded = False
    if not element and draw(st.sampled_from((False, False, False, True))):
        rounded = True
        lines[-1] = f"return np.{draw(st.sampled_from(ROUNDED))}({lines[-1].removeprefix('return ').split(', ')[0]})"
        if lines[-1].count("(") != lines[-1].count(")"):  # the split cut through a call
            lines[-1] = f"return np.exp({writer.array()})"
    # What a helper returns early depends on a test of its own: array style and element style.
    inner = _Writer(draw, ["a", "b"], [], steady=steady)
    helper = ["def helper(a, b):", f"    c = {inner.expression(1)}"]
    if element and draw(st.booleans()):
        helper += [f"    if {inner.condition(1)}:", f"        return {inner.expression(1)}"]
    helper += ["    return c + b"]
    text = "\n".join(
        [
            *helper,
            "",
            f"def function({', '.join([*names, *numbers])}):",
            *(f"    {line}" for line in lines),
            "",
        ]
    )
    return Drawn(text, compile_text(text), dtypes, scalars, rounded, element)


def _array_body(writer: _Writer) -> list[str]:
    lines = []
    for k in range(writer.pick(0, 1, 2)):
        lines.append(f"t{k} = {writer.expression(2)}")
        writer.names.append(f"t{k}")
    results = [writer.expression(3) for _ in range(writer.pick(1, 1, 1, 2))]
    return [*lines, f"return {', '.join(results)}"]


def _element_body(writer: _Writer) -> list[str]:
    """Branches, early returns and short loops on elements."""
    lines = [f"t = {writer.expression(2)}"]
    writer.names.append("t")
    if writer.pick(True, False):
        lines += [f"if {writer.condition(1)}:", f"    return {writer.expression(2)}"]
    if writer.pick(True, False):
        lines += [
            f"if {writer.condition(1)} and {writer.condition(1)}:",
            f"    t = {writer.expression(1)}",
            "else:",
            f"    t = {writer.expression(1)}",
        ]
    if writer.pick(True, False, False):
        lines += [
            "n = 0",
            f"while n < 3 and {writer.condition(1)}:",
            "    n += 1",
            f"    if {writer.condition(0)}:",
            f"        {writer.pick('break', 'continue', 't = ' + writer.atom())}",
        ]
        writer.numbers.append("n")
    if writer.pick(True, False, False):
        lines += [
            f"for i in range({writer.pick(2, 3)}):",
            f"    if {writer.condition(0)}:",
            f"        {writer.pick('break', 'continue', 'return ' + writer.atom())}",
            f"    t = {writer.expression(1)}",
        ]
    return [*lines, f"return {writer.expression(2)}"]


def compile_text(text: str) -> Callable[..., Any]:
    """The function ``function`` of the text, with its source where ``inspect`` finds it."""
    filename = f"<drawn function {next(_serial)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"np": np}
    exec(compile(text, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace["function"]
    return function


SPECIAL = {
    "float32": [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, 7.25],
    "float64": [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308, 7.25],
}


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Elements of a dtype: special ones and ordinary ones."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=int))
    if dtype == "bool":
        return rng.integers(0, 2, size).astype(bool).reshape(shape)
    if dtype in FLOATS:
        ordinary = np.round(rng.normal(0, 8, size), 3).astype(dtype)
        special = np.array(SPECIAL[dtype], dtype)
    else:
        info = np.iinfo(dtype)
        ordinary = rng.integers(max(info.min, -20), min(info.max, 20), size).astype(dtype)
        special = np.array([info.min, info.max, 0, 1, 2, info.max - 1, info.min + 1], dtype)
    chosen = rng.random(size) < 0.3
    ordinary[chosen] = special[rng.integers(0, len(special), int(chosen.sum()))]
    return ordinary.reshape(shape)


def layouts(dtypes: tuple[str, ...], seed: int) -> list[tuple[np.ndarray, ...]]:
    """Operands in several layouts: dense, stepped and reversed, broadcast, Fortran and mixed orders."""
    dense = tuple(values(d, (3, 11), seed + k) for k, d in enumerate(dtypes))
    stepped = tuple(values(d, (3, 22), seed + 10 + k)[:, :: 2 if k % 2 else -2] for k, d in enumerate(dtypes))
    shapes = [(3, 5), (5,), (3, 1), ()]
    broadcast = tuple(values(d, shapes[(k + seed) % 4], seed + 20 + k) for k, d in enumerate(dtypes))
    fortran = tuple(values(d, (5, 4), seed + 30 + k).T for k, d in enumerate(dtypes))
    mixed = tuple(
        values(d, (4, 6), seed + 40 + k) if k % 2 else values(d, (6, 4), seed + 40 + k).T for k, d in enumerate(dtypes)
    )
    return [dense, stepped, broadcast, fortran, mixed]
