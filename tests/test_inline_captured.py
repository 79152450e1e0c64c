"""Captured values: what is structural, and how often places are looked at."""

from __future__ import annotations

import enum
import functools
import types

import numpy as np
import pytest
from inlining import E, fuse

from numfuse.frontend.scope import categorize, is_structural, reaches_array


class Colour(enum.Enum):
    RED = 1


class Order(enum.IntEnum):
    FIRST = 1


class Counted:
    """Counts how often its property is read."""

    reads = 0

    @property
    def gain(self):
        self.reads += 1
        return 2.0


COUNTED = Counted()


def test_a_property_is_read_once_for_each_look_up():
    def f(x):
        return x * COUNTED.gain

    COUNTED.reads = 0
    fuse(f, x=E)
    assert COUNTED.reads == 1


@pytest.mark.parametrize(
    ("value", "structural"),
    [
        (None, True), ("a", True), (b"a", True), (np.str_("a"), True), (..., True), (np.sin, True), (np, True),
        (np.dtype("f4"), True), (np.float32, True), (list[int], True), (str.upper, True), (Colour.RED, True),
        (fuse, True), (Counted, True), (functools.partial(fuse, x=E), True),
        (1, False), (True, False), (2.0, False), (np.float64(2), False), (Order.FIRST, False), ((1, 2), False),
        ([fuse], False), ({}, False), (slice(1), False), (COUNTED, False), (np.ones(2), False),
    ],
)  # fmt: skip
def test_what_is_structural(value, structural):
    assert is_structural(value) is structural
    if structural:
        assert categorize(value, lambda v: isinstance(v, np.ndarray), lambda v: False) == "static"


def test_an_array_is_found_behind_any_number_of_helpers():
    last = innermost = types.FunctionType((lambda: TABLE).__code__, {"TABLE": np.ones(2)})  # noqa: F821
    for k in range(300):
        code = (lambda: call()).__code__.replace(co_name=f"step_{k}")  # noqa: F821
        last = types.FunctionType(code, {"call": last})
    assert reaches_array(innermost, lambda value: isinstance(value, np.ndarray))
    assert reaches_array(last, lambda value: isinstance(value, np.ndarray))
