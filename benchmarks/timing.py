"""How the benchmarks measure: calls that alternate in one process, ratios of medians, and one process per setting."""

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


def timed(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round by name; the first round is thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(calls), len(calls)):
            started = time.perf_counter()
            calls[name]()
            taken[name].append(time.perf_counter() - started)
    return {name: seconds[1:] for name, seconds in taken.items()}


def ratio(taken: dict[str, list[float]], ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Sum of medians over sum of medians, and the quartiles of the rounds."""
    top = [sum(x) for x in zip(*(taken[name] for name in ours), strict=True)]
    bottom = [sum(x) for x in zip(*(taken[name] for name in theirs), strict=True)]
    low, _, high = statistics.quantiles([a / b for a, b in zip(top, bottom, strict=True)], n=4)
    value = sum(statistics.median(taken[x]) for x in ours) / sum(statistics.median(taken[x]) for x in theirs)
    return f"{value:5.2f} [{low:.2f}, {high:.2f}]"


def normal(b: int, h: int, n: int, d: int, *, seed: int) -> Tensor:
    return torch.randn(b, n, h, d, generator=torch.Generator().manual_seed(seed)).transpose(1, 2)


def plain(k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(k, k, v)


def both_ways(attention: Callable[[Tensor, Tensor], Tensor], k: Tensor, v: Tensor, along: Tensor) -> Calls:
    """The forward pass without a record, and the backward pass of one that was recorded."""
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
    """What the figures below it were measured with."""
    found = status()
    kernel = f"kernel {found.kernel.instructions}" if found.kernel else f"no kernel: {found.reason}"
    denormal = torch.tensor(1e-30) * torch.tensor(1e-10)
    return (
        f"\n{threads} thread(s), torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), {kernel}, "
        f"denormals {'kept' if denormal > 0 else 'flushed to zero'} on both sides, {rounds} rounds"
    )


def again(script: str, arguments: Sequence[object], *, threads: int, **environment: str) -> str:
    """What the script prints in a process of its own with so many threads; shown as it comes if it is a section."""
    command = [sys.executable, script, "--threads", str(threads), *map(str, arguments)]
    shown = "--only" in command
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **environment}
    done = subprocess.run(command, check=True, env=env, text=True, stdout=None if shown else subprocess.PIPE)
    return done.stdout or ""
