"""The disk cache: what is stored comes back or counts as missing; never something else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from numfuse import cache

KEY = cache.key("entry")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMFUSE_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.delenv("NUMFUSE_CACHE", raising=False)
    monkeypatch.setattr(cache, "_refused", set())
    return tmp_path / "kernels"


def test_round_trip(folder):
    assert cache.load(KEY, "cubin") is None
    assert not folder.exists()  # asking creates nothing
    payload, info = bytes(range(256)) * 5, {"entry": "f", "counts": {"fma": 3}}
    assert cache.store(KEY, "cubin", payload, info)
    assert cache.load(KEY, "cubin") == (payload, info)
    assert cache.load(KEY, "object") is None
    assert cache.load(cache.key("other"), "cubin") is None
    assert cache.store(KEY, "cubin", b"", {})
    assert cache.load(KEY, "cubin") == (b"", {})
    assert len(list(folder.iterdir())) == 1  # no temporary files


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX systems")
def test_the_folder_is_the_users_own(folder):
    cache.store(KEY, "cubin", b"code", {})
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "header", "not_json", "text"])
def test_damaged_entries_are_removed(folder, damage):
    cache.store(KEY, "cubin", b"code" * 100, {"entry": "f"})
    (path,) = folder.iterdir()
    data = path.read_bytes()
    damaged = {
        "truncate": data[:-7],
        "flip": data[:-1] + bytes([data[-1] ^ 1]),
        "empty": b"",
        "header": data.replace(b'"f"', b'"g"'),
        "not_json": cache._FORMAT + cache.key(b"[1", b"x").encode() + b" 2\n[1\nx",
        "text": b"numfuse cache 1\nno checksum at all",
    }[damage]
    assert damaged != data
    path.write_bytes(damaged)
    assert cache.load(KEY, "cubin") is None
    assert not path.exists()
    assert cache.store(KEY, "cubin", b"again", {})
    assert cache.load(KEY, "cubin") == (b"again", {})


def test_keys():
    assert cache.key("ab", "c") != cache.key("a", "bc")
    assert cache.key(1, "1") != cache.key("1", 1)
    assert cache.key((9, 0), True) != cache.key((9, 0), False)
    assert cache.key("x\udc80") == cache.key("x\udc80")  # what a lone surrogate in a string literal leaves
    assert len(cache.key()) == 64


@pytest.mark.parametrize("value", ["0", "off", "False"])
def test_it_can_be_switched_off(folder, monkeypatch, value):
    cache.store(KEY, "cubin", b"code", {})
    monkeypatch.setenv("NUMFUSE_CACHE", value)
    assert cache.load(KEY, "cubin") is None
    assert not cache.store(KEY, "cubin", b"code", {})


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX systems")
def test_a_folder_that_others_can_write_to_is_refused_with_one_warning(folder):
    cache.store(KEY, "cubin", b"code", {})
    folder.chmod(0o770)
    with pytest.warns(RuntimeWarning, match="other users can write to it") as caught:
        assert cache.load(KEY, "cubin") is None
    assert not cache.store(KEY, "cubin", b"code", {})  # a second warning would be an error
    assert len(caught) == 1
    assert "NUMFUSE_CACHE_DIR" in str(caught[0].message)
    folder.chmod(0o750)
    assert cache.load(KEY, "cubin") == (b"code", {})


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX systems")
def test_another_users_folder_is_refused(folder, monkeypatch):
    cache.store(KEY, "cubin", b"code", {})
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="another user owns it"):
        assert cache.load(KEY, "cubin") is None


def test_a_folder_that_cannot_be_made_or_written_costs_nothing_else(folder, monkeypatch):
    folder.write_bytes(b"a file in the way")
    assert not cache.store(KEY, "cubin", b"code", {})
    assert cache.load(KEY, "cubin") is None
    folder.unlink()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not cache.store(KEY, "cubin", b"code", {})
    assert list(folder.iterdir()) == []


def test_many_writers_leave_one_whole_entry(folder):
    payloads = [bytes([k]) * 20000 for k in range(8)]
    threads = [threading.Thread(target=cache.store, args=(KEY, "cubin", p, {"k": p[0]})) for p in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    payload, info = cache.load(KEY, "cubin")
    assert payload == payloads[info["k"]]
    assert len(list(folder.iterdir())) == 1


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMFUSE_CACHE_DIR")
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.directory() == tmp_path / "numfuse"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache.directory() == tmp_path / ".cache" / "numfuse"


def test_fingerprint_is_stable_and_imports_no_compiler():
    code = (
        "import sys; from numfuse import cache; print(cache.fingerprint()); "
        "sys.exit(bool({'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules)))"
    )
    path = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == cache.fingerprint()


def test_fingerprint_follows_sources_and_versions(monkeypatch, tmp_path):
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    compute = cache.fingerprint.__wrapped__
    seen = {compute(), compute()}
    (tmp_path / "backends" / "one.py").write_text("a = 2\n")
    seen.add(compute())
    monkeypatch.setattr(cache.metadata, "version", lambda package: "0")
    seen.add(compute())
    assert len(seen) == 3
