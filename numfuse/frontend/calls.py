"""Calls: operations stay, calls that Python can make itself stay, helpers are inlined."""

from __future__ import annotations

import ast
import builtins
import types
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numfuse import ops
from numfuse.errors import (
    FusionNotImplementedError,
    FusionRecursionError,
    FusionSyntaxError,
    FusionTypeError,
    Loc,
)
from numfuse.frontend import language
from numfuse.frontend.binding import (
    HOST,
    UNKNOWN,
    Abstract,
    Argument,
    Kind,
    LocalFunction,
    match_arguments,
    needs_number,
    of_kind,
    of_tuple,
)
from numfuse.frontend.expressions import Pair, is_simple
from numfuse.frontend.frames import Frame, is_synthetic
from numfuse.frontend.operators import Operators
from numfuse.frontend.returns import Returns
from numfuse.frontend.scope import (
    Attribute,
    FunctionScope,
    Reference,
    Resolved,
    reaches_array,
)
from numfuse.frontend.source import Source
from numfuse.frontend.targets import Target, default_references, prepared, rewritten, unwrap

__all__ = ["Calls"]

MAXIMUM_DEPTH = 100


class Calls(Operators):
    """The visitor of calls."""

    @abstractmethod
    def block(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Visit statements (see the class for statements)."""

    def bind_local(self, name: str, abstract: Abstract, frame: Frame) -> None:
        """Remember what a name holds from now on."""
        assert frame.values is not None
        frame.values[name] = abstract.raised(frame.control)

    # ------------------------------------------------------------------------------------ arguments

    def arguments(self, node: ast.Call, frame: Frame) -> list[Argument]:
        """Visit the arguments of a call, in order, with ``*args`` and ``**kwargs`` spread out."""
        out: list[Argument] = []
        everything: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        for given in everything:
            start = len(self.out)
            new: list[Argument]
            if isinstance(given, ast.Starred):
                new = self._spread(given, frame)
            elif isinstance(given, ast.keyword) and given.arg is None:
                new = self._spread_keywords(given, frame)
            elif isinstance(given, ast.keyword):
                new = [Argument(*self.expression(given.value, frame), given.arg)]
            else:
                new = [Argument(*self.expression(given, frame))]
            pairs: list[Pair] = [(argument.value, argument.abstract) for argument in out]
            self.spill(pairs, start, node, frame)
            out = [replace(a, value=value) for a, (value, _) in zip(out, pairs, strict=True)] + new
        return out

    def _spread(self, node: ast.Starred, frame: Frame) -> list[Argument]:
        value, abstract = self.expression(node.value, frame)
        if abstract.items is None:
            raise FusionSyntaxError(
                "how many values `*` stands for here is not known when the function is compiled: "
                "name the arguments one by one",
                frame.place(node),
            )
        if isinstance(value, ast.Tuple | ast.List):
            return [Argument(v, a) for v, a in zip(value.elts, abstract.items, strict=True)]
        if not is_simple(value):
            value = self.temporary("items", value, node, frame)
        items: list[Argument] = []
        for position, item in enumerate(abstract.items):
            index = self.make(ast.Constant(position), node, frame)
            copy = self.clone(value, node, frame)
            items.append(Argument(self.make(ast.Subscript(copy, index, ast.Load()), node, frame), item))
        return items

    def _spread_keywords(self, node: ast.keyword, frame: Frame) -> list[Argument]:
        if isinstance(node.value, ast.Name):
            owner = frame.owner(node.value.id)
            if owner is not None and node.value.id in owner.star_keywords:
                return owner.star_keywords[node.value.id]
        raise FusionSyntaxError(
            "only the `**kwargs` of the helper itself can be passed on: name the keyword arguments",
            frame.place(node.value),
        )

    # ----------------------------------------------------------------------------------------- calls

    def visit_Call(self, node: ast.Call, frame: Frame) -> Pair:
        known = self.callee(node.func, frame)
        if isinstance(known, LocalFunction):
            return self.inline_local(known, self.arguments(node, frame), node, frame)
        if known is None:
            return self.call_method(node, frame)
        arguments = self.arguments(node, frame)
        folded = self.fold_call(known.value, arguments)
        if isinstance(folded, bool | int):
            return self.make(ast.Constant(folded), node, frame), Abstract(Kind.HOST, folded)
        if self.is_operation(known.value):
            return self.operation_call(known, arguments, node, frame)
        try:
            target = unwrap(known.value, known.reference)
        except AttributeError:
            target = None
        local = any(isinstance(a.abstract.known, LocalFunction) for a in arguments)
        exception = isinstance(known.value, type) and issubclass(known.value, BaseException)
        highest = Kind.UNIFORM if exception else Kind.HOST  # where it is raised, lowering knows the number or refuses
        host = not local and all(a.abstract.kind <= highest for a in arguments)
        if host and (target is None or not reaches_array(target.function, self.is_array)):
            function, _ = self.materialise(known, node.func, frame)
            return self.rebuild(node, function, arguments, frame, host=True), HOST
        if target is None:
            raise self.cannot_call(known, node, frame)
        self.guard(known.reference, known.value)
        return self.inline_target(target, arguments, node, frame)

    def callee(self, node: ast.expr, frame: Frame) -> Resolved | LocalFunction | None:
        """What is called: a known callable, a nested function, or (None) a method of some value."""
        if isinstance(node, ast.Lambda):
            known = self.visit_Lambda(node, frame)[1].known
            assert isinstance(known, LocalFunction)
            return known
        if isinstance(node, ast.Name):
            owner = frame.owner(node.id)
            abstract = None if owner is None else owner.value(node.id)
            if abstract is not None and isinstance(abstract.known, LocalFunction):
                return abstract.known
            if owner is not None and (abstract is None or abstract.resolved is None):
                self.visit_Name(node, frame)  # an undefined name is the more precise error
                raise FusionTypeError(
                    f"{node.id!r} can't be called here: which function it is must be the same on every path "
                    "(call each function in a branch of its own) and it must be a function, not a number or array",
                    frame.place(node),
                )
        resolved = self.resolve(node, frame)
        if resolved is not None:
            if not callable(resolved.value):
                kind = type(resolved.value).__name__
                raise FusionTypeError(f"{kind!r} object is not callable", frame.place(node))
            return resolved
        if isinstance(node, ast.Attribute):
            return None
        if isinstance(node, ast.Name):
            raise frame.undefined(node.id, node)
        _, abstract = self.expression(node, frame)
        if isinstance(abstract.known, LocalFunction):
            return abstract.known
        if abstract.resolved is not None and callable(abstract.resolved.value):
            return abstract.resolved
        raise FusionTypeError(
            "which function is called here is not known when the function is compiled: call it by its name",
            frame.place(node),
        )

    def is_operation(self, value: object) -> bool:
        """Whether a callable is an operation of the table."""
        return callable(value) and self.operation(value)

    def fold_call(self, function: object, arguments: list[Argument]) -> object:
        """The answer of ``callable(f)`` and ``isinstance(mode, str)``, where it is known."""
        if function is builtins.callable and len(arguments) == 1 and arguments[0].abstract.known is not UNKNOWN:
            known = arguments[0].abstract.known
            return isinstance(known, LocalFunction) or callable(known)
        if function is builtins.isinstance and len(arguments) == 2:
            value, kind = (argument.abstract.known for argument in arguments)
            if value is not UNKNOWN and isinstance(kind, type):
                return isinstance(value, kind) or (isinstance(value, LocalFunction) and kind is types.FunctionType)
        if function is builtins.len and len(arguments) == 1 and arguments[0].abstract.items is not None:
            return len(arguments[0].abstract.items)
        return UNKNOWN

    def operation_call(self, known: Resolved, arguments: list[Argument], node: ast.Call, frame: Frame) -> Pair:
        """A call that stays in the tree."""
        kind = max((argument.abstract.kind for argument in arguments), default=Kind.HOST)
        function, _ = self.materialise(known, node.func, frame)
        new = self.rebuild(node, function, arguments, frame, host=kind == Kind.HOST)
        if known.value is builtins.len:
            if kind == Kind.ELEMENT:
                frame.array_uses.append(("len()", frame.place(node)))
            return new, HOST
        if kind == Kind.ELEMENT and needs_number(known.value):
            frame.needs_number(node)
        return new, of_kind(kind)

    def call_method(self, node: ast.Call, frame: Frame) -> Pair:
        """A method of a value, such as ``x.clip(0, 1)``."""
        assert isinstance(node.func, ast.Attribute)
        receiver, abstract = self.expression(node.func.value, frame)
        start = len(self.out)
        arguments = self.arguments(node, frame)
        held: list[Pair] = [(receiver, abstract)]
        self.spill(held, start, node, frame)
        kind = max([abstract.kind, *(argument.abstract.kind for argument in arguments)])
        attribute = ast.Attribute(held[0][0], node.func.attr, ast.Load())
        function = self.make(attribute, node.func, frame)
        return self.rebuild(node, function, arguments, frame, host=kind == Kind.HOST), of_kind(kind)

    def rebuild(
        self, node: ast.Call, function: ast.expr, arguments: list[Argument], frame: Frame, *, host: bool
    ) -> ast.Call:
        """The call with its new function and arguments."""
        positional = [argument.value for argument in arguments if argument.name is None]
        keywords = [
            self.make(ast.keyword(argument.name, argument.value), node, frame)
            for argument in arguments
            if argument.name is not None
        ]
        new: Any = self.make(ast.Call(function, positional, keywords), node, frame)
        new.host_call = host
        result: ast.Call = new
        return result

    def cannot_call(self, known: Resolved, node: ast.Call, frame: Frame) -> Exception:
        """The error for a callable that is neither an operation nor Python code."""
        name = known.reference.spelled()
        place = frame.place(node)
        advice = ops.advice_builtin(known.value)
        if advice is not None:
            return FusionTypeError(advice, place)
        if isinstance(known.value, type):
            what = "an object out of elements: use separate names or a tuple"
            if issubclass(known.value, BaseException):
                what = "an exception out of elements, which Python can't have before the kernel runs: leave them out"
            return FusionTypeError(f"{name}(...) would make {what}", place)
        module = getattr(known.value, "__module__", None) or ""
        if isinstance(known.value, np.ufunc) or module.partition(".")[0] in ops.PACKAGES:
            return FusionNotImplementedError(ops.advice(known.value), place)
        return FusionTypeError(
            f"{name}() is not Python code that could be inlined, nor an operation that numfuse knows: "
            "write it with operations of NumPy or math, or call it outside of the fused function",
            place,
        )

    # -------------------------------------------------------------------------------------- inlining

    def inline_target(self, target: Target, arguments: list[Argument], node: ast.Call, frame: Frame) -> Pair:
        """Inline a call of a plain function."""
        function = target.function
        place = frame.place(node)
        leading = [Argument(*self.materialise(self.resolved(r), node, frame)) for r in target.leading]
        given = {argument.name for argument in arguments}
        named = [
            Argument(*self.materialise(self.resolved(reference), node, frame), name)
            for name, reference in target.keywords.items()
            if name not in given
        ]
        self.guard_function(function)
        source, returns = self.prepare(function, place)
        inner = Frame(source, returns, FunctionScope(function), caller=frame, call=node)
        defaults = {name: self.resolved(r) for name, r in default_references(function).items()}
        self.helpers.append(function.__qualname__)
        return self.enter(inner, [*leading, *arguments, *named], id(function.__code__), node, frame, defaults)

    def inline_local(self, function: LocalFunction, arguments: list[Argument], node: ast.Call, frame: Frame) -> Pair:
        """Inline a call of a nested ``def`` or lambda."""
        outer = function.frame
        source = outer.source.nested(function.node)
        returns = rewritten(source)
        inner = Frame(source, returns, outer.scope, caller=frame, enclosing=outer, call=node)
        self.helpers.append(source.name)
        return self.enter(inner, arguments, id(function.node), node, frame, function.defaults)

    def prepare(self, function: types.FunctionType, place: Loc) -> tuple[Source, Returns]:
        """The source of a helper; errors gain the place of the call."""
        try:
            return prepared(function)
        except (FusionTypeError, FusionNotImplementedError) as error:
            raise type(error)(error.message, error.loc or place) from error

    def enter(
        self,
        inner: Frame,
        arguments: list[Argument],
        identity: object,
        node: ast.Call,
        frame: Frame,
        defaults: Any,
    ) -> Pair:
        """Bind the arguments, go through the body, and give the result."""
        place = frame.place(node)
        structural = tuple(id(a.abstract.known) for a in arguments if a.abstract.function_like)
        key = (identity, structural)
        if any(key == other for other, _ in self.stack) or len(self.stack) > MAXIMUM_DEPTH:
            first = next((i for i, (other, _) in enumerate(self.stack) if other == key), 0)
            cycle = [name for _, name in self.stack[first:]] + [inner.name]
            raise FusionRecursionError(
                f"recursion can't be fused: {' -> '.join(cycle[-12:])}; write it as a loop", place
            )
        named, extra, keywords = match_arguments(inner.name, inner.parameters, arguments, place)
        for argument in arguments:
            parameter = next((name for name, given in named.items() if given is argument), None)
            if parameter is not None:
                self.bind_argument(parameter, argument.value, argument.abstract, inner, node, frame)
        self._bind_stars(inner, extra, keywords, node, frame)
        missing = []
        for name in inner.parameter_names:
            if name in named:
                continue
            default = defaults.get(name)
            if default is None:
                missing.append(repr(name))
                continue
            if isinstance(default, Resolved):
                default = self.materialise(default, node, frame)
            self.bind_argument(name, default[0], default[1], inner, node, frame)
        if missing:
            plural = "s" if len(missing) > 1 else ""
            message = f"{inner.name}() missing {len(missing)} required argument{plural}: {' and '.join(missing)}"
            raise FusionTypeError(message, place)
        self.name_variables(inner)
        inner.note_parameters()
        self.stack.append((key, inner.name))
        try:
            self.block(inner.body, inner)
        finally:
            self.stack.pop()
        if inner.result is None:
            if not inner.raises:
                raise FusionSyntaxError(f"{inner.name}() never returns: its loop has no end", place)
            # Every path raises, so what follows is never reached; it only has to be there.
            return self.make(ast.Constant(None), node, frame), HOST
        result, abstract = self.collapse(inner)
        return result, abstract

    def collapse(self, inner: Frame) -> Pair:
        """The result; ``result = e`` just before the end gives e itself."""
        assert inner.result is not None
        value, abstract = inner.result
        last = self.out[-1] if self.out else None
        if (
            isinstance(value, ast.Name)
            and is_synthetic(value)
            and isinstance(last, ast.Assign)
            and isinstance(last.targets[0], ast.Name)
            and last.targets[0].id == value.id
        ):
            self.out.pop()
            return last.value, abstract
        return value, abstract

    def bind_argument(
        self, name: str, value: ast.expr, abstract: Abstract, inner: Frame, node: ast.AST, frame: Frame
    ) -> None:
        """Give a parameter its argument: directly where that is safe, else through a new name."""
        if name not in inner.assigned and is_simple(value):
            inner.names[name] = value
        elif not abstract.function_like:
            fresh = self.fresh(name)
            inner.names[name] = ast.Name(fresh)
            target = self.make(ast.Name(fresh, ast.Store()), node, frame)
            self.out.append(self.make(ast.Assign([target], value), node, frame))
        self.bind_local(name, abstract, inner)

    def _bind_stars(
        self, inner: Frame, extra: list[Argument], keywords: list[Argument], node: ast.AST, frame: Frame
    ) -> None:
        def settled(argument: Argument, wanted: str) -> Argument:
            if is_simple(argument.value):
                return argument
            return replace(argument, value=self.temporary(wanted, argument.value, node, frame))

        if inner.parameters.vararg is not None:
            name = inner.parameters.vararg.arg
            items = [settled(argument, name) for argument in extra]
            value = self.make(ast.Tuple([i.value for i in items], ast.Load()), node, frame)
            self.bind_argument(name, value, of_tuple(tuple(i.abstract for i in items)), inner, node, frame)
        if inner.parameters.kwarg is not None:
            name = inner.parameters.kwarg.arg
            if name in inner.assigned:
                raise language.refusal("Dict", inner.place(inner.parameters.kwarg))
            inner.star_keywords[name] = [settled(argument, argument.name or name) for argument in keywords]

    def guard_function(self, function: types.FunctionType) -> None:
        """Notice when a function gets new code or new defaults."""
        place = Reference(function, function.__name__)
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            self.guard(place.then(Attribute(attribute)), getattr(function, attribute))
