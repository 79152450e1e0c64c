"""The text of any Python function, as an AST whose places are those of the user's file.

The whole file (or notebook cell, or REPL entry) is parsed, so columns never shift, and the function is found
in it by its first line, its name and the positions that the compiler left in its code object: these also tell
several lambdas on one line apart. The code compiled from that text is then compared with the function's own,
so that a file which changed since it was imported is an error and not a wrong answer.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError, Loc

__all__ = ["Source", "source_of"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Source:
    """A function's definition and where it stands.

    `node` belongs to a cached parse: readers never change it. Private names (``self.__gain``) stand in it as
    Python knows them (``self._Camera__gain``).
    """

    node: ast.FunctionDef | ast.Lambda
    filename: str
    name: str
    lines: tuple[str, ...]

    @property
    def body(self) -> list[ast.stmt]:
        """The statements; a lambda's expression counts as a ``return`` of it."""
        if isinstance(self.node, ast.Lambda):
            return [ast.copy_location(ast.Return(self.node.body), self.node.body)]
        return self.node.body

    @lru_cache(maxsize=1024)  # noqa: B019  (sources are few, small and immutable)
    def nested(self, node: ast.FunctionDef | ast.Lambda) -> Source:
        """The source of a function written inside this one."""
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        return Source(node, self.filename, f"{self.name}.<locals>.{name}", self.lines)

    def place(self, node: ast.AST, call_site: Loc | None = None) -> Loc:
        """Where a node of this source stands; columns count characters."""
        line = getattr(node, "lineno", getattr(self.node, "lineno", 1))
        end_line = getattr(node, "end_lineno", None) or line
        text = self.lines[line - 1].rstrip("\r\n") if 0 < line <= len(self.lines) else ""
        start = _characters(text, getattr(node, "col_offset", 0))
        end = _characters(text, getattr(node, "end_col_offset", None) or 0) if end_line == line else len(text)
        return Loc(self.filename, line, start, max(end, start + 1), self.name, call_site)


def source_of(function: types.FunctionType) -> Source:
    """The source of a plain function or lambda.

    Raises
    ------
    FusionTypeError
        There is no text for this function, or the text changed since the function was made.
    FusionNotImplementedError
        The function is a coroutine or a generator.
    """
    code = function.__code__
    return _located(_lines(function), code)


@lru_cache(maxsize=1024)
def _located(lines: tuple[str, ...], code: types.CodeType) -> Source:
    text = "".join(lines)
    node = _find(_parse(text, code.co_filename), code)
    _check_current(text, code)
    if isinstance(node, ast.AsyncFunctionDef) or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        raise FusionNotImplementedError(
            f"{code.co_qualname} is a generator or a coroutine; return its values from a plain `def`",
            Loc(code.co_filename, node.lineno, node.col_offset, node.col_offset + 1, code.co_qualname),
        )
    return Source(node, code.co_filename, code.co_qualname, lines)


def _characters(text: str, column: int) -> int:
    """A column of ``ast`` (bytes of UTF-8) in characters."""
    return column if text.isascii() else len(text.encode()[:column].decode(errors="replace"))


def _lines(function: types.FunctionType) -> tuple[str, ...]:
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, function.__globals__)
    if not lines:
        try:
            lines = inspect.findsource(function)[0]
        except (OSError, TypeError, IndexError):
            raise FusionTypeError(
                f"the source text of {function.__qualname__} (from {filename!r}) is not available, and fusing "
                f"needs it: {_why_no_source(filename)}"
            ) from None
    return tuple(lines)


def _why_no_source(filename: str) -> str:
    prompt = ""
    if filename in ("<stdin>", "<string>"):
        prompt = "`python -c`, piped text and the prompt of Python 3.11 and 3.12 keep none (that of 3.13 does), so "
    return (
        f"{prompt}save the function to a file or a notebook cell; for code run by exec(), compile it under a file name "
        "of its own and put its lines into linecache.cache under that name"
    )


@lru_cache(maxsize=64)
def _parse(text: str, filename: str) -> ast.Module:
    try:
        module = ast.parse(text, filename)
    except (SyntaxError, ValueError) as error:
        raise FusionTypeError(
            f"{filename} does not parse as Python ({error}), so functions from it can't be fused; "
            "if the file was edited, import it again"
        ) from error
    _name_privately(module, "")
    return module


