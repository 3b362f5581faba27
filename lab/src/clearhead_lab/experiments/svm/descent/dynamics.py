"""Training of one attention layer, many runs at once: W and the selected tokens along the way."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Float, Int
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, Evaluation, LinearHead, evaluate
from clearhead_lab.experiments.svm.descent.rules import Direct, NormalisedDescent, Parameterisation, Parameters, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The state of r runs at k recorded steps.

    steps: the number of steps before each recording, 0 for the start
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
        """The probability of the selected token."""
        return self.attention.amax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTrajectory:
    """A trajectory of W and of the linear head v, trained together."""

    attention: Trajectory
    v: Float[Tensor, "k r c"]


def train(
    task: AttentionTask,
    start: Parameters,
    *,
    steps: int,
    record: Iterable[int] | None = None,
    parameters: Parameterisation | None = None,
    rule: Rule | None = None,
    evaluation: Callable[[AttentionTask, Tensor], Evaluation] = evaluate,
) -> Trajectory:
    """Take `steps` steps from `start` in every run.

    start: the trained parameters, as `parameters` defines them: W, or K and Q, one matrix per run
    record: the steps at which W, the loss and the attention are recorded; by default the last
    parameters, rule: by default W itself, and normalised descent
    evaluation: computes loss and gradient
    """
    parameters = Direct() if parameters is None else parameters
    recorder = _Recorder(steps, record)

    def gradients(now: Parameters, number: int) -> Parameters:
        W = parameters.weights(now)
        at = evaluation(task, W)
        recorder.add(number, (W, at.loss, at.attention))
        return parameters.gradients(now, at.gradient)

    _descend(start, gradients, NormalisedDescent() if rule is None else rule, steps)
    W, loss, attention = recorder.stacked()
    return Trajectory(steps=recorder.steps, W=W, loss=loss, attention=attention)


def train_jointly(
    task: AttentionTask,
    start: Float[Tensor, "r d e"],
    *,
    steps: int,
    record: Iterable[int] | None = None,
    rule: Rule | None = None,
) -> JointTrajectory:
    """Train W and the linear head v of the task together, each by its own step of the rule; v starts at the task's."""
    if not isinstance(task.head, LinearHead):
        raise InputError("joint training needs a linear head; give the task a LinearHead")
    recorder = _Recorder(steps, record)

    def gradients(now: Parameters, number: int) -> Parameters:
        W, v = now[0], now[1].squeeze(-1)
        at = evaluate(dataclasses.replace(task, head=LinearHead(v)), W)
        recorder.add(number, (W, at.loss, at.attention, v))
        return at.gradient, (at.slopes.unsqueeze(-2) @ at.outputs).mT

    first = (start, task.head.v.unsqueeze(-1))
    _descend(first, gradients, NormalisedDescent() if rule is None else rule, steps)
    W, loss, attention, v = recorder.stacked()
    return JointTrajectory(attention=Trajectory(steps=recorder.steps, W=W, loss=loss, attention=attention), v=v)


@torch.no_grad()
def _descend(
    start: Parameters,
    gradients: Callable[[Parameters, int], Parameters],
    rule: Rule,
    steps: int,
) -> None:
    """Run the loop. `gradients` receives the parameters before every step and after the last."""
    now, memory = tuple(start), rule.start(start)
    with one_thread():
        for number in range(steps):
            now, memory = rule.step(now, gradients(now, number), memory)
        gradients(now, steps)


class _Recorder:
    """Copies of tensors at some of the steps."""

    def __init__(self, steps: int, record: Iterable[int] | None) -> None:
        self.steps = tuple(sorted({steps} if record is None else set(record)))
        if not self.steps or self.steps[0] < 0 or self.steps[-1] > steps:
            raise InputError(f"expected steps to record from 0 to {steps}; got {list(self.steps)}")
        self._recorded = frozenset(self.steps)
        self._rows: list[tuple[Tensor, ...]] = []

    def add(self, number: int, row: tuple[Tensor, ...]) -> None:
        if number in self._recorded:
            self._rows.append(tuple(tensor.clone() for tensor in row))

    def stacked(self) -> tuple[Tensor, ...]:
        return tuple(torch.stack(column) for column in zip(*self._rows, strict=True))
