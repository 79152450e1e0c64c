"""Lowering of attributes and subscripts: of what Python has, of tuples, and of arrays."""

from __future__ import annotations

import ast
import operator

from numfuse.errors import (
    FusionAttributeError,
    FusionIndexError,
    FusionNotImplementedError,
    FusionTypeError,
    Loc,
)
from numfuse.frontend.binding import Static
from numfuse.frontend.frames import loc_of
from numfuse.frontend.lower_expressions import ExpressionLowering
from numfuse.frontend.lower_values import Abstract, Device, TupleValue
from numfuse.frontend.prelude import Host


class AccessLowering(ExpressionLowering):
    """``a.b`` and ``a[b]``."""

    def _attribute(self, node: ast.Attribute) -> Abstract:
        return self.attribute_of(self.expr(node.value), node)

    def attribute_of(self, base: Abstract, node: ast.Attribute) -> Abstract:
        """An attribute of a value that has been lowered already."""
        name = node.attr
        if isinstance(base, Static):  # the class stays the same, its attributes may not
            base = Host(self.prelude.bind(base.value), base.value)
        if isinstance(base, Host):
            return self.prelude.compute(f"{{}}.{name}", [base], operator.attrgetter(name), may_fail=self.depth > 0)
        if isinstance(base, Device):
            return self._array_attribute(base, name, loc_of(node))
        raise FusionAttributeError(f"a tuple has no attribute {name}", loc_of(node))

    def _array_attribute(self, base: Device, name: str, loc: Loc | None) -> Abstract:
        if name in ("dtype", "shape", "ndim", "size"):
            if base.origin is None:
                raise FusionNotImplementedError(
                    f".{name} of a computed value is not there yet: ask an argument of the function", loc
                )
            if name == "dtype":  # part of the key, hence the same in every call of this lowering
                return self.prelude.static(self.dtypes[base.origin])
            array = self.arrays[base.origin]
            return self.prelude.evaluate(f"{self.codes[base.origin]}.{name}", getattr(array, name))
        if name in ("T", "mT", "real", "imag", "flat"):
            raise FusionNotImplementedError(f".{name} is not there yet: pass that view as an argument", loc)
        raise FusionAttributeError(
            f"arrays have no attribute {name} inside a fused function: dtype, shape, ndim and size can be "
            f"asked, and the methods astype and clip called",
            loc,
        )

    def _subscript(self, node: ast.Subscript) -> Abstract:
        base = self.expr(node.value)
        loc = loc_of(node)
        if isinstance(base, Device):
            raise FusionNotImplementedError(
                "indexing an array inside a fused function is not there yet: pass the view as an argument, "
                "for instance f(x[1:], x[:-1])",
                loc,
            )
        index = self._slice(node.slice) if isinstance(node.slice, ast.Slice) else self.expr(node.slice)
        if not isinstance(index, Host):
            raise FusionTypeError(
                "an index computed from elements needs a table in memory, which is not there yet: choose "
                "with np.where or if",
                loc,
            )
        if isinstance(base, TupleValue):
            position = self.prelude.pin(index)
            try:
                chosen = base.items[position]
            except IndexError as error:
                raise FusionIndexError(f"{error}: the tuple has {len(base.items)} items", loc) from None
            return base.with_items(chosen) if isinstance(chosen, tuple) else chosen
        host = self.as_host(base)
        if not isinstance(host, Host):
            raise FusionTypeError("this can't be indexed", loc)
        return self.prelude.compute("{}[{}]", [host, index], operator.getitem, may_fail=self.depth > 0)

    def _slice(self, node: ast.Slice) -> Host:
        parts = []
        for part in (node.lower, node.upper, node.step):
            value = self.prelude.static(None) if part is None else self.expr(part)
            if not isinstance(value, Host):
                raise FusionTypeError("a slice needs bounds that Python has", loc_of(node))
            parts.append(self.prelude.pin(value))
        return self.prelude.static(slice(*parts))
