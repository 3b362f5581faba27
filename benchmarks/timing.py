"""Timing for the benchmarks: interleaved calls in one process, ratios of medians, one process per setting."""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead.kernels.library import status

Calls = dict[str, Callable[[], object]]


def timed(calls: Calls, rounds: int, *, in_torch: bool = False) -> dict[str, list[float]]:
    """Return the seconds of every round by name, without the warm-up round.

    in_torch: True if torch's threads do all work; with one thread it is then processor time, which other processes on
        the machine change little
    """
    clock = time.thread_time if in_torch and torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(calls), len(calls)):
            started = clock()
            calls[name]()
            times[name].append(clock() - started)
    return {name: seconds[1:] for name, seconds in times.items()}


def ratio(times: dict[str, list[float]], ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Format the ratio of the summed medians, with the quartiles of the per-round ratios."""
    top = [sum(x) for x in zip(*(times[name] for name in ours), strict=True)]
    bottom = [sum(x) for x in zip(*(times[name] for name in theirs), strict=True)]
    low, _, high = statistics.quantiles([a / b for a, b in zip(top, bottom, strict=True)], n=4)
    value = sum(statistics.median(times[x]) for x in ours) / sum(statistics.median(times[x]) for x in theirs)
    return f"{value:5.2f} [{low:.2f}, {high:.2f}]"


def normal(b: int, h: int, n: int, d: int, *, seed: int) -> Tensor:
    return torch.randn(b, n, h, d, generator=torch.Generator().manual_seed(seed)).transpose(1, 2)


def plain(k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(k, k, v)


def forward_and_backward(attention: Callable[[Tensor, Tensor], Tensor], k: Tensor, v: Tensor, along: Tensor) -> Calls:
    """Return calls for a forward pass without gradients, one with gradients, and the backward pass of the latter."""
    leaves = k.detach().requires_grad_(), v.detach().requires_grad_()
    out = attention(*leaves)

    def forward() -> Tensor:
        with torch.no_grad():
            return attention(k, v)

    return {
        "forward": forward,
        "recorded": lambda: attention(*leaves),
        "backward": lambda: torch.autograd.grad(out, leaves, along, retain_graph=True),
    }


def named(prefix: str, calls: Calls) -> Calls:
    return {f"{prefix} {name}": call for name, call in calls.items()}


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def state(threads: int, rounds: int) -> str:
    """Describe threads, torch build, kernel and denormal handling of this measurement."""
    kernel_status = status()
    kernel = (
        f"kernel {kernel_status.kernel.instructions}" if kernel_status.kernel else f"no kernel: {kernel_status.reason}"
    )
    denormal = torch.tensor(1e-30) * torch.tensor(1e-10)
    return (
        f"\n{threads} thread(s), torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), {kernel}, "
        f"denormals {'kept' if denormal > 0 else 'flushed to zero'} on both sides, {rounds} rounds"
    )


def run_script(script: str, arguments: Sequence[object], *, threads: int, **environment: str) -> str:
    """Run the script in its own process on `threads` threads; return its output, or show it live for a section."""
    command = [sys.executable, script, "--threads", str(threads), *map(str, arguments)]
    live = "--only" in command
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **environment}
    done = subprocess.run(command, check=True, env=env, text=True, stdout=None if live else subprocess.PIPE)
    return done.stdout or ""
