"""What symmetric attention and its pursuit cost beside torch's scaled_dot_product_attention (SDPA), and their errors.

    python benchmarks/symmetric_attention.py [--rounds 25] [--threads 1 2] [--only attention pursuit step memory error]

Calls alternate in one process, in an order drawn anew each round. A ratio is that of two medians; in brackets are the
quartiles of the rounds' own ratios. Keys and values are standard normal, float32, heads beside tokens as layers have
them. `dense` is the formulation that stores every n x n matrix. Each number of threads has a process of its own.
"""

import argparse
import functools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from clearhead.compiled.library import status
from clearhead.models.vit import VisionTransformer, VisionTransformerConfig
from clearhead.modules import SymmetricAttention
from clearhead.operators import principal_attention_pursuit, symmetric_attention

BATCHES = {64: (32, 12), 197: (32, 3), 577: (4, 3), 1024: (2, 3), 2048: (1, 2), 4096: (1, 2)}
"""Batch and heads by number of tokens, so that a call takes some ten milliseconds."""
SIZES = [(n, 64) for n in BATCHES] + [(n, d) for d in (32, 96, 128) for n in (197, 1024, 4096)]
STRENGTH = 4.0
"""Lambda of the pursuit, as in the source's runs of tiny models."""
SECTIONS = ("attention", "pursuit", "step", "memory", "error")

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


def attention_section(rounds: int) -> None:
    print("\nsymmetric attention / SDPA(k, k, v)")
    print(f"{'batch x heads x tokens x width':32s}{'forward':>20s}{'backward':>20s}")
    for n, d in SIZES:
        b, h = BATCHES[n]
        k, v, along = (normal(b, h, n, d, seed=seed) for seed in range(3))
        calls = named("ours", both_ways(symmetric_attention, k, v, along))
        calls |= named("torch", both_ways(plain, k, v, along))
        taken = timed({name: call for name, call in calls.items() if "recorded" not in name}, rounds)
        cells = [ratio(taken, [f"ours {way}"], [f"torch {way}"]) for way in ("forward", "backward")]
        print(f"{f'{b} x {h} x {n} x {d}':32s}" + "".join(f"{cell:>20s}" for cell in cells), flush=True)


def mu_of(k: Tensor, *, width: int) -> Tensor:
    """n width / (4 |K|_1), a head at a time."""
    return width / (4 * k.shape[-1] * k.abs().mean(dim=(-2, -1)))


def as_in_the_paper(k: Tensor) -> Tensor:
    """lambda / mu with the head's own width: 13 standard deviations of normal keys, so that hardly a key is clamped."""
    return STRENGTH / mu_of(k, width=k.shape[-1])


def as_in_the_code(k: Tensor) -> Tensor:
    """lambda * mu with the width of three heads: 3.7 standard deviations of standard normal keys."""
    return STRENGTH * mu_of(k, width=3 * k.shape[-1])


THRESHOLDS = {"released code's threshold": as_in_the_code, "paper's threshold": as_in_the_paper}


def pursue(k: Tensor, v: Tensor, *, iterations: int, threshold: Callable[[Tensor], Tensor]) -> Tensor:
    return principal_attention_pursuit(k, v, iterations=iterations, threshold=threshold(k))


def pursue_dense(k: Tensor, v: Tensor, *, iterations: int, threshold: Callable[[Tensor], Tensor]) -> Tensor:
    """The published lines, every matrix stored; dual is Y / mu."""
    t = threshold(k)[..., None, None]
    low_rank = dual = torch.zeros_like(k)
    for _ in range(iterations):
        residual = k - low_rank + dual
        sparse = residual.sign() * (residual.abs() - t).clamp_min(0)
        keys = k - sparse - dual
        low_rank = (keys @ keys.mT * k.shape[-1] ** -0.5).softmax(dim=-1) @ v
        dual = dual + (k - low_rank - sparse)
    return low_rank


