"""Cost of a CRATE block relative to the published formulation.

    python benchmarks/crate_block.py [--rounds 15] [--threads 1]

The reference stores every n x n matrix of weights and multiplies by the dictionary three times, as the released code
does (`naive_block`). Ours uses the symmetric kernel if it is installed and one product for the sparse step. Ratios
below one favour ours; they are ratios of medians of interleaved calls, with quartiles in brackets.
"""

import argparse
import gc

import torch
from timing import named, ratio, state, timed
from torch import Tensor

from clearhead_lab.models.crate import CrateBlock, CrateConfig

SHAPES = ((16, 197, 384, 6), (4, 1025, 384, 6))


def naive_block(block: CrateBlock, x: Tensor) -> Tensor:
    """Compute the released formulation with the block's own weights."""
    heads, D = block.attention.num_heads, block.sparse.dictionary
    v = block.attention.subspaces(block.attention_norm(x))
    v = v.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
    weights = torch.softmax((v @ v.transpose(-1, -2)) * v.shape[-1] ** -0.5, dim=-1)
    x = block.attention.out((weights @ v).transpose(1, 2).flatten(2)) + x
    z = block.sparse_norm(x)
    coded = torch.nn.functional.linear(torch.nn.functional.linear(z, D), D.t())
    toward = torch.nn.functional.linear(z, D.t())
    step, penalty = block.sparse.step, block.sparse.penalty
    return torch.relu(z + step * (toward - coded) - step * penalty)


def measured(b: int, n: int, d: int, heads: int, rounds: int) -> None:
    torch.manual_seed(0)
    block = CrateBlock(CrateConfig(image_size=1, patch_size=1, channels=1, classes=1, width=d, heads=heads))
    x, along = torch.randn(b, n, d, requires_grad=True), torch.randn(b, n, d)
    leaves = (x, *block.parameters())
    forms = {"ours": block, "naive": lambda x: naive_block(block, x)}
    with torch.no_grad():
        ours, naive = (form(x) for form in forms.values())
        error = float((ours - naive).norm() / naive.norm())
    calls = {}
    for name, form in forms.items():

        def forward(form=form) -> Tensor:
            with torch.no_grad():
                return form(x)

        def both(form=form) -> object:
            return torch.autograd.grad(form(x), leaves, along)

        calls |= named(name, {"forward": forward, "both": both})
    gc.disable()
    taken = timed(calls, rounds)
    gc.enable()
    print(
        f"({b}, {n}, {d}), {heads} heads: forward {ratio(taken, ['ours forward'], ['naive forward'])}, "
        f"forward+backward {ratio(taken, ['ours both'], ['naive both'])}, relative difference {error:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(state(given.threads, given.rounds))
    for shape in SHAPES:
        measured(*shape, given.rounds)
