"""Measure numfuse beside its peers in one run; write the tables with the date, the device and the versions.

    python benchmarks/run.py                      # the GPU if torch or CuPy finds one, else the CPU
    python benchmarks/run.py --device cpu --only exp --rounds 15

Every figure is the median over interleaved rounds: in each round every peer takes its turn, so that what
slows the machine for a while slows all of them. A peer that is not installed is listed as such.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU's memory

import numpy as np

import gpu_peers
from cpu_peers import CPU_PEERS
from peers import NotThere, Peer
from timing import Contestant, medians, table
from workloads import WORKLOADS, Workload

PACKAGES = (
    *("numpy", "numba", "llvmlite", "numba-cuda", "numexpr", "jax", "torch", "cupy-cuda13x", "cupy-cuda12x"),
    *("cuda-bindings", "nvidia-nvjitlink"),
)


def versions() -> str:
    """The versions of everything that took part, and what was not installed."""
    import numfuse

    there, missing = [f"Python {platform.python_version()}", f"numfuse {numfuse.__version__}"], []
    for name in PACKAGES:
        try:
            there.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    text = "versions  " + ", ".join(there)
    return text + (f"\nmissing   {', '.join(missing)}" if missing else "")


def processor() -> str:
    """The processor's name and the number of cores that this process may use."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        name = found[1] if found else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def has_gpu() -> bool:
    """Whether torch or CuPy can use a device here."""
    for name in ("torch", "cupy"):
        if importlib.util.find_spec(name):
            module = importlib.import_module(name)
            if module.cuda.is_available():
                return True
    return False


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def problem(workload: Workload, arrays: tuple[Any, ...], result: Any) -> str:
    """What is wrong with a peer's result: nothing, another dtype than NumPy's, or other values."""
    rows = 4096 if workload.ndim == 1 else 2
    head = [
        gpu_peers.to_host(a[:rows] if o.layout != "row" else a) for a, o in zip(arrays, workload.operands, strict=True)
    ]
    expected = workload.function(*head)
    got = gpu_peers.to_host(result[:rows])
    if not np.allclose(got, expected, rtol=1e-4, atol=1e-5):
        return "wrong"
    return "" if got.dtype == expected.dtype else f"{got.dtype.kind}{8 * got.dtype.itemsize}"


def measure(
    workload: Workload, arrays: tuple[Any, ...], peers: Sequence[Peer], rounds: int, batch_seconds: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds a call for each peer that took part, and a remark for each about which there is one."""
    contestants, remarks = [], {}
    for peer in peers:
        try:
            call = peer.prepare(workload, arrays)
            remark = problem(workload, arrays, call())
        except NotThere as reason:
            remarks[peer.name] = str(reason)
            continue
        except Exception as error:  # a peer's refusal is a finding, not the end of the run
            remarks[peer.name] = type(error).__name__
            say(f"  {peer.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        if remark:
            remarks[peer.name] = remark
        contestants.append(Contestant(peer.name, call, peer.clock))
    return medians(contestants, rounds, batch_seconds), remarks


def cells(
    seconds: dict[str, float], remarks: dict[str, str], peers: Sequence[Peer], scale: float, digits: int
) -> list[str]:
    """One text for each peer: the figure, a star at the best one, the remark."""
    fair = {name: s for name, s in seconds.items() if remarks.get(name) != "wrong"}
    best = min(fair.values(), default=0.0)
    out = []
    for peer in peers:
        figure = ""
        if peer.name in seconds:
            figure = f"{seconds[peer.name] * scale:.{digits}f}" + ("*" if seconds[peer.name] == best else "")
        out.append(" ".join(filter(None, (figure, remarks.get(peer.name, "")))) or "-")
    return out


def call_cost(peers: Sequence[Peer], make: Callable[[Workload, int], tuple[Any, ...]], rounds: int) -> str:
    """Microseconds a call on 1,000 elements of float32, a row for each peer."""
    workload = WORKLOADS[0]
    say(f"call cost: {workload.name}")
    seconds, remarks = measure(workload, make(workload, 1000), peers, rounds, 0.01)
    column = cells(seconds, remarks, peers, 1e6, 2)
    rows = [(peer.name, [cell]) for peer, cell in zip(peers, column, strict=True)]
    title = f"One call of {workload.name} on 1,000 elements of float32, microseconds of host time (* the least)"
    return f"{title}\n\n{table(['us'], rows)}\n"


def throughput(
    peers: Sequence[Peer],
    make: Callable[[Workload, int], tuple[Any, ...]],
    free: Callable[[], None],
    workloads: Sequence[Workload],
    size: int,
    rounds: int,
) -> str:
    """Milliseconds on `size` elements, a row for each workload, and what numfuse moves a second."""
    rows = []
    for workload in workloads:
        say(f"throughput: {workload.name}")
        arrays = make(workload, size)
        seconds, remarks = measure(workload, arrays, peers, rounds, 0.01)
        own = seconds.get("numfuse")
        others = [s for name, s in seconds.items() if name != "numfuse" and remarks.get(name) != "wrong"]
        rate = f"{workload.bytes_moved(size) / own / 1e9:.0f}" if own else "-"
        ratio = f"{min(others) / own:.2f}" if own and others else "-"
        rows.append((workload.name, [*cells(seconds, remarks, peers, 1e3, 3), rate, ratio]))
        del arrays
        free()
    columns = [*(peer.name for peer in peers), "numfuse GB/s", "best peer / numfuse"]
    title = (
        f"{size:,} elements, milliseconds (* the least; a dtype after a figure: the result has it instead of "
        "NumPy's dtype)"
    )
    return f"{title}\n\n{table(columns, rows)}\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure numfuse beside its peers.")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--size", type=int, help="elements (default: 2**22 on the CPU, 2**28 on a GPU)")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--no-file", action="store_true", help="only print")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    warnings.filterwarnings("ignore")  # the peers' own: about their defaults, not about these figures
    on_gpu = has_gpu() if options.device == "auto" else options.device == "gpu"
    workloads = [w for w in WORKLOADS if options.only in w.name]
    if on_gpu:
        device, size = gpu_peers.device_name(), options.size or 1 << 28
        call, large = gpu_peers.call_peers(), gpu_peers.throughput_peers()
        make, free = gpu_peers.make_arrays, gpu_peers.free_memory
    else:
        device, size = processor(), options.size or 1 << 22
        call = large = CPU_PEERS
        make, free = Workload.make, lambda: None
    today = datetime.date.today().isoformat()
    text = "\n".join(
        (
            f"date      {today}",
            f"device    {device}" + (f" (host: {processor()})" if on_gpu else ""),
            f"rounds    {options.rounds}, interleaved, median",
            versions(),
            "",
            call_cost(call, make, options.rounds),
            throughput(large, make, free, workloads, size, options.rounds),
        )
    )
    print(text)
    if not options.no_file:
        slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / f"{today}-{slug}.txt"
        path.write_text(text, encoding="utf-8")
        say(f"written to {path}")


if __name__ == "__main__":
    main()
