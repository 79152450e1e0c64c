"""The disk cache: compiled code by a hash of everything that it depends on, so a stale answer is impossible.

Entries lie in ``NUMFUSE_CACHE_DIR``, else in ``numfuse`` under the user's cache folder (``XDG_CACHE_HOME`` or
``~/.cache``; ``~/Library/Caches`` on macOS; ``%LOCALAPPDATA%`` on Windows). ``NUMFUSE_CACHE=0`` switches it
off. Code that is loaded runs with the user's rights: a folder that somebody else owns or may write to is
refused.

A folder that cannot be written, a full disk or a damaged entry costs a compilation, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import stat
import sys
import tempfile
import warnings
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["directory", "enabled", "fingerprint", "key", "load", "safe_directory", "store"]

_FORMAT = b"numfuse cache 1\n"
# Whose sources decide what a kernel's text compiles to, and the packages that compile it: for a GPU also those
# that hold NVVM, libdevice and nvJitLink, of CUDA 12 and 13.
_SOURCES = ("backends", "mathlib", "ops")
_PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "cuda-bindings",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12",
)

_refused: set[str] = set()  # folders that were warned about


def enabled() -> bool:
    """Whether ``NUMFUSE_CACHE`` leaves the disk cache on."""
    return os.environ.get("NUMFUSE_CACHE", "1").strip().lower() not in ("0", "off", "false", "no")


def directory() -> Path:
    """The cache folder, which need not exist."""
    chosen = os.environ.get("NUMFUSE_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base).absolute() / "numfuse"


def key(*parts: object) -> str:
    """A hash of `parts` by their ``repr``, or their bytes; different parts give different keys.

    Examples
    --------
    >>> key("text", (9, 0)) == key("text", (9, 0)), key("ab", "c") == key("a", "bc")
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """A hash of numfuse's own sources that decide about compiled code, and the versions of what compiles it.

    Imports none of those packages.
    """
    root = Path(__file__).parent
    parts: list[object] = [sys.implementation.cache_tag, platform.machine()]
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            parts += [path.relative_to(root).as_posix(), path.read_bytes()]
    for package in _PACKAGES:
        try:
            parts += [package, metadata.version(package)]
        except metadata.PackageNotFoundError:
            parts += [package, None]
    return key(*parts)


def safe_directory(create: bool) -> Path | None:
    """The cache folder if it may be used; a warning, once, if others could have put code into it."""
    if not enabled():
        return None
    folder = directory()
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    if hasattr(os, "geteuid"):
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid != os.geteuid() or others:
            why = "other users can write to it" if others else "another user owns it"
            if str(folder) not in _refused:
                _refused.add(str(folder))
                warnings.warn(
                    f"the numfuse cache folder {folder} is not used because {why}; kernels are compiled "
                    "afresh in each process. Set NUMFUSE_CACHE_DIR to a folder of your own (chmod 700), or "
                    "NUMFUSE_CACHE=0",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return None
    return folder


def load(key: str, kind: str) -> tuple[bytes, dict[str, Any]] | None:
    """What was stored under `key`, or None.

    Parameters
    ----------
    key : str
        From :func:`key`.
    kind : str
        What kind of code it is, such as ``"cubin"``; part of the file's name.

    Returns
    -------
    (bytes, dict) or None
        The payload and its description. A damaged entry is removed and counts as missing.
    """
    folder = safe_directory(create=False)
    if folder is None:
        return None
    path = folder / f"{key}.{kind}"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    found = _decode(data)
    if found is None:
        with contextlib.suppress(OSError):
            path.unlink()
    return found


def store(key: str, kind: str, payload: bytes, info: dict[str, Any]) -> bool:
    """Store `payload` and its description, which JSON can write; whether that worked.

    Another process sees the whole entry or none of it.
    """
    folder = safe_directory(create=True)
    if folder is None:
        return False
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{key[:16]}-", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encode(payload, info))
        os.replace(temporary, folder / f"{key}.{kind}")
    except OSError:  # read-only, full, or removed under our feet
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def _encode(payload: bytes, info: dict[str, Any]) -> bytes:
    header = json.dumps(info, sort_keys=True).encode()
    checksum = key(header, payload).encode()
    return b"".join([_FORMAT, checksum, b" %d\n" % len(header), header, b"\n", payload])


def _decode(data: bytes) -> tuple[bytes, dict[str, Any]] | None:
    try:
        if not data.startswith(_FORMAT):
            return None
        first, _, rest = data[len(_FORMAT) :].partition(b"\n")
        checksum, size = first.split(b" ")
        header, payload = rest[: int(size)], rest[int(size) + 1 :]
        if key(header, payload).encode() != checksum:
            return None
        info = json.loads(header)
    except ValueError:
        return None
    return (payload, info) if isinstance(info, dict) else None
