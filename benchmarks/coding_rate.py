"""Cost of a coding rate relative to torch.logdet of the n x n Gram matrix, and memory of a rate over a stream.

    python benchmarks/coding_rate.py [--rounds 9] [--threads 1] [--only rate memory]

Calls are interleaved in one process, in a random order each round. A ratio is a ratio of medians, theirs over ours,
with the quartiles of the per-round ratios in brackets. Tokens are standard normal, float32. Memory is the peak of a
fresh process above its peak after the imports and a small chunk.
"""

import argparse
import resource
import statistics
import time

import torch
from timing import Calls, normal, ratio, run_script, state, timed
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate
from clearhead.numerics.rate_stream import RateAccumulator

SIZES = [(32, 6, 197, 64), (2, 6, 1024, 64)]
EPS, WIDTH, CHUNK = 0.5, 768, 1000
STREAMS = (20_000, 200_000)


def by_tokens(z: Tensor) -> Tensor:
    """Compute the definition from the n x n matrix, as published code does."""
    n, d = z.shape[-2:]
    return torch.logdet(torch.eye(n) + d / (n * EPS**2) * z @ z.mT) / 2


def by_features(z: Tensor) -> Tensor:
    """Compute the same from the d x d matrix, the fastest form in plain torch."""
    n, d = z.shape[-2:]
    return torch.logdet(torch.eye(d) + d / (n * EPS**2) * z.mT @ z) / 2


def ours(z: Tensor) -> Tensor:
    return coding_rate(z, eps=EPS)


WAYS = {"ours": ours, "tokens": by_tokens, "features": by_features}


def calls_of(z: Tensor) -> Calls:
    calls: Calls = {}
    for name, rate in WAYS.items():
        leaf = z.detach().clone().requires_grad_()

        def forward(rate=rate) -> Tensor:  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return rate(z)

        calls[f"{name} forward"] = forward
        calls[f"{name} both"] = lambda rate=rate, leaf=leaf: torch.autograd.grad(rate(leaf).sum(), leaf)
    return calls


def rate_section(rounds: int) -> None:
    print("\ncoding rate: time of torch.logdet of the n x n and the d x d matrix, relative to ours")
    print(
        f"{'batch x heads x tokens x width':32s}{'ours, ms':>16s}" + "".join(f"{x:>28s}" for x in WAYS if x != "ours")
    )
    for b, h, n, d in SIZES:
        z = normal(b, h, n, d, seed=0)
        worst = max(float((WAYS[x](z.double()) / ours(z).double() - 1).abs().max()) for x in ("tokens", "features"))
        taken = timed(calls_of(z), rounds)
        for way in ("forward", "both"):
            milliseconds = 1000 * statistics.median(taken[f"ours {way}"])
            cells = [ratio(taken, [f"{x} {way}"], [f"ours {way}"]) for x in ("tokens", "features")]
            title = f"{b} x {h} x {n} x {d} {'' if way == 'forward' else '+ backward'}"
            print(f"{title:32s}{milliseconds:16.1f}" + "".join(f"{cell:>28s}" for cell in cells), flush=True)
        print(f"{'':32s}largest relative difference from float64: {worst:.1e}")


def memory_section(threads: int) -> None:
    print(f"\nR of a stream of tokens of width {WIDTH} by RateAccumulator, {CHUNK} at a time")
    for tokens in STREAMS:
        print(
            f"{tokens:>9,d} tokens: {run_script(__file__, ['--stream', tokens], threads=threads).strip()}", flush=True
        )


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream(tokens: int) -> None:
    """Print peak memory, time and rate of a stream of tokens in this process."""
    generator = torch.Generator().manual_seed(0)
    warm = RateAccumulator(WIDTH)
    warm.add(torch.randn(CHUNK, WIDTH, generator=generator))
    warm.coding_rate()
    before, started = peak(), time.perf_counter()
    sums = RateAccumulator(WIDTH)
    for _ in range(tokens // CHUNK):
        sums.add(torch.randn(CHUNK, WIDTH, generator=generator))
    rate = float(sums.coding_rate())
    taken = time.perf_counter() - started
    whole = tokens * WIDTH * 4 / 2**20
    print(
        f"R = {rate:.3f} in {taken:.1f} s; peak {peak():.0f} MiB, {peak() - before:+.0f} over a first chunk; "
        f"the tokens alone are {whole:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=["rate", "memory"], default=["rate", "memory"])
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.stream:
        stream(options.stream)
        return
    print(state(options.threads, options.rounds))
    if "rate" in options.only:
        rate_section(options.rounds)
    if "memory" in options.only:
        memory_section(options.threads)


if __name__ == "__main__":
    main()
