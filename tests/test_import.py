"""``import numfuse`` is light: NumPy and nothing else that is large."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numfuse

ROOT = Path(__file__).resolve().parent.parent

# Modules that a .pth file loads at start-up are not numfuse's doing, hence the difference.
PROBE = """
import json, sys
before = set(sys.modules)
import numfuse
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""

COMPILERS = {"numba", "numba_cuda", "llvmlite", "cuda"}
ARRAY_LIBRARIES = {"cupy", "torch", "jax", "dask", "xarray", "scipy", "pandas"}


def test_import_loads_no_compiler_and_no_array_library_but_numpy() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(json.loads(run.stdout))
    assert {"numfuse", "numpy"} <= loaded
    assert not loaded & (COMPILERS | ARRAY_LIBRARIES)


def test_version_is_the_one_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert numfuse.__version__ == project["version"]


def test_changelog_has_an_entry_for_the_version() -> None:
    assert f"## [{numfuse.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_package_is_marked_as_typed() -> None:
    assert Path(numfuse.__file__).with_name("py.typed").exists()


def test_public_names_exist() -> None:
    assert "fuse" in numfuse.__all__
    for name in numfuse.__all__:
        assert getattr(numfuse, name) is not None
