"""Calls of fused functions: signatures, methods, results, what is remembered between calls."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from comparing import X, at_once, kernels, same, variants

from numfuse import FusionTypeError, FusionValueError, fuse

# --------------------------------------------------------------------------------------------------------
# Signatures


def affine(x: Any, gain: Any = 2.0, offset: Any = 0.5) -> Any:
    """Scale and shift."""
    return x * gain + offset


FUSED = fuse(affine)


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((X,), {}),
        ((X, 3.0), {}),
        ((X, 3.0, -1.0), {}),
        ((X,), {"offset": 4.0}),
        ((), {"gain": 1.5, "x": X}),
        ((2.0,), {"gain": X}),
        ((1.0, 2.0, X), {}),
        ((X, 3, True), {}),
        ((X, np.float32(3), np.float64(1)), {}),
    ],
)
def test_arguments_go_where_python_puts_them(args, keywords):
    same(FUSED(*args, **keywords), affine(*args, **keywords))


@pytest.mark.parametrize("call", [lambda f: f(), lambda f: f(X, 1, 2, 3), lambda f: f(X, shift=1), lambda f: f(X, x=X)])
def test_arguments_that_do_not_fit_are_a_type_error(call):
    for function in (affine, FUSED):
        with pytest.raises(TypeError):
            call(function)


def test_positional_only_and_keyword_only_parameters():
    @fuse
    def f(x, /, gain=2.0, *, offset=0.5):
        return x * gain + offset

    same(f(X), affine(X))
    same(f(X, offset=3.0), affine(X, offset=3.0))
    same(f(X, 4.0, offset=X), affine(X, 4.0, X))
    for wrong in (lambda: f(x=X), lambda: f(X, 2.0, 0.5)):
        with pytest.raises(TypeError):
            wrong()


def test_defaults_are_read_at_each_call():
    def f(x, gain=2.0, *, offset=0.5):
        return x * gain + offset

    fused = fuse(f)
    same(fused(X), affine(X))
    f.__defaults__, f.__kwdefaults__ = (4.0,), {"offset": -1.0}
    same(fused(X), affine(X, 4.0, -1.0))
    assert kernels(fused) == 1


def test_star_parameters_are_refused():
    fused = fuse(lambda x, *more: x)
    with pytest.raises(FusionTypeError, match=r"^fused_lambda takes .*name its parameters$"):
        fused(X)


# --------------------------------------------------------------------------------------------------------
# What can be fused


class Scaler:
    """A class with fused methods of every sort."""

    factor = 3.0

    def __init__(self, gain):
        self.gain = gain

    @fuse
    def method(self, x):
        return x * self.gain

    @classmethod
    @fuse
    def of_class(cls, x):
        return x * cls.factor

    @staticmethod
    @fuse
    def static(x):
        return x * 3.0

    def plain(self, x):
        return x * self.gain


class CallableScaler(Scaler):
    """One that can be called itself."""

    def __call__(self, x):
        return x * self.gain


def test_methods():
    scaler = Scaler(2.0)
    same(scaler.method(X), X * 2)
    same(Scaler.method(scaler, X), X * 2)
    scaler.gain = 5.0
    same(scaler.method(X), X * 5)
    same(Scaler(7.0).method(X), X * 7)
    assert variants(Scaler.method) == kernels(Scaler.method) == 1
    for call in (scaler.of_class, Scaler.of_class, scaler.static, Scaler.static):
        same(call(X), X * 3)


def test_bound_methods_partials_lambdas_and_callable_objects():
    scaler = Scaler(2.0)
    for function in (
        scaler.plain,
        scaler.method,
        CallableScaler(2.0),
        functools.partial(affine, offset=0.0),
        functools.partial(affine, gain=2.0, offset=0.0),
        functools.partial(functools.partial(Scaler.plain, scaler)),
        lambda x: x * 2.0,
        fuse(lambda x: x * 2.0),
    ):
        fused = fuse(function)
        same(fused(X), X * 2)
        assert next(iter(inspect.signature(fused).parameters)) == "x"
    same(fuse(functools.partial(affine, X))(3.0), affine(X, 3.0))
    same(fuse(functools.partial(affine, offset=1.0))(X, offset=X), affine(X, offset=X))


def test_decorators_with_and_without_options_are_alike():
    assert fuse(affine).py_func is fuse()(affine).py_func is fuse(fuse(affine)).py_func is affine
    named = fuse(name="other name")(affine)
    same(named(X), affine(X))
    assert named.__name__ == "affine"
    assert named.explain(X).name == "other_name"


def test_a_fused_function_is_a_helper_like_any_other():
    inner = fuse(affine)

    @fuse
    def outer(x):
        return inner(x) * inner(x, offset=1.0)

    same(outer(X), affine(X) * affine(X, offset=1.0))
    assert kernels(outer) == 1
    assert kernels(inner) == 0


@pytest.mark.parametrize("thing", [3, "f", np.ones(2)])
def test_what_is_not_callable_is_refused(thing):
    with pytest.raises(FusionTypeError, match=r"^fuse\(\) takes a function, not .*: write @fuse above a def"):
        fuse(thing)


def test_builtins_are_refused():
    with pytest.raises(FusionTypeError, match="no Python signature, so it has no Python source either"):
        fuse(max)


def test_the_device_option():
    same(fuse(device="cpu")(affine)(X), affine(X))
    elsewhere = fuse(device="cuda")(affine)
    with pytest.raises(FusionTypeError) as caught:
        elsewhere(X)
    assert str(caught.value) == ("argument 'x' is a numpy array in host memory, and affine was made with device='cuda'")
    assert elsewhere(2.0) == 4.5
    with pytest.raises(FusionValueError, match=r"^device='tpu': it is None"):
        fuse(device="tpu")


def test_attributes_of_a_ufunc():
    fused = fuse(identity=0)(affine)
    assert (fused.nin, fused.nout, fused.nargs, fused.identity, fused.signature) == (3, None, None, 0, None)
    fused(2.0)
    assert fused.nout is None
    fused(X)
    assert (fused.nin, fused.nout, fused.nargs) == (3, 1, 4)
    assert (fused.__name__, fused.__doc__, fused.__module__) == ("affine", "Scale and shift.", __name__)
    assert fused.__qualname__ == "affine"
    assert fused.__wrapped__ is fused.py_func is affine
    assert fused.__signature__ == inspect.signature(fused) == inspect.signature(affine)
    assert repr(fused) == "<fused affine(x, gain=2.0, offset=0.5)>"
    assert repr(Scaler.method) == "<fused Scaler.method(self, x)>"
    assert copy.copy(fused) is copy.deepcopy(fused) is fused
    assert callable(fused)
    assert not hasattr(fused, "factor")


@fuse
def decorated(x: Any) -> Any:
    return x + 1


def test_a_decorated_function_pickles_by_name():
    for function in (decorated, Scaler.method):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("function", [affine, functools.partial(affine, gain=1.0), Scaler(2.0).plain, lambda x: x])
def test_what_its_name_does_not_lead_to_does_not_pickle(function):
    with pytest.raises(pickle.PicklingError, match=r"^a fused function is pickled by its name, and .* is not <fused "):
        pickle.dumps(fuse(function))


def test_the_types_are_the_loops_compiled_so_far():
    @fuse
    def f(x, y, gain=2.0, mode="add"):
        return (x + y) * gain, x > y, mode

    assert (f.types, f.ntypes) == ([], 0)
    f(2.0, 3)
    f.explain(X, X)
    assert f.types == []
    f(X, X)
    f(X, X[:1], 3.0)
    assert (f.types, f.ntypes) == (["ffdO->f?O"], 1)
    f(X.astype(np.int16), X, np.int8(2), "none")
    assert f.types == ["ffdO->f?O", "hfbO->f?O"]
    assert f.nargs == f.nin + f.nout == 7


@pytest.mark.parametrize("options", [{"exact": True, "fast": True}, {"device": "tpu"}])
def test_options_are_checked_at_once(options):
    with pytest.raises(FusionValueError, match=r"exact=True asks for|device='tpu'"):
        fuse(**options)


# --------------------------------------------------------------------------------------------------------
# Results


def test_results_nest_as_in_the_plain_function():
    def f(x, n):
        y = x + n
        return y, (x * 2, (), None, (n, "text", n > 1)), n + 1

    same(fuse(f)(X, 3), f(X, 3))


def test_a_list_stays_a_list():
    def f(x):
        return [x + 1, 3]

    found = fuse(f)(X)
    assert type(found) is list
    same(tuple(found), tuple(f(X)))


def test_results_that_python_has_launch_nothing():
    for f in (lambda x: None, lambda x: 3, lambda x: (), lambda x: x.shape, lambda x: x.dtype):
        fused = fuse(f)
        same(fused(X), f(X))
        assert kernels(fused) == 0


def test_an_argument_that_is_returned_is_the_same_object():
    def f(x, y, n):
        z = x
        return x, (y, z), n, x + 0

    y, n = np.asfortranarray(np.ones((3, 7))), object
    found = fuse(f)(X, y, n)
    assert found[0] is found[1][1] is X
    assert found[1][0] is y
    assert found[2] is n
    assert found[3] is not X
    same(found[3], X)


def test_one_array_in_two_places_is_one_array():
    def f(x):
        y = x + 1
        return y, (y, x + 1)

    first, (second, third) = fuse(f)(X)
    assert first is second
    assert third is not first  # computed once, but two arrays, as in the plain function
    same(third, X + 1)


def test_without_arrays_the_call_is_the_plain_call():
    fused = fuse(affine)
    assert fused(2**70, 3) == 2**70 * 3 + 0.5
    assert fused("a", 2, "b") == "aab"
    same(fused(np.float32(2)), affine(np.float32(2)))
    with pytest.raises(ZeroDivisionError):
        fuse(lambda x: 1 / x)(0)
    assert variants(fused) == 0


def test_results_without_dimensions():
    def f(a, b):
        return a + b, np.where(a > 0, a, b), a, a.astype(np.float64), b, np.sqrt(a), a > b

    same(fuse(f)(np.array(2.0, np.float32), np.float32(1)), f(np.array(2.0, np.float32), np.float32(1)))


def test_an_element_function_gives_scalars_where_there_are_no_dimensions():
    def f(a):
        return a * 2 if a > 0 else a

    same(fuse(f)(np.array(2.0, np.float32)), np.float32(4))
    same(fuse(f)(np.array([2.0], np.float32)), np.array([4], np.float32))


def test_the_order_of_the_result_is_that_of_the_operands():
    fused = fuse(lambda x, y: x + y)
    base = np.arange(60.0).reshape(3, 4, 5)
    for x in (base, np.asfortranarray(base), base.transpose(1, 2, 0), base[:, ::2], base[::-1, :, ::-1]):
        for y in (x, x[0]):
            found, expected = fused(x, y), x + y
            same(found, expected)
            assert found.strides == expected.strides


def test_unrelated_shapes_in_one_call():
    def f(x, y, z):
        return x + 1, y * 2, (z - 1, x + y)

    args = np.ones(3, np.float32), np.ones((2, 3), np.int32), np.ones((4, 1, 1))
    same(fuse(f)(*args), f(*args))


def test_empty_arrays_answer_without_a_compiler(tmp_path):
    script = tmp_path / "empty.py"
    script.write_text("""
