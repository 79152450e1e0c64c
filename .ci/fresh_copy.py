"""Copy the checkout to a new folder: what git tracks or would track, or everything where git is not there."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def listed_by_git() -> list[str] | None:
    """Tracked and untracked-but-not-ignored files, or None outside a repository or without git."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listing.decode().split("\0") if name]


def copy_to(target: Path) -> None:
    """Copy to `target`, which must not exist."""
    names = listed_by_git()
    if names is None:
        leave = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, target, ignore=leave)
        return
    for name in names:
        source, copy = ROOT / name, target / name
        if source.is_file():  # a tracked file may be deleted in the working tree
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


if __name__ == "__main__":
    copy_to(Path(sys.argv[1]))
