r"""The regularisation path: the least loss within growing balls, instead of descent without end.

.. math:: \bar W_R = \arg\min_{\|W\|_F \le R} L(W), \qquad
          (\bar K_R, \bar Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(K Q^T).

As R grows, :math:`\bar W_R / R` approaches the SVM of least Frobenius norm, and :math:`\bar K_R \bar Q_R^T / R` that of
least nuclear norm (Tarzanagh et al. 2023, arXiv 2308.16898, section 3). The loss has several minima; the path follows
one of them from ball to ball.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.threads import one_thread
from clearhead.report.tables import Field, Table, mean_of, over_runs
from clearhead.report.wording import short
from clearhead.shapes import Float
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.estimates import mean_field
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask, evaluate
from clearhead_lab.experiments.svm.descent.rules import Direct, Factored, Parameterisation, Parameters
from clearhead_lab.experiments.svm.descent.solutions import (
    PREDICTED,
    cosines,
    draw_cosines,
    solve_all,
    svm_experiment,
)
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead_lab.theorems.max_margin.convergence import globally_optimal

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
) -> RegularisationPath:
    """Minimise within each ball by projected steps, starting from the previous minimum; the first from `start`, scaled.

    steps, tolerance: stop in each ball after `steps` steps, or when the residual of every run is below the tolerance
    """
    if list(radii) != sorted(radii) or not radii or radii[0] <= 0:
        raise InputError(f"expected positive, increasing radii; got {list(radii)}")
    within = _Ball(task, Direct() if parameters is None else parameters, start)
    now, states = within.joined(start), []
    with one_thread():
        for radius in radii:
            now, residual = _minimised(within, now, within.parameters.length(radius), steps, tolerance)
            W = within.weights(now)
            at = evaluate(task, W)
            states.append((W, at.loss, at.attention, residual))
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


N, T, D = 6, 8, 10
RADII = tuple(2.0**k for k in range(10))
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR)

Results = Mapping[str, Mapping[str, Any]]


def measure(*, trained: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Follow the path from every seed; compare it with the SVMs of the tokens selected in the largest ball."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    path = regularisation_path(
        task,
        start[:1] if trained == "W" else start,
        radii=RADII,
        parameters=Direct() if trained == "W" else Factored(0.0),
    )
    selected = path.attention[-1].argmax(dim=-1)
    solutions = {norm: solve_all(task.tokens, task.queries, selected, norm) for norm in NORMS}
    return {
        "cosines": {norm: [cosines(W, solved) for W in path.W] for norm, solved in solutions.items()},
        "residual": path.residual.tolist(),
        "global": globally_optimal(task.token_scores, selected).tolist(),
    }


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines to both SVMs, by the radius."""
    seeds = request.seed_list(20)
    last = {
        (trained, norm): mean_of(over_runs(result["cosines"][norm][-1]))
        for trained, result in results.items()
        for norm in NORMS
    }
    return Report(
        headline=f"R = {RADII[-1]:g}: cosine to the predicted SVM {last['W', Norm.FROBENIUS]} and "
        f"{last['K, Q', Norm.NUCLEAR]}, to the other {last['W', Norm.NUCLEAR]} and {last['K, Q', Norm.FROBENIUS]}",
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}. Least loss "
            "over |W|_F <= R, and over |K|^2 + |Q|^2 <= 2R, by projected steps from ball to ball. Cosines to the SVMs "
            "of the tokens selected in the largest ball: means with 95 % Student intervals. Residual: the largest sine "
            "over runs of the angle between the parameters and the negative gradient, 0 at a minimum. There is no "
            "reference for it."
        ),
        sections=[("Cosine to the SVM, by the radius", _table(results))],
        remarks=(
            "Mean cosine to the SVM of least Frobenius (F) and nuclear (N) norm, ± half of the 95 % Student interval; "
            "residual: the distance of the worst run from a minimum, as a sine.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "radii": RADII, "runs": dict(results)},
    )


def _table(results: Results) -> Table:
    fields = [Field(title="R", cells=[f"{radius:g}" for radius in RADII])]
    for trained, result in results.items():
        for norm in NORMS:
            title, rank = f"{trained} to {norm}", 0 if PREDICTED[trained] is norm else 1
            fields.append(
                mean_field(title, result["cosines"][norm], short=f"{trained} to {norm[0].upper()}", rank=rank)
            )
        residuals = [short(max(values)) for values in result["residual"]]
        fields.append(Field(title=f"residual of {trained}", short="residual", cells=residuals, rank=2))
    return fields


def draw(results: Results) -> Figure:
    """Plot the cosines by the radius."""
    curves = {f"{trained}, least loss within R": result["cosines"] for trained, result in results.items()}
    title = "Cosine of the regularisation path to attention SVMs, by the radius"
    return draw_cosines(curves, RADII, title=title, x="R")


REGULARISATION_PATH = svm_experiment(
    "regularisation-path",
    measure,
    lambda request: {trained: {"trained": trained, "seeds": request.seed_list(20)} for trained in PREDICTED},
    report,
    title="The regularisation path",
    reproduces="least loss within growing balls leads to the same SVMs as descent (Tarzanagh et al. 2023)",
    cost="20 s",
)