import sys
import numpy as np
from numfuse import fuse
f = fuse(lambda x, y: (x * 2 + y, x > y, x))
x = np.empty((0, 3), np.float32)
first, second, third = f(x, np.ones(3, np.float32))
assert (first.shape, first.dtype, second.shape, second.dtype) == ((0, 3), np.float32, (0, 3), np.bool_)
assert third is x
print(sorted({"numba", "llvmlite", "cuda", "cupy", "torch"} & set(sys.modules)))
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_arrays_keep_their_contents():
    x = X.copy()

    @fuse
    def f(x):
        y = x * 2
        y += x
        return y

    same(f(x), X * 3)
    same(x, X)
    readonly = X.copy()
    readonly.flags.writeable = False
    same(f(readonly), X * 3)


# --------------------------------------------------------------------------------------------------------
# Threads


def test_many_threads_may_make_the_first_call():
    fused = fuse(lambda x, n: x * n + n)

    def work(n: int) -> None:
        for k in range(50):
            same(fused(X, float(n * k)), X * (n * k) + n * k)

    at_once(work, 6)
    assert variants(fused) == kernels(fused) == 1


class Filter:
    """Private names: of a parameter, a variable, an attribute and a function inside of the method."""

    def __init__(self, gain: float) -> None:
        self.__gain = gain

    @fuse
    def apply(self, __x: Any) -> Any:
        def __shifted(value: Any) -> Any:
            return value + 1

        __scaled = __x * self.__gain
        return __shifted(__scaled)


def test_private_names_in_a_class() -> None:
    x = np.linspace(0, 1, 5)
    np.testing.assert_array_equal(Filter(3.0).apply(x), x * 3.0 + 1)
