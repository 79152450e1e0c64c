"""``break``, ``continue`` and the ``else`` of loops end here: flags, so that only if/while/for are left.

Lowering needs this; people read the tree as it was before. Where every path through an arm of an ``if``
leaves the turn, the rest of the block moves into the other arm and needs no flag.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from numfuse.frontend.returns import NameChooser, breaks

__all__ = ["remove_escapes"]

Loop = ast.For | ast.While
Node = TypeVar("Node", bound=ast.AST)


def remove_escapes(tree: ast.FunctionDef) -> ast.FunctionDef:
    """The same function without ``break``, ``continue`` and ``for``/``while`` ... ``else``.

    The input is left as it is; unchanged parts are shared. A ``for`` whose body may break has the attribute
    `stop_flag`, the name of the flag that ends it: its body is guarded by that flag, so running the remaining
    turns changes nothing, and a loop that can stop early should.
    """
    chooser = NameChooser({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    chooser.taken |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    rewriter = _Rewriter(chooser, tree)
    new: Any = ast.copy_location(ast.FunctionDef(**dict(ast.iter_fields(tree))), tree)
    new.__dict__.update(tree.__dict__)
    new.body = rewriter.block(tree.body)
    result: ast.FunctionDef = ast.fix_missing_locations(new)
    return result


class _Rewriter:
    def __init__(self, chooser: NameChooser, tree: ast.FunctionDef) -> None:
        self.chooser, self.reads = chooser, _reads(tree)

    # ------------------------------------------------------------------------------ outside of loops

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements that hold no escape of an enclosing loop."""
        out: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, Loop):
                out += self.loop(statement)
            elif isinstance(statement, ast.If):
                out.append(_if(statement.test, self.block(statement.body), self.block(statement.orelse), statement))
            else:
                out.append(statement)
        return out

    def loop(self, node: Loop) -> list[ast.stmt]:
        """A loop with its flags."""
        broken = self.chooser.fresh("broken") if any(True for _ in breaks(node.body)) else None
        turn = _Turn(self, broken)
        body = turn.block(node.body) or [_at(ast.Pass(), node)]
        if turn.skipped is not None:
            body.insert(0, _assign(turn.skipped, False, node))
        out: list[ast.stmt] = [] if broken is None else [_assign(broken, False, node)]
        if isinstance(node, ast.While):
            test = node.test
            if broken is not None:
                unbroken = _not(broken, node.test)
                always = isinstance(test, ast.Constant) and bool(test.value)
                test = unbroken if always else _at(ast.BoolOp(ast.And(), [unbroken, test]), node.test)
            out.append(_at(ast.While(test, body, []), node))
        else:
            out.append(self.for_loop(node, body, broken))
        orelse = self.block(node.orelse)
        if orelse and broken is not None:
            orelse = [_if(_not(broken, node), orelse, [], node)]
        return out + orelse

    def for_loop(self, node: ast.For, body: list[ast.stmt], broken: str | None) -> ast.For:
        """A ``for``: a broken one runs empty turns, in which its target must keep its value."""
        if broken is None:
            return _at(ast.For(node.target, node.iter, body, [], None), node)
        target = node.target
        if self.read_outside(node):
            fresh = _at(ast.Name(self.chooser.fresh("item"), ast.Store()), node.target)
            fresh.synthetic = True  # type: ignore[attr-defined]
            value = _at(ast.Name(fresh.id, ast.Load()), node.target)
            body = [_at(ast.Assign([target], value), node), *body]
            target = fresh
        new: Any = _at(ast.For(target, node.iter, [_if(_not(broken, node), body, [], node)], [], None), node)
        new.stop_flag = broken
        result: ast.For = new
        return result

    def read_outside(self, loop: ast.For) -> bool:
        """Whether a target of the loop is read anywhere but in its body."""
        inside = _reads(ast.Module(loop.body, []))
        targets = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        return any(self.reads[target] > inside[target] for target in targets)


def _reads(tree: ast.AST) -> Counter[str]:
    """How often each name is read."""
    return Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


