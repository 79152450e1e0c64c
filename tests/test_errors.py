"""What users read when a function can't be fused: the whole text, the exception's kind, and nothing changed."""

from __future__ import annotations

import builtins
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numfuse
from numfuse import FusionError, fuse

X = np.linspace(-1, 2, 7, dtype=np.float32)
BYTES = np.arange(7, dtype=np.int8)
number = 3
settings: dict[str, float] = {}


def place(function: Callable[..., Any], line: str, under: str) -> str:
    """One entry of the chain: the line of a function that has this text, and carets under a part of it."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [k for k, text in enumerate(lines) if line in text]
    code = lines[offset].strip()
    assert code.count(under) == 1
    carets = " " * code.index(under) + "^" * len(under)
    head = f'  File "{__file__}", line {first + offset}, in {function.__qualname__}'
    return f"{head}\n    {code}\n    {carets}"


# --------------------------------------------------------------------------------------------------------
# Functions that can't be fused


def undefined(v):
    return v * undefind_thing  # noqa: F821


def outer_helper(v):
    w = v + 1
    return undefined(w) / 2


def through_helpers(x):
    return np.sqrt(outer_helper(x))


def misspelled(x):
    return np.sqroot(x)


def too_early(x):
    y += x  # noqa: F821
    return y


def down(n):
    return up(n - 1) if n > 0 else n


def up(n):
    return down(n) + 1


def recursive(x):
    return down(x)


def bitwise(x):
    return x + (x & 1)


def shapes(x, y):
    z = x + 1
    return z * y


def in_place_shapes(x, y):
    z = x * 1
    z += y
    return z


def in_place_dtypes(x, y):
    z = x * 1
    z += y
    return z


def index(x):
    return (x, x)[2]


def key(x):
    return x * settings["gain"]


def sometimes(x):
    if x > 0:
        y = 1
    return y


def literal(x):
    return x * 2 + 300


def negative_power(x, n):
    return x**n


def half(x):
    return np.sin(x)


def reduction(x):
    return x - np.sum(x)


def matrix_product(x):
    return x @ x


def comprehension(x):
    return [v for v in (x, x)]


def attempt(x):
    try:
        return x
    except ValueError:
        return -x


def raising(x):
    if x < 0:
        raise ValueError("negative")
    return x


def not_a_function(x):
    return number(x)


def attribute(x):
    return x.wavelength


def loop_over_elements(x):
    total = 0
    for v in x:
        total = total + v
    return total


def keyword(x):
    return outer_helper(x, gain=2)


def mixed(x):
    y = x.shape[0]
    return y if x > 0 else x


def endless(x):
    while True:
        x = x + 1


CASES = {
    "undefined name, through helpers": (
        through_helpers,
        (X,),
        numfuse.FusionNameError,
        "name 'undefind_thing' is not defined; did you mean 'undefined'?",
        [
            (through_helpers, "np.sqrt", "outer_helper(x)"),
            (outer_helper, "undefined(w)", "undefined(w)"),
            (undefined, "return v", "undefind_thing"),
        ],
    ),
    "attribute of a module": (
        misspelled,
        (X,),
        numfuse.FusionAttributeError,
        "np has no attribute 'sqroot'; did you mean 'sqrt'?",
        [(misspelled, "return", "np.sqroot")],
    ),
    "read before it is assigned": (
        too_early,
        (X,),
        numfuse.FusionNameError,
        "local variable 'y' is used before it is assigned",
        [(too_early, "y += x", "y")],
    ),
    "recursion": (
        recursive,
        (X,),
        numfuse.FusionRecursionError,
        "recursion can't be fused: down -> up -> down; write it as a loop",
        [(recursive, "return", "down(x)"), (down, "return", "up(n - 1)"), (up, "return", "down(n)")],
    ),
    "dtypes that NumPy refuses": (
        bitwise,
        (X,),
        numfuse.FusionTypeError,
        "ufunc 'bitwise_and' not supported for the input types, and the inputs could not be safely coerced to any "
        "supported types according to the casting rule ''safe''",
        [(bitwise, "return", "x & 1")],
    ),
    "shapes that do not broadcast": (
        shapes,
        (X, np.ones((3, 4))),
        numfuse.FusionValueError,
        "operands could not be broadcast together with shapes (7,) (3,4)",
        [(shapes, "return", "z * y")],
    ),
    "shapes in place": (
        in_place_shapes,
        (X, np.ones((2, 7), np.float32)),
        numfuse.FusionValueError,
        "non-broadcastable output operand with shape (7,) doesn't match the broadcast shape (2, 7): write a = a + b, "
        "which makes a new array",
        [(in_place_shapes, "z +=", "z += y")],
    ),
    "dtypes in place": (
        in_place_dtypes,
        (BYTES, X),
        numfuse.FusionTypeError,
        "Cannot cast the result from dtype('float32') to dtype('int8') in place with casting rule 'same_kind': write "
        "a = a + b, which makes a new array of the wider dtype",
        [(in_place_dtypes, "z +=", "z += y")],
    ),
    "a constant index": (
        index,
        (X,),
        numfuse.FusionIndexError,
        "index 2 is outside of a tuple of 2",
        [(index, "return", "(x, x)[2]")],
    ),
    "a constant key": (
        key,
        (X,),
        numfuse.FusionKeyError,
        "settings['gain'] does not exist (KeyError: 'gain')",
        [(key, "return", 'settings["gain"]')],
    ),
    "assigned for some elements": (
        sometimes,
        (X,),
        numfuse.FusionNameError,
        "y is assigned on some paths only, and elements that take another one would have no value here: assign it "
        "before the branch or loop",
        [(sometimes, "return", "y")],
    ),
    "a literal out of range": (
        literal,
        (BYTES,),
        numfuse.FusionOverflowError,
        "Python integer 300 out of bounds for int8",
        [(literal, "return", "x * 2 + 300")],
    ),
    "integers to negative powers": (
        negative_power,
        (BYTES, -1),
        numfuse.FusionValueError,
        "Integers to negative integer powers are not allowed.",
        [(negative_power, "return", "x**n")],
    ),
    "a dtype without kernels": (
        half,
        (BYTES,),
        numfuse.FusionNotImplementedError,
        "this gives float16, for which numfuse has no kernels yet: convert an operand first, for instance with "
        ".astype(np.float32)",
        [(half, "return", "np.sin(x)")],
    ),
    "a reduction": (
        reduction,
        (X,),
        numfuse.FusionNotImplementedError,
        "np.sum reduces an array, and reductions come in a later version: compute it before the call and pass it in: "
        "f(x, np.sum(x))",
        [(reduction, "return", "np.sum(x)")],
    ),
    "a matrix product": (
        matrix_product,
        (X,),
        numfuse.FusionNotImplementedError,
        "@ is a matrix product, not an elementwise operation: call it outside the fused function",
        [(matrix_product, "return", "x @ x")],
    ),
    "a construct for later": (
        comprehension,
        (X,),
        numfuse.FusionNotImplementedError,
        "a list comprehension is not supported yet in a fused function: write a `for` loop over the tuple or range, or "
        "name the items one by one",
        [(comprehension, "return", "[v for v in (x, x)]")],
    ),
    "a construct": (
        attempt,
        (X,),
        numfuse.FusionSyntaxError,
        "`try` is not supported in a fused function: test the condition with `if` or np.where instead",
        [(attempt, "try", "try:")],
    ),
    "raise": (
        raising,
        (X,),
        numfuse.FusionSyntaxError,
        "`raise` where elements decide is not supported in a fused "
        "function: test Python's own numbers and strings only; for elements, give np.nan or a mask as a result",
        [(raising, "raise", 'raise ValueError("negative")')],
    ),
    "what is not a function": (
        not_a_function,
        (X,),
        numfuse.FusionTypeError,
        "'int' object is not callable",
        [(not_a_function, "return", "number")],
    ),
    "attribute of an array": (
        attribute,
        (X,),
        numfuse.FusionAttributeError,
        "arrays have no attribute wavelength inside a fused function: dtype, shape, ndim and size can be asked, and "
        "the methods astype and clip called",
        [(attribute, "return", "x.wavelength")],
    ),
    "a loop over elements": (
        loop_over_elements,
        (X,),
        numfuse.FusionTypeError,
        "a loop over an array is not supported: a fused function is applied to all elements at once (loop over "
        "range(...) or a tuple)",
        [(loop_over_elements, "for v", "x")],
    ),
    "a keyword that a helper does not have": (
        keyword,
        (X,),
        numfuse.FusionTypeError,
        "outer_helper() got an unexpected keyword argument 'gain'",
        [(keyword, "return", "outer_helper(x, gain=2)")],
    ),
    "an array's attribute in an element function": (
        mixed,
        (X,),
        numfuse.FusionSyntaxError,
        ".shape of an array inside of a function that is applied element by element (line "
        f"{mixed.__code__.co_firstlineno + 2} needs one element's truth value or number): move that branch into a "
        "helper of its own, which is then applied to the elements",
        [(mixed, "y = ", "x.shape")],
    ),
    "a loop without an end": (
        endless,
        (X,),
        numfuse.FusionSyntaxError,
        "endless() never returns: its loop has no end",
        [(endless, "def", "def endless(x):")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_whole_text(case):
    function, args, kind, message, chain = CASES[case]
    before = [arg.tobytes() for arg in args if isinstance(arg, np.ndarray)]
    fused = fuse(function)
    for _ in range(2):  # a failed call leaves nothing behind that the next one would find
        with pytest.raises(kind) as caught:
            fused(*args)
        assert str(caught.value) == "\n".join([message, *(place(*entry) for entry in chain)])
    assert [arg.tobytes() for arg in args if isinstance(arg, np.ndarray)] == before
    assert isinstance(caught.value, FusionError)
    assert isinstance(caught.value, getattr(builtins, kind.__name__.removeprefix("Fusion")))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (kind, str(caught.value))


def test_every_member_of_the_family_is_reached():
    members = {getattr(numfuse, name) for name in numfuse.__all__ if name.startswith("Fusion")} - {FusionError}
    assert {kind for _, _, kind, _, _ in CASES.values()} == members