def pursuit_section(rounds: int) -> None:
    print("\nprincipal attention pursuit / ONE call of SDPA, lambda = 4")
    print(f"{'batch x heads x tokens x width':32s}{'':>26s}{'forward':>22s}{'forward + backward':>22s}")
    for b, h, n in ((32, 3, 197), (1, 2, 4096)):
        k, v, along = (normal(b, h, n, 64, seed=seed) for seed in range(3))
        for rule, threshold in THRESHOLDS.items():
            calls = named("torch", both_ways(plain, k, v, along))
            given = threshold(k)
            fixed = functools.partial(principal_attention_pursuit, threshold=given)
            forms = {
                "ours, 2 iterations": functools.partial(pursue, iterations=2, threshold=threshold),
                "ours, 4 iterations": functools.partial(pursue, iterations=4, threshold=threshold),
                "ours, 4, threshold given": functools.partial(fixed, iterations=4),
                "dense, 4 iterations": functools.partial(pursue_dense, iterations=4, threshold=threshold),
            }
            for form, attention in forms.items():
                calls |= named(form, both_ways(attention, k, v, along))
            taken = timed(calls, rounds if n < 1000 else max(rounds // 4, 3))
            print(f"{b} x {h} x {n} x 64, {rule}")
            for form in forms:
                alone = ratio(taken, [f"{form} forward"], ["torch forward"])
                ways = ("recorded", "backward")
                together = ratio(taken, [f"{form} {way}" for way in ways], [f"torch {way}" for way in ways])
                print(f"{'':32s}{form:>26s}{alone:>22s}{together:>22s}", flush=True)


def tiny(pursuing: Sequence[int], *, symmetric: bool) -> VisionTransformer:
    """A vision transformer of the size of DeiT-tiny, with pursuit in some layers and symmetric attention elsewhere."""
    config = VisionTransformerConfig(
        image_size=224, patch_size=16, channels=3, classes=1000, width=192, layers=12, heads=3, mlp_width=768
    )
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(0))
    for number, block in enumerate(model.blocks):
        if number in pursuing or symmetric:
            operator = (
                functools.partial(pursue, iterations=4, threshold=as_in_the_paper)
                if number in pursuing
                else symmetric_attention
            )
            block.attention = SymmetricAttention(192, heads=3, operator=operator)
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
        "pursuit (4) in the first layer, symmetric elsewhere": tiny((0,), symmetric=True),
        "pursuit (4) in all 12 layers": tiny(range(12), symmetric=True),
    }
    taken = timed({name: step_of(model) for name, model in models.items()}, max(rounds // 2, 5))
    for name in models:
        print(f"{name:56s}{ratio(taken, [name], ['softmax']):>20s}", flush=True)


def memory_section(_: int) -> None:
    print("\nextra memory at its peak, 4 iterations, in multiples of the keys' size, each in a process of its own")
    print(
        f"{'batch x heads x tokens x width':32s}{'':>10s}{'keys, MiB':>12s}{'forward':>12s}{'forward + backward':>22s}"
    )
    for b, h, n in ((32, 3, 197), (1, 2, 4096)):
        size = b * h * n * 64 * 4 / 2**20
        for form in ("ours", "dense"):
            cells = []
            for ways in ("forward", "both"):
                command = [sys.executable, __file__, "--threads", str(torch.get_num_threads())]
                command += ["--grown-by", form, ways, str(b), str(h), str(n)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                cells.append(float(printed) / size)
            print(f"{f'{b} x {h} x {n} x 64':32s}{form:>10s}{size:12.1f}{cells[0]:12.1f}{cells[1]:22.1f}", flush=True)


def print_growth(form: str, ways: str, *sizes: str) -> None:
    """MiB that this process grows by at most during one call, after a small one."""
    b, h, n = map(int, sizes)
    k, v, along = (normal(b, h, n, 64, seed=seed) for seed in range(3))
    attention = functools.partial({"ours": pursue, "dense": pursue_dense}[form], iterations=4, threshold=as_in_the_code)

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


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def keys_of(kind: str, shape: tuple[int, int, int, int], seed: int) -> Tensor:
    """Random directions, lengths of this kind."""
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


def floating_point_state() -> str:
    denormal = torch.tensor(1e-30) * torch.tensor(1e-10)
    return "kept" if denormal > 0 else "flushed to zero"


def run(options: argparse.Namespace) -> None:
    (threads,) = options.threads
    torch.set_num_threads(threads)
    found = status()
    kernel = f"kernel {found.kernel.instructions}" if found.kernel else f"no kernel: {found.reason}"
    print(
        f"\n{threads} thread(s), torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), {kernel}, "
        f"denormals {floating_point_state()} on both sides, {options.rounds} rounds"
    )
    sections = {name: globals()[f"{name}_section"] for name in SECTIONS}
    for name in options.only:
        sections[name](options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--grown-by", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grown_by:
        torch.set_num_threads(options.threads[0])
        return print_growth(*options.grown_by)
    if len(options.threads) == 1:
        return run(options)
    for threads in options.threads:
        only = [name for name in options.only if threads == options.threads[0] or name not in ("memory", "error")]
        command = [
            sys.executable,
            __file__,
            "--rounds",
            str(options.rounds),
            "--threads",
            str(threads),
            "--only",
            *only,
        ]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})


if __name__ == "__main__":
    main()
