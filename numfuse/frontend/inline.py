"""The recursive inliner: a Python function and its helpers become one function with no calls but operations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numfuse.errors import FusionSyntaxError, FusionTypeError, Loc
from numfuse.frontend import language
from numfuse.frontend.binding import (
    UNKNOWN,
    Abstract,
    Kind,
    LocalFunction,
    Static,
    of_kind,
    refuse_star_parameters,
)
from numfuse.frontend.frames import Frame, static_of
from numfuse.frontend.loops import Loops
from numfuse.frontend.scope import Capture, FunctionScope, Guard, Reference, Resolved, categorize
from numfuse.frontend.targets import Target, default_references, prepared, unwrap

__all__ = ["Inlined", "inline"]


@dataclass
class Inlined:
    """A function with its helpers inlined.

    `tree` has the parameters that the caller gave kinds for; its statements end in the only ``return``.
    Names in it that are neither parameters nor assigned are in `captured` (read afresh at each call) or carry
    their structural value (:func:`~numfuse.frontend.frames.static_of`). The inlining holds as long as all
    `guards` do.
    """

    tree: ast.FunctionDef
    captured: dict[str, Capture]
    guards: tuple[Guard, ...]
    helpers: tuple[str, ...]
    element_frame: bool


def inline(
    function: Callable[..., object],
    kinds: Mapping[str, Kind | Static],
    *,
    is_array: Callable[[object], bool],
    operation: Callable[[object], bool],
) -> Inlined:
    """Inline a function and all its helpers.

    Parameters
    ----------
    function : callable
        A plain function, lambda, bound method, ``functools.partial``, callable object, or anything that keeps
        its Python function in `py_func` or `pyfunc`.
    kinds : mapping
        What each parameter is. Parameters left out take their defaults (or what a partial binds).
    is_array : callable
        Whether a captured object is an array.
    operation : callable
        Whether a callable is an operation, whose calls stay in the tree.

    Returns
    -------
    Inlined

    Raises
    ------
    FusionError
        What can't be inlined, where, and what to write instead.
    """
    name = getattr(function, "__name__", type(function).__name__)
    target = unwrap(function, Reference(function, name))
    if target is None:
        raise FusionTypeError(
            f"{name} is not a Python function whose code could be read: wrap it in one, such as `lambda x: {name}(x)`"
        )
    return _Inliner(is_array, operation).run(target, kinds)


class _Inliner(Loops):
    def run(self, target: Target, kinds: Mapping[str, Kind | Static]) -> Inlined:
        function = target.function
        source, returns = prepared(function)
        frame = Frame(source, returns, FunctionScope(function))
        refuse_star_parameters(frame.name, frame.parameters, frame.place(source.node))
        unknown = sorted(set(kinds) - set(frame.parameter_names))
        if unknown:
            raise FusionTypeError(f"{frame.name}() got an unexpected keyword argument {unknown[0]!r}")
        code = function.__code__
        self.reserved = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
        structural = {name for name, kind in kinds.items() if isinstance(kind, Static)}
        for name in (*kinds, *frame.assigned):
            if name not in structural or name in frame.assigned:
                self.taken.add(name)
            frame.names[name] = ast.Name(name)
        self.parameters = {name for name in frame.parameter_names if name in kinds}
        self.guard_function(function)
        self.stack.append(((id(code), ()), frame.name))
        self._bind_parameters(target, kinds, frame)
        frame.note_parameters()
        self.block(frame.body, frame)
        if frame.result is not None:
            result, _ = self.collapse(frame)
        elif frame.raises:  # on every path
            result = self.make(ast.Constant(None), returns.body[-1], frame)
        else:
            raise FusionSyntaxError(f"{frame.name}() never returns: its loop has no end", frame.place(source.node))
        self.out.append(self.make(ast.Return(result), returns.body[-1], frame))
        return self._finish(frame)

    def _bind_parameters(self, target: Target, kinds: Mapping[str, Kind | Static], frame: Frame) -> None:
        defaults = default_references(target.function)
        leading = dict(zip(frame.parameter_names, target.leading, strict=False))
        for name in frame.parameter_names:
            kind = kinds.get(name)
            reference = leading.get(name) or target.keywords.get(name) or defaults.get(name)
            if isinstance(kind, Static):
                place = Reference(kind.value, name)
                category = categorize(kind.value, self.is_array, self.operation)
                known = Resolved(kind.value, place, category)
                self.labels.setdefault(name, place.key)
                held = kind.value if category == "static" else UNKNOWN
                self.bind_local(name, Abstract(Kind.HOST, held, known), frame)
            elif kind is not None:
                self.bind_local(name, of_kind(kind), frame)
            elif reference is not None:
                frame.names.pop(name, None)
                value, abstract = self.materialise(self.resolved(reference), frame.source.node, frame)  # type: ignore[arg-type]
                self.bind_argument(name, value, abstract, frame, frame.source.node, frame)
            else:
                message = f"{frame.name}() missing required argument: {name!r}"
                raise FusionTypeError(message, frame.place(frame.source.node))

    def _finish(self, frame: Frame) -> Inlined:
        template = ast.parse("def function(): pass").body[0]
        assert isinstance(template, ast.FunctionDef)
        tree = self.make(template, frame.source.node, frame)
        name = frame.source.name.rsplit(".", 1)[-1]
        tree.name = name if name.isidentifier() else "lambda_"
        kept = [n for n in frame.parameter_names if n in self.parameters]
        tree.args.args = [ast.arg(n) for n in kept]
        tree.body = self.out
        _drop_replaced_none(tree.body)
        seen: set[Frame] = {frame}
        for node in ast.walk(tree):
            seen.add(getattr(node, "frame", frame))
        elements = _element_frames(seen)
        _Finisher(elements).visit(tree)
        for inner in elements & seen:
            for what, place in inner.array_uses:
                raise _array_use(what, place, inner)
            for update in inner.returns.unread_updates:
                if isinstance(update.target, ast.Name) and update.target.id in inner.element_parameters:
                    raise _unread_update(update.target.id, inner.place(update), inner)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return Inlined(
            tree=ast.fix_missing_locations(tree),
            captured={n: c for n, c in self.captured.items() if n in used},
            guards=tuple(self.guards.values()),
            helpers=tuple(dict.fromkeys(self.helpers)),
            element_frame=frame in elements,
        )


def _element_frames(frames: set[Frame]) -> set[Frame]:
    """The element functions: those that need a number, and everything that these call."""
    elements: set[Frame] = set()
    for frame in frames:
        caller: Frame | None = frame
        while caller is not None:
            if caller.element:
                elements.add(frame)
                break
            caller = caller.caller
    return elements


def _array_use(what: str, place: Loc, frame: Frame) -> Exception:
    reason = frame.reason
    caller = frame.caller
    while reason is None and caller is not None:
        reason, caller = caller.reason, caller.caller
    where = f" (line {reason.line} needs one element's truth value or number)" if reason is not None else ""
    return FusionSyntaxError(
        f"{what} of an array inside of a function that is applied element by element{where}: "
        "move that branch into a helper of its own, which is then applied to the elements",
        place,
    )


def _unread_update(name: str, place: Loc, frame: Frame) -> Exception:
    return FusionSyntaxError(
        f"this changes nothing: {frame.name}() is applied element by element, so {name!r} is one number and no "
        f"array. Return the new value; or, to change the caller's array, compute in a helper and write "
        f"`{name} += helper({name})` where {name!r} is an array",
        place,
    )


class _Finisher(ast.NodeTransformer):
    """Mark nodes with their sort of frame; ``y += e`` on an element becomes ``y = y + e``."""

    def __init__(self, elements: set[Frame]) -> None:
        self.elements = elements

    def visit(self, node: ast.AST) -> Any:
        """Mark a node and what is in it."""
        self.generic_visit(node)
        mark: Any = node
        frame = getattr(node, "frame", None)
        if frame is None:
            return node
        del mark.frame
        mark.element_frame = frame in self.elements
        static = static_of(node)
        if static is not None and isinstance(static.value, LocalFunction):
            raise language.refusal("Lambda", mark.loc)
        if isinstance(node, ast.AugAssign) and mark.element_frame and isinstance(node.target, ast.Name):
            return _plain_assignment(node)
        return node


def _plain_assignment(node: ast.AugAssign) -> ast.Assign:
    assert isinstance(node.target, ast.Name)

    def marked(new: Any) -> Any:
        ast.copy_location(new, node)
        new.loc, new.element_frame = node.loc, True  # type: ignore[attr-defined]
        return new

    read = marked(ast.Name(node.target.id, ast.Load()))
    result: ast.Assign = marked(ast.Assign([node.target], marked(ast.BinOp(read, node.op, node.value))))
    return result


def _blocks(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    yield statements
    for statement in statements:
        for name in ("body", "orelse"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list):
                yield from _blocks(inner)


def _drop_replaced_none(statements: list[ast.stmt]) -> None:
    """Drop ``bias = None`` that a default left before the statement that replaces it."""
    for block in _blocks(statements):
        for position in range(len(block) - 2, -1, -1):
            statement = block[position]
            if not (
                isinstance(statement, ast.Assign)
                and isinstance(statement.value, ast.Constant)
                and statement.value.value is None
                and isinstance(statement.targets[0], ast.Name)
            ):
                continue
            name = statement.targets[0].id
            following = block[position + 1]
            targets = following.targets if isinstance(following, ast.Assign) else []
            reads = [n for n in ast.walk(following) if isinstance(n, ast.Name) and n.id == name]
            if len(reads) == 1 and any(isinstance(t, ast.Name) and t.id == name for t in targets):
                del block[position]
