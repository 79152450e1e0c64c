"""The examples and the benchmark run as a user runs them, on small inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ArrayKind

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *arguments: str, warnings: str = "error") -> str:
    """Run a script of the checkout, and give what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", warnings, str(ROOT / script), *arguments],
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_photo(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    target = tmp_path / "graded.png"
    text = run("examples/photo.py", "--device", "numpy", "--runs", "1", "--output", str(target))
    assert re.search(r"^kernels +1\b", text, re.MULTILINE), text
    steps = re.search(r"^difference +at most (\d+) of 255", text, re.MULTILINE)
    assert steps is not None, text
    assert int(steps[1]) <= 1
    with image.open(target) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (600, 512 + 12 + 512, 3)
    before, after = pixels[:, :512], pixels[:, -512:]
    assert 10 < np.abs(before.astype(int) - after).mean() < 100


def test_photo_of_any_file(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    source, target = tmp_path / "ramp.png", tmp_path / "graded.png"
    ramp = np.linspace(0, 255, 40 * 30 * 3).astype(np.uint8).reshape(30, 40, 3)
    image.fromarray(ramp).save(source)
    text = run("examples/photo.py", str(source), "--device", "numpy", "--runs", "1", "--output", str(target))
    assert "40 x 30" in text
    assert target.exists()


def test_compose() -> None:
    text = run("examples/compose.py", "--device", "numpy", "--size", "24")
    assert text.count("equal to the plain function") == 3
    assert "nothing compiled" in text


def test_against_numba() -> None:
    text = run("examples/against_numba.py", "--device", "numpy", "--size", "1000", "--runs", "1")
    rows = {line[:20].strip(): line[20:].split() for line in text.splitlines() if " % " in line}
    assert rows["numfuse"][1:3] == ["float32", "100.0"]
    assert rows["NumPy"][1:3] == ["float32", "100.0"]
    assert int(rows["numfuse"][0]) < int(rows["numba.njit, loop"][0])


def test_benchmark() -> None:
    arguments = ("--device", "cpu", "--size", "1024", "--rounds", "1", "--only", "x*row", "--no-file")
    text = run("benchmarks/run.py", *arguments)
    row = next(line for line in text.splitlines() if line.startswith("x*row+x"))
    assert re.match(r"x\*row\+x +\d+\.\d{3}", row), text


@pytest.mark.gpu
def test_examples_on_the_gpu(device_kind: ArrayKind, tmp_path: Path) -> None:
    # The array libraries warn about things of their own.
    def run_there(script: str, *arguments: str) -> str:
        return run(script, "--device", device_kind.name, *arguments, warnings="default")

    text = run_there("examples/photo.py", "--runs", "1", "--output", str(tmp_path / "graded.png"))
    assert re.search(r"^kernels +1\b", text, re.MULTILINE), text
    assert "equal to the plain function" in run_there("examples/compose.py", "--size", "24")
    assert "numba.cuda.jit" in run_there("examples/against_numba.py", "--size", "1000", "--runs", "1")
