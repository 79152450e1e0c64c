"""``explain()``: the inlined function, the kernel's text, what the GPU's compiler made of it."""

from __future__ import annotations

import ast
import dataclasses
import math
import os
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from typed_programs import elementwise

from numfuse import FusionTypeError, FusionValueError, fuse

X = np.linspace(-1, 2, 12, dtype=np.float32)
offset = 0.25


def clip01(v):
    """Between 0 and 1."""
    return np.minimum(np.maximum(v, 0), 1)


def luma(r, g, b):
    return 0.25 * r + 0.5 * g + b


def grade(x, y, gain=1.5):
    a = clip01(x * gain)
    return luma(a, y, 0.25), np.sqrt(a)


def sign_of(v, zero=0.0):
    if v > 0:
        return 1.0
    if v < 0:
        return -1.0
    return zero


def early(x, y):
    for i in range(4):
        if x > i:
            continue
        if sign_of(y, x) < 0:
            return x * i
    return sign_of(x) + math.floor(y)


def loop(x, n):
    total = x * 0
    for i in range(n):
        total = total + clip01(x - i)
    return total


def defined(text: str, name: str) -> Any:
    """The function that a piece of Python text defines."""
    namespace: dict[str, Any] = {"np": np, "math": math}
    exec(compile(text, "<inlined>", "exec"), namespace)
    return namespace[name]


# --------------------------------------------------------------------------------------------------------
# The inlined function


