"""Names of functions and parameters that already mean something in a kernel's text, and Python's builtins."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from comparing import X, same

from numfuse import fuse

Y = np.linspace(-3, 3, X.size)


def written(source: str, name: str) -> Any:
    """A function from text, as a notebook would define it."""
    filename = f"<cell {name} {hash(source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"np": np}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


FUNCTIONS = "i load store njit cuda numba range arguments int64 float32 sqrt_float32 start kernel math naïve".split()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_may_have_any_name(name):
    function = written(f"def {name}(x, y):\n    return np.sqrt(abs(x)) * 2.0 + y\n", name)
    same(fuse(function)(X, Y), function(X, Y))


PARAMETERS = (
    "start stop size run args slots like out_0 finish words where x_data i item index result thread count stride base "
    "inf nan prelude float32 int64 njit cuda load store word pointer sqrt_float32 absolute_float32 range λ x_1"
).split()


def test_parameters_may_have_any_name():
    for first in range(0, len(PARAMETERS), 4):
        names = PARAMETERS[first : first + 4]
        body = " + ".join(f"np.sqrt(abs({name})) * {k}.5" for k, name in enumerate(names))
        function = written(f"def f({', '.join(names)}):\n    return {body}\n", "f")
        args = (X, Y, 1.5, X[::-1])[: len(names)]
        same(fuse(function)(*args), function(*args))


@pytest.mark.cuda_compile
def test_any_name_on_a_gpu():
    for name in ("i", "size", "cuda", "uint64", "sqrt_float32", "load_readonly_float32x4"):
        function = written(f"def {name}({name}, float32):\n    return np.sqrt(abs({name})) * 2.0 + float32\n", name)
        explanation = fuse(function).explain(X, X, target="cuda")
        assert explanation.counts["entries"] == 1
        assert explanation.counts["f64"] == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * len(x),
        lambda x: divmod(x, 2),
        lambda x: pow(x, 2),
        lambda x: abs(x),
        lambda x: tuple((x, x + 1)),
        lambda x: x * x.shape[0] + x.ndim + x.size,
        lambda x: x if x.dtype.kind == "f" else x / 2,
        lambda x: x.dtype.type(3) * x * np.finfo(x.dtype).eps,
    ],
)
def test_builtins_and_attributes_of_arrays(function):
    for x in (X, X.reshape(7, 1), X[:0]):
        same(fuse(function)(x), function(x))
