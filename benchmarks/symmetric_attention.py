"""Cost of symmetric attention relative to torch's scaled_dot_product_attention (SDPA), and its errors.

    python benchmarks/symmetric_attention.py [--rounds 25] [--threads 1 2] [--only attention causal error]

Calls are interleaved in one process, in a random order each round: processor time with one thread, wall time with
more. A ratio is a ratio of medians, with the quartiles of the per-round ratios in brackets. Keys and values are
standard normal, float32, in the memory layout of a layer.
Each number of threads runs in its own process.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from timing import forward_and_backward, named, normal, plain, ratio, run_script, state, timed
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from clearhead.operators import symmetric_attention

BATCHES = {64: (32, 12), 197: (32, 3), 577: (4, 3), 1024: (2, 3), 2048: (1, 2), 4096: (1, 2)}
"""Batch size and heads by number of tokens, chosen so that a call takes about ten milliseconds."""
CAUSAL_SIZES = [(n, 64) for n in BATCHES] + [(n, d) for d in (96, 128) for n in (1024, 4096)]
SIZES = [(n, 64) for n in BATCHES] + [(n, d) for d in (32, 96, 128) for n in (197, 1024, 4096)]


def attention_section(rounds: int) -> None:
    print("\nsymmetric attention / SDPA(k, k, v)")
    compare(SIZES, symmetric_attention, plain, rounds)


def causal_section(rounds: int) -> None:
    def theirs(k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(k, k, v, is_causal=True)

    print("\ncausal symmetric attention / SDPA(k, k, v, is_causal=True)")
    compare(CAUSAL_SIZES, partial(symmetric_attention, is_causal=True), theirs, rounds)


def compare(
    sizes: Sequence[tuple[int, int]], ours: Callable[..., Tensor], theirs: Callable[..., Tensor], rounds: int
) -> None:
    print(f"{'batch x heads x tokens x width':32s}{'forward':>20s}{'backward':>20s}")
    for n, d in sizes:
        b, h = BATCHES[n]
        k, v, along = (normal(b, h, n, d, seed=seed) for seed in range(3))
        calls = named("ours", forward_and_backward(ours, k, v, along))
        calls |= named("torch", forward_and_backward(theirs, k, v, along))
        passes = {name: call for name, call in calls.items() if "recorded" not in name}
        taken = timed(passes, rounds, in_torch=True)
        cells = [ratio(taken, [f"ours {way}"], [f"torch {way}"]) for way in ("forward", "backward")]
        print(f"{f'{b} x {h} x {n} x {d}':32s}" + "".join(f"{cell:>20s}" for cell in cells), flush=True)


def keys_of(kind: str, shape: tuple[int, int, int, int], seed: int) -> Tensor:
    """Return keys with random directions and lengths of this kind."""
    at = torch.rand(*shape[:3], 1, generator=torch.Generator().manual_seed(seed))
    mixed = {"from 1e-3 to 1e3": 10 ** (6 * at - 3), "half 1e-3, half 1e3": torch.where(at < 0.5, 1e-3, 1e3)}
    lengths = mixed[kind] if kind in mixed else torch.full((1,), float(kind))
    return nn.functional.normalize(normal(*shape, seed=seed), dim=-1) * lengths


def exactly(k: Tensor, v: Tensor) -> Tensor:
    return (k @ k.mT * k.shape[-1] ** -0.5).softmax(dim=-1) @ v


def error_section(_: int) -> None:
    print("\nlargest error against float64, ours / SDPA's, 120 heads of 197 tokens, 9 of 2,048; gradients by norm")
    print(f"{'tokens':>7s}  {'lengths of keys':22s}{'mean of values':>15s}{'output':>20s}{'for k':>20s}{'for v':>20s}")
    for shape, draws in (((8, 3, 197, 64), 5), ((1, 3, 2048, 64), 3)):
        for mean in (0, 3):
            for kind in ("1e-3", "1", "10", "1e3", "from 1e-3 to 1e3", "half 1e-3, half 1e3"):
                worst = {symmetric_attention: [0.0] * 3, plain: [0.0] * 3}
                for seed in range(draws):
                    k, v, along = (
                        keys_of(kind, shape, seed),
                        normal(*shape, seed=seed + 100) + mean,
                        normal(*shape, seed=seed),
                    )
                    want = results(exactly, k.double(), v.double(), along)
                    for attention, before in worst.items():
                        output, *rest = (x - y for x, y in zip(results(attention, k, v, along), want, strict=True))
                        errors = [output.abs().max().item(), *(x.norm().item() for x in rest)]
                        worst[attention] = [max(x, y) for x, y in zip(before, errors, strict=True)]
                cells = [f"{ours:.1e} / {theirs:.1e}" for ours, theirs in zip(*worst.values(), strict=True)]
                print(f"{shape[2]:7d}  {kind:22s}{mean:15d}" + "".join(f"{cell:>20s}" for cell in cells), flush=True)


def results(attention: Callable[..., Tensor], k: Tensor, v: Tensor, along: Tensor) -> list[Tensor]:
    leaves = k.detach().requires_grad_(), v.detach().requires_grad_()
    out = attention(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, along.to(out.dtype))]


SECTIONS = {"attention": attention_section, "causal": causal_section, "error": error_section}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    options = parser.parse_args()
    if len(options.threads) > 1:
        for threads in options.threads:
            only = [name for name in options.only if threads == options.threads[0] or name != "error"]
            run_script(__file__, ["--rounds", options.rounds, "--only", *only], threads=threads)
        return
    torch.set_num_threads(options.threads[0])
    print(state(options.threads[0], options.rounds))
    for name in options.only:
        SECTIONS[name](options.rounds)


if __name__ == "__main__":
    main()