def test_the_inlined_function_is_the_function():
    explanation = fuse(grade).explain(X, X)
    assert explanation.helpers == ("clip01", "luma")
    assert not any(helper in explanation.inlined for helper in explanation.helpers)
    found = defined(explanation.inlined, "grade")(X, X, 1.5)
    for one, other in zip(found, grade(X, X), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_branches_and_early_returns_are_valid_python():
    explanation = fuse(early).explain(X, X)
    assert explanation.element_function
    assert explanation.helpers == ("sign_of",)
    assert "sign_of" not in explanation.inlined
    inlined = defined(explanation.inlined, "early")
    y = X[::-1].copy()
    expected = elementwise(early, X, y, dtypes=np.float64)
    np.testing.assert_array_equal(elementwise(inlined, X, y, dtypes=np.float64), expected)


def test_numbers_of_the_call_stay_names():
    explanation = fuse(loop).explain(X, 40)
    assert not explanation.element_function
    inlined = defined(explanation.inlined, "loop")
    np.testing.assert_array_equal(inlined(X, 3), loop(X, 3), strict=True)
    assert "40" not in explanation.inlined


def test_what_python_computes_before_each_launch():
    def f(x, gamma):
        return x * (1 / gamma)

    explanation = fuse(f).explain(X, 2.0)
    assert ast.parse(explanation.prelude)
    assert "1 / gamma" in explanation.prelude
    assert "1 / gamma" in explanation.inlined


def test_the_host_section_is_written_for_reading():
    settings = types.SimpleNamespace(gain=2.0, table={"k": 1.5})
    factor = 3.0

    def f(x, gamma, n=3):
        y = clip01(x * (1 / gamma)) + settings.gain * settings.table["k"]
        for _ in range(n):
            y = y * factor
        if gamma != 0 and not n > 5:
            y = y + offset
        return y**n, math.sqrt(gamma) + n**2

    explanation = fuse(f).explain(X, 2.0)
    assert (
        explanation.prelude
        == """\
def prelude(x, gamma, n):
    # Checked first: the functions that it uses are the same ones.
    # Holds for calls with range(0, n, 1).
    # Holds for calls with n == 3.
    # Holds for calls with gamma != 0.
    # Holds for calls with not n > 5.
    return (1 / gamma, settings.gain * settings.table['k'], factor, offset, math.sqrt(gamma) + n ** 2)
"""
    )
    assert explanation.prelude in str(explanation)
    simple = fuse(lambda x, y: x + y).explain(X, X).prelude
    assert [line for line in simple.split("\n") if "#" not in line] == ["def prelude(x, y):", "    return ()", ""]


def test_what_the_host_needs_twice_stays_a_variable():
    def f(x, n):
        k = math.sqrt(n) + 1
        return x * k, x + k / 2

    text = fuse(f).explain(X, 2.0).prelude
    (line,) = [line for line in text.split("\n") if "sqrt" in line]
    name, value = line.strip().split(" = ")
    assert value == "math.sqrt(n) + 1"
    assert f"return ({name}, {name} / 2)" in text


# --------------------------------------------------------------------------------------------------------
# Its text form


def test_the_sections():
    explanation = fuse(grade).explain(X, X)
    text = str(explanation)
    first, second, *_ = text.split("\n")
    assert first == "grade: an array function, 1 launch a call on the CPU"
    assert second == "inlined helpers: clip01, luma"
    titles = [line for line in text.split("\n") if line.startswith("---- ")]
    assert titles == ["---- inlined", "---- on the host, before each launch", "---- kernel"]
    for part in (explanation.inlined, explanation.prelude, explanation.kernel):
        assert part.rstrip() in text
    assert explanation.ptx == ""
    assert not explanation.counts
    assert "ptx" not in repr(explanation)
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.kernel = ""


def test_words_of_the_first_lines():
    def shapes(x, y, z):
        return x + 1, y * 2, z - 1

    text = str(fuse(shapes).explain(X, X[:3], X[:4]))
    assert text.startswith("shapes: an array function, 3 launches a call on the CPU\ninlined helpers: none\n")
    text = str(fuse(name="my kernel")(early).explain(X, X))
    assert text.startswith("my_kernel: an element function, 1 launch a call on the CPU\ninlined helpers: sign_of\n")


def test_empty_arrays_have_no_kernel():
    explanation = fuse(grade).explain(X[:0], X[:0])
    assert explanation.kernel == "# nothing to compute: the arrays are empty\n"
    assert (explanation.launches, explanation.ptx) == (0, "")


def test_refusals():
    fused = fuse(grade)
    with pytest.raises(FusionValueError, match=r"^target='tpu': it is None \(where the arrays are\), 'cpu' or 'cuda'$"):
        fused.explain(X, X, target="tpu")
    with pytest.raises(FusionTypeError, match=r"^explain\(\) needs at least one array"):
        fused.explain(1.0, 2.0)
    with pytest.raises(FusionTypeError, match=r"^explain\(\) takes the arguments of a call: grade\.explain\(x, y\)$"):
        fused.explain()
    with pytest.raises(FusionTypeError, match=r"^grade\(\): missing a required argument: 'y'"):
        fused.explain(X)


# --------------------------------------------------------------------------------------------------------
# The kernel for the CPU


def test_the_text_for_the_cpu():
    explanation = fuse(grade).explain(X, X)
    assert explanation.target == "cpu"
    module = ast.parse(explanation.kernel)
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    assert set(functions) == {"grade", "grade_kernel"}
    for node in functions.values():
        assert "njit(error_model='numpy'" in ast.unparse(node.decorator_list[0])
    assert [a.arg for a in functions["grade"].args.args] == ["x", "y", "gain"]
    assert any(isinstance(node, ast.For) for node in ast.walk(functions["grade_kernel"]))
    assert "float64" not in explanation.kernel


def test_explaining_runs_and_compiles_nothing(tmp_path):
    script = tmp_path / "explained.py"
    script.write_text("""
import sys
import numpy as np
from numfuse import fuse
f = fuse(lambda x, n: x * n + 1)
x = np.ones(5, np.float32)
assert "njit" in f.explain(x, 2.0).kernel
assert not f._plans and f.nout == 1
f.explain(x, 3.0)
assert sum(map(len, f._variants.values())) == 1
print("llvmlite" in sys.modules, (x == 1).all())
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr


def test_kernels_depend_on_dtypes_and_layout():
    fused = fuse(lambda x, y: x * y + 1)
    double = fused.explain(X.astype(np.float64), X.astype(np.float64)).kernel
    assert "float64" in double
    assert "float32" not in double
    flat, strided = fused.explain(X, X).kernel, fused.explain(X[::2], X[::2]).kernel
    assert flat != strided
    assert fused.explain(X[:5], X[:5]).kernel == flat


# --------------------------------------------------------------------------------------------------------
# The kernel for a GPU (compiled here for compute capability 9.0; nothing is launched)


@pytest.fixture(scope="module")
def on_gpu() -> Any:
    return fuse(grade).explain(X, X, target="cuda")


@pytest.mark.cuda_compile
def test_the_text_for_a_gpu_is_a_cuda_jit_kernel_with_a_grid_stride_loop(on_gpu):
    module = ast.parse(on_gpu.kernel)
    compile(on_gpu.kernel, "<kernel>", "exec")
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    decorators = {node.name: ast.unparse(node.decorator_list[0]) for node in functions}
    (kernel,) = [node for node in functions if decorators[node.name] == "cuda.jit"]
    assert kernel.name == "grade"
    (device,) = [name for name, text in decorators.items() if text == "cuda.jit(device=True, forceinline=True)"]
    assert device != kernel.name
    text = ast.unparse(kernel)
    for name in ("cuda.threadIdx.x", "cuda.blockIdx.x", "cuda.blockDim.x", "cuda.gridDim.x"):
        assert name in text
    loops = [node for node in ast.walk(kernel) if isinstance(node, ast.While)]
    assert loops
    assert all("+" in ast.unparse(loop.body[-1]) for loop in loops)  # each ends with its step
    assert "blocks * threads" in text


@pytest.mark.cuda_compile
def test_the_same_element_function_serves_both_targets(on_gpu):
    def body(text: str, argument: str) -> list[str]:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        (found,) = [node for node in functions if node.args.args[0].arg == argument]
        return [ast.unparse(statement) for statement in found.body]

    assert body(on_gpu.kernel, "x") == body(fuse(grade).explain(X, X).kernel, "x")


@pytest.mark.cuda_compile
def test_the_counts_of_a_float32_kernel(on_gpu):
    counts = on_gpu.counts
    assert (counts["loads_16_bytes"], counts["stores_16_bytes"]) == (2, 2)
    assert (counts["f64"], counts["calls"], counts["entries"], counts["divisions_64_bit"]) == (0, 0, 1, 0)
    assert counts["fma"] > 0
    assert ".entry grade" in on_gpu.ptx
    assert "ld.global.nc.v4" in on_gpu.ptx or "ld.global.v4" in on_gpu.ptx
    assert "st.global.v4" in on_gpu.ptx
    assert ".f64" not in on_gpu.ptx


@pytest.mark.cuda_compile
def test_the_text_form_of_a_gpu(on_gpu):
    assert on_gpu.target == "cuda"
    text = str(on_gpu)
    assert text.startswith("grade: an array function, 1 launch a call on the ")
    titles = [line for line in text.split("\n") if line.startswith("---- ")]
    assert titles == ["---- inlined", "---- on the host, before each launch", "---- kernel", "---- PTX"]
    assert "loads_16_bytes: 2\n" in text
    assert ".version" not in text  # the PTX itself is long: take it from `ptx`


@pytest.mark.cuda_compile
def test_an_exact_kernel_contracts_nothing():
    explanation = fuse(exact=True)(grade).explain(X, X, target="cuda")
    assert "fma.rn.f32" not in explanation.ptx.split("sqrt", 1)[0]
    fast = fuse(grade).explain(X, X, target="cuda")
    assert explanation.counts["fma"] < fast.counts["fma"]


@pytest.mark.cuda_compile
def test_results_of_several_shapes_are_one_launch():
    def shapes(x, y):
        return x + 1, (x > 0) & (y > 0), y * 2

    x, y = X.astype(np.int16), X[:3, None].astype(np.float64)
    explanation = fuse(shapes).explain(x, y, target="cuda")
    assert explanation.launches == explanation.counts["entries"] == 1
    assert fuse(shapes).explain(x, y).launches == 3
    assert str(explanation).startswith("shapes: an array function, 1 launch a call")
