"""``fuse`` and what it returns: a function that runs as one kernel."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from numfuse import arrays
from numfuse.arrays import Adapter, Refusal
from numfuse.errors import FusionError, FusionRecursionError, FusionTypeError, FusionValueError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.lower import Parameter
from numfuse.frontend.lower_values import HostParameter
from numfuse.keys import SIGNERS, array_dtype, identifier, kind_key, parameter_of, signer, unchanged
from numfuse.launch import Options, build_plan
from numfuse.pipeline import Variant, build_variant
from numfuse.runner import Run

P = ParamSpec("P")
R = TypeVar("R")

# Signatures that one fused function remembers; a program that calls with ever new shapes stays bounded.
MAX_PLANS = 2048
# Sets of dtypes and structural arguments for which it keeps lowered variants.
MAX_VARIANTS = 128

# Names of a method's own object.
_RECEIVERS = ("self", "cls")


@overload
def fuse(function: Callable[P, R], /) -> Fused[P, R]: ...
@overload
def fuse(
    *,
    name: str | None = None,
    exact: bool = False,
    fast: bool = False,
    identity: object = None,
    device: str | None = None,
) -> Callable[[Callable[P, R]], Fused[P, R]]: ...
def fuse(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    exact: bool = False,
    fast: bool = False,
    identity: object = None,
    device: str | None = None,
) -> Any:
    """Make a NumPy-style function run as one kernel.

    The function and every helper that it calls are inlined into one body, which is compiled for the dtypes
    of each call: through ``numba.njit`` for NumPy arrays, through ``numba.cuda`` for arrays on a GPU (CuPy,
    PyTorch, Numba). Dtypes, shapes and values are those of the plain function run by NumPy.

    Parameters
    ----------
    function : callable
        The function. ``@fuse``, ``@fuse(...)`` and ``fuse(f)`` are alike.
    name : str, optional
        Name of the kernel in profilers and in ``explain()``; the function's own name by default.
    exact : bool, default False
        On a GPU, never contract ``a * b + c`` into one fused multiply-add, so that ``+ - * / sqrt`` give
        NumPy's bits. (On a CPU nothing is ever contracted.)
    fast : bool, default False
        Allow approximations: reordering, reciprocals, flushing subnormals to zero, and on a GPU the
        hardware's approximate functions.
    identity : number, optional
        The ``identity`` attribute, as of a ufunc.
    device : {None, "cpu", "cuda"}, optional
        Where the arrays must be. None takes them where they are; the others refuse arrays elsewhere.

    Returns
    -------
    Fused
        Call it like the function. A call without any array is the plain Python call.

    Raises
    ------
    FusionError
        At the call, for what can't be fused: what it is, where, and what to write instead.

    Examples
    --------
    >>> import numpy as np
    >>> from numfuse import fuse
    >>> def clip01(v):
    ...     return np.minimum(np.maximum(v, 0), 1)
    >>> @fuse
    ... def tone(x, gain=1.0, gamma=2.0):
    ...     return clip01(gain * x) ** (1 / gamma)
    >>> tone(np.array([0.0, 0.25, 4.0], dtype=np.float32))
    array([0. , 0.5, 1. ], dtype=float32)
    """

    def decorate(plain: Callable[..., Any]) -> Fused[..., Any]:
        return Fused(plain, name=name, options=Options(exact, fast), identity=identity, device=device)

    return decorate if function is None else decorate(function)


class Fused(Generic[P, R]):
    """A function that runs as one kernel; made by :func:`fuse`.

    Attributes
    ----------
    py_func : callable
        The plain function.
    nin, nout, nargs, identity, signature
        As of a NumPy ufunc. `nout` is known after the first call with arrays, and None before.
    """

    py_func: Callable[P, R]
    signature = None  # elementwise, as of a ufunc without core dimensions

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        options: Options = Options(),  # noqa: B008 (immutable)
        identity: object = None,
        device: str | None = None,
    ) -> None:
        if isinstance(function, Fused):  # fused again, with options of its own
            function = function.py_func
        if isinstance(function, staticmethod | classmethod):
            raise FusionTypeError(f"write @fuse below @{type(function).__name__}, not above it")
        if not callable(function):
            raise FusionTypeError(
                f"fuse() takes a function, not {function!r}: write @fuse above a def, or fuse(function)"
            )
        if device not in (None, "cpu", "cuda"):
            raise FusionValueError(f"device={device!r}: it is None (anywhere), 'cpu' or 'cuda'")
        self.py_func = function
        self.identity = identity
        self.nout: int | None = None
        self._options = options
        self._device = device
        plain: Any = function
        if not isinstance(function, types.MethodType):  # which would answer with the attributes of its function
            plain = getattr(function, "py_func", getattr(function, "pyfunc", function))
        functools.update_wrapper(self, plain, updated=())
        try:
            self.__signature__ = inspect.signature(plain)
        except (TypeError, ValueError) as error:
            raise FusionTypeError(
                f"{function!r} has no Python signature, so it has no Python source either: fuse a function "
                f"written in Python"
            ) from error
        self._kernel_name = identifier(name or str(getattr(plain, "__name__", type(function).__name__)))
        self._names = tuple(self.__signature__.parameters)
        self._simple = all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            for p in self.__signature__.parameters.values()
        )
        self._keyword_only = any(p.kind is p.KEYWORD_ONLY for p in self.__signature__.parameters.values())
        self._plans: dict[tuple[Any, ...], list[tuple[Any, Run, tuple[Any, ...]]] | None] = {}
        self._variants: dict[tuple[Any, ...], list[Variant]] = {}
        self._structural: dict[Any, set[Any]] = {}
        self._lock = threading.RLock()

    @property
    def nin(self) -> int:
        """Number of parameters."""
        return len(self._names)

    @property
    def nargs(self) -> int | None:
        """Parameters and results together."""
        return None if self.nout is None else self.nin + self.nout

    def __repr__(self) -> str:
        return f"<fused {self.py_func!r}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> Fused[P, R]:
        return self

    def __reduce__(self) -> str:
        """Pickled by name, as a function is."""
        return str(vars(self)["__qualname__"])

    def __deepcopy__(self, memo: dict[int, object]) -> Fused[P, R]:
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; see :func:`fuse`."""
        values: tuple[Any, ...] = args
        if kwargs or len(args) != len(self._names) or self._keyword_only or not self._simple:
            values = self._bind(args, kwargs)
        try:
            key = tuple([SIGNERS[type(value)](value) for value in values])
        except KeyError:
            key = self._sign(values)
        except Refusal:
            key = self._sign(values)  # again, to name the argument
        entries = self._plans.get(key, ())
        if entries is None:
            return self.py_func(*args, **kwargs)
        for prelude, run, captured in entries:
            slots = prelude(*values)
            if slots is not None and (not captured or unchanged(captured, slots)):
                answer: R = run(values, slots)
                return answer
        first: R = self._first_call(key, values, args, kwargs)
        return first

    # ---- the slow path: calls of a new signature

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The value of each parameter, defaults filled in."""
        if not self._simple:
            raise FusionTypeError(
                f"{self._kernel_name} takes *args or **kwargs, which a fused function can't yet: name its parameters"
            )
        bound = inspect.signature(self.py_func).bind(*args, **kwargs)  # defaults as they are now
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def _sign(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key of a call whose argument types were not all seen before."""
        key = []
        for name, value in zip(self._names, values, strict=True):
            try:
                key.append(signer(value)(value))
            except Refusal as refusal:
                raise refusal.named(name) from None
        return tuple(key)

    def _first_call(
        self, key: tuple[Any, ...], values: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        try:
            run, slots = self._prepare(key, values)
        except FusionError as error:
            # The compiler's own frames would bury the place that the message points at.
            raise error.with_traceback(None) from error.__cause__
        return self.py_func(*args, **kwargs) if run is None else run(values, slots)

    def _prepare(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Run | None, tuple[Any, ...]]:
        """What answers calls with this key, and the prelude's values of this call; None for the plain function."""
        with self._lock:
            adapter = self._common_adapter(values)
            if adapter is None:
                self._plans[key] = None
                return None, ()
            variant, slots = self._variant(values)
            plan = build_plan(variant, self._names, values, slots, adapter, self._options)
            captured = tuple((slot, signer(slots[slot])(slots[slot])) for _, slot in variant.captured)
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            entries = self._plans.setdefault(key, [])
            if entries is not None:  # the newest first: it is the likeliest to be asked for again
                entries.insert(0, (variant.prelude, plan.run, captured))
                del entries[64:]
        return plan.run, slots

    def _common_adapter(self, values: tuple[Any, ...]) -> Adapter | None:
        """The library of the arrays; None if there are no arrays."""
        found = []
        for name, value in zip(self._names, values, strict=True):
            if arrays.is_array(value):
                found.append((name, value))
            elif isinstance(value, tuple | list) and any(arrays.is_array(item) for item in value):
                raise FusionTypeError(
                    f"argument {name!r} is a {type(value).__name__} that holds arrays: pass each array as an "
                    f"argument of its own"
                )
        if not found:
            return None
        adapter = arrays.common_adapter(found)
        if self._device is not None and adapter.on_device != (self._device == "cuda"):
            where = "on a GPU" if adapter.on_device else "in host memory"
            raise FusionTypeError(
                f"argument {found[0][0]!r} is a {adapter.name} array {where}, and {self._kernel_name} was made "
                f"with device={self._device!r}"
            )
        return adapter

    def _variant(self, values: tuple[Any, ...]) -> tuple[Variant, tuple[Any, ...]]:
        """The variant for these arguments, and the values of its prelude."""
        parameters = {name: parameter_of(name, value) for name, value in zip(self._names, values, strict=True)}
        kinds = tuple(kind_key(parameter) for parameter in parameters.values())
        if len(self._variants) >= MAX_VARIANTS:  # a new lambda as an argument of each call, say
            self._variants.clear()
        variants = self._variants.setdefault(kinds, [])
        for variant in variants:
            slots = variant.prelude(*values)
            if slots is not None and all(
                array_dtype(slots[slot], name) == variant.program.buffer(name).dtype for name, slot in variant.captured
            ):
                return variant, slots
        variant = self._build(parameters)
        variants.insert(0, variant)
        del variants[64:]
        self.nout = len(variant.program.results)
        return variant, variant.lowered.host_values

    def _build(self, parameters: dict[str, Parameter]) -> Variant:
        """Lower for these arguments.

        The object of a method is first taken as any other object, whose attributes Python reads at each call, so
        that one lowering serves all instances. Calls of its own methods on elements need to know which they
        are: then the lowering is for this one instance.
        """

        def build(chosen: dict[str, Parameter]) -> Variant:
            try:
                return build_variant(self.py_func, self._kernel_name, chosen, array_dtype, self._structural_values)
            except RecursionError as error:
                if isinstance(error, FusionError):
                    raise
                raise FusionRecursionError(
                    f"{self._kernel_name} is nested more deeply than Python's recursion limit allows: split long "
                    f"expressions into statements"
                ) from None

        first = self._names[0] if self._names else ""
        receiver = parameters.get(first) if first in _RECEIVERS else None
        if not isinstance(receiver, HostParameter):
            return build(parameters)
        try:
            return build(parameters)
        except FusionError:
            return build({**parameters, first: Static(receiver.value)})

    def _structural_values(self, loc: Loc | None, value: object) -> int:
        seen = self._structural.setdefault(loc, set())
        seen.add(value)
        return len(seen)

    def explain(self, *args: Any, target: str | None = None, **kwargs: Any) -> Any:
        """Show what a call with these arguments compiles to; nothing is run.

        Parameters
        ----------
        *args, **kwargs
            As for a call. Arrays only lend their dtype and layout.
        target : {None, "cpu", "cuda"}, optional
            Whose kernel to show; by default that of the device on which the arrays are. "cuda" needs no GPU.

        Returns
        -------
        Explanation
            Prints as text; its attributes hold the parts.

        Examples
        --------
        >>> import numpy as np
        >>> from numfuse import fuse
        >>> f = fuse(lambda x: x * 2 + 1)
        >>> "float32" in f.explain(np.ones(3, np.float32)).kernel
        True
        """
        from numfuse.tools.explain import explain

        values = self._bind(args, kwargs)
        key = self._sign(values)
        adapter = self._common_adapter(values)
        if adapter is None:
            raise FusionTypeError("explain() needs at least one array: without one there is no kernel")
        del key
        with self._lock:
            variant, slots = self._variant(values)
        return explain(variant, self._names, values, slots, adapter, self._options, target)
