"""Small random tasks for the tests of descent."""

import torch

from clearhead_lab.experiments.svm.descent.attention_task import LOGISTIC, AttentionTask, LinearHead, Loss, ReluHead

R, N, T, D, E, C = 2, 3, 5, 7, 11, 13


def random_tensor(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_task(
    seed: int, *, relu: bool = False, loss: Loss = LOGISTIC, values: bool = False, tokens: int = T
) -> AttentionTask:
    """Return tasks whose sizes are distinct primes; `values` have another width than tokens."""
    width = C if values else D
    head = ReluHead(random_tensor(R, width, 17, seed=seed)) if relu else LinearHead(random_tensor(R, width, seed=seed))
    return AttentionTask(
        tokens=random_tensor(R, N, tokens, D, seed=seed + 1),
        queries=random_tensor(R, N, E, seed=seed + 2),
        labels=random_tensor(R, N, seed=seed + 3).sign(),
        head=head,
        loss=loss,
        values=random_tensor(R, N, tokens, C, seed=seed + 4) if values else None,
    )
