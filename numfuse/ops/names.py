"""What an object that a function calls means: by identity, however it was imported."""

from __future__ import annotations

import sys
import types

from numfuse.ops.libraries import LIBRARIES, library_spellings, python_spellings
from numfuse.ops.spelling import Spelling

# id of the function object -> the object (kept alive, so the id stays its own) and its spelling.
_known: dict[int, tuple[object, Spelling]] = {}
_read: dict[str, types.ModuleType] = {}


def _remember(library: str) -> None:
    for obj, spelling in library_spellings(library):
        _known.setdefault(id(obj), (obj, spelling))


for _obj, _spelling in python_spellings():
    _known.setdefault(id(_obj), (_obj, _spelling))


def find(obj: object) -> Spelling | None:
    """The operation that a function object names, or None.

    Functions of cupy, torch, jax.numpy and scipy.special are known once somebody has imported the library;
    none is imported for this.

    Examples
    --------
    >>> import math, operator
    >>> find(math.atan2).row, find(operator.mul).form
    ('arctan2', 'operator')
    """
    entry = _known.get(id(obj))
    if entry is None and callable(obj):
        for library in LIBRARIES:
            module = sys.modules.get(library)
            if module is not None and _read.get(library) is not module:
                _remember(library)
                _read[library] = module
        entry = _known.get(id(obj))
    return entry[1] if entry is not None and entry[0] is obj else None


def is_operation(obj: object) -> bool:
    """Whether a function object names an operation of the table."""
    return find(obj) is not None


# `astype` and `copy` are conversions, which lowering makes itself.
METHODS = {
    "clip": Spelling("clip", "ufunc", "x.clip", ("a", "min", "max")),
    "conj": Spelling("identity", "ufunc", "x.conj"),
    "conjugate": Spelling("identity", "ufunc", "x.conjugate"),
    # torch's name for clip
    "clamp": Spelling("clip", "ufunc", "x.clamp", ("a", "min", "max")),
}


def method(name: str) -> Spelling | None:
    """The operation that a method of an array names, or None; the array is its first operand."""
    return METHODS.get(name)