def _name_privately(node: ast.AST, owner: str) -> None:
    """Write names with two leading underscores inside a class as Python knows them: with the class's name.

    The keywords of calls stay as they are in Python too.
    """
    for child in ast.iter_child_nodes(node):
        inside = child.name.lstrip("_") if isinstance(child, ast.ClassDef) else owner
        if owner and not isinstance(child, ast.keyword | ast.alias):
            for field in ("id", "attr", "arg", "name"):
                name = getattr(child, field, None)
                if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                    setattr(child, field, f"_{owner}{name}")
        _name_privately(child, inside)


def _first_line(node: Definition) -> int:
    """``co_firstlineno`` of the node: that of its first decorator, if any."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _find(module: ast.Module, code: types.CodeType) -> Definition:
    is_lambda = code.co_name == "<lambda>"
    candidates = [
        node
        for node in ast.walk(module)
        if isinstance(node, Definition)
        and _first_line(node) == code.co_firstlineno
        and isinstance(node, ast.Lambda) == is_lambda
        and _parameters(node.args) == _code_parameters(code)
    ]
    if len(candidates) > 1:
        spans = list(_spans(code))
        inside = [c for c in candidates if all(_contains(c, span) for span in spans)]
        # Of nested lambdas the innermost that holds every instruction is the one meant.
        candidates = inside[-1:] if spans else [c for c in candidates if _compiles_to(c, code)]
    if not candidates:
        raise _stale(code)
    return candidates[0]


def _spans(code: types.CodeType) -> Iterator[tuple[int, int, int, int]]:
    """Where the expressions of a function stand; the entry of the function has no width and is left out."""
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        if (line, column) != (end_line, end_column):
            yield line, end_line, column, end_column


def _contains(node: Definition, span: tuple[int, int, int, int]) -> bool:
    if not isinstance(node, ast.Lambda):
        return True
    line, end_line, column, end_column = span
    start = (node.body.lineno, node.body.col_offset)
    end = (node.body.end_lineno or 0, node.body.end_col_offset or 0)
    return start <= (line, column) and (end_line, end_column) <= end


def _compiles_to(node: Definition, code: types.CodeType) -> bool:
    """Whether a lambda without places in its code (a constant, or ``python -X no_debug_ranges``) is this one.

    Lambdas that compile to the same code mean the same, so the first such is as good as any.
    """
    if not isinstance(node, ast.Lambda):
        return True
    alone = compile(ast.Expression(node), code.co_filename, "eval", dont_inherit=True)
    inner = [constant for constant in alone.co_consts if isinstance(constant, types.CodeType)]
    return any(_outline(found) == _outline(code) for found in inner)


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    stars = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return tuple(a.arg for a in [*plain, *stars])


def _code_parameters(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _check_current(text: str, code: types.CodeType) -> None:
    """Compare the function's code with that compiled from the text."""
    if any(name.startswith("@pytest_ar") for name in _names_of(code)):
        return  # pytest has rewritten its assertions, so this code never equals its text
    compiled = _compiled(text, code.co_filename)
    same = [c for c in compiled if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]
    if not any(_outline(c) == _outline(code) for c in same):
        raise _stale(code)


@lru_cache(maxsize=64)
def _compiled(text: str, filename: str) -> tuple[types.CodeType, ...]:
    def inner(code: types.CodeType) -> Iterator[types.CodeType]:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from inner(constant)

    try:
        return tuple(inner(compile(text, filename, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError) as error:
        raise FusionTypeError(f"{filename} does not compile: {error}") from error


def _names_of(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function and those inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _outline(code: types.CodeType) -> tuple[object, ...]:
    constants = tuple(
        _outline(constant) if isinstance(constant, types.CodeType) else repr(constant) for constant in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _stale(code: types.CodeType) -> FusionError:
    return FusionTypeError(
        f"the text of {code.co_filename} is no longer the one from which {code.co_qualname} (line "
        f"{code.co_firstlineno}) was made: import the module again, or run the cell again"
    )
