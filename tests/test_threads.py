"""The thread pool of CPU kernels: what runs where, and that nothing hangs, races or outlives its call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from numfuse.backends import threads
from numfuse.errors import FusionValueError

BIG = 1_000_000  # elements at 1 ns each: 1 ms of work, as far as `run` is told


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    threads.set_threads(4)
    yield
    threads.set_threads(None)


class Recorder:
    """A kernel in Python that notes its pieces, and which thread ran each."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.pieces: list[tuple[int, int, int]] = []

    def __call__(self, address: int, start: int, stop: int) -> None:
        self.pieces.append((start, stop, threading.get_ident()))
        if self.pause:
            time.sleep(self.pause)

    def covers(self, size: int) -> bool:
        """Whether the pieces are exactly 0:size, without overlap."""
        ends = [0]
        for start, stop, _ in sorted(self.pieces):
            if start != ends[-1]:
                return False
            ends.append(stop)
        return ends[-1] == size

    @property
    def idents(self) -> set[int]:
        return {ident for *_, ident in self.pieces}


def test_small_work_stays_in_one_piece_on_this_thread() -> None:
    for size in (0, 1, 1000, 199_999):
        kernel = Recorder()
        threads.run(kernel, 0, size, 1.0)
        assert kernel.pieces == [(0, size, threading.get_ident())]


@pytest.mark.parametrize("size", [200_000, 200_001, BIG, BIG + 63, 10 * BIG + 1])
def test_large_work_is_split(size: int) -> None:
    kernel = Recorder(pause=0.002)
    threads.run(kernel, 0, size, 1.0)
    assert kernel.covers(size)
    assert len(kernel.idents) > 1
    assert len(kernel.pieces) <= 64
    assert all(start % 64 == 0 for start, *_ in kernel.pieces)
    # A piece is worth the trouble of taking it.
    assert all(stop - start >= 49_000 for start, stop, _ in sorted(kernel.pieces)[:-1])


def test_few_dear_elements() -> None:
    kernel = Recorder()
    threads.run(kernel, 0, 10, 1e6)
    assert kernel.covers(10)  # one piece: pieces share no cache line
    kernel = Recorder(pause=0.002)
    threads.run(kernel, 0, 640, 1e4)
    assert kernel.covers(640)
    assert len(kernel.pieces) == 10


def test_address_is_passed_on() -> None:
    seen: list[int] = []
    threads.run(lambda address, start, stop: seen.append(address), 1234, BIG, 1.0)
    assert set(seen) == {1234}


def test_limits() -> None:
    assert threads.get_threads() == 4
    with threads.limit_threads(2):
        assert threads.get_threads() == 2
        with threads.limit_threads(1):
            kernel = Recorder()
            threads.run(kernel, 0, BIG, 1.0)
            assert kernel.pieces == [(0, BIG, threading.get_ident())]
        with threads.limit_threads(9):  # a limit only lowers
            assert threads.get_threads() == 4
        # In this thread only.
        other: list[int] = []
        thread = threading.Thread(target=lambda: other.append(threads.get_threads()))
        thread.start()
        thread.join()
        assert other == [4]
    assert threads.get_threads() == 4
    threads.set_threads(7)
    assert threads.get_threads() == 7


def test_default_is_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMFUSE_THREADS", raising=False)
    threads.set_threads(None)
    expected = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert threads.get_threads() == expected


def test_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMFUSE_THREADS", "3")
    threads.set_threads(None)
    assert threads.get_threads() == 3
    for text in ("0", "many", "-2", "1.5"):
        monkeypatch.setenv("NUMFUSE_THREADS", text)
        threads.set_threads(None)
        with pytest.raises(FusionValueError, match=rf"NUMFUSE_THREADS is '{text}': write a whole number"):
            threads.get_threads()


@pytest.mark.parametrize("n", [0, -1])
def test_bad_numbers(n: int) -> None:
    with pytest.raises(FusionValueError, match=rf"{n} threads: write a whole number, 1 or more"):
        threads.set_threads(n)
    with pytest.raises(FusionValueError, match="whole number"), threads.limit_threads(n):
        pass
    assert threads.get_threads() == 4


def test_an_error_reaches_the_caller_after_all_pieces_ended() -> None:
    running = [0]
    lock = threading.Lock()

    def kernel(address: int, start: int, stop: int) -> None:
        with lock:
            running[0] += 1
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        if start > 0:
            raise ZeroDivisionError(start)

    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            threads.run(kernel, 0, BIG, 1.0)
        assert running == [0]
    kernel_again = Recorder()  # the pool is as good as before
    threads.run(kernel_again, 0, BIG, 1.0)
    assert kernel_again.covers(BIG)


