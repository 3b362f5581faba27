r"""The training problem of Tarzanagh et al. 2023: one attention layer with a single query per sequence.

.. math:: L(W) = \frac1n \sum_i \ell(y_i\, h(o_i)), \qquad o_i = X_i^T a_i, \qquad a_i = \mathrm{softmax}(X_i W z_i).

With :math:`c_{it} = \nabla h(o_i) \cdot x_{it}`, the gradient is

.. math:: \nabla L = \frac1n \sum_i \ell'(y_i h(o_i))\, y_i \sum_t a_{it} (c_{it} - \bar c_i)\, x_{it} z_i^T, \qquad
          \bar c_i = \sum_t a_{it} c_{it}.

Heads h and losses :math:`\ell` are those of the sources: a fixed linear head, and in section 6 of arXiv 2308.16898 a
nonlinear one; losses decrease in the margin y h(o).

As attention saturates, :math:`c_{it} - \bar c_i` of the selected token is a difference of nearly equal numbers: at a
probability of 1 - 1e-16 its weight in the gradient is only rounding, which normalised descent amplifies. The weights of
a sequence sum to zero, so the weight of the selected token is computed as minus the sum of the others, which are exact
to the last digit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float, ShapeError


@runtime_checkable
class PredictionHead(Protocol):
    """A scalar function of the output o with its derivative, one per run."""

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return the gradient of h at o."""


@dataclass(frozen=True, slots=True)
class LinearHead:
    """h(o) = v.o"""

    v: Float[Tensor, "r c"]

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""
        return (outputs @ self.v.unsqueeze(-1)).squeeze(-1)

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return v for every o."""
        return self.v.unsqueeze(1).expand(outputs.shape)


@dataclass(frozen=True, slots=True)
class ReluHead:
    """h(o) = the sum of relu(V^T o). Its slope depends on the average of the tokens, not on single tokens."""

    V: Float[Tensor, "r c k"]

    def value(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n"]:
        """Return h(o)."""
        return (outputs @ self.V).clamp(min=0).sum(dim=-1)

    def slope(self, outputs: Float[Tensor, "r n c"]) -> Float[Tensor, "r n c"]:
        """Return the sum of the columns of V that have a positive product with o."""
        return ((outputs @ self.V) > 0).to(outputs.dtype) @ self.V.mT


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A decreasing function of the margin and its derivative, entry by entry."""

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


LOGISTIC = Loss(name="logistic", value=lambda x: -torch.nn.functional.logsigmoid(x), slope=lambda x: -torch.sigmoid(-x))
r""":math:`\log(1 + e^{-x})`"""
CORRELATION = Loss(name="correlation", value=torch.neg, slope=lambda x: -torch.ones_like(x))
r""":math:`-x`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTask:
    """r independent tasks of one shape, one per run.

    tokens: the x_it, by which tokens are scored; queries: the z_i, or ones of width 1 if the variable is a prompt
    labels: the y_i, 1 or -1
    values: the vectors that attention averages; by default the tokens
    """

    tokens: Float[Tensor, "r n t d"]
    queries: Float[Tensor, "r n e"]
    labels: Float[Tensor, "r n"]
    head: PredictionHead
    loss: Loss = LOGISTIC
    values: Float[Tensor, "r n t c"] | None = None

    def __post_init__(self) -> None:
        operands = {"tokens": self.tokens, "queries": self.queries, "labels": self.labels, "values": self.mixed}
        got = ", ".join(f"{name} {tuple(given.shape)}" for name, given in operands.items())
        runs = self.labels.shape
        if (
            self.tokens.ndim != 4
            or self.queries.ndim != 3
            or len({runs, self.tokens.shape[:2], self.queries.shape[:2]}) > 1
            or self.mixed.shape[:3] != self.tokens.shape[:3]
        ):
            raise ShapeError(
                f"expected tokens (r, n, t, d), queries (r, n, e), labels (r, n), values (r, n, t, c); got {got}"
            )
        if any(given.dtype is not torch.float64 for given in operands.values()):
            raise InputError("expected tokens, queries, labels and values in float64; call .double() on them")

    @property
    def mixed(self) -> Float[Tensor, "r n t c"]:
        """The vectors that attention averages."""
        return self.tokens if self.values is None else self.values

    @property
    def token_scores(self) -> Float[Tensor, "r n t"]:
        r""":math:`\gamma_{it} = y_i h(x_{it})`: the margin if attention selected that token alone."""
        r, n, t, c = self.mixed.shape
        return self.labels.unsqueeze(-1) * self.head.value(self.mixed.reshape(r, n * t, c)).view(r, n, t)

    def logits(self, W: Float[Tensor, "r d e"]) -> Float[Tensor, "r n t"]:
        """Return x_it^T W z_i."""
        return (self.tokens @ (self.queries @ W.mT).unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The loss, gradient and attention of every run at a W.

    outputs: the o_i; slopes: the derivative of the loss by h(o_i), from which the gradient by the head follows
    """

    loss: Float[Tensor, "r"]
    gradient: Float[Tensor, "r d e"]
    attention: Float[Tensor, "r n t"]
    outputs: Float[Tensor, "r n c"]
    slopes: Float[Tensor, "r n"]


def evaluate(task: AttentionTask, W: Float[Tensor, "r d e"]) -> Evaluation:
    """Evaluate the formulas of this file; the gradient is exact to rounding however saturated attention is."""
    logits = task.logits(W)
    attention = logits.softmax(dim=-1)
    outputs = _mixed(attention, task.mixed)
    margins = task.labels * task.head.value(outputs)
    slopes = task.loss.slope(margins) * task.labels / task.labels.shape[1]
    effects = (task.mixed @ task.head.slope(outputs).unsqueeze(-1)).squeeze(-1)
    selected = logits.argmax(dim=-1, keepdim=True)
    weights = attention * (effects - (attention * effects).sum(dim=-1, keepdim=True)) * slopes.unsqueeze(-1)
    weights.scatter_(-1, selected, 0.0)
    weights.scatter_(-1, selected, -weights.sum(dim=-1, keepdim=True))
    return Evaluation(
        loss=task.loss.value(margins).mean(dim=-1),
        gradient=_mixed(weights, task.tokens).mT @ task.queries,
        attention=attention,
        outputs=outputs,
        slopes=slopes,
    )


@torch.enable_grad()
def evaluate_by_autograd(task: AttentionTask, W: Float[Tensor, "r d e"]) -> Evaluation:
    """Evaluate the definition with autograd, whose gradient is only rounding once attention saturates."""
    W = W.detach().requires_grad_()
    attention = torch.softmax(task.logits(W), dim=-1)
    outputs = _mixed(attention, task.mixed)
    predicted = task.head.value(outputs)
    loss = task.loss.value(task.labels * predicted).mean(dim=-1)
    gradient, slopes = torch.autograd.grad(loss.sum(), [W, predicted])
    return Evaluation(
        loss=loss.detach(), gradient=gradient, attention=attention.detach(), outputs=outputs.detach(), slopes=slopes
    )


def _mixed(weights: Tensor, tokens: Tensor) -> Tensor:
    """Return weights (r, n, t) times tokens (r, n, t, c)."""
    return (weights.unsqueeze(-2) @ tokens).squeeze(-2)
