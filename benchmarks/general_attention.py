"""Cost of general attention with the embedded Gaussian relative to plain scaled_dot_product_attention.

    python benchmarks/general_attention.py [--rounds 41] [--threads 1]

First the operators alone on given tensors; then with the embeddings inside, compared with the same two products
followed by SDPA. Calls are interleaved in one process, in a random order each round; medians are compared.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from clearhead.operators.general import embedded_gaussian, gaussian, general_attention

SIZES = [(8, 3, 197, 64), (8, 12, 197, 64), (2, 12, 512, 64), (1, 12, 1024, 64), (1, 2, 4096, 64)]


def ratio(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], rounds: int) -> float:
    """Return the median time of ours over the median time of theirs."""
    taken: dict[Callable[[], Tensor], list[float]] = {ours: [], theirs: []}
    ours(), theirs()
    for number in range(rounds):
        for call in random.Random(number).sample([ours, theirs], 2):
            started = time.perf_counter()
            call()
            taken[call].append(time.perf_counter() - started)
    return statistics.median(taken[ours]) / statistics.median(taken[theirs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"ratio to torch's kernel, float32, {options.threads} thread(s), median of {options.rounds} rounds")
    print(f"{'batch x heads x tokens x width':32s}  operator alone  embeddings inside")
    for size in SIZES:
        q, k, v = (torch.randn(size) for _ in range(3))
        scale = size[-1] ** -0.5
        theta, phi = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        plain, embedded = gaussian(scale=scale), embedded_gaussian(theta, phi, scale=scale)
        with torch.no_grad():
            alone = ratio(
                lambda q=q, k=k, v=v, s=plain: general_attention(q, k, v, similarity=s),
                lambda q=q, k=k, v=v, c=scale: scaled_dot_product_attention(q, k, v, scale=c),
                options.rounds,
            )
            inside = ratio(
                lambda q=q, k=k, v=v, s=embedded: general_attention(q, k, v, similarity=s),
                lambda q=q, k=k, v=v, c=scale, a=theta, b=phi: scaled_dot_product_attention(a(q), b(k), v, scale=c),
                options.rounds,
            )
        print(f"{' x '.join(map(str, size)):32s}  {alone:14.3f}  {inside:17.3f}", flush=True)


if __name__ == "__main__":
    main()
