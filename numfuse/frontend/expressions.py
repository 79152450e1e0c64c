"""Expressions on their way into the tree.

Each visit gives the new expression and what is known of its value. A helper call inside an expression may emit
statements before it; where Python would not always evaluate that call (an arm of a ternary, an operand of
``and``), the expression becomes an ``if`` statement, and only then.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numfuse.errors import (
    FusionAttributeError,
    FusionIndexError,
    FusionNameError,
)
from numfuse.frontend import language
from numfuse.frontend.binding import (
    HOST,
    UNKNOWN,
    Abstract,
    Kind,
    LocalFunction,
    Static,
    join,
    of_kind,
    of_tuple,
)
from numfuse.frontend.frames import Frame, Workspace, is_host_call
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

__all__ = ["Expressions", "Pair", "is_simple"]

Pair = tuple[ast.expr, Abstract]

#: Attributes of an array that Python knows without its elements.
HOST_ATTRIBUTES = frozenset({"dtype", "shape", "ndim", "size", "itemsize", "nbytes", "strides", "device"})
#: Modules whose numbers (np.pi) are constants.
CONSTANT_MODULES = frozenset({"math", "cmath", "numpy", "cupy", "torch", "jax.numpy"})


def is_simple(value: ast.expr) -> bool:
    """Whether an expression may be repeated and moved: a name, a constant, a structural value."""
    if isinstance(value, ast.Tuple):
        return all(is_simple(item) for item in value.elts)
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.USub) and isinstance(value.operand, ast.Constant)
    return isinstance(value, ast.Name | ast.Constant) or hasattr(value, "static")


def is_true(node: ast.expr) -> bool:
    """Whether a test is a constant that holds."""
    return isinstance(node, ast.Constant) and bool(node.value)


def _has_effect(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements may change what an expression written before them means."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign | ast.Expr) or is_host_call(node):
                return True
            if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
                return True
    return False


class Expressions(Workspace):
    """The visitor of expressions; calls are in the class below it."""

    def call(self, node: ast.Call, frame: Frame) -> Pair:
        """Visit a call."""
        raise NotImplementedError

    def expression(self, node: ast.expr, frame: Frame) -> Pair:
        """Visit an expression: the new one, and what is known of its value."""
        visit = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is None:
            raise language.refusal(node, frame.place(node))
        value, abstract = visit(node, frame)
        if abstract.kind == Kind.ELEMENT:
            self.element_work = True
        return value, abstract

    def expressions(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Pair]:
        """Visit operands from left to right, keeping their order of evaluation."""
        done: list[Pair] = []
        for node in nodes:
            start = len(self.out)
            pair = self.expression(node, frame)
            self.spill(done, start, node, frame)
            done.append(pair)
        return done

    def spill(self, done: list[Pair], start: int, origin: ast.AST, frame: Frame) -> None:
        """Store operands evaluated before the statements emitted since `start`, if those could change them."""
        if not _has_effect(self.out[start:]):
            return
        late = self.out[start:]
        del self.out[start:]
        for position, (value, abstract) in enumerate(done):
            if not is_simple(value):
                done[position] = self.temporary("operand", value, value, frame), abstract
        self.out += late

    # ---------------------------------------------------------------------------------------- leaves

    def visit_Constant(self, node: ast.Constant, frame: Frame) -> Pair:
        return self.make(ast.Constant(node.value, node.kind), node, frame), Abstract(Kind.HOST, node.value)

    def visit_Name(self, node: ast.Name, frame: Frame) -> Pair:
        owner = frame.owner(node.id)
        if owner is None:
            resolved = self.resolve(node, frame)
            if resolved is None:
                raise frame.undefined(node.id, node)
            return self.materialise(resolved, node, frame)
        if node.id in owner.star_keywords:
            raise language.refusal("Dict", frame.place(node))
        abstract = owner.value(node.id)
        if abstract is None:
            raise FusionNameError(f"local variable {node.id!r} is used before it is assigned", frame.place(node))
        if abstract.function_like and abstract.resolved is not None:
            return self.materialise(abstract.resolved, node, frame)
        value: Any = self.clone(self.variable(node.id, owner), node, frame)
        if node.id in owner.synthetic:
            value.synthetic = True
        if (abstract.resolved is not None and abstract.resolved.category == "static") or isinstance(abstract.known, LocalFunction):
            value.static = Static(abstract.known)
        return value, abstract

    def clone(self, value: ast.expr, origin: ast.AST, frame: Frame) -> ast.expr:
        """A copy of a simple expression, standing at `origin`."""
        fields = {name: self._clone_field(item, origin, frame) for name, item in ast.iter_fields(value)}
        if isinstance(value, ast.Name | ast.Tuple | ast.List | ast.Attribute | ast.Subscript):
            fields["ctx"] = ast.Load()
        new: Any = self.make(type(value)(**fields), origin, frame)
        for mark in ("static", "synthetic"):
            if hasattr(value, mark):
                setattr(new, mark, getattr(value, mark))
        result: ast.expr = new
        return result

    def _clone_field(self, item: Any, origin: ast.AST, frame: Frame) -> Any:
        if isinstance(item, list):
            return [self._clone_field(i, origin, frame) for i in item]
        return self.clone(item, origin, frame) if isinstance(item, ast.expr) else item

    # ------------------------------------------------------------------------- captured and structural

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
            return self._attribute_of(base, frame.source.private(node.attr), node, frame)
        if isinstance(node, ast.Subscript):
            key = _constant_key(node.slice)
            if key is UNKNOWN:
                return None
            base = self.resolve(node.value, frame)
            if base is None or not isinstance(base.value, Mapping | tuple | list):
                return None
            try:
                return self.resolved(base.reference.then(Item(key)))  # type: ignore[arg-type]
            except (IndexError, KeyError, TypeError) as error:
                message = f"{base.reference.spelled()}[{key!r}] does not exist ({type(error).__name__}: {error})"
                raise FusionIndexError(message, frame.place(node)) from error
        return None

    def resolved(self, reference: Reference) -> Resolved:
        """Look at what a place holds now."""
        value = reference.read()
        return Resolved(value, reference, categorize(value, self.is_array, self.operation))

    def _attribute_of(self, base: Resolved, name: str, node: ast.Attribute, frame: Frame) -> Resolved | None:
        reference = base.reference.then(Attribute(name))
        try:
            value, again = getattr(base.value, name), getattr(base.value, name)
        except AttributeError as error:
            hint = did_you_mean(name, dir(base.value))
            message = f"{base.reference.spelled()} has no attribute {name!r}{hint}"
            raise FusionAttributeError(message, frame.place(node)) from error
        category = categorize(value, self.is_array, self.operation)
        module = base.value.__name__ if isinstance(base.value, types.ModuleType) else ""
        if category == "number" and module in CONSTANT_MODULES:
            category = "static"
        stable = value is again or isinstance(value, types.MethodType) or hasattr(value, "py_func")
        if category == "static" and not stable and not isinstance(value, str | bytes | np.dtype):
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
            new = ast.Constant(value)
            new.static = Static(value)
            return self.make(new, node, frame)
        root = reference.root()
        held: object = root.read()
        label = self.label(root.identifier(), root.key)
        if label not in self.parameters:
            self.statics[label] = held
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

    # ------------------------------------------------------------------------- attributes and items

    def visit_Attribute(self, node: ast.Attribute, frame: Frame) -> Pair:
        resolved = self.resolve(node, frame)
        if resolved is not None:
            return self.materialise(resolved, node, frame)
        base, abstract = self.expression(node.value, frame)
        new = self.make(ast.Attribute(base, frame.source.private(node.attr), ast.Load()), node, frame)
        if abstract.kind == Kind.ELEMENT and node.attr in HOST_ATTRIBUTES:
            if node.attr != "dtype":
                frame.array_uses.append((f".{node.attr}", frame.place(node)))
            return new, HOST
        return new, of_kind(abstract.kind)

    def visit_Subscript(self, node: ast.Subscript, frame: Frame) -> Pair:
        resolved = self.resolve(node, frame)
        if resolved is not None:
            return self.materialise(resolved, node, frame)
        (base, abstract), (index, index_abstract) = self.expressions([node.value, node.slice], frame)
        if abstract.items is not None and isinstance(index_abstract.known, int):
            position = index_abstract.known
            if not -len(abstract.items) <= position < len(abstract.items):
                message = f"index {position} is outside of a tuple of {len(abstract.items)}"
                raise FusionIndexError(message, frame.place(node))
            if isinstance(base, ast.Tuple) and all(is_simple(item) for item in base.elts):
                return base.elts[position], abstract.items[position]
            new = self.make(ast.Subscript(base, index, ast.Load()), node, frame)
            return new, abstract.items[position]
        captured = abstract.resolved is not None
        if abstract.kind == Kind.ELEMENT and abstract.items is None and not captured and _slices(node.slice):
            frame.array_uses.append(("slicing", frame.place(node)))
        new = self.make(ast.Subscript(base, index, ast.Load()), node, frame)
        return new, of_kind(max(abstract.kind, index_abstract.kind))

    def visit_Slice(self, node: ast.Slice, frame: Frame) -> Pair:
        parts = [part for part in (node.lower, node.upper, node.step) if part is not None]
        visited = self.expressions(parts, frame)
        values = iter([value for value, _ in visited])
        lower, upper, step = (next(values) if p is not None else None for p in (node.lower, node.upper, node.step))
        kind = max((abstract.kind for _, abstract in visited), default=Kind.HOST)
        return self.make(ast.Slice(lower, upper, step), node, frame), of_kind(kind)

    def visit_Tuple(self, node: ast.Tuple, frame: Frame) -> Pair:
        for item in node.elts:
            if isinstance(item, ast.Starred):
                raise language.refusal(item, frame.place(item))
        visited = self.expressions(node.elts, frame)
        new = self.make(ast.Tuple([value for value, _ in visited], ast.Load()), node, frame)
        return new, of_tuple(tuple(abstract for _, abstract in visited))

    def visit_List(self, node: ast.List, frame: Frame) -> Pair:
        new, abstract = self.visit_Tuple(ast.copy_location(ast.Tuple(node.elts, node.ctx), node), frame)
        assert isinstance(new, ast.Tuple)
        return self.make(ast.List(new.elts, ast.Load()), node, frame), abstract

    def visit_Lambda(self, node: ast.Lambda, frame: Frame) -> Pair:
        defaults = self.default_values(node.args, frame)
        function = LocalFunction(node, frame, defaults)
        new: Any = self.make(ast.Name("lambda_", ast.Load()), node, frame)
        new.static = Static(function)
        return new, Abstract(Kind.HOST, function)

    def default_values(self, arguments: ast.arguments, frame: Frame) -> dict[str, Pair]:
        """Evaluate the defaults of a nested function where it is defined."""
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))[::-1]
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        values = self.expressions([default for _, default in pairs], frame)
        out: dict[str, Pair] = {}
        for (argument, default), (value, abstract) in zip(pairs, values, strict=True):
            if not (is_simple(value) and not isinstance(value, ast.Name)):
                value = self.temporary(argument.arg, value, default, frame)
            out[argument.arg] = value, abstract
        return out

    # ----------------------------------------------------------------------------------- operators

    def visit_BinOp(self, node: ast.BinOp, frame: Frame) -> Pair:
        (left, a), (right, b) = self.expressions([node.left, node.right], frame)
        return self.make(ast.BinOp(left, node.op, right), node, frame), of_kind(max(a.kind, b.kind))

    def visit_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Pair:
        value, abstract = self.expression(node.operand, frame)
        new = self.make(ast.UnaryOp(node.op, value), node, frame)
        known: object = UNKNOWN
        if isinstance(node.op, ast.Not):
            self.truth(abstract, node.operand, frame)
            if abstract.known is not UNKNOWN:
                known = not abstract.known
                return self.make(ast.Constant(known), node, frame), Abstract(Kind.HOST, known)
        elif isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number = node.operand.value
            known = -number if isinstance(number, int | float | complex) else UNKNOWN
        return new, Abstract(abstract.kind, known)

    def truth(self, abstract: Abstract, node: ast.AST, frame: Frame) -> None:
        """Note that the truth value of something is asked for."""
        if abstract.kind == Kind.ELEMENT:
            frame.needs_number(node)

    def visit_IfExp(self, node: ast.IfExp, frame: Frame) -> Pair:
        test, condition = self.expression(node.test, frame)
        if condition.known is not UNKNOWN:
            return self.expression(node.body if condition.known else node.orelse, frame)
        self.truth(condition, node.test, frame)
        before, frame.control = frame.control, max(frame.control, condition.kind)
        with self.collect() as then:
            body, a = self.expression(node.body, frame)
        with self.collect() as other:
            orelse, b = self.expression(node.orelse, frame)
        frame.control = before
        abstract = join(a, b).raised(condition.kind)
        if not then and not other:
            return self.make(ast.IfExp(test, body, orelse), node, frame), abstract
        return self.choose("picked", test, (then, body), (other, orelse), node, frame), abstract

    def choose(
        self,
        wanted: str,
        test: ast.expr,
        then: tuple[list[ast.stmt], ast.expr],
        other: tuple[list[ast.stmt], ast.expr] | None,
        node: ast.AST,
        frame: Frame,
        name: str | None = None,
    ) -> ast.Name:
        """Emit an ``if`` statement whose arms assign one name."""
        name = name or self.fresh(wanted)
        arms: list[list[ast.stmt]] = []
        for arm in (then, other):
            with self.collect() as statements:
                if arm is not None:
                    self.out += arm[0]
                    self.assign(name, arm[1], node, frame)
            arms.append(statements)
        self.out.append(self.make(ast.If(test, arms[0], arms[1]), node, frame))
        return self.name(name, node, frame)

    def visit_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Pair:
        stop = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        abstracts: list[Abstract] = []
        name: str | None = None
        before = frame.control
        for position, operand in enumerate(node.values):
            last = position == len(node.values) - 1
            with self.collect() as statements:
                value, abstract = self.expression(operand, frame)
            if not values and name is None:
                self.out += statements
            elif statements:
                # Later operands are evaluated only where the earlier ones leave the answer open.
                if name is not None:
                    values.insert(0, self.name(name, node, frame))
                name = name or self.fresh("truth")
                if len(values) > 1 or not isinstance(values[0], ast.Name) or values[0].id != name:
                    self.assign(name, self._combined(node, values, frame), node, frame)
                values = []
                self.nest_truth(name, stop, (statements, value), node, frame)
                abstracts.append(abstract)
                if not last:
                    self.truth(abstract, operand, frame)
                frame.control = max(frame.control, abstract.kind)
                continue
            if abstract.known is not UNKNOWN and not last and bool(abstract.known) is not stop:
                continue  # True and x is x
            values.append(value)
            abstracts.append(abstract)
            if abstract.known is not UNKNOWN and bool(abstract.known) is stop:
                break  # False and x is False
            if not last:
                self.truth(abstract, operand, frame)
            frame.control = max(frame.control, abstract.kind)
        frame.control = before
        joined = abstracts[0]
        for abstract in abstracts[1:]:
            joined = join(joined, abstract)
        if len(abstracts) > 1:
            joined = of_kind(joined.kind)
        if name is None:
            return self._combined(node, values, frame), joined
        return self._combined(node, [self.name(name, node, frame), *values], frame), joined

    def nest_truth(
        self, name: str, stop: bool, arm: tuple[list[ast.stmt], ast.expr], node: ast.AST, frame: Frame
    ) -> None:
        """Emit ``if name: ...; name = value`` (``if not name`` for ``or``)."""
        test: ast.expr = self.name(name, node, frame)
        if stop:
            test = self.make(ast.UnaryOp(ast.Not(), test), node, frame)
        self.choose("truth", test, arm, None, node, frame, name)

    def _combined(self, node: ast.BoolOp, values: list[ast.expr], frame: Frame) -> ast.expr:
        return values[0] if len(values) == 1 else self.make(ast.BoolOp(node.op, values), node, frame)

    def visit_Compare(self, node: ast.Compare, frame: Frame) -> Pair:
        (left, a), (right, b) = self.expressions([node.left, node.comparators[0]], frame)
        kind = max(a.kind, b.kind)
        if len(node.ops) == 1:
            known = fold_comparison(node.ops[0], a, b)
            if known is not UNKNOWN:
                return self.make(ast.Constant(known), node, frame), Abstract(Kind.HOST, known)
            if isinstance(node.ops[0], ast.In | ast.NotIn) and kind == Kind.ELEMENT:
                frame.needs_number(node)
            return self.make(ast.Compare(left, node.ops, [right]), node, frame), of_kind(kind)
        rights = [right]
        later: list[list[ast.stmt]] = []
        before = frame.control
        for operand in node.comparators[1:]:
            self.truth(of_kind(kind), node, frame)
            frame.control = max(frame.control, kind)
            with self.collect() as statements:
                value, abstract = self.expression(operand, frame)
            kind = max(kind, abstract.kind)
            rights.append(value)
            later.append(statements)
        frame.control = before
        if not any(later):
            return self.make(ast.Compare(left, node.ops, rights), node, frame), of_kind(kind)
        return self._compare_in_steps(node, left, rights, later, frame), of_kind(kind)

    def _compare_in_steps(
        self, node: ast.Compare, left: ast.expr, rights: list[ast.expr], later: list[list[ast.stmt]], frame: Frame
    ) -> ast.expr:
        """``a < b < f(c)`` where f emits statements: each comparison only if those before it hold."""
        name = self.fresh("truth")
        for position, (op, right) in enumerate(zip(node.ops, rights, strict=True)):
            with self.collect() as statements:
                self.out += later[position - 1] if position else []
                if position < len(rights) - 1 and not is_simple(right):
                    right = self.temporary("operand", right, right, frame)
            step = self.make(ast.Compare(left, [op], [right]), node, frame)
            if position:
                self.nest_truth(name, False, (statements, step), node, frame)
            else:
                self.out += statements
                self.assign(name, step, node, frame)
            left = right
        return self.name(name, node, frame)


def fold_comparison(op: ast.cmpop, a: Abstract, b: Abstract) -> object:
    """The answer of a comparison between structural values, or UNKNOWN."""
    identity = isinstance(op, ast.Is | ast.IsNot)
    if a.known is not UNKNOWN and b.known is not UNKNOWN:
        same = a.known is b.known
        if not identity:
            return _compare(op, a.known, b.known)
        return same if isinstance(op, ast.Is) else not same
    if identity:
        for value, other in ((a, b), (b, a)):
            # An array is never None, unless some path left it so.
            if other.known is None and value.kind == Kind.ELEMENT and not value.optional:
                return isinstance(op, ast.IsNot)
    if isinstance(op, ast.In | ast.NotIn) and a.known is not UNKNOWN and b.items is not None:
        if all(item.known is not UNKNOWN for item in b.items):
            return (a.known in [item.known for item in b.items]) is isinstance(op, ast.In)
    return UNKNOWN


def _compare(op: ast.cmpop, a: object, b: object) -> object:
    plain = (bool, int, float, str, bytes, type(None))
    if isinstance(op, ast.Eq | ast.NotEq):
        if any(isinstance(value, LocalFunction) for value in (a, b)):
            return UNKNOWN
        try:
            return bool(a == b) is isinstance(op, ast.Eq)
        except (TypeError, ValueError):
            return UNKNOWN
    if not isinstance(a, plain) or not isinstance(b, plain):
        return UNKNOWN
    try:
        answers: dict[type[ast.cmpop], object] = {
            ast.Lt: lambda: a < b,  # type: ignore[operator]
            ast.LtE: lambda: a <= b,  # type: ignore[operator]
            ast.Gt: lambda: a > b,  # type: ignore[operator]
            ast.GtE: lambda: a >= b,  # type: ignore[operator]
            ast.In: lambda: a in b,  # type: ignore[operator]
            ast.NotIn: lambda: a not in b,  # type: ignore[operator]
        }
        answer: Any = answers.get(type(op))
        return UNKNOWN if answer is None else answer()
    except TypeError:
        return UNKNOWN


def _constant_key(node: ast.expr) -> object:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else UNKNOWN
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    return UNKNOWN


def _slices(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(part, ast.Slice) for part in parts)
