"""Time of one step of generation with a cache, by operator and number of tokens in the cache.

    python benchmarks/decoding.py [--rounds 9] [--tokens 256 1024 4096]

One new token of one sequence, 12 heads of width 64, float32, one thread: processor time, medians of interleaved
calls. "scaled, all rows" is a step whose cache does not continue the last one.
"""

import argparse
import statistics
from functools import partial

import torch
from timing import normal, timed
from torch import Tensor, nn

from clearhead._swap.operator import PastRows, apply_operator
from clearhead.interfaces import Call
from clearhead.operators import OPERATORS
from clearhead.operators.requirements import instantiate, requirements_of

HEADS, WIDTH = 12, 64


def step(name: str, call: Call, past: PastRows | None) -> Tensor:
    operator = OPERATORS.get(name)()
    return apply_operator(instantiate(operator, nn.Identity()), requirements_of(operator), call, past)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'milliseconds':>18s}" + "".join(f"{tokens:>9d}" for tokens in options.tokens))
    columns = []
    for tokens in options.tokens:
        q, k, v = (normal(1, HEADS, tokens, WIDTH, seed=seed) for seed in range(3))
        call = Call(
            name="layer", module=nn.Identity(), interface="", causal=True, q=q[..., -1:, :], k=k, v=v,
            scale=WIDTH**-0.5,
        )  # fmt: skip
        calls = {name: partial(step, name, call, PastRows()) for name in OPERATORS.names()}
        calls["scaled, all rows"] = partial(step, "scaled", call, None)
        with torch.no_grad():
            times = timed(calls, options.rounds, in_torch=True)
        columns.append({name: statistics.median(seconds) * 1000 for name, seconds in times.items()})
    for name in columns[0]:
        print(f"{name:>18s}" + "".join(f"{column[name]:9.2f}" for column in columns))


if __name__ == "__main__":
    main()
