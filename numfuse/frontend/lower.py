"""The inlined function becomes a program of the body and a host prelude.

Names end here: the environment maps each to a value, and where paths meet, the values of the names that
differ meet in the results of an :class:`~numfuse.body.If` or the carried values of a
:class:`~numfuse.body.Loop`. Whatever Python has at each call (numbers, captured values, shapes) stays with
Python: conditions on it are decided now and checked by the prelude at each call.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from numfuse.body import (
    Buffer,
    BufferResult,
    HostResult,
    Program,
    Result,
    Type,
    ValueResult,
)
from numfuse.dtypes.rules import dtype_of, host_type
from numfuse.errors import (
    FusionError,
    FusionNameError,
    FusionNotImplementedError,
    FusionSyntaxError,
    FusionTypeError,
    FusionValueError,
    Loc,
)
from numfuse.frontend.binding import Static
from numfuse.frontend.escapes import remove_escapes
from numfuse.frontend.frames import in_element_frame, loc_of
from numfuse.frontend.inline import Inlined
from numfuse.frontend.lower_loops import LoopLowering
from numfuse.frontend.lower_values import (
    UNASSIGNED,
    Abstract,
    ArrayParameter,
    Device,
    HostParameter,
    TupleValue,
)
from numfuse.frontend.prelude import Host, PreludeWriter

Parameter = ArrayParameter | HostParameter | Static


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and what the host does before each launch of it."""

    program: Program
    prelude: PreludeWriter
    host_values: tuple[object, ...]  # of the call that was lowered
    captured_arrays: dict[str, int]  # buffer -> prelude slot that holds the array


def lower(
    inlined: Inlined,
    parameters: Mapping[str, Parameter],
    array_type: Callable[[object, str], np.dtype | None],
    structural_values: Callable[[Loc | None, object], int],
) -> Lowered:
    """Lower one inlined function for the arguments of one call.

    Parameters
    ----------
    inlined : Inlined
        From the inliner, for the same kinds of parameters.
    parameters : mapping
        What each parameter is in this call.
    array_type : callable
        The dtype of an array of ours, None for any other object; raises the user's error, given the name, for
        an array that can't be used.
    structural_values : callable
        Notes a value in a structural place and says how many different ones that place has had.
    """
    return _Lowering(inlined, parameters, array_type, structural_values).run()


