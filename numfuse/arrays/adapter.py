"""The one interface through which numfuse sees an array library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError

Signature: TypeAlias = tuple[Hashable, ...]
Allocate: TypeAlias = Callable[[Any], Any]

DTYPES = frozenset(np.dtype(code) for code in "?bhilqBHILQfd")


class Refusal(Exception):
    """An argument that can't be used. The caller knows its name and makes the user's error of it.

    Parameters
    ----------
    message : str
        What is wrong and what to write instead, as it reads after ``argument 'x'``.
    error : type
        The member of the FusionError family to raise.
    """

    def __init__(self, message: str, error: type[FusionError] = FusionTypeError) -> None:
        super().__init__(message)
        self.message = message
        self.error = error

    def named(self, parameter: str) -> FusionError:
        """The user's error, for the argument of this name."""
        return self.labelled(f"argument {parameter!r}")

    def labelled(self, label: str) -> FusionError:
        """The user's error, for what `label` says: ``argument 'x'``, ``captured array 'table'``."""
        return self.error(f"{label} {self.message}")


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array as kernels see it. `strides` are bytes; `address` is that of element ``[0, 0, ...]``."""

    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: int | None  # ordinal of the CUDA device; None for host memory


class Adapter(ABC):
    """What numfuse does with the arrays of one library. Adapters have no state.

    The methods marked "every call" run for each argument of each call, so they do as little as they can:
    `signature` holds whatever a plan depends on and refuses what is not visible in it; what *is* visible
    in it (a dtype without kernels, for example) is refused by `info`, which runs when no plan is found for
    the signature. So a plan can only exist for arrays that passed both.
    """

    name: str
    on_device: bool
    # Python text, for a runner: of an array (as {0}) the address of its first element (0 is possible for an empty
    # one), and with its device's number (as {1}) the handle of the stream on which work on it belongs.
    address_code: str
    stream_code: str
    # What `address_code` raises for an array that `signature` could not tell from a good one.
    address_error: type[Exception] | None = None
    # Whether arrays are bound to streams, so that the arrays of one call may be on several.
    stream_of_array = False

    @property
    @abstractmethod
    def names(self) -> dict[str, Any]:
        """The objects that `address_code` and `stream_code` use."""

    def address(self, array: Any) -> int:
        """What `address_code` gives, for looking at one array. Runners spell the text instead."""
        return int(eval(self.address_code.format("array"), self.names, {"array": array}))

    def stream(self, array: Any) -> int:
        """What `stream_code` gives, for looking at one array (0 on the host)."""
        return int(eval(self.stream_code.format("array", self.device(array)), self.names, {"array": array}))

    def no_address(self, array: Any) -> Refusal:
        """Why an array has no address, after `address_error`."""
        return Refusal("has no address in memory")

    @abstractmethod
    def signature(self, array: Any) -> Signature:
        """Every call: hashable, equal for arrays that one plan may serve. Raises Refusal."""

    @abstractmethod
    def info(self, array: Any) -> ArrayInfo:
        """The full description of an array. Raises Refusal for any array that can't be used."""

    @abstractmethod
    def allocator(self, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...], like: Any) -> Allocate:
        """Prepare the allocation of outputs: a function that takes an array and returns a new one.

        Parameters
        ----------
        shape, dtype
            Of the new arrays.
        order : tuple of int
            Dimensions from outermost to innermost in memory; ``(0, 1, ...)`` is C order.
        like : array
            The function returned is called with arrays of the same signature as this one, and allocates
            with their library, on their device and for their stream. The contents are arbitrary.
        """

    @abstractmethod
    def device(self, array: Any) -> int | None:
        """The ordinal of the array's device; None for host memory."""

    def finish(self, array: Any) -> Any:
        """An output as it is handed to the user."""
        return array


def check_dtype(dtype: np.dtype) -> None:
    """Refuse a dtype for which there are no kernels."""
    if dtype in DTYPES:
        return
    if dtype.names is not None:
        raise Refusal("has a structured dtype; pass its fields as separate arguments, such as x['field']")
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise Refusal(f"has byte-swapped dtype {dtype.str!r}; convert it with .astype({native.name!r})")
    if dtype.kind in "fc" or dtype.name == "bfloat16":
        raise Refusal(not_yet(dtype.name), FusionNotImplementedError)
    raise Refusal(f"has dtype {dtype}; only bool, integer and floating-point arrays can be fused")


def not_yet(dtype_name: str) -> str:
    """What is said of a dtype that is meant to be supported and is not yet."""
    if "complex" in dtype_name:
        return f"has dtype {dtype_name}, not supported yet; pass its real and imaginary parts"
    return f"has dtype {dtype_name}, not supported yet; convert it to float32 or float64"
