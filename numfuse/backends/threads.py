"""Split a large CPU kernel over threads.

The pool is an ordinary :class:`concurrent.futures.ThreadPoolExecutor`; kernels release the GIL. The calling
thread works too, taking one piece after the other from a shared queue until none is left, so a call never
waits for helpers that are busy elsewhere or that could not be started, only for pieces that are running.
Helpers never ask for helpers. Small calls stay on the calling thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeAlias

from numfuse.errors import FusionValueError

__all__ = ["element_cost", "get_threads", "limit_threads", "run", "set_threads"]

Kernel: TypeAlias = Callable[[int, int, int], Any]

WORTHWHILE = 200_000.0  # nanoseconds of work from which threads pay: waking one costs 20 to 50 us
PIECE = 50_000.0  # nanoseconds of work that a piece has at least
PIECES_PER_THREAD = 16  # so that a late or disturbed thread gets fewer
ALIGNMENT = 64  # elements: pieces of dense outputs share no cache line

# One core moves about 32 bytes a nanosecond, and does about 10 operations on vector elements.
BYTES_PER_NANOSECOND = 32.0
OPERATIONS_PER_NANOSECOND = 10.0

_limit: ContextVar[int | None] = ContextVar("numfuse_threads", default=None)


def element_cost(bytes_moved: int, weight: int) -> float:
    """Estimate the nanoseconds that one thread needs for one element.

    Parameters
    ----------
    bytes_moved : int
        Bytes loaded and stored for each element.
    weight : int
        Operations for each element (``ElementFunction.weight``).
    """
    return max(bytes_moved / BYTES_PER_NANOSECOND, weight / OPERATIONS_PER_NANOSECOND)


class _State:
    """What a forked child must start afresh."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None
        self.pool_size = 0
        self.helping = threading.local()


_state = _State()
_chosen: int | None = None


def _after_fork() -> None:
    global _state
    _state = _State()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _default_threads() -> int:
    text = os.environ.get("NUMFUSE_THREADS", "").strip()
    if text:
        try:
            return _checked(int(text))
        except ValueError:
            raise FusionValueError(
                f"NUMFUSE_THREADS is {text!r}: write a whole number of threads, 1 or more."
            ) from None
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _checked(n: int) -> int:
    if n < 1:
        raise FusionValueError(f"{n} threads: write a whole number, 1 or more.")
    return n


def get_threads() -> int:
    """How many threads a large CPU call may use, the calling one included.

    From the innermost :func:`limit_threads`, else :func:`set_threads`, else the environment variable
    ``NUMFUSE_THREADS``, else the processors that this process may run on.
    """
    global _chosen
    limit = _limit.get()
    if _chosen is None:
        _chosen = _default_threads()
    return _chosen if limit is None else min(limit, _chosen)


def set_threads(n: int | None) -> None:
    """Use at most `n` threads for each CPU call in this process; None: the default again."""
    global _chosen
    _chosen = None if n is None else _checked(n)


@contextlib.contextmanager
def limit_threads(n: int) -> Iterator[None]:
    """Use at most `n` threads within the ``with`` block, in this thread or task only.

    Examples
    --------
    >>> with limit_threads(1):
    ...     get_threads()
    1
    """
    token = _limit.set(_checked(n))
    try:
        yield
    finally:
        _limit.reset(token)


class _Job:
    """One call: the pieces still to take, and how many helpers are at work."""

    def __init__(self, kernel: Kernel, address: int, size: int, step: int) -> None:
        self.kernel = kernel
        self.address = address
        self.pieces = deque((start, min(start + step, size)) for start in range(0, size, step))
        self.condition = threading.Condition()
        self.helpers = 0
        self.closed = False
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take and run pieces until there are none."""
        while True:
            try:
                start, stop = self.pieces.popleft()
            except IndexError:
                return
            self.kernel(self.address, start, stop)

    def help(self) -> None:
        """What a helper does; one that comes after the job is closed does nothing."""
        with self.condition:
            if self.closed:
                return
            self.helpers += 1
        _state.helping.flag = True
        try:
            self.work()
        except BaseException as error:
            self.error = error
            self.pieces.clear()
        finally:
            with self.condition:
                self.helpers -= 1
                self.condition.notify()

    def close(self) -> None:
        """Let no helper start any more, drop the pieces that nobody took, wait for those that run."""
        with self.condition:
            self.closed = True
            self.pieces.clear()
            self.condition.wait_for(lambda: self.helpers == 0)


def _submit(job: _Job, helpers: int) -> list[Future[None]]:
    """Ask for helpers; fewer, or none, where they can't be had."""
    futures: list[Future[None]] = []
    state = _state
    # RuntimeError: the interpreter is shutting down, or the system has no thread left.
    with contextlib.suppress(RuntimeError), state.lock:
        if state.pool is None or state.pool_size < helpers:
            state.pool = ThreadPoolExecutor(helpers, thread_name_prefix="numfuse")
            state.pool_size = helpers
        for _ in range(helpers):
            futures.append(state.pool.submit(job.help))
    return futures


def run(kernel: Kernel, address: int, size: int, cost: float) -> None:
    """Run ``kernel(address, start, stop)`` over the elements ``0:size``, with threads where they pay.

    Parameters
    ----------
    kernel : callable
        Releases the GIL; its pieces may run in any order and at once.
    address : int
        Of the packed arguments, kept alive by the caller.
    size : int
        Number of elements.
    cost : float
        Nanoseconds for each element, see :func:`element_cost`.

    Raises
    ------
    BaseException
        What a piece raised, after every running piece has ended.
    """
    work = size * cost
    if work < WORTHWHILE:
        kernel(address, 0, size)
        return
    threads = get_threads()
    if threads == 1 or getattr(_state.helping, "flag", False):
        kernel(address, 0, size)
        return
    step = -(-size // min(threads * PIECES_PER_THREAD, int(work / PIECE)))
    job = _Job(kernel, address, size, -(-step // ALIGNMENT) * ALIGNMENT)
    futures: list[Future[None]] = []
    try:
        futures = _submit(job, min(threads, len(job.pieces)) - 1)
        job.work()
    finally:
        _close(job)
        for future in futures:
            future.cancel()
    if job.error is not None:
        raise job.error


def _close(job: _Job) -> None:
    """Close `job` whatever happens: no thread may still write into the caller's arrays afterwards."""
    interrupt: BaseException | None = None
    while True:
        try:
            job.close()
            break
        except BaseException as error:  # Ctrl-C while waiting
            interrupt = error
    if interrupt is not None:
        raise interrupt
