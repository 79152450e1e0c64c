"""The README: its Python runs, its commands can be taken out, its links lead somewhere."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numfuse import fuse, ops

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run_in_order(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for shown in re.findall(r"^```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        assert without_places(shown) in without_places(run.stdout)


def without_places(text: str) -> str:
    """The text of an error without its file names and line numbers."""
    return re.sub(r'File ".*?", line \d+', "File", text)


@pytest.mark.parametrize("name", ["demo", "test"])
def test_marked_commands_are_one_line_each(name: str) -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "readme_command.py"), name],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.count("\n") == 1
    assert found.stdout.startswith("python3 -m venv .venv && ")


def test_links_to_files_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_option_of_fuse_is_in_the_table() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    options = {p.name for p in inspect.signature(fuse).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert options <= documented


def test_every_operation_is_listed() -> None:
    (listed,) = re.findall(r"<!-- operations:.*?-->\n(.*?)\n<!-- end of operations -->", README, re.DOTALL)
    own = {"truth", "identity", "select_min", "select_max"}  # what min, bool(x) and the like are made of
    assert re.findall(r"`(\w+)`", listed) == sorted(set(ops.rows()) - own)


def test_every_environment_variable_is_in_the_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "numfuse").rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'environ\.get\("(NUMFUSE_\w+)"', text)}
    assert read == set(re.findall(r"^\| `(NUMFUSE_\w+)` \|", README, re.MULTILINE))


def shown(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a NaN that becomes an integer
        result: list[Any] = fuse(function)(*arguments).tolist()
        return result


def test_what_a_kernel_does_where_python_would_raise() -> None:
    """The paragraph on mistakes that depend on the value of an element."""

    def checked(x: Any) -> Any:
        assert x > 0
        return x * 2

    def quotient(x: Any, a: float, b: float) -> Any:
        return a / b if x > 0 else x

    def sometimes(x: Any) -> Any:
        if x > 0:
            y = x
        return y

    assert shown(checked, np.array([-1.0, 1.0])) == [-2.0, 2.0]
    assert shown(lambda x, n: x**n, np.array([2, 1, -1]), np.array([-1, -1, -2])) == [0, 1, 1]
    assert isinstance(shown(lambda x: int(x), np.array([np.nan]))[0], int)
    assert shown(quotient, np.array([-1.0, 1.0]), 1.0, 0.0) == [-1.0, math.inf]
    with pytest.raises(NameError, match="assigned on some paths only"):
        fuse(sometimes)(np.array([-1.0, 1.0]))


def test_a_range_of_elements_has_turns_of_its_own() -> None:
    def triangle(n: Any) -> Any:
        total = 0
        for i in range(n):
            total += i
        return total

    assert shown(triangle, np.array([1, 5, 10])) == [0, 10, 45]


def test_a_call_without_arrays_is_a_plain_call() -> None:
    fused = fuse(lambda x: x * 2)
    assert fused([1, 2]) == [1, 2, 1, 2]
    assert type(fused(3)) is int
    with pytest.raises(TypeError, match="list"):
        fuse(lambda x, y: x + y)(np.ones(2), [1, 2])
