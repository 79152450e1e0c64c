"""The lowered variants of one fused function: found, or made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numfuse.errors import FusionError, FusionRecursionError, Loc
from numfuse.frontend.binding import Static
from numfuse.frontend.lower import Parameter
from numfuse.frontend.lower_expressions import STRUCTURAL_VALUES
from numfuse.keys import array_dtype, is_receiver, kind_key, parameter_of, same_dtypes
from numfuse.pipeline import Variant, build_variant

# Sets of dtypes and structural arguments for which a function keeps lowered variants, and how many of each.
MAX_VARIANTS, MAX_ALIKE = 128, 64


class VariantStore:
    """What :class:`numfuse.fused.Fused` knows of its function's variants.

    One lowering serves all calls with the same dtypes and structural arguments whose host decisions fall alike.
    """

    py_func: Callable[..., Any]
    _names: tuple[str, ...]
    _kernel_name: str

    def __init__(self) -> None:
        self._variants: dict[tuple[Any, ...], list[Variant]] = {}
        self._structural: dict[Any, set[Any]] = {}

    def _variant(self, values: tuple[Any, ...]) -> tuple[Variant, tuple[Any, ...]]:
        """The variant for these arguments, and the values of its prelude."""
        parameters = {name: parameter_of(name, value) for name, value in zip(self._names, values, strict=True)}
        kinds = tuple(kind_key(parameter) for parameter in parameters.values())
        full = len(self._variants) >= MAX_VARIANTS
        if full and kinds not in self._variants:  # a new lambda as an argument of each call, say
            self._variants.clear()
        variants = self._variants.setdefault(kinds, [])
        for variant in variants:
            slots = variant.prelude(*values)
            if slots is not None and same_dtypes(variant.captured, slots, variant.program):
                return variant, slots
        variant = self._build(parameters)
        variants.insert(0, variant)
        del variants[MAX_ALIKE:]
        return variant, variant.take_host_values()

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

        try:
            return build(parameters)
        except FusionError as error:
            first = error
        name = self._names[0] if self._names else ""
        receiver = parameters.get(name)
        if not is_receiver(receiver):
            raise first
        try:
            return build({**parameters, name: Static(receiver.value)})
        except FusionError as error:
            second = error
        # The one that got further tells what is really wrong.
        raise second if second.reached() > first.reached() else first

    def _structural_values(self, loc: Loc | None, value: object) -> int:
        seen = self._structural.setdefault(loc, set())
        if len(seen) <= STRUCTURAL_VALUES:  # one more than matters
            seen.add(value)
        return len(seen)
