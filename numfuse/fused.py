"""``fuse`` and what it returns: a function that runs as one kernel."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from numfuse.arguments import bind, common_adapter, required, spelled
from numfuse.arrays import Adapter, Refusal
from numfuse.errors import FusionError, FusionTypeError, FusionValueError
from numfuse.keys import (
    SIGNERS,
    identifier,
    loop_types,
    named_signature,
    unchanged,
)
from numfuse.launch import Options, build_plan
from numfuse.runner import Run
from numfuse.variants import VariantStore

if TYPE_CHECKING:
    from numfuse.tools.explain import Explanation

P = ParamSpec("P")
R = TypeVar("R")

# Signatures that one fused function remembers; a program that calls with ever new shapes stays bounded.
MAX_PLANS = 2048

_every_fused: weakref.WeakSet[Fused[..., Any]] = weakref.WeakSet()


def _renew_locks() -> None:
    """In the child of a fork: the thread that held a lock may not have come along."""
    for fused in _every_fused:
        fused._lock = threading.RLock()
        for variants in fused._variants.values():
            for variant in variants:
                variant.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


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
    FusionTypeError
        At once, for a `function` that is none, or has no Python source.
    FusionValueError
        At once, for `exact` together with `fast`, or an unknown `device`.
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
    options = Options(exact, fast)
    _check(options, device)

    def decorate(plain: Callable[..., Any]) -> Fused[..., Any]:
        return Fused(plain, name=name, options=options, identity=identity, device=device)

    return decorate if function is None else decorate(function)


def _check(options: Options, device: str | None) -> None:
    """Refuse options that contradict each other or mean nothing."""
    if options.exact and options.fast:
        raise FusionValueError("exact=True asks for NumPy's bits and fast=True gives them up: choose one of the two")
    if device not in (None, "cpu", "cuda"):
        raise FusionValueError(f"device={device!r}: it is None (anywhere), 'cpu' or 'cuda'")


class Fused(VariantStore, Generic[P, R]):
    """A function that runs as one kernel; made by :func:`fuse`.

    Attributes
    ----------
    py_func : callable
        The plain function.
    nin : int
        Number of parameters.
    nout : int or None
        Number of results; None before the first call with arrays.
    nargs : int or None
        `nin` and `nout` together.
    types : list of str
        The loops compiled so far, such as ``'ff->f'``.
    ntypes : int
        How many these are.
    identity : object
        What ``fuse(identity=...)`` was given.
    signature : None
        As of a ufunc that works element by element.

    Examples
    --------
    >>> import numpy as np
    >>> from numfuse import fuse
    >>> @fuse
    ... def blend(x, y, weight=0.5):
    ...     return x + (y - x) * weight
    >>> blend
    <fused blend(x, y, weight=0.5)>
    >>> blend(np.zeros(2, np.float32), np.ones(2, np.float32))
    array([0.5, 0.5], dtype=float32)
    >>> blend.nin, blend.nout, blend.types
    (3, 1, ['ffd->f'])
    >>> blend(0, 1)  # no array, so this is the plain call
    0.5
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
        _check(options, device)
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
        except (TypeError, ValueError):
            raise FusionTypeError(
                f"{function!r} has no Python signature, so it has no Python source either: fuse a function "
                f"written in Python"
            ) from None
        super().__init__()
        self._kernel_name = identifier(name or str(getattr(plain, "__name__", type(function).__name__)))
        self._names = tuple(self.__signature__.parameters)
        self._simple = all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            for p in self.__signature__.parameters.values()
        )
        self._keyword_only = any(p.kind is p.KEYWORD_ONLY for p in self.__signature__.parameters.values())
        self._plans: dict[tuple[Any, ...], list[tuple[Any, Run, tuple[Any, ...]]] | None] = {}
        self._lock = threading.RLock()
        _every_fused.add(self)

    @property
    def nin(self) -> int:
        """Number of parameters."""
        return len(self._names)

    @property
    def nargs(self) -> int | None:
        """Parameters and results together."""
        return None if self.nout is None else self.nin + self.nout

    @property
    def types(self) -> list[str]:
        """The loops compiled so far, in NumPy's letters: ``'ff->f'``.

        A Python number counts as NumPy's dtype for it (``d`` for a float) and what is no number as ``O``, though
        neither becomes an array.
        """
        with self._lock:
            found = [
                loop_types(kinds, variant.program)
                for kinds, variants in self._variants.items()
                for variant in reversed(variants)  # the oldest first
                if variant.kernels
            ]
        return list(dict.fromkeys(found))

    @property
    def ntypes(self) -> int:
        """How many loops were compiled so far."""
        return len(self.types)

    @property
    def _label(self) -> str:
        """What messages call it."""
        name = vars(self).get("__name__", "")
        return name if name.isidentifier() else self._kernel_name

    def __repr__(self) -> str:
        return f"<fused {vars(self).get('__qualname__', self._kernel_name)}{spelled(inspect.signature(self.py_func))}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> Fused[P, R]:
        return self

    def __reduce__(self) -> str:
        """Pickled by name, as a function is."""
        module, name = vars(self).get("__module__"), vars(self).get("__qualname__")
        found: Any = sys.modules.get(str(module))
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise pickle.PicklingError(
                f"a fused function is pickled by its name, and {module}.{name} is not {self!r}: write @fuse above a "
                f"function of a module, or pickle the plain function (py_func) and fuse it where it is loaded"
            )
        return str(name)

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
        return bind(self.py_func, self._label, args, kwargs)

    def _sign(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key of a call whose argument types were not all seen before."""
        pairs = zip(self._names, values, strict=True)
        return tuple([named_signature(f"argument {name!r}", value) for name, value in pairs])

    def _first_call(
        self, key: tuple[Any, ...], values: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        try:
            run, slots = self._prepare(key, values)
        except FusionError as error:
            raise error.bare() from error.__cause__
        return self.py_func(*args, **kwargs) if run is None else run(values, slots)

    def _prepare(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Run | None, tuple[Any, ...]]:
        """What answers calls with this key, and the prelude's values of this call; None for the plain function."""
        with self._lock:
            adapter = self._common_adapter(values)
            if adapter is None:
                # The key of a container does not tell what is in it, so the next one must be looked into again.
                if not any(isinstance(value, tuple | list | dict) for value in values):
                    self._make_room(key)
                    self._plans[key] = None
                return None, ()
            variant, slots = self._variant(values)
            self.nout = len(variant.program.results)
            plan = build_plan(variant, self._names, values, slots, adapter, self._options)
            captured = tuple(
                (slot, named_signature(f"captured array {name!r}", slots[slot])) for name, slot in variant.captured
            )
            self._make_room(key)
            entries = self._plans.setdefault(key, [])
            if entries is not None:  # the newest first: it is the likeliest to be asked for again
                entries.insert(0, (variant.prelude, plan.run, captured))
                del entries[64:]
        return plan.run, slots

    def _make_room(self, key: tuple[Any, ...]) -> None:
        """Forget all plans when there are too many: keys keep the functions in them alive."""
        if key not in self._plans and len(self._plans) >= MAX_PLANS:
            self._plans.clear()

    def _common_adapter(self, values: tuple[Any, ...]) -> Adapter | None:
        """The library of the arrays; None if there are no arrays."""
        return common_adapter(self._names, values, self._device, self._kernel_name)

    def explain(self, *args: Any, target: str | None = None, **kwargs: Any) -> Explanation:
        """Show what a call with these arguments compiles to, and launch nothing.

        What Python computes before a launch is computed, as in a call.

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

        Raises
        ------
        FusionTypeError
            If there is no array among the arguments, or they do not fit the parameters.
        FusionValueError
            For an unknown target.
        FusionError
            Whatever the call would raise.

        Examples
        --------
        >>> import numpy as np
        >>> from numfuse import fuse
        >>> f = fuse(lambda x: x * 2 + 1)
        >>> "float32" in f.explain(np.ones(3, np.float32)).kernel
        True
        """
        from numfuse.tools.explain import explain

        needed = required(inspect.signature(self.py_func))
        if needed and not args and not kwargs:
            raise FusionTypeError(
                f"explain() takes the arguments of a call: {self._label}.explain({', '.join(needed)})"
            )
        values = self._bind(args, kwargs)
        self._sign(values)  # refuses what a call would refuse
        try:
            adapter = self._common_adapter(values)
            if adapter is None:
                raise FusionTypeError("explain() needs at least one array: without one there is no kernel")
            with self._lock:
                variant, slots = self._variant(values)
                self.nout = len(variant.program.results)
            return explain(variant, self._names, values, slots, adapter, self._options, target, self.py_func)
        except FusionError as error:
            raise error.bare() from error.__cause__
