"""What an unfriendly but realistic user does: names that collide, values that change kind, odd arrays, threads."""

from __future__ import annotations

import collections
import enum
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import at_once, same, variants

from numfuse import FusionError, FusionNameError, FusionTypeError, fuse

SINGLES = np.linspace(-2, 3, 7).astype(np.float32)
DOUBLES = np.linspace(-2, 3, 7)
INTEGERS = np.arange(-3, 4)
BYTES = np.array([127, -128, 5], np.int8)


def agree(plain: Callable[..., Any], fused: Callable[..., Any], *args: Any, **options: Any) -> None:
    """The fused function answers, or raises, as the plain one; nobody's array changes."""
    kept = [value.copy() if isinstance(value, np.ndarray) else value for value in args]
    with np.errstate(all="ignore"):
        try:
            want = plain(*args, **options)
        except Exception as error:
            builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            with pytest.raises(builtin):
                fused(*args, **options)
            return
        same(fused(*args, **options), want, any_nan=True)
    for before, after in zip(kept, args, strict=True):
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)


# ---- names


def plain_names(np_, t0, t1, start, stop, result, arguments, words, slots, args, out_0, address_0, like):
    t2 = np_ + t1
    start = t0 * start
    return t2 + start + stop + result - arguments + words + slots + args + out_0 + address_0 + like


def builtin_names(x, boolean, int64, njit, range, abs, min):
    return x + boolean + int64 + njit + range + abs + min


def module_names(np):
    return np * 2


def type_names(float32, inf, nan):
    return float32 + inf * nan


def foreign_names(größe, 变量, μ):
    return größe + 变量 * μ


def soft_keywords(x, match, case, type, _):
    return x + match + case + type + _


@pytest.mark.parametrize(
    "function", [plain_names, builtin_names, module_names, type_names, foreign_names, soft_keywords]
)
def test_parameters_may_have_any_name(function: Any) -> None:
    agree(function, fuse(function), *[SINGLES] * function.__code__.co_argcount)


def test_host_numbers_may_have_the_names_of_the_prelude() -> None:
    def function(h_1, h_2, _bound0, prelude):
        g = h_1 * 2
        return prelude * g * (h_2 + _bound0)

    fused = fuse(function)
    agree(function, fused, 2, 3, 4, SINGLES)
    agree(function, fused, 2.5, 3, 4, SINGLES)


# ---- signatures


def strict(x, /, y, *, k=2.0):
    return x * y + k


def test_calls_that_do_not_fit_the_signature() -> None:
    fused = fuse(strict)
    agree(strict, fused, SINGLES, SINGLES, k=SINGLES)
    agree(strict, fused, SINGLES)
    agree(strict, fused, SINGLES, SINGLES, z=1)
    agree(strict, fused, SINGLES, SINGLES, y=SINGLES)
    agree(strict, fused, SINGLES, SINGLES, SINGLES)
    agree(strict, fused, y=SINGLES)


def test_partials_of_partials() -> None:
    function = functools.partial(functools.partial(strict, SINGLES), k=1)
    fused = fuse(function)
    agree(function, fused, DOUBLES)
    agree(function, fused, DOUBLES, k=5)


class Model:
    offset = 3.0

    def __init__(self, gain: float) -> None:
        self.gain = gain

    @property
    def double(self) -> float:
        return self.gain * 2

    def helper(self, x):
        return x - 1

    @classmethod
    def shifted(cls, x):
        return x * cls.offset

    @staticmethod
    def halved(x):
        return x / 2


def test_methods_follow_the_instance_and_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(2.0)

    def function(x):
        return model.helper(x) * model.shifted(x) + Model.halved(x) + model.double

    fused = fuse(function)
    agree(function, fused, SINGLES)
    model.gain = 7.5
    agree(function, fused, SINGLES)
    monkeypatch.setattr(Model, "helper", lambda self, x: x + self.gain)
    agree(function, fused, SINGLES)
    monkeypatch.setattr(Model, "halved", staticmethod(lambda x: x - 7))
    agree(function, fused, SINGLES)
    monkeypatch.setattr(model, "helper", lambda x: x * 1000, raising=False)
    agree(function, fused, SINGLES)


# ---- what changes between calls

FACTOR: Any = 2
CALLBACK: Any = None


def by_factor(x):
    return x * FACTOR


def test_a_global_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fuse(by_factor)
    kinds = (3, 2.5, True, np.float32(2), np.int8(3), np.array(2.0), INTEGERS, 2**40, 2**63, -(2**63))
    for value in (*kinds, float("nan"), -0.0, 1e300, None, {}, len, 2):
        monkeypatch.setitem(globals(), "FACTOR", value)
        agree(by_factor, fused, SINGLES)
        if not isinstance(value, np.ndarray) or not value.ndim:
            agree(by_factor, fused, BYTES)
    monkeypatch.delitem(globals(), "FACTOR")
    with pytest.raises(FusionNameError, match="'FACTOR' is not defined"):
        fused(SINGLES)


