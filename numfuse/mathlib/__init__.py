"""The scalar library: what NumPy's operations do to one element, at the operand's own width.

Kernels import what they use by name, ``<operation>_<dtype>`` (``floor_divide_int32``, ``exp_float32``), from
:mod:`numfuse.mathlib.cpu` or :mod:`numfuse.mathlib.cuda`. Both build the same definitions on first use: a
definition (``integers.py``, ``floats.py``, ``selection.py``) writes LLVM instructions through an
:class:`~numfuse.mathlib.writer.Writer`, so neither Numba's widening of small integers to 64 bits nor its own
idea of floor division gets in between. They are branch-free, apart from the loop of an integer power, so that
LLVM can turn a loop over them into vector instructions.
"""
