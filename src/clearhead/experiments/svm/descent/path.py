r"""The regularisation path: the least loss within balls that grow, instead of descent that does not end.

.. math:: \bar W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad
          (\bar K_R, \bar Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K Q^T).

As R grows, :math:`\bar W_R / R` approaches the SVM of least Frobenius norm, and :math:`\bar K_R \bar Q_R^T / R` that of
least nuclear norm (Tarzanagh et al. 2023, arXiv 2308.16898, section 3). The loss has several valleys; the path follows
one, from ball to ball.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.experiments.svm.descent.attention_task import AttentionTask, evaluate
from clearhead.experiments.svm.descent.parameters import Direct, Parameterisation
from clearhead.experiments.svm.descent.rules import Parameters
from clearhead.numerics.threads import one_thread
from clearhead.shapes import Float

__all__ = ["RegularisationPath", "regularisation_path"]

FIRST, LARGEST = 0.05, 0.5
"""Steps, as shares of the radius."""
SHORTER, LONGER = 0.6, 1.15
"""A step that overshot makes the next ones shorter, any other makes them longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegularisationPath:
    """W of r runs within each of k balls.

    slant: the sine of the angle between the parameters and minus their gradient; 0 at a minimum on the ball
    """

    radii: tuple[float, ...]
    W: Float[Tensor, "k r d e"]
    loss: Float[Tensor, "k r"]
    attention: Float[Tensor, "k r n t"]
    slant: Float[Tensor, "k r"]


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
    """Minimise within each ball by projected steps, from where the last one ended; in the first from `start`, scaled.

    steps, tolerance: in each ball, until the slant of every run is below the tolerance, and no more than so many
    progress: is told the balls done and all
    """
    if list(radii) != sorted(radii) or not radii or radii[0] <= 0:
        raise InputError(f"expected radii that are positive and grow; got {list(radii)}")
    within = _Ball(task, Direct() if parameters is None else parameters, start)
    now, found = within.joined(start), []
    with one_thread():
        for place, radius in enumerate(radii):
            now, slant = _minimised(within, now, within.parameters.length(radius), steps, tolerance)
            W = within.weights(now)
            at = evaluate(task, W)
            found.append((W, at.loss, at.attention, slant))
            if progress is not None:
                progress(place + 1, len(radii))
    W, loss, attention, slant = (torch.stack(column) for column in zip(*found, strict=True))
    return RegularisationPath(radii=tuple(radii), W=W, loss=loss, attention=attention, slant=slant)


class _Ball:
    """The parameters of every run as one vector, and the loss's gradient by it."""

    def __init__(self, task: AttentionTask, parameters: Parameterisation, start: Parameters) -> None:
        self.task, self.parameters = task, parameters
        self._shapes = [p.shape for p in start]
        self._sizes = [p.shape[1] * p.shape[2] for p in start]

    def joined(self, parts: Parameters) -> Float[Tensor, "r p"]:
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def weights(self, vector: Float[Tensor, "r p"]) -> Float[Tensor, "r d e"]:
        return self.parameters.weights(self._apart(vector))

    def downhill(self, vector: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
        """Minus the gradient, of length one, or zero where the gradient is."""
        parts = self._apart(vector)
        gradient = evaluate(self.task, self.parameters.weights(parts)).gradient
        return -_of_length_one(self.joined(self.parameters.gradients(parts, gradient)))

    def _apart(self, vector: Float[Tensor, "r p"]) -> Parameters:
        split = torch.split(vector, self._sizes, dim=1)
        return tuple(part.view(shape) for part, shape in zip(split, self._shapes, strict=True))


def _minimised(
    within: _Ball, vector: Float[Tensor, "r p"], radius: float, steps: int, tolerance: float
) -> tuple[Float[Tensor, "r p"], Float[Tensor, "r"]]:
    """Steps along the sphere, as the loss falls outwards everywhere but at saddles, and how far from straight out the
    fall still is."""
    vector = radius * _of_length_one(vector)
    size = torch.full((len(vector), 1), FIRST, dtype=vector.dtype)
    before = torch.zeros_like(vector)
    for step in range(steps + 1):
        downhill, outwards = within.downhill(vector), vector / radius
        along = downhill - (downhill * outwards).sum(dim=1, keepdim=True) * outwards
        slant = torch.linalg.vector_norm(along, dim=1)
        if step == steps or slant.max() < tolerance:
            break
        overshot = (along * before).sum(dim=1, keepdim=True) < 0
        size = torch.where(overshot, SHORTER * size, LONGER * size).clamp(max=LARGEST)
        vector, before = radius * _of_length_one(vector + size * radius * along), along
    return vector, slant


def _of_length_one(vector: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return vector / torch.where(length > 0, length, 1.0)
