"""Early returns end here: one ``return``, the last statement.

Where every path through an arm of an ``if`` returns, the rest of the block moves into the other arm. Where an
arm only may return, or the return stands in a loop, a flag remembers it, loops are left by ``break``, and
what follows is guarded by the flag. Input nodes are not changed; new ones carry the places of old ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

__all__ = ["NameChooser", "Returns", "always_leaves", "inside", "single_return", "stored_names"]

Loop = ast.For | ast.While
Node = TypeVar("Node", bound=ast.AST)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class NameChooser:
    """Gives names that are not taken: the wanted one, or with a number behind it."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def fresh(self, wanted: str) -> str:
        """A name that was not taken; it is from now on."""
        name, number = wanted, 0
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


@dataclass(eq=False)
class Returns:
    """A body with one ``return`` at its end, and the names that were made up for it."""

    body: list[ast.stmt]
    names: frozenset[str] = frozenset()

    @cached_property
    def assigned(self) -> dict[str, None]:
        """The names that the body assigns."""
        return stored_names(self.body)

    @cached_property
    def unread_updates(self) -> list[ast.AugAssign]:
        """Statements such as ``x += 1`` after which nothing reads the name, where nothing else assigns it."""
        found: list[ast.AugAssign] = []

        def search(statements: Sequence[ast.stmt], later: frozenset[str]) -> None:
            """Walk a block backwards; `later` are the names read after it."""
            for statement in reversed(statements):
                if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                    if statement.target.id not in later:
                        found.append(statement)
                    later |= {statement.target.id}
                inner = later
                if isinstance(statement, Loop):  # what the next turn reads is read later, too
                    inner |= _names_read(statement)
                for name in ("orelse", "body"):
                    block = getattr(statement, name, None)
                    if isinstance(block, list) and not isinstance(statement, FUNCTIONS):
                        search(block, inner)
                later |= _names_read(statement)

        search(self.body, frozenset())
        nodes = [node for statement in self.body for node in inside(statement)]
        updated = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
        stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        plain = {name.id for name in stores if id(name) not in updated}
        return [update for update in found if isinstance(update.target, ast.Name) and update.target.id not in plain]

    @cached_property
    def outer_names(self) -> set[str]:
        """The names that the body declares ``global`` or ``nonlocal``."""
        declarations = (n for s in self.body for n in inside(s) if isinstance(n, ast.Global | ast.Nonlocal))
        return {name for declaration in declarations for name in declaration.names}


def single_return(body: Sequence[ast.stmt], taken: set[str]) -> Returns:
    """The same function body with exactly one ``return``, as its last statement.

    `taken` are the names that the function uses; the names made up here (``result``, ``returned``) avoid them.
    """
    body = list(body)
    anchor = body[-1]
    if not always_leaves(body):
        body.append(ast.copy_location(ast.Return(ast.copy_location(ast.Constant(None), anchor)), anchor))
    body = _without_dead_code(body)
    if isinstance(body[-1], ast.Return) and sum(1 for s in body for _ in _returns(s)) == 1:
        return Returns(body)
    chooser = NameChooser(set(taken))
    rewriter = _Rewriter(chooser.fresh("result"), chooser.fresh("returned"))
    new = rewriter.block(body, in_loop=False, flagged=False)
    names = {rewriter.result}
    if rewriter.flag_used:
        names.add(rewriter.returned)
        new.insert(0, _assign(rewriter.returned, ast.Constant(False), body[0]))
    new.append(_at(ast.Return(_load(rewriter.result, anchor)), anchor))
    return Returns(new, frozenset(names))


