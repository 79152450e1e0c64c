"""Python text -> one function body with no calls left but operations."""

from __future__ import annotations

from numfuse.frontend.binding import Kind, Static
from numfuse.frontend.frames import in_element_frame, is_host_call, is_synthetic, loc_of, static_of
from numfuse.frontend.inline import Inlined, inline
from numfuse.frontend.scope import Capture, Guard

__all__ = [
    "Capture",
    "Guard",
    "Inlined",
    "Kind",
    "Static",
    "in_element_frame",
    "inline",
    "is_host_call",
    "is_synthetic",
    "loc_of",
    "static_of",
]
