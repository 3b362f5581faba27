"""Cost of a coding rate relative to torch.logdet of the n x n Gram matrix.

    python benchmarks/coding_rate.py [--rounds 9] [--threads 1]

Calls are interleaved in one process, in a random order each round. A ratio is a ratio of medians, theirs over ours,
with the quartiles of the per-round ratios in brackets. Tokens are standard normal, float32.
"""

import argparse
import statistics

import torch
from timing import Calls, normal, ratio, state, timed
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate

SIZES = [(32, 6, 197, 64), (2, 6, 1024, 64)]
EPS = 0.5


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(state(options.threads, options.rounds))
    rate_section(options.rounds)


if __name__ == "__main__":
    main()
