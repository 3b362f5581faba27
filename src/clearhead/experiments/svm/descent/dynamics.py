"""Training attention, step by step, many runs at once: what W becomes, and which tokens it selects on the way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.experiments.svm.descent.attention_task import AttentionTask, Evaluation, evaluate
from clearhead.experiments.svm.descent.parameters import Direct, Parameterisation
from clearhead.experiments.svm.descent.prediction import LinearHead
from clearhead.experiments.svm.descent.rules import NormalisedDescent, Parameters, Rule
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Float, Int

__all__ = ["JointTrajectory", "Trajectory", "train", "train_jointly"]

Progress = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What was kept of training r runs, k times.

    steps: how many steps had been taken, 0 before the first
    """

    steps: tuple[int, ...]
    W: Float[Tensor, "k r d e"]
    loss: Float[Tensor, "k r"]
    attention: Float[Tensor, "k r n t"]

    @property
    def selected(self) -> Int[Tensor, "k r n"]:
        """The most probable token of each sequence."""
        return self.attention.argmax(dim=-1)

    @property
    def largest(self) -> Float[Tensor, "k r n"]:
        """Its probability."""
        return self.attention.amax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTrajectory:
    """The same where the linear head is trained too; `v` is the head."""

    attention: Trajectory
    v: Float[Tensor, "k r c"]


def train(
    task: AttentionTask,
    start: Parameters,
    *,
    steps: int,
    keep: Iterable[int] | None = None,
    parameters: Parameterisation | None = None,
    rule: Rule | None = None,
    evaluation: Callable[[AttentionTask, Tensor], Evaluation] = evaluate,
    progress: Progress | None = None,
) -> Trajectory:
    """Take so many steps from `start`, in every run alike.

    start: what is trained, as `parameters` has it: W, or K and Q, a matrix for each run
    keep: the steps after which to keep W and what it does; the last one if not given
    parameters, rule: W itself by normalised descent, if not given
    evaluation: how loss and gradient are computed
    progress: is told the steps taken and all
    """
    parameters = Direct() if parameters is None else parameters
    found = _Kept(steps, keep)

    def gradients(now: Parameters, number: int) -> Parameters:
        W = parameters.weights(now)
        at = evaluation(task, W)
        found.add(number, (W, at.loss, at.attention))
        return parameters.gradients(now, at.gradient)

    _descend(start, gradients, NormalisedDescent() if rule is None else rule, steps, progress)
    W, loss, attention = found.stacked()
    return Trajectory(steps=found.steps, W=W, loss=loss, attention=attention)


def train_jointly(
    task: AttentionTask,
    start: Float[Tensor, "r d e"],
    *,
    steps: int,
    keep: Iterable[int] | None = None,
    rule: Rule | None = None,
) -> JointTrajectory:
    """Train W and the linear head v of the task together, v from where it is, each by the rule for itself."""
    if not isinstance(task.head, LinearHead):
        raise InputError("only a linear head is trained together with W; give the task a LinearHead")
    found = _Kept(steps, keep)

    def gradients(now: Parameters, number: int) -> Parameters:
        W, v = now[0], now[1].squeeze(-1)
        at = evaluate(_with_head(task, v), W)
        found.add(number, (W, at.loss, at.attention, v))
        return at.gradient, (at.slopes.unsqueeze(-2) @ at.outputs).mT

    first = (start, task.head.v.unsqueeze(-1))
    _descend(first, gradients, NormalisedDescent() if rule is None else rule, steps, None)
    W, loss, attention, v = found.stacked()
    return JointTrajectory(attention=Trajectory(steps=found.steps, W=W, loss=loss, attention=attention), v=v)


@torch.no_grad()
def _descend(
    start: Parameters,
    gradients: Callable[[Parameters, int], Parameters],
    rule: Rule,
    steps: int,
    progress: Progress | None,
) -> None:
    """The loop: `gradients` sees the parameters before every step and after the last."""
    now, memory = tuple(start), rule.start(start)
    with one_thread():
        for number in range(steps):
            now, memory = rule.step(now, gradients(now, number), memory)
            if progress is not None and number % 100 == 99:
                progress(number + 1, steps)
        gradients(now, steps)


class _Kept:
    """Copies of tensors at some of the steps."""

    def __init__(self, steps: int, keep: Iterable[int] | None) -> None:
        self.steps = tuple(sorted({steps} if keep is None else set(keep)))
        if not self.steps or self.steps[0] < 0 or self.steps[-1] > steps:
            raise InputError(f"expected steps to keep from 0 to {steps}; got {list(self.steps)}")
        self._wanted = frozenset(self.steps)
        self._rows: list[tuple[Tensor, ...]] = []

    def add(self, number: int, row: tuple[Tensor, ...]) -> None:
        if number in self._wanted:
            self._rows.append(tuple(tensor.clone() for tensor in row))

    def stacked(self) -> tuple[Tensor, ...]:
        return tuple(torch.stack(column) for column in zip(*self._rows, strict=True))


def _with_head(task: AttentionTask, v: Float[Tensor, "r c"]) -> AttentionTask:
    return AttentionTask(
        tokens=task.tokens,
        queries=task.queries,
        labels=task.labels,
        head=LinearHead(v),
        loss=task.loss,
        values=task.values,
    )
