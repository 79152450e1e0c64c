"""Arrays of all libraries, as kernels see them: adapters, layout, broadcasting, overlap."""

from numfuse.arrays.adapter import Adapter, ArrayInfo, Refusal, Signature
from numfuse.arrays.layout import (
    Layout,
    dense_strides,
    index_bits,
    nest_layout,
    output_order,
)
from numfuse.arrays.lookup import adapter_of, common_adapter, is_array
from numfuse.arrays.overlap import overlap, overlaps_itself

__all__ = [
    "Adapter",
    "ArrayInfo",
    "Layout",
    "Refusal",
    "Signature",
    "adapter_of",
    "common_adapter",
    "dense_strides",
    "index_bits",
    "is_array",
    "nest_layout",
    "output_order",
    "overlap",
    "overlaps_itself",
]
