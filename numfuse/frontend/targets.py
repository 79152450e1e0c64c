"""Callables and the plain functions behind them."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from numfuse.errors import FusionNotImplementedError
from numfuse.frontend.returns import Returns, single_return
from numfuse.frontend.scope import (
    Attribute,
    Item,
    Reference,
    wrapped_function,
)
from numfuse.frontend.source import Source, source_of

__all__ = ["Target", "default_references", "prepared", "rewritten", "unwrap"]


@dataclass(frozen=True)
class Target:
    """A plain function to inline, and what is bound to it already (`self`, the arguments of a partial)."""

    function: types.FunctionType
    reference: Reference
    leading: tuple[Reference, ...] = ()
    keywords: dict[str, Reference] = field(default_factory=dict)


def unwrap(value: object, reference: Reference) -> Target | None:
    """The plain function behind any callable that has one."""
    if isinstance(value, types.FunctionType):
        return Target(value, reference)
    if isinstance(value, types.MethodType):
        owner = Reference(value.__self__, "self")
        if reference.steps and isinstance(reference.steps[-1], Attribute):
            holder = Reference(reference.owner, reference.name, reference.steps[:-1], reference.rooted)
            held = holder.read()
            if held is value.__self__:
                owner = holder
            elif type(held) is value.__self__:
                owner = holder.then(Attribute("__class__"))
        elif reference.steps:
            owner = reference.then(Attribute("__self__"))
        inner = unwrap(value.__func__, reference.then(Attribute("__func__")))
        return None if inner is None else replace(inner, leading=(owner, *inner.leading))
    if isinstance(value, functools.partial):
        inner = unwrap(value.func, reference.then(Attribute("func")))
        if inner is None:
            return None
        given = tuple(reference.then(Attribute("args"), Item(i)) for i in range(len(value.args)))
        named = {key: reference.then(Attribute("keywords"), Item(key)) for key in value.keywords}
        return replace(inner, leading=inner.leading + given, keywords={**inner.keywords, **named})
    if isinstance(value, np.vectorize) and (value.otypes or value.signature or value.excluded):
        raise FusionNotImplementedError(
            f"{reference.spelled()} is an np.vectorize object with options, which are not taken over: call its "
            f"function and convert the result with astype"
        )
    wrapped = wrapped_function(value)
    if wrapped is not None:
        return unwrap(wrapped[0], reference.then(*(Attribute(a) for a in wrapped[1].split("."))))
    call = inspect.getattr_static(type(value), "__call__", None)
    if not isinstance(value, type) and isinstance(call, types.FunctionType):
        inner = unwrap(call, reference.then(Attribute("__class__"), Attribute("__call__")))
        return None if inner is None else replace(inner, leading=(reference, *inner.leading))
    return None


@lru_cache(maxsize=1024)
def rewritten(source: Source) -> Returns:
    """The body of a function, with one ``return``."""
    names = {node.id for node in ast.walk(source.node) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(source.node) if isinstance(node, ast.arg)}
    return single_return(source.body, names)


def prepared(function: types.FunctionType) -> tuple[Source, Returns]:
    """The source of a function, and its body with one ``return``."""
    source = source_of(function)
    return source, rewritten(source)


def default_references(function: types.FunctionType) -> dict[str, Reference]:
    """Where the default of each parameter stands."""
    out: dict[str, Reference] = {}
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    given = function.__defaults__ or ()
    for index, name in enumerate(positional[len(positional) - len(given) :]):
        out[name] = Reference(function, name, (Attribute("__defaults__"), Item(index)), 2)
    for name in function.__kwdefaults__ or {}:
        out[name] = Reference(function, name, (Attribute("__kwdefaults__"), Item(name)), 2)
    return out