class _Lowering(LoopLowering):
    def __init__(
        self,
        inlined: Inlined,
        parameters: Mapping[str, Parameter],
        array_type: Callable[[object, str], np.dtype | None],
        structural_values: Callable[[Loc | None, object], int],
    ) -> None:
        super().__init__(PreludeWriter(list(parameters)), structural_values)
        self.inlined = inlined
        self.buffers: dict[str, Buffer] = {}
        self.captured_arrays: dict[str, int] = {}
        self.returned: dict[Device, int] = {}  # position in the results
        for guard in inlined.guards:
            self.prelude.guard(guard.expression(self.prelude.bind), guard.expected)
        for name, parameter in parameters.items():
            self.env[name] = self._parameter(name, parameter)
        for name, capture in inlined.captured.items():
            value = capture.read()
            host = self.prelude.read(name, capture.expression(self.prelude.bind), value)
            dtype = self._captured_dtype(name, value, array_type)
            if dtype is None:
                self.env[name] = host
            else:
                self.captured_arrays[name] = self.prelude.slot(host)
                self.env[name] = self._array(name, "captured", value, dtype, host.code)

    def _captured_dtype(
        self, name: str, value: object, array_type: Callable[[object, str], np.dtype | None]
    ) -> np.dtype | None:
        try:
            return array_type(value, name)
        except FusionError as error:
            places = (loc_of(n) for n in ast.walk(self.inlined.tree) if isinstance(n, ast.Name) and n.id == name)
            message = error.message.replace("argument", "captured array", 1)
            raise type(error)(message, next(places, None)) from None

    def _parameter(self, name: str, parameter: Parameter) -> Abstract:
        if isinstance(parameter, Static):
            self._guard_static(name, parameter.value)
            return parameter
        if isinstance(parameter, HostParameter):
            return Host(name, parameter.value, typed=True, name=name)
        dtype = dtype_of(parameter.element.type or np.dtype(float))
        return self._array(name, "parameter", parameter.array, dtype, name)

    def _guard_static(self, name: str, value: object) -> None:
        """The caller's key need not tell objects apart; what it compares by value is left to it."""
        if isinstance(value, types.MethodType):  # a new object at each access
            self.prelude.guard(f"{name}.__func__", value.__func__)
            self.prelude.guard(f"{name}.__self__", value.__self__)
        elif not isinstance(value, str | bytes | np.dtype | type(None)):
            self.prelude.guard(name, value)

    def _array(self, name: str, kind: str, array: object, dtype: np.dtype, code: str) -> Device:
        self.buffers[name] = Buffer(name, "captured" if kind == "captured" else "parameter", dtype)
        self.arrays[name], self.codes[name], self.dtypes[name] = array, code, dtype
        return self.load(name, dtype)

    def run(self) -> Lowered:
        tree = remove_escapes(self.inlined.tree)  # a new tree: explain() shows the one with its escapes
        *statements, last = tree.body
        self.statements(statements)
        if not isinstance(last, ast.Return):
            raise AssertionError("an inlined function ends with its return")
        value = self.expr(last.value) if last.value is not None else self.prelude.static(None)
        results: list[Result] = []
        yields: list[int] = []
        structure = self._results(value, results, yields, loc_of(last))
        program = Program(
            name=tree.name,
            buffers=tuple(self.buffers.values()),
            block=self.builder.finish(tuple(yields)),
            results=tuple(results),
            structure=structure,
            host_slots=tuple(host_type(host.value) for host in self.prelude.slots),
        )
        values = tuple(host.value for host in self.prelude.slots)
        return Lowered(program, self.prelude, values, self.captured_arrays)

    def _results(self, value: Abstract, results: list[Result], yields: list[int], loc: Loc | None) -> object:
        """How the results nest: an int is a position in `results`, a tuple is a tuple, a list a list."""
        if isinstance(value, TupleValue):
            items = [self._results(item, results, yields, loc) for item in value.items]
            return items if value.is_list else tuple(items)
        if isinstance(value, Device) and value in self.returned:  # the same array twice
            return self.returned[value]
        position = len(results)
        if isinstance(value, Device):
            self.returned[value] = position
            if value.origin is not None and not self.inlined.element_frame:
                results.append(BufferResult(value.origin))
            else:
                results.append(ValueResult(value.id))
                yields.append(value.id)
        elif isinstance(value, Host):
            results.append(HostResult(self._result_slot(value)))
        elif isinstance(value, Static):
            results.append(HostResult(self._result_slot(self.prelude.static(value.value))))
        else:
            raise FusionNameError("the function returns a variable that was not assigned", loc)
        return position

    def _result_slot(self, host: Host) -> int:
        host.typed = True  # nothing is compiled for it, so its type may change
        return self.prelude.slot(host)

    # ---- statements

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                raise FusionSyntaxError(
                    f"{type(statement).__name__} is not part of the language of fused functions",
                    loc_of(statement),
                )
            method(statement)

    def _assert(self, node: ast.Assert) -> None:
        """Python's own check, at each call; the inliner has dropped those on elements."""
        if self.truth(self.expr(node.test), loc_of(node)) is False:
            message = [] if node.msg is None else [self._object(node.msg)]
            raise AssertionError(*message)

    def _raise(self, node: ast.Raise) -> None:
        """A path that Python has decided on ends here: the caller gets the exception, now and at each such call."""
        if self.depth or node.exc is None:
            raise FusionSyntaxError(
                "`raise` inside a loop that runs in the kernel is not supported: test before the loop", loc_of(node)
            )
        error = self._object(node.exc)
        cause = None if node.cause is None else self._object(node.cause)
        raise error from cause  # type: ignore[misc]

    def _object(self, node: ast.expr) -> object:
        value = self.as_host(self.expr(node))
        if not isinstance(value, Host):
            raise FusionTypeError("only Python's own values can be part of an exception", loc_of(node))
        return value.value

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.expr(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.expr(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.expr(node.value))

    def bind(self, target: ast.expr, value: Abstract) -> None:
        """Assign to a name or to a tuple of targets."""
        loc = loc_of(target)
        if isinstance(target, ast.Name):
            if isinstance(value, Host) and not value.name:
                value.name = target.id
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = self.items(value, len(target.elts), loc)
            for part, item in zip(target.elts, items, strict=True):
                self.bind(part, item)
        else:
            raise FusionNotImplementedError(
                "assigning to elements of an array is not there yet: build the result with np.where and return it",
                loc,
            )

    def items(self, value: Abstract, count: int | None, loc: Loc | None) -> list[Abstract]:
        """The items of something that is unpacked or looped over."""
        items: list[Abstract]
        if isinstance(value, TupleValue):
            items = list(value.items)
        elif isinstance(value, Host):
            if isinstance(value.value, Iterator):
                raise FusionTypeError(
                    f"a {type(value.value).__name__} can be run through once, and not once a call: make it a tuple",
                    loc,
                )
            try:
                if not isinstance(value.value, tuple | list):  # the keys of a dict, say
                    value = self.prelude.compute(f"{self.prelude.bind(tuple)}({{}})", [value], tuple)
                length = len(value.value)
            except TypeError:
                raise FusionTypeError(f"{type(value.value).__name__} can't be unpacked", loc) from None
            measured = self.prelude.compute(f"{self.prelude.bind(len)}({{}})", [value], len)
            self.prelude.pin(measured)
            items = [self.prelude.compute(f"{{}}[{i}]", [value], lambda whole, i=i: whole[i]) for i in range(length)]
        else:
            raise FusionTypeError("an array can't be unpacked inside a fused function", loc)
        if count is not None and len(items) != count:
            raise FusionValueError(f"{count} names for {len(items)} values", loc)
        return items

    def _augassign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self.bind(node.target, UNASSIGNED)  # says what is not there yet
            return
        loc = loc_of(node)
        name = node.target.id
        old = self._name(ast.copy_location(_located(ast.Name(name, ast.Load()), node), node))
        new = self.binary(node.op, old, self.expr(node.value), node)
        # A name that starts as a number is bound anew in the first turn of a loop, and its array changed after that:
        # both give the same values.
        rebound = not isinstance(old, Device) or old.number or name in self.rebinding
        if rebound or in_element_frame(node) or not isinstance(old, Device):
            self.env[name] = new
            return
        if old.origin is not None:
            raise FusionNotImplementedError(
                f"{name} is the caller's array here, and changing it in place is not there yet: write "
                f"{name} = {name} {_symbol(node.op)} ..., which makes a new array",
                loc,
            )
        changed = self.op("assign", [old, new], "operator", loc)
        self.env = {key: _replace(value, old, changed) for key, value in self.env.items()}


def _replace(value: Abstract, old: Device, new: Device) -> Abstract:
    """The value with one array replaced, wherever it stands."""
    if value is old:
        return new
    if isinstance(value, TupleValue):
        items = [_replace(item, old, new) for item in value.items]
        changed = any(a is not b for a, b in zip(items, value.items, strict=True))
        return value.with_items(items) if changed else value
    return value


def _located(new: ast.Name, node: ast.AST) -> ast.Name:
    new.loc = getattr(node, "loc", None)  # type: ignore[attr-defined]
    return new


def _symbol(kind: ast.operator) -> str:
    return ast.unparse(ast.BinOp(ast.Name("a"), kind, ast.Name("b")))[2:-2]


__all__ = ["Lowered", "Parameter", "Type", "lower"]