def call_back(x):
    return CALLBACK(x) * 2


def test_a_helper_that_is_redefined(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fuse(call_back)
    with_default = lambda x, k=3: x * k  # noqa: E731
    for value in (lambda x: x + 1, lambda x: x + 2, np.negative, with_default, 5):
        monkeypatch.setitem(globals(), "CALLBACK", value)
        agree(call_back, fused, SINGLES)
    monkeypatch.setitem(globals(), "CALLBACK", with_default)
    with_default.__defaults__ = (9,)
    agree(call_back, fused, SINGLES)
    with_default.__code__ = (lambda x, k=3: x - k).__code__
    agree(call_back, fused, SINGLES)


def test_defaults_that_change_in_place() -> None:
    def function(x, k=[2, 3], d={"a": 2}, *, w=1):  # noqa: B006
        return x * k[0] + d["a"] * w

    fused = fuse(function)
    agree(function, fused, SINGLES)
    function.__defaults__[0][0] = 7  # type: ignore[index]
    function.__defaults__[1]["a"] = 2.5  # type: ignore[index]
    agree(function, fused, SINGLES)
    function.__kwdefaults__["w"] = 3
    agree(function, fused, SINGLES)
    function.__defaults__[1].clear()  # type: ignore[index]
    agree(function, fused, SINGLES)
    function.__defaults__ = None
    agree(function, fused, SINGLES)


def test_a_closure_variable_that_changes_and_goes() -> None:
    def make(k: Any) -> Callable[..., Any]:
        return lambda x: x * k

    function = make(2)
    fused = fuse(function)
    (cell,) = function.__closure__  # type: ignore[attr-defined]
    for value in (2, 3.5, DOUBLES, lambda: 1):
        cell.cell_contents = value
        agree(function, fused, SINGLES)
    del cell.cell_contents
    agree(function, fused, SINGLES)


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


Pair = collections.namedtuple("Pair", "gain offset")


def structured(x, mode, pair, table):
    y = x * pair.gain + pair[1]
    if mode is Mode.DOUBLE:
        y = y * 2
    return y + table["a"][0]


def test_structures_as_arguments() -> None:
    fused = fuse(structured)
    agree(structured, fused, SINGLES, Mode.PLAIN, Pair(2, 3), {"a": [1]})
    agree(structured, fused, SINGLES, Mode.DOUBLE, Pair(2.5, 3), {"a": [1.5]})
    agree(structured, fused, SINGLES, Mode.PLAIN, Pair(2, 3), {"b": 1})
    with pytest.raises(FusionTypeError, match="pass each array as an argument of its own"):
        fused(SINGLES, Mode.PLAIN, Pair(SINGLES, 3), {"a": [1]})


def test_exceptions_of_host_code_are_python_s_own() -> None:
    def function(x, a, b):
        return x * (a / b)

    class OwnError(Exception):
        pass

    def boom(k):
        if k:
            raise OwnError(k)
        return 2

    def with_helper(x, k):
        return x * boom(k)

    fused = fuse(function)
    for b in (2, 0, 4, "a"):
        agree(function, fused, SINGLES, 1, b)
    fused = fuse(with_helper)
    with pytest.raises(OwnError):
        fused(SINGLES, 1)
    agree(with_helper, fused, SINGLES, 0)
    with pytest.raises(OwnError):
        fused(SINGLES, 1)


def test_an_interrupted_first_call_leaves_nothing_behind() -> None:
    interrupt = True

    def ask(k):
        if interrupt:
            raise KeyboardInterrupt
        return k

    def function(x, k):
        return x * ask(k)

    fused = fuse(function)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fused(SINGLES, 1)
    interrupt = False
    agree(function, fused, SINGLES, 3)


# ---- arrays


def double_plus(x, y):
    return x * 2 + y


def odd_arrays() -> dict[str, tuple[Any, Any]]:
    base = np.arange(240, dtype=np.float32).reshape(2, 3, 4, 10)
    record = np.zeros(5, dtype=[("a", "i1"), ("b", "f4"), ("c", "f8")])
    record["b"], record["c"] = np.arange(5), np.arange(5) * 2
    shifted = np.frombuffer(b"\0" * 3 + np.arange(300.0).tobytes(), np.uint8)[3:].view(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(DOUBLES, 3)
    ten = np.arange(1024.0).reshape((2,) * 10)
    frozen = SINGLES.copy()
    frozen.flags.writeable = False
    return {
        "0-d": (np.array(3.0, np.float32), np.array(2.0)),
        "scalar first": (np.float64(3), SINGLES),
        "empty": (np.zeros((0, 3)), np.zeros((1, 3))),
        "one": (np.zeros(1), SINGLES),
        "ten dimensions": (ten.transpose(9, 3, 1, 5, 0, 2, 4, 6, 8, 7), ten),
        "zero strides": (np.broadcast_to(np.float32(3), (4, 5)), np.broadcast_to(np.float64(3), (5,))),
        "negative strides": (base[0, 0, ::-1, ::-1], base[0, 0, ::-1, :]),
        "two orders": (np.asfortranarray(base[0, 0]), base[0, 1].copy()),
        "overlapping": (SINGLES[1:], SINGLES[:-1]),
        "windows": (windows, np.ones(3)),
        "misaligned fields": (record["b"], record["c"]),
        "misaligned": (shifted, shifted),
        "read-only": (frozen, frozen),
        "no broadcast": (SINGLES, DOUBLES[:3]),
        "no broadcast in 2-d": (np.ones((2, 3)), np.ones((3, 2))),
    }


FUSED_DOUBLE_PLUS = fuse(double_plus)


@pytest.mark.parametrize("name", odd_arrays())
def test_odd_arrays(name: str) -> None:
    agree(double_plus, FUSED_DOUBLE_PLUS, *odd_arrays()[name])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (SINGLES.astype(">f4"), "byte-swapped"),
        (np.ma.masked_array(SINGLES, SINGLES > 0), "masked array"),
        (np.zeros(7, "f2"), "float16"),
        (np.zeros(7, "c8"), "complex64"),
        (np.zeros(7, "g"), "not supported yet"),
        (np.zeros(7, "O"), "object"),
        (np.zeros(7, "m8[s]"), "timedelta64"),
        (np.zeros(7, [("a", "i4")]), "structured"),
        ([1.0] * 7, "list"),
    ],
    ids=["swapped", "masked", "f2", "c8", "g", "O", "m8", "fields", "list"],
)
def test_what_is_not_there_is_refused_by_name(array: Any, words: str) -> None:
    with pytest.raises(FusionError, match=words):
        FUSED_DOUBLE_PLUS(array, SINGLES)


