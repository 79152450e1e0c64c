"""The operation table: what ``np.sin``, ``math.sin``, ``cupy.sin``, the operator ``+`` and ``x.clip`` mean.

One row an operation (:class:`Row`): its dtypes (asked of NumPy), its scalar implementation as Python text,
how exact it is. A spelling (:class:`Spelling`) is one way to write it. To add an operation: a row in its
family's file, its scalar implementation in :mod:`numfuse.mathlib` unless an operator of Numba has NumPy's
meaning, and a name in ``libraries.py`` where a library calls it something else than NumPy.
"""

from numfuse.ops.advice import advice, advice_builtin, advice_method, method_error
from numfuse.ops.casts import cast_expression, literal
from numfuse.ops.libraries import CONSTANT_MODULES, PACKAGES
from numfuse.ops.names import find, is_operation, method
from numfuse.ops.rules import DTYPES, Expression, Loop, Row
from numfuse.ops.spelling import Spelling, arrange, binary_operator, comparison, unary_operator
from numfuse.ops.table import expression, row, rows

__all__ = [
    "CONSTANT_MODULES",
    "DTYPES",
    "PACKAGES",
    "Expression",
    "Loop",
    "Row",
    "Spelling",
    "advice",
    "advice_builtin",
    "advice_method",
    "arrange",
    "binary_operator",
    "cast_expression",
    "comparison",
    "expression",
    "find",
    "is_operation",
    "literal",
    "method",
    "method_error",
    "row",
    "rows",
    "unary_operator",
]