def test_an_interrupt_waits_for_the_helpers() -> None:
    here = threading.get_ident()
    active = []

    def kernel(address: int, start: int, stop: int) -> None:
        if threading.get_ident() == here:
            while not active:  # a helper is at work
                time.sleep(0.001)
            raise KeyboardInterrupt
        active.append(start)
        time.sleep(0.05)
        active.append(stop)

    with pytest.raises(KeyboardInterrupt):
        threads.run(kernel, 0, BIG, 1.0)
    done = len(active)
    assert done % 2 == 0
    time.sleep(0.06)
    assert len(active) == done


def test_helpers_ask_for_no_helpers() -> None:
    inner: list[set[int]] = []
    here = threading.get_ident()

    def kernel(address: int, start: int, stop: int) -> None:
        time.sleep(0.002)
        if threading.get_ident() != here:
            nested = Recorder(pause=0.001)
            threads.run(nested, 0, BIG, 1.0)
            assert nested.pieces == [(0, BIG, threading.get_ident())]
            inner.append(nested.idents)

    threads.run(kernel, 0, 10 * BIG, 1.0)
    assert inner


def test_concurrent_callers() -> None:
    size = 1 << 20
    answers: list[bool] = []

    def call_once() -> bool:
        hits = np.zeros(size, np.uint8)

        def kernel(address: int, start: int, stop: int) -> None:
            hits[start:stop] += 1

        threads.run(kernel, 0, size, 1.0)
        return bool((hits == 1).all())

    def caller() -> None:
        answers.extend(call_once() for _ in range(5))

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert answers == [True] * 40


def test_busy_helpers_delay_nobody() -> None:
    block = threading.Event()
    busy = threading.Event()
    first = threading.get_ident()

    def stuck(address: int, start: int, stop: int) -> None:
        if threading.get_ident() not in (first, holder.ident):
            busy.set()
        block.wait(20)

    holder = threading.Thread(target=lambda: threads.run(stuck, 0, BIG, 1.0))
    holder.start()
    assert busy.wait(10)
    kernel = Recorder()
    began = time.perf_counter()
    threads.run(kernel, 0, BIG, 1.0)
    assert time.perf_counter() - began < 5
    assert kernel.covers(BIG)
    block.set()
    holder.join()


def python(program: str) -> str:
    """What a fresh Python process prints."""
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "NUMFUSE_THREADS": "4"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


PROGRAM = """
    import atexit, os, sys, threading, time
    from numfuse.backends import threads
    pieces = []
    def kernel(address, start, stop):
        pieces.append((start, stop, threading.get_ident()))
        time.sleep(0.002)
    def total():
        pieces.clear()
        threads.run(kernel, 0, 1_000_000, 1.0)
        return sum(stop - start for start, stop, _ in pieces), len({ident for *_, ident in pieces}) > 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_the_pool_works() -> None:
    program = """
        assert total() == (1_000_000, True)
        stop = []
        def forever():
            while not stop:
                threads.run(lambda *_: time.sleep(0.0001), 0, 1_000_000, 1.0)
        other = threading.Thread(target=forever)
        other.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if total() == (1_000_000, True) else 1)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        stop.append(1)
        other.join()
        print(total())
    """
    assert python(textwrap.dedent(PROGRAM) + textwrap.dedent(program)) == "(1000000, True)"


def test_calls_during_shutdown() -> None:
    program = """
        total()
        atexit.register(lambda: print(total()[0]))
        class Late:
            def __del__(self):
                print(total()[0])
        late = Late()
    """
    assert python(textwrap.dedent(PROGRAM) + textwrap.dedent(program)).split() == ["1000000"] * 2


def test_no_threads_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_state", threads._State())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    kernel = Recorder()
    threads.run(kernel, 0, BIG, 1.0)
    assert kernel.covers(BIG)
    assert kernel.idents == {threading.get_ident()}


def test_cost_grows_with_bytes_and_operations() -> None:
    assert threads.element_cost(16, 2) == pytest.approx(0.5)
    assert threads.element_cost(16, 100) > threads.element_cost(16, 2)
    assert threads.element_cost(64, 2) > threads.element_cost(16, 2)
