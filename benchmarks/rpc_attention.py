"""Cost of RPC-Attention relative to ONE call of torch's SDPA, with and without the kernel.

    python benchmarks/rpc_attention.py [--rounds 25] [--threads 1 2] [--only time causal step memory]

Calls are interleaved in one process, in a random order each round: processor time with one thread, wall time with
more. A ratio is a ratio of medians, with the quartiles of the per-round ratios in brackets. Keys and values are
standard normal, float32, in the memory layout of a layer.
`dense` is the published formulation, which stores every n x n matrix. Threshold, mu and their
gradients are included. Each number of threads, and the form without the compiled kernel, runs in its own process.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial

import torch
from timing import forward_and_backward, named, normal, plain, ratio, resident, run_script, state, timed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clearhead.modules import RPCAttention, SymmetricAttention
from clearhead.operators import clamped_key_attention, preset, rpc_attention
from clearhead.operators.pursuit_options import soft_threshold
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig

PRESETS = ("code-2024-10", "paper")
SHAPES = ((32, 3, 197), (1, 2, 4096))
CAUSAL_SHAPES = ((32, 3, 197), (2, 3, 1024), (1, 2, 4096))


def dense(k: Tensor, v: Tensor, *, name: str, iterations: int) -> Tensor:
    """Compute the published iteration with every matrix stored; dual is Y / mu."""
    t = preset(name).bound.compute(k)
    low_rank = dual = torch.zeros_like(k)
    for _ in range(iterations):
        sparse = soft_threshold(k - low_rank + dual, t)
        keys = k - sparse - dual
        low_rank = (keys @ keys.mT * k.shape[-1] ** -0.5).softmax(dim=-1) @ v
        dual = dual + (k - low_rank - sparse)
    return low_rank


def forms_of(name: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "clamped keys": partial(clamped_key_attention, None, bound=preset(name).bound),
        "2 iterations": partial(rpc_attention, None, pursuit=preset(name, iterations=2)),
        "4 iterations": partial(rpc_attention, None, pursuit=preset(name, iterations=4)),
        "4, causal, prefix mu": partial(rpc_attention, None, pursuit=preset(name, iterations=4), is_causal=True),
        "dense, 4 iterations": partial(dense, name=name, iterations=4),
    }


def time_section(rounds: int) -> None:
    print("\nRPC-Attention, lambda = 4 / ONE call of SDPA")
    print(f"{'batch x heads x tokens x width':32s}{'':>26s}{'forward':>22s}{'forward + backward':>22s}")
    for b, h, n in SHAPES:
        k, v, along = (normal(b, h, n, 64, seed=seed) for seed in range(3))
        for name in PRESETS:
            calls = named("torch", forward_and_backward(plain, k, v, along))
            forms = forms_of(name)
            for form, attention in forms.items():
                calls |= named(form, forward_and_backward(attention, k, v, along))
            taken = timed(calls, rounds if n < 1000 else max(rounds // 4, 3), in_torch=True)
            print(f"{b} x {h} x {n} x 64, {name}")
            for form in forms:
                print_ratios(taken, form)


def causal_section(rounds: int) -> None:
    print("\ncausal RPC-Attention, 4 iterations, prefix mu / ONE call of SDPA without a mask")
    print(f"{'batch x heads x tokens x width':32s}{'':>26s}{'forward':>22s}{'forward + backward':>22s}")
    for b, h, n in CAUSAL_SHAPES:
        k, v, along = (normal(b, h, n, 64, seed=seed) for seed in range(3))
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        forms = {name: partial(rpc_attention, None, pursuit=preset(name), is_causal=True) for name in PRESETS}
        forms["paper, by a mask"] = partial(rpc_attention, None, pursuit=preset("paper"), mask=mask)
        calls = named("torch", forward_and_backward(plain, k, v, along))
        for form, attention in forms.items():
            calls |= named(form, forward_and_backward(attention, k, v, along))
        taken = timed(calls, rounds if n < 1000 else max(rounds // 2, 5), in_torch=True)
        print(f"{b} x {h} x {n} x 64")
        for form in forms:
            print_ratios(taken, form)


def print_ratios(taken: dict[str, list[float]], form: str) -> None:
    alone, ways = ratio(taken, [f"{form} forward"], ["torch forward"]), ("recorded", "backward")
    together = ratio(taken, [f"{form} {way}" for way in ways], [f"torch {way}" for way in ways])
    print(f"{'':32s}{form:>26s}{alone:>22s}{together:>22s}", flush=True)


def tiny(pursuing: Sequence[int], *, symmetric: bool) -> VisionTransformer:
    """Return a DeiT-tiny with RPC-Attention in the layers `pursuing` and symmetric or softmax attention elsewhere."""
    config = VisionTransformerConfig(
        image_size=224, patch_size=16, channels=3, classes=1000, width=192, layers=12, heads=3, mlp_width=768
    )
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(0))
    for number, block in enumerate(model.blocks):
        if number in pursuing:
            block.attention = RPCAttention(192, 3, pursuit="paper")
        elif symmetric:
            block.attention = SymmetricAttention(192, 3)
    return model


def step_of(model: nn.Module) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.rand(8, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(8)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def step_section(rounds: int) -> None:
    print("\na training step of ViT-tiny, batch 8, 197 tokens / the same with softmax attention over SDPA")
    models = {
        "softmax": tiny((), symmetric=False),
        "symmetric everywhere": tiny((), symmetric=True),
        "RPC (4) in the first layer, symmetric elsewhere": tiny((0,), symmetric=True),
        "RPC (4) in all 12 layers": tiny(range(12), symmetric=True),
    }
    taken = timed({name: step_of(model) for name, model in models.items()}, max(rounds // 2, 5))
    for name in models:
        print(f"{name:56s}{ratio(taken, [name], ['softmax']):>20s}", flush=True)


def memory_section(_: int) -> None:
    print("\nextra memory at its peak, 4 iterations, MiB (and in multiples of the keys' size), each in a process")
    print(f"{'batch x heads x tokens x width':32s}{'':>10s}{'forward':>22s}{'forward + backward':>22s}")
    for b, h, n in SHAPES:
        size = b * h * n * 64 * 4 / 2**20
        for form in ("ours", "dense"):
            cells = []
            for ways in ("forward", "both"):
                grown = float(
                    run_script(__file__, ["--grown-by", form, ways, b, h, n], threads=torch.get_num_threads())
                )
                cells.append(f"{grown:.1f} ({grown / size:.1f})")
            print(f"{f'{b} x {h} x {n} x 64':32s}{form:>10s}{cells[0]:>22s}{cells[1]:>22s}", flush=True)


def print_growth(form: str, ways: str, *sizes: str) -> None:
    """Print the rise of peak memory in MiB during one call, after a small one."""
    b, h, n = map(int, sizes)
    k, v, along = (normal(b, h, n, 64, seed=seed) for seed in range(3))
    attention = {"ours": partial(rpc_attention, None), "dense": partial(dense, name=PRESETS[0], iterations=4)}[form]

    def call(k: Tensor, v: Tensor, along: Tensor) -> None:
        if ways == "forward":
            with torch.no_grad():
                attention(k, v)
        else:
            leaves = k.detach().requires_grad_(), v.detach().requires_grad_()
            torch.autograd.grad(attention(*leaves), leaves, along)

    call(*(x[:3, :, :512] for x in (k, v, along)))  # small, and large enough for the kernel
    before = resident("VmHWM")
    call(k, v, along)
    print((resident("VmHWM") - before) / 1024)


SECTIONS = {"time": time_section, "causal": causal_section, "step": step_section, "memory": memory_section}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--grown-by", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads[0])
    if options.grown_by:
        return print_growth(*options.grown_by)
    if options.here:
        print(state(options.threads[0], options.rounds))
        for name in options.only:
            SECTIONS[name](options.rounds)
        return None
    for threads in options.threads:
        only = [name for name in options.only if threads == options.threads[0] or name != "memory"]
        for kernel in ("off", os.environ.get("CLEARHEAD_KERNEL", "")):
            arguments = ["--here", "--rounds", options.rounds, "--only", *only]
            run_script(__file__, arguments, threads=threads, CLEARHEAD_KERNEL=kernel)
    return None


if __name__ == "__main__":
    main()
