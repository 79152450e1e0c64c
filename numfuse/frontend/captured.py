"""Captured and structural values on their way into the tree: where a chain of names leads, and its spelling."""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from numfuse import ops
from numfuse.errors import FusionAttributeError, FusionIndexError, FusionKeyError
from numfuse.frontend.binding import (
    UNKNOWN,
    Abstract,
    Kind,
    Static,
)
from numfuse.frontend.frames import Frame, Workspace
from numfuse.frontend.scope import (
    Attribute,
    Capture,
    Item,
    Reference,
    Resolved,
    Step,
    categorize,
    did_you_mean,
)

__all__ = ["Captured", "Pair", "constant_key"]

Pair = tuple[ast.expr, Abstract]


class Captured(Workspace):
    """Looks up what a function does not assign."""

    def resolve(self, node: ast.expr, frame: Frame) -> Resolved | None:
        """The captured or structural value that names, attributes and constant items lead to, if any."""
        if isinstance(node, ast.Name):
            owner = frame.owner(node.id)
            if owner is not None:
                abstract = owner.value(node.id)
                return None if abstract is None else abstract.resolved
            found = frame.scope.find(node.id)
            if found is None:
                return None
            reference, shadow = found
            if shadow is not None:
                self.guards.setdefault(shadow.reference.key, shadow)
            return self.resolved(reference)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value, frame)
            if base is None or base.category in ("number", "array") or self.is_array(base.value):
                return None
            return self._attribute_of(base, node.attr, node, frame)
        if isinstance(node, ast.Subscript):
            key = constant_key(node.slice)
            if key is UNKNOWN:
                return None
            base = self.resolve(node.value, frame)
            if base is None or not isinstance(base.value, Mapping | tuple | list):
                return None
            try:
                return self.resolved(base.reference.then(Item(key)))  # type: ignore[arg-type]
            except (IndexError, KeyError, TypeError) as error:
                message = f"{base.reference.spelled()}[{key!r}] does not exist ({type(error).__name__}: {error})"
                kind = FusionKeyError if isinstance(error, KeyError) else FusionIndexError
                raise kind(message, frame.place(node)) from error
        return None

    def resolved(self, reference: Reference) -> Resolved:
        """Look at what a place holds now."""
        value = reference.read()
        return Resolved(value, reference, categorize(value, self.is_array, self.operation))

    def _attribute_of(self, base: Resolved, name: str, node: ast.Attribute, frame: Frame) -> Resolved | None:
        reference = base.reference.then(Attribute(name))
        try:
            value = getattr(base.value, name)
        except AttributeError as error:
            hint = did_you_mean(name, dir(base.value))
            message = f"{base.reference.spelled()} has no attribute {name!r}{hint}"
            raise FusionAttributeError(message, frame.place(node)) from error
        category = categorize(value, self.is_array, self.operation)
        module = base.value.__name__ if isinstance(base.value, types.ModuleType) else ""
        if category == "number" and module in ops.CONSTANT_MODULES:
            category = "static"
        if category == "static" and _made_by_reading(base.value, name, value):
            return None  # a method of a built-in object: a call on its receiver
        return Resolved(value, reference, category)

    def materialise(self, resolved: Resolved, node: ast.expr, frame: Frame) -> Pair:
        """The expression for a captured or structural value."""
        reference, value, category = resolved.reference, resolved.value, resolved.category
        if category == "static":
            known = Abstract(Kind.HOST, value, resolved)
            self.guard(reference, value)
            return self.spell_static(reference, value, node, frame), known
        name = self.label(reference.identifier(), reference.key)
        self.captured[name] = Capture(category, reference)
        element = category == "array" or (category == "object" and self._holds_arrays(value))
        new = self.make(ast.Name(name, ast.Load()), node, frame)
        return new, Abstract(Kind.ELEMENT if element else Kind.HOST, resolved=resolved)

    def _holds_arrays(self, value: object) -> bool:
        if isinstance(value, Mapping):
            return any(self._holds_arrays(item) for item in value.values())
        if isinstance(value, tuple | list):
            return any(self._holds_arrays(item) for item in value)
        return self.is_array(value)

    def spell_static(self, reference: Reference, value: object, node: ast.AST, frame: Frame) -> ast.expr:
        """A structural value, spelled with the name under which it was found."""
        new: Any
        if value is None or isinstance(value, str | bytes):
            new = self.make(ast.Constant(value), node, frame)
            new.static = Static(value)
            constant: ast.expr = new
            return constant
        root = reference.root()
        held: object = root.read()
        label = self.label(root.identifier(), root.key)
        new = self.make(ast.Name(label, ast.Load()), node, frame)
        new.static = Static(held)
        for step in reference.steps[reference.rooted :]:
            held = step.read(held)
            new = self.make(self._spell_step(new, step), node, frame)
            new.static = Static(held)
        new.static = Static(value)
        result: ast.expr = new
        return result

    def _spell_step(self, base: ast.expr, step: Step) -> ast.expr:
        if isinstance(step, Attribute):
            return ast.Attribute(base, step.name, ast.Load())
        return ast.Subscript(base, ast.Constant(step.key), ast.Load())


def _made_by_reading(owner: object, name: str, value: object) -> bool:
    """Whether each look-up of an attribute makes a new function object, as for ``"text".upper``."""
    if isinstance(value, str | bytes | np.dtype | types.MethodType) or hasattr(value, "py_func"):
        return False
    return getattr(owner, name) is not value


def constant_key(node: ast.expr) -> object:
    """The key of a subscript that is a constant, or UNKNOWN."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else UNKNOWN
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    return UNKNOWN
