"""What the tests of the array adapters share."""

from __future__ import annotations

from typing import Any

import pytest

from numfuse.arrays import Adapter, ArrayInfo, Refusal, adapter_of
from numfuse.errors import FusionError


def adapter_for(value: Any) -> Adapter:
    """The adapter of a value that is an array."""
    found = adapter_of(value)
    assert found is not None
    return found


def described(value: Any) -> ArrayInfo:
    """The description of an array, after its signature, as in a first call."""
    adapter = adapter_for(value)
    adapter.signature(value)
    return adapter.info(value)


def refused(value: Any) -> FusionError:
    """The user's error for a value: from its type, from its signature or from its description."""
    with pytest.raises(Refusal) as caught:
        described(value)
    return caught.value.named("x")
