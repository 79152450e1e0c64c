"""Interleaved timing: every peer takes its turn in every round, and the median round counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Clock(Protocol):
    """How the time of a batch of calls is taken."""

    def measure(self, call: Callable[[], Any], count: int) -> float:
        """Seconds for `count` calls of `call`."""


@dataclass(frozen=True)
class WallClock:
    """Time on the host, from the first call until `wait` returns after the last."""

    wait: Callable[[Any], None] = lambda result: None

    def measure(self, call: Callable[[], Any], count: int) -> float:
        self.wait(call())
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        self.wait(result)
        return time.perf_counter() - start


@dataclass(frozen=True)
class HostClock:
    """Time on the host until the last call returned, whatever still runs on the device."""

    wait: Callable[[Any], None] = lambda result: None

    def measure(self, call: Callable[[], Any], count: int) -> float:
        self.wait(call())
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        spent = time.perf_counter() - start
        self.wait(result)
        return spent


@dataclass(frozen=True)
class Contestant:
    """A peer with one workload ready to be called, and the clock that is right for it."""

    name: str
    call: Callable[[], Any]
    clock: Clock


def medians(contestants: Sequence[Contestant], rounds: int, batch_seconds: float) -> dict[str, float]:
    """Seconds a call for each contestant: the median over `rounds` rounds in which all take turns.

    A round of one contestant is as many calls as fill `batch_seconds`.
    """
    counts = {}
    for c in contestants:
        c.clock.measure(c.call, 2)
        once = max(c.clock.measure(c.call, 3) / 3, 1e-7)
        counts[c.name] = max(1, min(20_000, round(batch_seconds / once)))
    taken: dict[str, list[float]] = {c.name: [] for c in contestants}
    for _ in range(rounds):
        for c in contestants:
            taken[c.name].append(c.clock.measure(c.call, counts[c.name]) / counts[c.name])
    return {name: statistics.median(times) for name, times in taken.items()}


def table(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Text columns, the first one to the left and the others to the right."""
    first = max([len(name) for name, _ in rows] + [0])
    widths = [max(len(c), *(len(cells[i]) for _, cells in rows)) for i, c in enumerate(columns)]
    lines = [" " * first + "".join("  " + c.rjust(w) for c, w in zip(columns, widths, strict=True))]
    for name, cells in rows:
        lines.append(name.ljust(first) + "".join("  " + c.rjust(w) for c, w in zip(cells, widths, strict=True)))
    return "\n".join(lines)
