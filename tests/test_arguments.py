"""Calls whose arguments do not fit: what they say."""

from __future__ import annotations

from typing import Any

import pytest
from comparing import X, same

from numfuse import FusionNotImplementedError, FusionTypeError, fuse


@fuse
def blend(x: Any, y: Any, weight: float = 0.5) -> Any:
    return x + (y - x) * weight


@fuse
def strict(x, /, *, gain):
    return x * gain


SIGNATURE = "; it is called as blend(x, y, weight=0.5)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: blend(), "blend(): missing a required argument: 'x'" + SIGNATURE),
        (lambda: blend(X), "blend(): missing a required argument: 'y'" + SIGNATURE),
        (lambda: blend(X, z=1), "blend(): got an unexpected keyword argument 'z'" + SIGNATURE),
        (lambda: blend(X, X, out=None, z=1), "blend(): got an unexpected keyword argument 'z'" + SIGNATURE),
        (lambda: blend(X, X, 1, 2), "blend(): too many positional arguments" + SIGNATURE),
        (lambda: blend(X, X, x=X), "blend(): multiple values for argument 'x'" + SIGNATURE),
        (lambda: blend.explain(X, z=1), "blend(): got an unexpected keyword argument 'z'" + SIGNATURE),
        (
            lambda: fuse(lambda x: x)(X, X),
            "fused_lambda(): too many positional arguments; it is called as fused_lambda(x)",
        ),
    ],
)
def test_the_text_names_the_function_and_the_argument(call, message):
    with pytest.raises(FusionTypeError) as caught:
        call()
    assert str(caught.value) == message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_keyword_only_and_positional_only_parameters():
    with pytest.raises(FusionTypeError, match=r"^strict\(\): .*; it is called as strict\(x, /, \*, gain\)$"):
        strict(X)
    with pytest.raises(FusionTypeError, match=r"^strict\(\): .*'x'.*; it is called as strict\(x, /, \*, gain\)$"):
        strict(x=X, gain=1)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("out", "out= is not there yet: assign the result instead, out[...] = blend(x, y)"),
        ("where", "where= is not there yet: select instead, np.where(condition, blend(x, y), otherwise)"),
        ("dtype", "dtype= is not there yet: convert instead, blend(x, y).astype(dtype)"),
        ("casting", "casting= is not there yet: convert the arguments instead, x.astype(dtype, casting=...)"),
    ],
)
def test_keywords_of_ufuncs_are_not_there_yet(keyword, advice):
    for call in (blend, blend.explain):
        with pytest.raises(FusionNotImplementedError) as caught:
            call(X, X, **{keyword: None})
        assert str(caught.value) == advice


def test_a_parameter_may_have_such_a_name():
    same(fuse(lambda x, out, where=2.0: x * out + where)(X, out=3.0), X * 3 + 2)


def test_without_arrays_wrong_arguments_are_errors_too():
    with pytest.raises(TypeError):
        blend(1)
    assert blend(0, 1) == 0.5
