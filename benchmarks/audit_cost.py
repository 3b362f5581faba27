"""Cost of an audit of the default model relative to the same forward passes alone.

    python benchmarks/audit_cost.py [--rounds 7] [--threads 1]

Forward passes alone, forward passes watched, and the whole audit less the theory's own arithmetic are timed in turn in
one process, in an order that changes every round; medians of the rounds are compared.
"""

import argparse
import os
import random
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from clearhead._capture import capture
from clearhead.audit.model_runs import forward
from clearhead.audit.run import audit
from clearhead.data.text import default_passages, text_batches
from clearhead.interfaces.torchvision_shim import ensure_torchvision
from clearhead.models.loading import DEFAULT_MODEL, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ensure_torchvision()
    loaded = load_model(DEFAULT_MODEL, max_tokens=256)
    assert loaded.encode is not None
    batches = list(text_batches(default_passages(), loaded.encode, batch_size=8))

    def alone() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            for batch in batches:
                forward(loaded.model, batch)
        return time.perf_counter() - started

    def watched() -> float:
        started = time.perf_counter()
        with torch.no_grad(), capture(loaded.model, keep=lambda heads: None):
            for batch in batches:
                forward(loaded.model, batch)
        return time.perf_counter() - started

    theory: list[float] = []

    def audited() -> float:
        timing = audit(loaded.model, batches).timing
        theory.append(sum(timing.theory.values()))
        return timing.total - theory[-1]

    ways = {"forward passes alone": alone, "forward passes watched": watched, "audit less the theory": audited}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    alone()
    for number in range(options.rounds):
        for name in random.Random(number).sample(list(ways), len(ways)):
            taken[name].append(ways[name]())
    base = statistics.median(taken["forward passes alone"])
    passages = len(default_passages())
    print(f"{DEFAULT_MODEL}, {passages} passages, {options.threads} thread(s), median of {options.rounds} rounds")
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:24s} {median:7.3f} s   {median / base:5.2f} x")
    print(f"{'the theory alone':24s} {statistics.median(theory):7.3f} s")


if __name__ == "__main__":
    main()
