"""Prompts that are trained, as published: small tasks, where they start, and the SVM of what each selects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.experiments.svm.descent.attention_task import AttentionTask
from clearhead.experiments.svm.descent.dynamics import Trajectory, train, train_jointly
from clearhead.experiments.svm.descent.prediction import LOGISTIC, LinearHead, Loss
from clearhead.theories.max_margin import attention_svm
from clearhead.theories.max_margin.optimality import correlation, globally_optimal

__all__ = ["STEPS", "JointCase", "PromptCase", "by_loss", "jointly", "one_sequence", "three_sequences"]

STEPS = 1000
KEPT = sorted({0, *range(1, 10), *(int(step) for step in np.geomspace(10, STEPS, 50))})
ALONG = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
"""Where the published prompts start, along one axis."""
FACTORS = (1.0, 2.0, 5.0, 10.0, 100.0)
"""By how much one sequence's score outweighs the other's, where losses are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCase:
    """Tasks of one kind, trained from several starts or with several factors, and the SVM of what each selected."""

    name: str
    task: AttentionTask
    found: Trajectory
    solutions: tuple[Tensor | None, ...]

    def near(self) -> list[list[float]]:
        """Cosines to the own SVM by kept step and run."""
        return [
            [
                float("nan") if own is None else float(correlation(W, own))
                for W, own in zip(at, self.solutions, strict=True)
            ]
            for at in self.found.W
        ]

    def facts(self) -> dict[str, Any]:
        """What the runs came to."""
        best = globally_optimal(self.task.token_scores, self.found.selected[-1]).tolist()
        return {"case": self.name, "best": best, "near": [None if c != c else c for c in self.near()[-1]]}


def _task(tokens: Sequence[Any] | Tensor, runs: int, *, loss: Loss = LOGISTIC) -> AttentionTask:
    """Tokens (n, t, 3) of which the third coordinate is the score and the others are what the prompt sees."""
    values = torch.as_tensor(tokens, dtype=torch.float64).expand(runs, -1, -1, -1)
    n = values.shape[1]
    return AttentionTask(
        tokens=values[..., :2].contiguous(),
        queries=torch.ones(runs, n, 1).double(),
        labels=torch.ones(runs, n).double(),
        head=LinearHead(torch.tensor([0.0, 0.0, 1.0]).double().expand(runs, 3)),
        loss=loss,
        values=values,
    )


def _trained(name: str, task: AttentionTask, start: Tensor) -> PromptCase:
    found = train(task, (start,), steps=STEPS, keep=KEPT)
    selected = found.selected[-1]
    solutions = tuple(attention_svm(x, None, own).W for x, own in zip(task.tokens, selected, strict=True))
    return PromptCase(name=name, task=task, found=found, solutions=solutions)


def _starts(axis: int) -> Tensor:
    """A prompt for each of the published starts."""
    start = torch.zeros(len(ALONG), 2, 1).double()
    start[:, axis, 0] = torch.tensor(ALONG).double()
    return start


def one_sequence(name: str, last: float) -> PromptCase:
    """Three tokens, of which the third scores `last`."""
    task = _task([[[-0.1, 1.0, 1.0], [1.0, 0.0, 0.9], [0.0, 0.0, last]]], len(ALONG))
    return _trained(name, task, _starts(axis=1))


def three_sequences(seed: int) -> PromptCase:
    """Seven tokens each: the best around (1, 0), three around (-1, 1), three around (-1/2, -1/2)."""
    tokens = 0.2 * torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] += torch.tensor([1.0, 0.0, 0.0])
    tokens[:, 1:4] += torch.tensor([-1.0, 1.0, 0.0])
    tokens[:, 4:] += torch.tensor([-0.5, -0.5, 0.0])
    tokens[..., 2] = torch.tensor([1.0] + 6 * [0.5])
    return _trained("3 sequences of 7 tokens", _task(tokens, len(ALONG)), _starts(axis=0))


def by_loss(loss: Loss) -> PromptCase:
    """Two sequences of two tokens, one of which scores `FACTORS` times as much as the other's best."""
    tokens = torch.zeros(len(FACTORS), 2, 2, 3)
    tokens[:, 0, 1] = torch.stack([torch.tensor([1.0, 1.0, factor]) for factor in FACTORS])
    tokens[:, 1, 1] = torch.tensor([1.0, -1.0, 1.0])
    shape = _task(tokens[0], len(FACTORS), loss=loss)
    task = AttentionTask(
        tokens=tokens[..., :2].double(),
        queries=shape.queries,
        labels=shape.labels,
        head=shape.head,
        loss=loss,
        values=tokens.double(),
    )
    return _trained(f"scores 1 to {FACTORS[-1]:g}, {loss.name} loss", task, torch.zeros(len(FACTORS), 2, 1).double())


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCase:
    """A prompt and a head trained together: their cosines to their SVMs by the kept step.

    support: which sequences' tokens are support vectors of the head
    """

    name: str
    steps: tuple[int, ...]
    prompt: list[float]
    head: list[float]
    support: list[bool]


def jointly(name: str, height: float) -> JointCase:
    """Three sequences of two tokens, one of them zero; the third's other one is (1/2, height).

    Sequences whose selected token is no support vector of the head need no margin: their token has only to score
    higher, which it does here, so they are left out of the prompt's problem.
    """
    tokens = torch.zeros(1, 3, 2, 2).double()
    tokens[0, :, 1] = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, height]])
    labels = torch.tensor([[1.0, -1.0, 1.0]]).double()
    first = LinearHead(torch.tensor([[-1.0, 0.0]]).double())
    task = AttentionTask(tokens=tokens, queries=torch.ones(1, 3, 1).double(), labels=labels, head=first)
    found = train_jointly(task, torch.tensor([[[0.0], [-1.0]]]).double(), steps=STEPS, keep=KEPT)
    selected = found.attention.selected[-1, 0]
    chosen = labels[0, :, None] * tokens[0, torch.arange(3), selected]
    beside_zero = torch.stack([chosen, torch.zeros_like(chosen)], dim=1)
    head = attention_svm(beside_zero, None, torch.zeros(3, dtype=torch.int64))
    support = head.support[:, 1]
    prompt = attention_svm(tokens[0], None, selected, mask=support[:, None].expand(3, 2))
    assert head.W is not None, "the published labels can be separated"
    assert prompt.W is not None, "the published tokens can be selected"
    return JointCase(
        name=name,
        steps=found.attention.steps,
        prompt=[float(correlation(W[0], prompt.W)) for W in found.attention.W],
        head=[float(correlation(v.mT, head.W)) for v in found.v],
        support=support.tolist(),
    )
