"""The README: its Python runs, its commands can be taken out, its links lead somewhere."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from numfuse import fuse

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