class _Turn:
    """The body of one loop."""

    def __init__(self, rewriter: _Rewriter, broken: str | None) -> None:
        self.rewriter, self.broken = rewriter, broken
        self.skipped: str | None = None

    def block(self, statements: Sequence[ast.stmt], *, flagged: bool = False) -> list[ast.stmt]:
        """Rewrite a block. `flagged`: what follows it asks whether the turn goes on."""
        out: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, ast.Break):
                assert self.broken is not None
                out.append(_assign(self.broken, True, statement))
                return out
            if isinstance(statement, ast.Continue):
                if flagged:
                    self.skipped = self.skipped or self.rewriter.chooser.fresh("skipped")
                    out.append(_assign(self.skipped, True, statement))
                return out
            if not _escapes(statement):
                out += self.rewriter.block([statement])
                continue
            if isinstance(statement, Loop):  # its `else` leaves this loop
                return out + self.loop_else(statement, rest, flagged)
            assert isinstance(statement, ast.If)
            return out + self.branch(statement, rest, flagged)
        return out

    def branch(self, node: ast.If, rest: Sequence[ast.stmt], flagged: bool) -> list[ast.stmt]:
        """An ``if`` of which some path leaves the turn."""
        body, orelse = node.body, node.orelse
        if not rest or (_always(body) and _always(orelse)):
            return [_if(node.test, self.block(body, flagged=flagged), self.block(orelse, flagged=flagged), node)]
        if _always(body):
            other = self.block([*orelse, *rest], flagged=flagged)
            return [_if(node.test, self.block(body, flagged=flagged), other, node)]
        if _always(orelse):
            other = self.block([*body, *rest], flagged=flagged)
            return [_if(node.test, other, self.block(orelse, flagged=flagged), node)]
        first = _if(node.test, self.block(body, flagged=True), self.block(orelse, flagged=True), node)
        return [first, *self.guarded([node], rest, flagged)]

    def loop_else(self, node: Loop, rest: Sequence[ast.stmt], flagged: bool) -> list[ast.stmt]:
        """A loop whose ``else`` block leaves this turn."""
        bare: Any = type(node)(**{**dict(ast.iter_fields(node)), "orelse": []})
        bare = _at(bare, node)
        out = self.rewriter.loop(bare)
        orelse: list[ast.stmt] = list(node.orelse)
        if any(True for _ in breaks(node.body)):
            flag = out[0]
            assert isinstance(flag, ast.Assign)
            assert isinstance(flag.targets[0], ast.Name)
            orelse = [_if(_not(flag.targets[0].id, node), orelse, [], node)]
        return out + self.block([*orelse, *rest], flagged=flagged)

    def guarded(self, before: Sequence[ast.stmt], rest: Sequence[ast.stmt], flagged: bool) -> list[ast.stmt]:
        """The rest of a block, if no flag says that the turn is over."""
        flags: list[str] = []
        if self.broken is not None and any(True for _ in breaks(before)):
            flags.append(self.broken)
        if self.skipped is not None and any(_continues(statement) for statement in before):
            flags.append(self.skipped)
        tests: list[ast.expr] = [_not(flag, rest[0]) for flag in flags]
        body = self.block(rest, flagged=flagged)
        test = tests[0] if len(tests) == 1 else _at(ast.BoolOp(ast.And(), tests), rest[0])
        return [_if(test, body, [], rest[0])]


def _continues(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Continue):
        return True
    if isinstance(statement, ast.If):
        return any(_continues(s) for s in [*statement.body, *statement.orelse])
    return isinstance(statement, Loop) and any(_continues(s) for s in statement.orelse)


def _escapes(statement: ast.stmt) -> bool:
    """Whether a statement of a loop's body may leave the turn."""
    return _continues(statement) or any(True for _ in breaks([statement]))


def _always(statements: Sequence[ast.stmt]) -> bool:
    """Whether every path through a block leaves the turn."""
    for statement in statements:
        if isinstance(statement, ast.Break | ast.Continue):
            return True
        if isinstance(statement, ast.If) and _always(statement.body) and _always(statement.orelse):
            return True
    return False


def _at(new: Node, old: ast.AST) -> Node:
    """Give a new node the place and the marks of an old one."""
    ast.copy_location(new, old)
    for mark in ("loc", "element_frame"):
        if hasattr(old, mark):
            setattr(new, mark, getattr(old, mark))
    return new


def _assign(name: str, value: bool, place: ast.AST) -> ast.Assign:
    target = _at(ast.Name(name, ast.Store()), place)
    target.synthetic = True  # type: ignore[attr-defined]
    return _at(ast.Assign([target], _at(ast.Constant(value), place)), place)


def _not(name: str, place: ast.AST) -> ast.expr:
    flag = _at(ast.Name(name, ast.Load()), place)
    flag.synthetic = True  # type: ignore[attr-defined]
    return _at(ast.UnaryOp(ast.Not(), flag), place)


def _if(test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], place: ast.AST) -> ast.If:
    return _at(ast.If(test, body or [_at(ast.Pass(), place)], orelse), place)
