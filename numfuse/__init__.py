"""Fuse NumPy-style Python functions into one kernel, for CPUs and NVIDIA GPUs.

>>> import numpy as np
>>> from numfuse import fuse
>>> @fuse
... def axpy(a, x, y):
...     return a * x + y
>>> axpy(2.0, np.arange(3.0), np.ones(3))
array([1., 3., 5.])
"""

from numfuse.errors import (
    FusionAttributeError,
    FusionError,
    FusionIndexError,
    FusionKeyError,
    FusionNameError,
    FusionNotImplementedError,
    FusionOverflowError,
    FusionRecursionError,
    FusionSyntaxError,
    FusionTypeError,
    FusionValueError,
)
from numfuse.fused import Fused, fuse

__version__ = "0.1.0"

__all__ = [
    "Fused",
    "FusionAttributeError",
    "FusionError",
    "FusionIndexError",
    "FusionKeyError",
    "FusionNameError",
    "FusionNotImplementedError",
    "FusionOverflowError",
    "FusionRecursionError",
    "FusionSyntaxError",
    "FusionTypeError",
    "FusionValueError",
    "fuse",
]
