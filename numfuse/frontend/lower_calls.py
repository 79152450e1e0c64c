"""Lowering of calls: operations of the table, conversions, methods, and what Python runs on the host."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numfuse import ops
from numfuse.body import CastRule, Type, Weak
from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import loc_of
from numfuse.frontend.lower_access import AccessLowering
from numfuse.frontend.lower_expressions import hosts_of
from numfuse.frontend.lower_values import Abstract, Device, TupleValue
from numfuse.frontend.prelude import Host

_PYTHON_CASTS: dict[object, Type] = {float: Weak.FLOAT, int: Weak.INT, bool: np.dtype(bool)}
_CAST_RULES: dict[str, CastRule] = {"unsafe": "unsafe", "same_kind": "same_kind", "safe": "safe"}
_BUILTINS = (min, max, pow, divmod, len)


class CallLowering(AccessLowering):
    """Calls of everything that the inliner left in place."""

    def _call(self, node: ast.Call) -> Abstract:
        loc = loc_of(node)
        args = self._arguments(node)
        keywords = {item.arg: self.expr(item.value) for item in node.keywords if item.arg is not None}
        if len(keywords) != len(node.keywords):
            raise FusionNotImplementedError("** in a call is not there yet: name the arguments", loc)
        if isinstance(node.func, ast.Attribute) and not hasattr(node.func, "static"):
            base = self.expr(node.func.value)
            if isinstance(base, Device):
                return self._method(base, args, keywords, node)
            target = self.attribute_of(base, node.func)
        else:
            target = self.expr(node.func)
        hosts = hosts_of([self.as_host(value) for value in (*args, *keywords.values())])
        if hosts is not None:
            return self._host_call(target, hosts, len(args), tuple(keywords), node)
        if not isinstance(target, Static):
            raise FusionTypeError("only functions known by name can be called with array operands", loc)
        return self._operation(target.value, args, keywords, node)

    def _arguments(self, node: ast.Call) -> list[Abstract]:
        args: list[Abstract] = []
        for item in node.args:
            if not isinstance(item, ast.Starred):
                args.append(self.expr(item))
                continue
            value = self.expr(item.value)
            if not isinstance(value, TupleValue):
                raise FusionTypeError("* in a call needs a tuple written in the function", loc_of(node))
            args += value.items
        return args

    # ---- on the host

    def _host_call(
        self, target: Abstract, operands: list[Host], positional: int, names: tuple[str, ...], node: ast.Call
    ) -> Abstract:
        """Python calls the function, at each call of the fused one."""
        function = self.as_host(target)
        if not isinstance(function, Host):
            raise FusionTypeError("this can't be called", loc_of(node))
        obj = function.value
        operation = _is_operation(obj)
        if function.static and not operation:
            # It may answer differently each time (it may read globals), so it is called each time.
            function = Host(self.prelude.bind(obj), obj)

        def call(callee: Callable[..., object], *values: object) -> object:
            return callee(*values[:positional], **dict(zip(names, values[positional:], strict=True)))

        slots = ", ".join(["{}"] * positional + [f"{name}={{}}" for name in names])
        everything = [function, *operands]
        if self.depth == 0:
            return self.prelude.compute(f"{{}}({slots})", everything, call)
        try:
            return self.prelude.compute(f"{{}}({slots})", everything, call, may_fail=True)
        except Exception:  # only some elements would have met it: compute it there, if that can be done
            spelling = ops.find(obj) if operation and not names else None
            if spelling is None:
                raise
            return self._spelled(spelling, operands, {}, node)

    # ---- in the kernel

    def _operation(self, obj: Any, args: list[Abstract], keywords: dict[str, Abstract], node: ast.Call) -> Abstract:
        loc = loc_of(node)
        if is_conversion(obj):
            return self._cast(obj, args, keywords, loc)
        if obj in (min, max):
            return self._extreme("min" if obj is min else "max", args, keywords, loc)
        if obj is len:
            return self._length(args, loc)
        if obj in (pow, divmod):
            return self._pow_or_divmod(obj, args, node)
        if obj in (tuple, list) and len(args) == 1 and isinstance(args[0], TupleValue):
            return TupleValue(args[0].items, is_list=obj is list)
        spelling = ops.find(obj)
        if spelling is None:
            raise FusionNotImplementedError(ops.advice(obj), loc)
        return self._spelled(spelling, args, keywords, node)

    def _spelled(
        self,
        spelling: ops.Spelling,
        args: Sequence[Abstract],
        keywords: Mapping[str, Abstract],
        node: ast.Call,
    ) -> Abstract:
        loc = loc_of(node)
        for value in (*args, *keywords.values()):
            if isinstance(value, Host) and value.value is None:
                self.prelude.pin(value)  # a bound that is left out in this call, but perhaps not in the next
        try:
            row, operands = ops.arrange(spelling, args, keywords)
        except FusionError as error:
            raise type(error)(error.message, loc) from None
        if spelling.row == "clip" and row in ("maximum", "minimum"):  # one bound: np.clip's rule for it holds
            row = "clip_low" if row == "maximum" else "clip_high"
        if spelling.floating:  # math.pow and the like compute in floats whatever they are given
            operands = [self.convert(operand, Weak.FLOAT, "weak", loc) for operand in operands]
        if row == "log" and len(operands) == 2:  # math.log(x, base)
            top, bottom = (self.op("log", [operand], "math", loc) for operand in operands)
            return self.op("divide", [top, bottom], "operator", loc)
        if row == "power":
            return self.power(operands[0], operands[1], spelling.form, node)
        result = self.op(row, operands, spelling.form, loc)
        return self.convert(result, Weak.INT, "weak", loc) if spelling.python_int else result

    def _cast(self, obj: type, args: list[Abstract], keywords: Mapping[str, Abstract], loc: Loc | None) -> Abstract:
        """``float(x)`` and ``np.float32(x)``: Python's types give numbers, NumPy's give a dtype."""
        if keywords or len(args) != 1:
            raise FusionTypeError(f"{obj.__name__} takes one argument here", loc)
        if obj is bool:
            return self.op("truth", args, "operator", loc)
        if obj in _PYTHON_CASTS:
            return self.convert(args[0], _PYTHON_CASTS[obj], "weak", loc)
        return self.convert(args[0], np.dtype(obj), "weak", loc)

    def _extreme(self, name: str, args: list[Abstract], keywords: Mapping[str, Abstract], loc: Loc | None) -> Abstract:
        if keywords:
            raise FusionNotImplementedError(f"{name}() with keywords is not there yet", loc)
        if len(args) == 1 and isinstance(args[0], TupleValue):
            args = list(args[0].items)
        if len(args) < 2:
            raise FusionTypeError(
                f"{name}() of one array is a reduction, which is not there yet; np.{name}imum(a, b) and "
                f"{name}(a, b) compare two",
                loc,
            )
        result = args[0]
        for other in args[1:]:
            result = self.op(f"select_{name}", [result, other], "operator", loc)
        return result

    def _length(self, args: list[Abstract], loc: Loc | None) -> Abstract:
        value = args[0] if len(args) == 1 else None
        if isinstance(value, TupleValue):
            return self.prelude.static(len(value.items))
        if isinstance(value, Device) and value.origin is not None:
            array: Any = self.arrays[value.origin]
            code = f"{self.prelude.bind(len)}({self.codes[value.origin]})"
            return self.prelude.evaluate(code, len(array))
        raise FusionNotImplementedError("len() of a computed value: ask an argument of the function", loc)

    def _pow_or_divmod(self, obj: object, args: list[Abstract], node: ast.Call) -> Abstract:
        if len(args) != 2:
            raise FusionTypeError(f"{getattr(obj, '__name__', obj)}() takes two operands here", loc_of(node))
        if obj is pow:
            return self.binary(ast.Pow(), args[0], args[1], node)
        quotient = self.binary(ast.FloorDiv(), args[0], args[1], node)
        return TupleValue((quotient, self.binary(ast.Mod(), args[0], args[1], node)))

    # ---- methods of arrays

    def _method(self, base: Device, args: list[Abstract], keywords: dict[str, Abstract], node: ast.Call) -> Abstract:
        loc = loc_of(node)
        name = node.func.attr  # type: ignore[attr-defined]
        if name == "astype":
            return self._astype(base, args, keywords, loc)
        if name == "copy" and not args and not keywords:
            return self.op("identity", [base], "ufunc", loc)  # a new array: changing it leaves this one alone
        spelling = ops.method(name)
        if spelling is None:
            raise ops.method_error(name, loc)
        return self._spelled(spelling, [base, *args], keywords, node)

    def _astype(
        self, base: Device, args: list[Abstract], keywords: Mapping[str, Abstract], loc: Loc | None
    ) -> Abstract:
        given = [*args, *(value for key, value in keywords.items() if key == "dtype")]
        copied = keywords.get("copy")
        if len(given) != 1 or set(keywords) - {"dtype", "copy", "casting"}:
            raise FusionTypeError("astype takes a dtype, and optionally copy= and casting=", loc)
        casting = keywords.get("casting")
        asked = self.prelude.pin(casting) if isinstance(casting, Host) else "unsafe"
        if asked not in _CAST_RULES:
            raise FusionNotImplementedError(f"astype with casting={asked!r} is not there yet", loc)
        rule = _CAST_RULES[asked]
        wanted = self.as_host(given[0])
        if not isinstance(wanted, Host):
            raise FusionTypeError("astype takes a dtype", loc)
        try:
            dtype = np.dtype(self.prelude.pin(wanted))
        except TypeError as error:
            raise FusionTypeError(str(error), loc) from None
        kept = isinstance(copied, Host) and not self.prelude.decide(copied)
        if kept and base.origin is not None and self.dtypes[base.origin] == dtype:
            return base  # NumPy, too, gives the same array back
        return self.convert(base, dtype, rule, loc)


def is_conversion(obj: object) -> bool:
    """A type that converts a number: ``float``, ``np.float32``."""
    return isinstance(obj, type) and (obj in _PYTHON_CASTS or issubclass(obj, np.generic))


def is_lowered(obj: object) -> bool:
    """Whether calls of it become nodes of the body: an operation of the table, a conversion, a builtin."""
    try:
        return ops.find(obj) is not None or is_conversion(obj) or obj in _BUILTINS or obj in (tuple, list)
    except TypeError:  # an unhashable callable
        return False


def _is_operation(obj: object) -> bool:
    """A function whose answer depends on its arguments alone."""
    try:
        return ops.find(obj) is not None or is_conversion(obj) or obj in _BUILTINS
    except TypeError:  # an unhashable callable
        return False
