"""The compiler on one page: from a Python function to a kernel, pass by pass.

1.  **inline** (frontend/inline.py). The function and every helper it calls become one Python function
    without calls other than operations. First, because names, defaults and scopes only mean something in
    Python's own tree, and because this is the text that a person wants to see.
2.  **lower** (frontend/lower.py). Names, loops' exits and branches become structured SSA; whatever Python
    has at each call goes to the host prelude. Before types, since it also decides which conditions are the
    host's, and so which code there is to type.
3.  **types** (passes/types.py). NumPy is asked for every operation; conversions are written out. Before
    everything that compares nodes: two equal operations in different dtypes are different.
4.  **common subexpressions, dead code** (passes/simplify.py). After types have added their conversions.
    Before shapes, so that an array nobody needs does not take part in any shape.
5.  **shapes and variance** (passes/shapes.py). On what each value depends.

That much depends on the dtypes of a call and is a :class:`Variant`. The rest depends on the layout:

6.  **stages** (passes/stages.py). Results of one concrete shape share a loop nest.
7.  **emit** (backends/emit.py). A stage becomes the text of a scalar function, the same for both targets.
8.  **kernel text, machine code** (backends/cpu_kernels.py and cpu.py, cuda_kernels.py and cuda.py), kept by
    content (cache.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from numfuse.arrays import is_array
from numfuse.backends.element import ElementFunction
from numfuse.backends.emit import emit, usable
from numfuse.body import Program, Value
from numfuse.dtypes.rules import NumpyRules, Rules
from numfuse.errors import Loc
from numfuse.frontend.binding import Kind, Static
from numfuse.frontend.inline import Inlined, inline
from numfuse.frontend.lower import Lowered, Parameter, lower
from numfuse.frontend.lower_calls import is_lowered
from numfuse.frontend.lower_values import ArrayParameter
from numfuse.frontend.prelude import Prelude
from numfuse.passes.shapes import annotate
from numfuse.passes.simplify import common_subexpressions, dead_code
from numfuse.passes.stages import Stage, partition
from numfuse.passes.types import infer

NUMPY_RULES = NumpyRules()


@dataclass(eq=False)
class Variant:
    """A function lowered and typed for arguments of certain dtypes, and for certain host decisions."""

    inlined: Inlined
    lowered: Lowered
    program: Program
    prelude: Prelude
    prelude_source: str
    captured: tuple[tuple[str, int], ...]  # buffers that are captured arrays, and their slots
    elements: dict[tuple[tuple[int, ...], ...], tuple[tuple[Stage, ElementFunction], ...]] = field(default_factory=dict)
    kernels: dict[object, object] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    host_values: tuple[object, ...] = ()

    def take_host_values(self) -> tuple[object, ...]:
        """The prelude's values of the call that was lowered, once: the variant must not keep its arrays alive."""
        values, self.host_values = self.host_values, ()
        return values

    def stages(self, groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[Stage, ElementFunction], ...]:
        """The stages for results grouped like that, each with its element function."""
        if groups not in self.elements:
            names = {k: host.name for k, host in enumerate(self.lowered.prelude.slots) if host.name}
            stem = self.program.name if self.program.name.isidentifier() else "fused"
            self.elements[groups] = tuple(
                (stage, emit(stage, stem if len(groups) == 1 else f"{stem}_{k}", names))
                for k, stage in enumerate(partition(self.program, groups))
            )
        return self.elements[groups]


def build_variant(
    function: Callable[..., object],
    name: str,
    parameters: Mapping[str, Parameter],
    array_type: Callable[[object, str], np.dtype | None],
    structural_values: Callable[[Loc | None, object], int],
    rules: Rules = NUMPY_RULES,
) -> Variant:
    """Run the passes that depend on the dtypes of a call.

    Parameters
    ----------
    function : callable
        What the user decorated.
    name : str
        The kernel's name.
    parameters : mapping
        What each parameter is in this call: an array, a Python object or something structural.
    array_type : callable
        The dtype of an array of ours, None for any other object; raises the user's error, given the name, for
        an array that can't be used.
    structural_values : callable
        See :func:`numfuse.frontend.lower.lower`.
    rules : Rules
        Promotion rules of the arrays' library.

    Raises
    ------
    FusionError
        What can't be fused, and where. Python's own exceptions come through where Python itself computes.
    """
    kinds = {key: _kind(parameter) for key, parameter in parameters.items()}
    inlined = inline(
        function,
        kinds,
        is_array=is_array,
        operation=is_lowered,
    )
    lowered = lower(inlined, parameters, array_type, structural_values)
    program, guards = infer(lowered.program, rules, lowered.host_values)
    program = dead_code(common_subexpressions(program))
    program = annotate(program)
    writer = lowered.prelude
    for guard in guards:
        writer.within(writer.slots[guard.slot], guard.low, guard.high)
    prelude, source = writer.build(name), writer.source()
    host_values = lowered.host_values
    for host in writer.slots:
        host.value = None
    return Variant(
        inlined=inlined,
        lowered=replace(lowered, host_values=()),
        program=Program(
            usable(name), program.buffers, program.block, program.results, program.structure, program.host_slots
        ),
        prelude=prelude,
        prelude_source=source,
        host_values=host_values,
        captured=tuple(lowered.captured_arrays.items()),
    )


def array_parameter(array: object, dtype: np.dtype) -> ArrayParameter:
    """A parameter that is an array of this dtype."""
    return ArrayParameter(array, Value(-1, dtype))


def _kind(parameter: Parameter) -> Kind | Static:
    if isinstance(parameter, Static):
        return parameter
    return Kind.ELEMENT if isinstance(parameter, ArrayParameter) else Kind.HOST