def compared(x, k):
    return x < k, x == k, k >= x, x != k


def multiplied(x, k):
    return x * k


@pytest.mark.parametrize("function", [compared, multiplied])
def test_numbers_at_the_edges(function: Any) -> None:
    fused = fuse(function)
    whole = (0, -1, 127, 128, -129, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30)
    others = (True, float("nan"), float("inf"), -0.0, 1e300, 1e-320, np.int8(-1), np.uint64(2**64 - 1), np.bool_(1))
    arrays = (BYTES, INTEGERS, np.array([2**64 - 1, 2**63, 5], np.uint64), SINGLES, np.array([True, False]))
    for k in (*whole, *others):
        for x in arrays:
            agree(function, fused, x, k)


# ---- identity of what comes back


def test_arguments_come_back_as_themselves() -> None:
    def function(x, y, n):
        z = x
        for _ in range(n):
            z = z * 2
        return x, y, z, x

    fused = fuse(function)
    for n in (0, 3, 0):
        first, second, third, again = fused(SINGLES, SINGLES, n)
        assert first is second is again is SINGLES
        assert (third is SINGLES) == (n == 0)


def test_equal_results_are_two_arrays() -> None:
    def function(x):
        return x * 2, x * 2

    first, second = fuse(function)(SINGLES)
    assert first is not second
    assert not np.shares_memory(first, second)


# ---- host code runs as often as Python would run it


def test_host_helpers_without_decisions_run_once_a_call() -> None:
    count = 0

    def tick():
        nonlocal count
        count += 1
        return count

    def function(x):
        return x * tick() + tick()

    fused = fuse(function)
    got = [fused(INTEGERS) for _ in range(3)]
    count = 0
    for answer in got:
        same(answer, function(INTEGERS), any_nan=True)


# ---- threads, and many variants


def test_many_threads_call_first() -> None:
    def function(x, k):
        return np.sqrt(x * x + k) * x

    fused = fuse(function)

    def work(seed: int) -> None:
        for k in range(5):
            agree(function, fused, np.arange(100.0) + seed, k + 0.5)

    at_once(work, 8)
    assert variants(fused) == 1


def test_numbers_that_change_compile_little() -> None:
    def scaled(x, k):
        y = x * k
        return y if k > 0.5 else y + 1

    def raised(x, k):
        return x**k

    def repeated(x, n):
        for i in range(n):
            x = x + i
        return x

    for function, values, most in (
        (scaled, [k / 10 for k in range(40)], 2),
        (raised, [1.25, 2, *(3 + k for k in range(12))], 13),
        (repeated, range(14), 11),
    ):
        fused = fuse(function)
        for value in values:
            agree(function, fused, DOUBLES if function is scaled else INTEGERS, value)
        assert variants(fused) <= most


def test_a_new_closure_each_call_is_noticed() -> None:
    def make(k):
        return lambda v: v * k

    fused = fuse(lambda x, g: g(x))
    for k in range(5):
        same(fused(SINGLES, make(k)), SINGLES * k, any_nan=True)


def test_a_fused_function_called_while_another_is_lowered() -> None:
    inner = fuse(lambda v: v * 2)

    def ask(k):
        return float(inner(np.array([k]))[0])

    def function(x, k):
        return x * ask(k)

    agree(function, fuse(function), SINGLES, 2.0)
