"""Random tasks as the notebooks of the sources draw them, one run per seed.

All numbers are drawn in single precision, in the order of the docstrings, and converted to double: the order determines
the task.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, LinearHead, ReluHead

START = 1 << 32
"""Starts have their own generators, so that they do not depend on the sizes of the task."""


def draw_tasks(seeds: Sequence[int], *, n: int, t: int, d: int) -> AttentionTask:
    """Draw v (d) of length one, labels (n) as signs of normal draws, tokens (n, t, d) and queries (n, d) of length one.

    This is the setting of the experiments on local convergence and ranks in Tarzanagh et al. 2023 (arXiv 2308.16898).
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        v = _unit(torch.randn(d, generator=generator))
        rows.append((v, *_labelled(generator, n=n, t=t, d=d)))
    v, labels, tokens, queries = (torch.stack(column).double() for column in zip(*rows, strict=True))
    return AttentionTask(tokens=tokens, queries=queries, labels=labels, head=LinearHead(v))


def draw_relu_tasks(seeds: Sequence[int], *, n: int, t: int, d: int) -> AttentionTask:
    """Draw V (d, d) of norm one, tokens, labels and queries, as in the source's experiment on several tokens."""
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        V = torch.randn(d, d, generator=generator)
        tokens = _unit(torch.randn(n, t, d, generator=generator))
        labels = _signs(torch.randn(n, generator=generator))
        queries = _unit(torch.randn(n, d, generator=generator))
        rows.append((V / torch.linalg.matrix_norm(V), tokens, labels, queries))
    V, tokens, labels, queries = (torch.stack(column).double() for column in zip(*rows, strict=True))
    return AttentionTask(tokens=tokens, queries=queries, labels=labels, head=ReluHead(V))


def draw_start(seeds: Sequence[int], *shapes: tuple[int, int]) -> tuple[Float[Tensor, "r _ _"], ...]:
    r"""Draw matrices with entries uniform within :math:`\pm 1/\sqrt{\text{rows}}`, as in a linear layer."""
    starts = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(START + seed)
        starts.append([_uniform(shape, generator) for shape in shapes])
    return tuple(torch.stack(column) for column in zip(*starts, strict=True))


def draw_small_start(seeds: Sequence[int], shape: tuple[int, int]) -> tuple[Float[Tensor, "r _ _"], ...]:
    """Draw K with normal entries of standard deviation 0.1; Q is zero, so that W starts at zero."""
    matrices = [
        torch.randn(shape, generator=torch.Generator().manual_seed(START + seed), dtype=torch.float64) for seed in seeds
    ]
    keys = 0.1 * torch.stack(matrices)
    return keys, torch.zeros_like(keys)


def _uniform(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    entries: Tensor = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    return entries / math.sqrt(shape[0])


def _labelled(generator: torch.Generator, *, n: int, t: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    labels = _signs(torch.randn(n, generator=generator))
    tokens = _unit(torch.randn(n, t, d, generator=generator))
    return labels, tokens, _unit(torch.randn(n, d, generator=generator))


def _signs(values: Tensor) -> Tensor:
    return torch.where(values > 0, 1.0, -1.0)


def _unit(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths
