"""The source text of any function, and where its parts stand."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import linecache
import sys

import pytest

from numfuse.errors import FusionNotImplementedError, FusionTypeError
from numfuse.frontend.source import source_of


def same(function):
    return function


LAMBDAS = (lambda v: v + 1, lambda v: v + 2, lambda w: lambda w: w * 3, lambda w: lambda w: w * 4)


class Camera:
    class __Lens:
        def focus(self, __x):
            return self.__depth * __x + self.focus(__x=1) + self.__len__()

    lens = __Lens

    @staticmethod
    @same
    def still(x):
        return x

    @property
    def shutter(self):
        return 1


@contextlib.contextmanager
def importing(name, directory, monkeypatch):
    """A module of a directory, for as long as the text that it was made from is edited."""
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        yield importlib.import_module(name)
    finally:
        del sys.modules[name]


def text(function):
    return ast.unparse(source_of(function).node)


def remember(filename, lines):
    """What IPython and the REPL do with the text of a cell."""
    linecache.cache[filename] = (len(lines), None, lines.splitlines(keepends=True), filename)
    namespace: dict[str, object] = {}
    exec(compile(lines, filename, "exec"), namespace)
    return namespace


def test_lambdas_on_one_line_are_told_apart():
    assert text(LAMBDAS[0]) == "lambda v: v + 1"
    assert text(LAMBDAS[1]) == "lambda v: v + 2"
    assert text(LAMBDAS[2](0)) == "lambda w: w * 3"
    assert text(LAMBDAS[3]) == "lambda w: lambda w: w * 4"
    constants = [lambda: 0, lambda: 1, lambda: (0, 1)]
    assert [text(f) for f in constants] == ["lambda: 0", "lambda: 1", "lambda: (0, 1)"]


def test_nested_functions_and_closures():
    factor = 2

    def inner(x, *args, scale=1, **rest):
        return x * factor * scale

    source = source_of(inner)
    assert source.name.endswith("test_nested_functions_and_closures.<locals>.inner")
    assert isinstance(source.node, ast.FunctionDef)
    assert source.node.name == "inner"


def test_methods_decorators_and_private_names():
    names = ast.unparse(source_of(Camera.lens.focus).node)
    assert "_Lens__depth" in names
    assert "self.__len__" in names
    assert "def focus(self, _Lens__x)" in names
    assert "self.focus(__x=1)" in names
    assert source_of(Camera.still).node.name == "still"
    assert source_of(Camera.shutter.fget).node.name == "shutter"


def test_two_functions_of_one_name():
    def first():
        def f(x):
            return x + 1

        return f

    def second():
        def f(x):
            return x + 2

        return f

    assert "x + 1" in text(first())
    assert "x + 2" in text(second())


def test_columns_count_characters():
    grüße = lambda größe: größe + (größe * 2)  # noqa: E731
    source = source_of(grüße)
    place = source.place(source.node.body.right)
    line = linecache.getline(__file__, place.line)
    assert line[place.column : place.end_column] == "größe * 2"
    assert place.filename == __file__


def test_a_construct_over_several_lines_ends_with_its_first():
    def f(x):
        return (x +
                1)  # fmt: skip

    source = source_of(f)
    place = source.place(source.body[0].value)
    line = linecache.getline(__file__, place.line)
    assert line[place.column : place.end_column] == "x +"


def test_notebook_cells():
    name = "<ipython-input-1-numfuse>"
    namespace = remember(name, "gain = 2\n\ndef tone(x):\n    return x * gain\n")
    assert "x * gain" in text(namespace["tone"])
    assert source_of(namespace["tone"]).place(source_of(namespace["tone"]).body[0]).line == 4


def test_functions_without_text():
    namespace: dict[str, object] = {}
    exec("def lost(x):\n    return x\n", namespace)
    with pytest.raises(FusionTypeError, match=r"lost.*linecache"):
        source_of(namespace["lost"])
    with pytest.raises(FusionTypeError, match=r"the prompt of Python 3.11 and 3.12 keep none .that of 3.13 does"):
        source_of(namespace["lost"])


def test_a_file_that_changed(tmp_path, monkeypatch):
    module = tmp_path / "numfuse_changing.py"
    module.write_text("def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x\n")
    with importing("numfuse_changing", tmp_path, monkeypatch) as imported:
        assert "x + 1" in text(imported.f)
        module.write_text("def f(x):\n    return x + 12345\n\n\ndef g(x):\n    return x\n")
        with pytest.raises(FusionTypeError, match="import the module again"):
            source_of(imported.f)
        assert "return x" in text(imported.g)
        module.write_text("# a new line\ndef f(x):\n    return x + 1\n")
        with pytest.raises(FusionTypeError, match="import the module again"):
            source_of(imported.f)
        module.write_text("def f(x:\n")
        with pytest.raises(FusionTypeError, match="does not parse"):
            source_of(imported.f)


def test_a_file_with_assertions_that_changed(tmp_path, monkeypatch):
    module = tmp_path / "numfuse_asserting.py"
    module.write_text("def f(x):\n    assert x > 0\n    return x + 1\n")
    with importing("numfuse_asserting", tmp_path, monkeypatch) as imported:
        assert "x + 1" in text(imported.f)
        module.write_text("def f(x):\n    assert x > 0\n    return x + 12345\n")
        with pytest.raises(FusionTypeError, match="import the module again"):
            source_of(imported.f)


def test_generators_and_coroutines_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for function in (generator, coroutine):
        with pytest.raises(FusionNotImplementedError, match="generator or a coroutine") as caught:
            source_of(function)
        assert caught.value.loc.line > 1


def test_assertions_that_a_test_runner_rewrites():
    def f(x):
        assert x > 0
        return x

    assert "assert x > 0" in text(f)


def test_wrapped_functions_keep_their_own_text():
    @functools.wraps(same)
    def wrapper(*args):
        return same(*args)

    assert "same(*args)" in text(wrapper)
