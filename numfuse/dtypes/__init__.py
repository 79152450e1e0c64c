"""Which dtype each operation computes in and gives, by the rules of the arrays' library."""

from numfuse.dtypes.rules import NumpyRules, Resolution, Rules, dtype_of, host_type

__all__ = ["NumpyRules", "Resolution", "Rules", "dtype_of", "host_type"]