def inside(statement: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without the bodies of nested functions."""
    yield statement
    if isinstance(statement, FUNCTIONS):
        return
    for child in ast.iter_child_nodes(statement):
        yield from inside(child)


def stored_names(statements: list[ast.stmt]) -> dict[str, None]:
    """Names that a function body assigns, in order, without those that nested functions assign."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in inside(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
            elif isinstance(node, FUNCTIONS) and not isinstance(node, ast.Lambda):
                names[node.name] = None
    return names


def _names_read(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement reads; nested functions read theirs where they are called, so anywhere."""
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    updated = [n.target for n in ast.walk(statement) if isinstance(n, ast.AugAssign)]
    return frozenset(names | {target.id for target in updated if isinstance(target, ast.Name)})


def always_leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether no path reaches the end of the block (``break`` and ``continue`` not counted)."""
    return any(_leaves(statement) for statement in statements)


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return | ast.Raise):
        return True
    if isinstance(statement, ast.If):
        return always_leaves(statement.body) and always_leaves(statement.orelse)
    if isinstance(statement, ast.With):
        return always_leaves(statement.body)
    if isinstance(statement, ast.While):
        endless = isinstance(statement.test, ast.Constant) and bool(statement.test.value)
        return endless and not any(True for _ in breaks(statement.body))
    return False


def breaks(statements: Sequence[ast.stmt]) -> Iterator[ast.Break]:
    """The ``break`` statements that leave the loop whose body this is."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            yield statement
        elif isinstance(statement, ast.If):
            yield from breaks(statement.body)
            yield from breaks(statement.orelse)
        elif isinstance(statement, ast.With):
            yield from breaks(statement.body)
        elif isinstance(statement, Loop):
            yield from breaks(statement.orelse)


def _returns(statement: ast.stmt) -> Iterator[ast.Return]:
    return (node for node in inside(statement) if isinstance(node, ast.Return))


def _may_return(statement: ast.stmt) -> bool:
    return any(True for _ in _returns(statement))


def _without_dead_code(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    for position, statement in enumerate(statements):
        if _leaves(statement):
            return list(statements[: position + 1])
    return list(statements)


class _Rewriter:
    def __init__(self, result: str, returned: str) -> None:
        self.result, self.returned = result, returned
        self.flag_used = False

    def block(self, statements: Sequence[ast.stmt], *, in_loop: bool, flagged: bool) -> list[ast.stmt]:
        """Rewrite a block. `flagged`: someone after this block asks whether it returned."""
        out: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, ast.Return):
                out += self.leave(statement, in_loop=in_loop, flagged=flagged)
                return out
            if isinstance(statement, ast.With) and _may_return(statement):
                # Only np.errstate is accepted, which does nothing here, so what follows may move into it.
                inner = self.block([*statement.body, *rest], in_loop=in_loop, flagged=flagged)
                out.append(_at(ast.With(statement.items, inner), statement))
                return out
            if not _may_return(statement):
                out.append(statement)
            elif isinstance(statement, ast.If):
                done, new = self.branch(statement, rest, in_loop=in_loop, flagged=flagged)
                out += new
                if done:
                    return out
            elif isinstance(statement, Loop):
                out.append(self.loop(statement, in_loop=in_loop))
                if rest or in_loop:
                    out += self.after(statement, rest, in_loop=in_loop, flagged=flagged)
                return out
            else:
                out.append(statement)  # not accepted; the inliner says so with its place
        return out

    def leave(self, statement: ast.Return, *, in_loop: bool, flagged: bool) -> list[ast.stmt]:
        value = statement.value or _at(ast.Constant(None), statement)
        out: list[ast.stmt] = [_assign(self.result, value, statement)]
        if in_loop or flagged:
            self.flag_used = True
            out.append(_assign(self.returned, ast.Constant(True), statement))
        if in_loop:
            out.append(_at(ast.Break(), statement))
        return out

    def branch(
        self, statement: ast.If, rest: Sequence[ast.stmt], *, in_loop: bool, flagged: bool
    ) -> tuple[bool, list[ast.stmt]]:
        """The statements for an ``if``, and whether they take in the rest of the block."""

        def arm(statements: Sequence[ast.stmt], flag: bool = flagged) -> list[ast.stmt]:
            return self.block(statements, in_loop=in_loop, flagged=flag)

        def new_if(body: list[ast.stmt], orelse: list[ast.stmt]) -> ast.If:
            return _at(ast.If(statement.test, body or [_at(ast.Pass(), statement)], orelse), statement)

        body, orelse = statement.body, statement.orelse
        if in_loop:  # returns become breaks, which need no guard
            return False, [new_if(arm(body), arm(orelse))]
        if always_leaves(body):
            return True, [new_if(arm(body), arm(orelse if always_leaves(orelse) else [*orelse, *rest]))]
        if always_leaves(orelse):
            return True, [new_if(arm([*body, *rest]), arm(orelse))]
        if not rest:
            return True, [new_if(arm(body), arm(orelse))]
        new: list[ast.stmt] = [new_if(arm(body, True), arm(orelse, True))]
        return True, new + self.after(statement, rest, in_loop=in_loop, flagged=flagged)

    def loop(self, statement: Loop, *, in_loop: bool) -> Loop:
        body = self.block(statement.body, in_loop=True, flagged=True)
        orelse = self.block(statement.orelse, in_loop=in_loop, flagged=True)
        if isinstance(statement, ast.While):
            return _at(ast.While(statement.test, body, orelse), statement)
        return _at(ast.For(statement.target, statement.iter, body, orelse, None), statement)

    def after(self, statement: ast.stmt, rest: Sequence[ast.stmt], *, in_loop: bool, flagged: bool) -> list[ast.stmt]:
        """The rest of a block, behind a statement that may have returned."""
        self.flag_used = True
        flag = _load(self.returned, statement)
        if in_loop:
            leave = _at(ast.If(flag, [_at(ast.Break(), statement)], []), statement)
            return [leave, *self.block(rest, in_loop=True, flagged=flagged)]
        test = _at(ast.UnaryOp(_at(ast.Not(), statement), flag), statement)
        body = self.block(rest, in_loop=False, flagged=flagged)
        return [_at(ast.If(test, body, []), statement)]


def _at(new: Node, old: ast.AST) -> Node:
    return ast.copy_location(new, old)


def _load(name: str, place: ast.AST) -> ast.Name:
    return _at(ast.Name(name, ast.Load()), place)


def _assign(name: str, value: ast.expr, place: ast.AST) -> ast.Assign:
    value = value if hasattr(value, "lineno") else _at(value, place)
    return _at(ast.Assign([_at(ast.Name(name, ast.Store()), place)], value), place)
