"""Small drawn tasks for the tests of dynamics."""

import torch

from clearhead.experiments.svm.descent.attention_task import AttentionTask
from clearhead.experiments.svm.descent.prediction import LOGISTIC, LinearHead, Loss, ReluHead

R, N, T, D, E, C = 2, 3, 5, 7, 11, 13


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made_task(
    seed: int, *, relu: bool = False, loss: Loss = LOGISTIC, values: bool = False, tokens: int = T
) -> AttentionTask:
    """Sizes are distinct primes; `values` are of a width of their own."""
    width = C if values else D
    head = ReluHead(drawn(R, width, 17, seed=seed)) if relu else LinearHead(drawn(R, width, seed=seed))
    return AttentionTask(
        tokens=drawn(R, N, tokens, D, seed=seed + 1),
        queries=drawn(R, N, E, seed=seed + 2),
        labels=drawn(R, N, seed=seed + 3).sign(),
        head=head,
        loss=loss,
        values=drawn(R, N, tokens, C, seed=seed + 4) if values else None,
    )
