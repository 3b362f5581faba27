r"""The regularisation path: the least loss within growing balls, instead of descent without end.

.. math:: \bar W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad
          (\bar K_R, \bar Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K Q^T).

As R grows, :math:`\bar W_R / R` approaches the SVM of least Frobenius norm, and :math:`\bar K_R \bar Q_R^T / R` that of
least nuclear norm (Tarzanagh et al. 2023, arXiv 2308.16898, section 3). The loss has several minima; the path follows
one of them from ball to ball.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Float
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, evaluate
from clearhead_lab.experiments.svm.descent.rules import Direct, Parameterisation, Parameters

__all__ = ["RegularisationPath", "regularisation_path"]

FIRST, LARGEST = 0.05, 0.5
"""Step sizes, relative to the radius."""
SHORTER, LONGER = 0.6, 1.15
"""Factors of the step size after a step that overshot, and after any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegularisationPath:
    """W of r runs within each of k balls.

    residual: the sine of the angle between the parameters and their negative gradient; 0 at a minimum on the ball
    """

    radii: tuple[float, ...]
    W: Float[Tensor, "k r d e"]
    loss: Float[Tensor, "k r"]
    attention: Float[Tensor, "k r n t"]
    residual: Float[Tensor, "k r"]


@torch.no_grad()
def regularisation_path(
    task: AttentionTask,
    start: Parameters,
    *,
    radii: Sequence[float],
    parameters: Parameterisation | None = None,
    steps: int = 2000,
    tolerance: float = 1e-4,
    progress: Callable[[int, int], Any] | None = None,
) -> RegularisationPath:
    """Minimise within each ball by projected steps, starting from the previous minimum; the first from `start`, scaled.

    steps, tolerance: stop in each ball after `steps` steps, or when the residual of every run is below the tolerance
    progress: receives the number of balls done and the total
    """
    if list(radii) != sorted(radii) or not radii or radii[0] <= 0:
        raise InputError(f"expected positive, increasing radii; got {list(radii)}")
    within = _Ball(task, Direct() if parameters is None else parameters, start)
    now, states = within.joined(start), []
    with one_thread():
        for number, radius in enumerate(radii, 1):
            now, residual = _minimised(within, now, within.parameters.length(radius), steps, tolerance)
            W = within.weights(now)
            at = evaluate(task, W)
            states.append((W, at.loss, at.attention, residual))
            if progress is not None:
                progress(number, len(radii))
    W, loss, attention, residual = (torch.stack(column) for column in zip(*states, strict=True))
    return RegularisationPath(radii=tuple(radii), W=W, loss=loss, attention=attention, residual=residual)


class _Ball:
    """The parameters of every run as one vector, and the gradient of the loss by it."""

    def __init__(self, task: AttentionTask, parameters: Parameterisation, start: Parameters) -> None:
        self.task, self.parameters = task, parameters
        self._shapes = [p.shape for p in start]
        self._sizes = [p.shape[1] * p.shape[2] for p in start]

    def joined(self, matrices: Parameters) -> Float[Tensor, "r p"]:
        return torch.cat([matrix.flatten(1) for matrix in matrices], dim=1)

    def weights(self, vector: Float[Tensor, "r p"]) -> Float[Tensor, "r d e"]:
        return self.parameters.weights(self._split(vector))

    def downhill(self, vector: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
        """Return the negative gradient scaled to length one; zero where the gradient is zero."""
        matrices = self._split(vector)
        gradient = evaluate(self.task, self.parameters.weights(matrices)).gradient
        return -_of_length_one(self.joined(self.parameters.gradients(matrices, gradient)))

    def _split(self, vector: Float[Tensor, "r p"]) -> Parameters:
        split = torch.split(vector, self._sizes, dim=1)
        return tuple(entries.view(shape) for entries, shape in zip(split, self._shapes, strict=True))


def _minimised(
    within: _Ball, vector: Float[Tensor, "r p"], radius: float, steps: int, tolerance: float
) -> tuple[Float[Tensor, "r p"], Float[Tensor, "r"]]:
    """Step along the sphere, as the loss falls outwards except at saddles; return the minimum and its residual."""
    vector = radius * _of_length_one(vector)
    size = torch.full((len(vector), 1), FIRST, dtype=vector.dtype)
    before = torch.zeros_like(vector)
    for step in range(steps + 1):
        downhill, outwards = within.downhill(vector), vector / radius
        along = downhill - (downhill * outwards).sum(dim=1, keepdim=True) * outwards
        residual = torch.linalg.vector_norm(along, dim=1)
        if step == steps or residual.max() < tolerance:
            break
        overshot = (along * before).sum(dim=1, keepdim=True) < 0
        size = torch.where(overshot, SHORTER * size, LONGER * size).clamp(max=LARGEST)
        vector, before = radius * _of_length_one(vector + size * radius * along), along
    return vector, residual


def _of_length_one(vector: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return vector / torch.where(length > 0, length, 1.0)
