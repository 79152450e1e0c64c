"""What the inliner keeps: one :class:`Frame` a function that it goes through, and the marks on nodes."""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numfuse.errors import FusionNameError, Loc
from numfuse.frontend.binding import Abstract, Argument, Kind, Static, Values
from numfuse.frontend.returns import Returns
from numfuse.frontend.scope import Attribute, Capture, FunctionScope, Guard, Reference, did_you_mean
from numfuse.frontend.source import Source

__all__ = ["Frame", "Workspace", "in_element_frame", "is_host_call", "is_synthetic", "loc_of", "static_of"]

Node = TypeVar("Node", bound=ast.AST)


def loc_of(node: ast.AST) -> Loc | None:
    """Where the user wrote what this node stands for."""
    return getattr(node, "loc", None)


def static_of(node: ast.AST) -> Static | None:
    """The structural value that an expression denotes."""
    return getattr(node, "static", None)


def is_host_call(node: ast.AST) -> bool:
    """Whether Python can make this call itself, before the launch."""
    return getattr(node, "host_call", False)


def is_synthetic(node: ast.AST) -> bool:
    """Whether a name was made up by the front end; such a name is never read where it was not assigned."""
    return getattr(node, "synthetic", False)


def in_element_frame(node: ast.AST) -> bool:
    """Whether the code is part of an element function."""
    return getattr(node, "element_frame", False)


@dataclass
class LoopRecord:
    """What one walk of a loop's body found: what leaves the loop early, and which names it reads as they
    were when the turn started."""

    start: Values
    used: set[str] = field(default_factory=set)
    exits: list[Values] = field(default_factory=list)
    continues: list[Values] = field(default_factory=list)
    control: Kind = Kind.HOST


