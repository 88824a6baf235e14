"""torch.compile's processes and caches, for benchmarks beside it: workers that start before a clock does and are gone
before calls are timed, and caches that are empty, or hold kernels that were compiled beforehand."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Modes of torch.compile that are measured.
MODES = ("reduce-overhead", "max-autotune")
# Where kernels that were compiled beforehand lie, in the folder of `prepare`.
KERNELS = "triton"
# Cores that may be busy for a machine to count as quiet, and seconds to wait for it: others may use the machine, too.
BUSY, PATIENCE = 0.5, 6.0


@contextlib.contextmanager
def empty_caches(folder: Path, kernels: Path | None = None) -> Iterator[None]:
    """Inductor with caches of its own in `folder`, where they stay; `kernels` takes the place of Triton's."""
    from torch._inductor import utils

    fresh_cache = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache  # its name before torch 2.8
    with fresh_cache(dir=str(folder), delete=False):
        if kernels is not None:
            os.environ["TRITON_CACHE_DIR"] = str(kernels)  # which leaving the context takes back
        yield


def start_workers() -> None:
    """Starts the processes that compile kernels, as a second compilation finds them."""
    with contextlib.suppress(Exception):  # then the first compilation starts them
        pool = _workers().AsyncCompile
        pool.warm_pool()
        pool.wait_pool_ready()


def stop_workers() -> None:
    """Ends them: sixteen processes that import torch keep the cores busy. A later compilation starts new ones."""
    workers = _workers()
    workers.shutdown_compile_workers()
    if hasattr(workers.AsyncCompile, "_ready_future"):
        workers.AsyncCompile._ready_future = None


def _workers() -> Any:
    from torch._inductor import async_compile

    return async_compile


def settle(patience: float = PATIENCE, step: float = 0.5) -> float:
    """Waits until this machine's cores are idle, or no fewer are busy than a moment ago. Returns how many are."""
    end = time.monotonic() + patience
    before, busy = float("inf"), _busy_cores(step)
    while busy > BUSY and busy < before - BUSY and time.monotonic() < end:
        before, busy = busy, _busy_cores(step)
    return busy


def _busy_cores(seconds: float) -> float:
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / (os.sysconf("SC_CLK_TCK") * seconds)


def _busy_ticks() -> int:
    """What all cores have spent on processes since the machine started."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return 0
    user, nice, system, _, _, interrupts, more = map(int, first[1:8])
    return user + nice + system + interrupts + more


def prepare(script: Path, names: Sequence[str], folder: Path, minutes: float) -> dict[str, str]:
    """Compiles these rows in the mode `max-autotune`, each in a process, all at once: `script --fill FOLDER --only
    NAME`. They leave the kernels of all candidates in `folder`, so that a later process has only to choose among them,
    which it does on a GPU that no other process uses. Returns what became of each; those that take longer are ended."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(folder / KERNELS),
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, cores // 2)),
        "OMP_NUM_THREADS": "1",
    }
    end = time.monotonic() + 60 * minutes
    running = {}
    for number, name in enumerate(names):
        own = environment | {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{number}")}
        command = [sys.executable, str(script), "--fill", str(folder), "--only", name]
        with (folder / f"{number}.log").open("w") as log:
            running[name] = number, subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT)
    outcomes = {}
    for name, (number, process) in running.items():
        began = time.monotonic()
        try:
            code = process.wait(max(1.0, end - began))
            said = (folder / f"{number}.log").read_text(errors="replace").strip().splitlines()
            outcomes[name] = "prepared" if code == 0 else f"ended with {code}: {' '.join(said[-2:])[-400:]}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            outcomes[name] = "cut off"
    return outcomes