class Frame:
    """One function on its way into the tree: the decorated one, or one call of a helper."""

    def __init__(
        self,
        source: Source,
        returns: Returns,
        scope: FunctionScope,
        *,
        caller: Frame | None = None,
        enclosing: Frame | None = None,
        call: ast.Call | None = None,
    ) -> None:
        self.path: tuple[int, ...] = ()  # of calls that led here
        self.call_site: Loc | None = None
        if caller is not None and call is not None:
            self.path = (*caller.path, id(call))
            self.call_site = caller.place(call)
        self.source, self.scope, self.caller, self.enclosing = source, scope, caller, enclosing
        self.synthetic, self.body = returns.names, returns.body
        self.parameters = source.node.args
        every = [*self.parameters.posonlyargs, *self.parameters.args, *self.parameters.kwonlyargs]
        self.parameter_names = [a.arg for a in every]
        self.assigned, self.outer_names = returns.assigned, returns.outer_names
        stars = [a.arg for a in (self.parameters.vararg, self.parameters.kwarg) if a is not None]
        self.local_names = {*self.assigned, *self.parameter_names, *stars}
        self.names: dict[str, ast.expr] = {}
        self.values: Values | None = {}
        self.control: Kind = Kind.HOST if caller is None else caller.control
        self.loops: list[LoopRecord] = []
        self.element = False
        self.reason: Loc | None = None
        self.returns = returns
        self.element_parameters: set[str] = set()
        self.array_uses: list[tuple[str, Loc]] = []
        self.star_keywords: dict[str, list[Argument]] = {}
        self.result: tuple[ast.expr, Any] | None = None
        self.raises = False  # some path ends with an exception

    @property
    def name(self) -> str:
        """The function's qualified name."""
        return self.source.name

    def place(self, node: ast.AST) -> Loc:
        """Where a node of this frame's source stands, with the calls that led here."""
        return self.source.place(node, self.call_site)

    def owner(self, name: str) -> Frame | None:
        """The frame, this or an enclosing one, of which `name` is a local variable."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.local_names:
                return frame
            frame = frame.enclosing
        return None

    def note_parameters(self) -> None:
        """Remember which parameters hold elements."""
        values = self.values or {}
        kinds = {name: values[name].kind for name in self.parameter_names if name in values}
        self.element_parameters = {name for name, kind in kinds.items() if kind == Kind.ELEMENT}

    def value(self, name: str) -> Abstract | None:
        """What is known of a local variable now; None where it is not assigned."""
        abstract = None if self.values is None else self.values.get(name)
        for record in self.loops:
            if record.start.get(name) is abstract:
                record.used.add(name)
        return abstract

    def undefined(self, name: str, node: ast.AST) -> FusionNameError:
        """The error for a name that means nothing here."""
        known = self.scope.names()
        frame: Frame | None = self
        while frame is not None:
            known |= frame.local_names
            frame = frame.enclosing
        return FusionNameError(f"name {name!r} is not defined{did_you_mean(name, known)}", self.place(node))

    def needs_number(self, node: ast.AST) -> None:
        """Make this frame an element function, because of `node`."""
        if not self.element:
            self.element, self.reason = True, self.place(node)


class Workspace:
    """The tree under construction, and every name in it."""

    def __init__(self, is_array: Callable[[object], bool], operation: Callable[[object], bool]) -> None:
        self.is_array, self.operation = is_array, operation
        self.out: list[ast.stmt] = []
        self.reserved: set[str] = set()  # names of the decorated function: helpers keep off them
        self.parameters: set[str] = set()  # of the tree
        self.taken: set[str] = set()
        self.labels: dict[str, object] = {}
        self.captured: dict[str, Capture] = {}
        self.guards: dict[object, Guard] = {}
        self.helpers: list[str] = []
        self.stack: list[tuple[object, str]] = []
        self.element_work = False
        #: What the last walk of a loop ended with: where a loop around it is walked again, a good start.
        self.settled: dict[object, tuple[Values, Kind]] = {}
        self.unrolled: tuple[int, ...] = ()  # the turns of the unrolled loops around the current place

    def snapshot(self) -> dict[str, Any]:
        """Everything that a trial walk of a loop may change."""
        names = ("taken", "labels", "captured", "guards", "helpers")
        return {name: getattr(self, name).copy() for name in names}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Forget a trial walk."""
        for name, value in snapshot.items():
            setattr(self, name, value.copy())

    def make(self, node: Node, origin: ast.AST, frame: Frame) -> Node:
        """Mark a new node as coming from `origin` in the source of `frame`."""
        mark: Any = ast.copy_location(node, origin)
        mark.loc, mark.frame = frame.place(origin), frame
        return node

    @contextmanager
    def collect(self) -> Iterator[list[ast.stmt]]:
        """Gather the statements emitted meanwhile in a list of their own."""
        outer, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = outer

    def fresh(self, wanted: str) -> str:
        """A variable name that is free, also in the decorated function."""
        name, number = wanted, 0
        while name in self.taken or name in self.labels or name in self.reserved:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name

    def label(self, wanted: str, key: object) -> str:
        """The name for a captured or structural value; the same for the same place."""
        name, number = wanted, 0
        while name in self.taken or self.labels.get(name, key) != key:
            number += 1
            name = f"{wanted}_{number}"
        self.labels[name] = key
        return name

    def variable(self, name: str, frame: Frame) -> ast.expr:
        """What stands in the tree for a local variable of a frame."""
        return frame.names[name]

    def name_variables(self, frame: Frame) -> None:
        """Choose the names of a frame's variables, before any trial walk."""
        for name in frame.assigned:
            if name not in frame.names:
                frame.names[name] = ast.Name(self.fresh(name))

    def temporary(self, wanted: str, value: ast.expr, origin: ast.AST, frame: Frame) -> ast.Name:
        """Assign a value to a new name, and give the name."""
        name = self.fresh(wanted)
        self.assign(name, value, origin, frame)
        return self.name(name, origin, frame)

    def assign(self, name: str, value: ast.expr, origin: ast.AST, frame: Frame) -> None:
        """Emit an assignment to a made-up name."""
        target = self.name(name, origin, frame, ast.Store())
        self.out.append(self.make(ast.Assign([target], value), origin, frame))

    def name(self, name: str, origin: ast.AST, frame: Frame, context: ast.expr_context | None = None) -> ast.Name:
        """A made-up name."""
        node: Any = self.make(ast.Name(name, context or ast.Load()), origin, frame)
        node.synthetic = True
        result: ast.Name = node
        return result

    def guard(self, reference: Reference, value: object) -> None:
        """Demand that a place keeps its object."""
        if not reference.steps or reference.owner is builtins:
            return
        if isinstance(value, types.MethodType):  # a new object at each look-up
            reference, value = reference.then(Attribute("__func__")), value.__func__
        elif reference.read() is not value:
            inner = getattr(value, "py_func", None)
            if isinstance(inner, types.MethodType):
                reference, value = reference.then(Attribute("py_func"), Attribute("__func__")), inner.__func__
            else:
                reference, value = reference.then(Attribute("__class__")), type(value)
        self.guards.setdefault(reference.key, Guard(reference, value))
