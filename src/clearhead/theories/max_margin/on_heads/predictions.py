"""Predicted values: the statistics of every group if a head's W were the attention SVM of all groups.

The theory states that W has the direction of the SVM of all inputs. On one group of them this SVM has a smaller margin
than the group's own, so its margin ratio and its cosine there are below one. They are what the theory predicts.

The SVM is fitted on the head's own selection, on the measured queries and on further queries of the same inputs. A head
that was trained on more constraints than these has a smaller margin than predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import MODEL, Choice, InputChoices
from clearhead.theories.max_margin.on_heads.evidence import fit_statistics
from clearhead.theories.max_margin.on_heads.other_norms import cosine, other_svms
from clearhead.theories.max_margin.on_heads.problems import Group, Problem, fit_problem
from clearhead.theories.max_margin.svm.frobenius import LeastNorm
from clearhead.theories.max_margin.svm.solution import Conflict
from clearhead.theories.max_margin.svm.solving import separate
from clearhead.theories.theory import Claim

__all__ = ["OTHER_NORMS", "PREDICTED", "KeptGroup", "predict_head"]

OTHER_NORMS = (c.COSINE_NUCLEAR, c.COSINE_MAX_ENTRY)
PREDICTED = (c.RATIO, c.LOW_RATIO, c.COSINE, c.COSINE_SPAN, *OTHER_NORMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """The choices of a layer's own heads on one group of inputs, measured and further ones."""

    measured: list[Choice]
    further: list[Choice]

    @classmethod
    def of(cls, inputs: Sequence[InputChoices]) -> "KeptGroup":
        """Return what predictions need of a group."""
        return cls(
            measured=[choice.model_only() for choices in inputs for choice in choices.measured],
            further=[choice for choices in inputs for choice in choices.further],
        )

    def state(self) -> dict[str, Any]:
        """Return the choices as plain values and arrays."""
        return {name: [choice.state() for choice in getattr(self, name)] for name in ("measured", "further")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "KeptGroup":
        """Return the choices that `state` was taken of."""
        return cls(**{name: [Choice(**choice) for choice in choices] for name, choices in state.items()})

    def saturation(self, h: int) -> float:
        """Return the share of measured queries that are saturated."""
        return float(np.mean([choice.saturated[MODEL][0, h] for choice in self.measured]))


def predict_head(groups: Sequence[KeptGroup], h: int, *, everywhere: bool = False, other_norms: bool = True) -> Array:
    """Return the predictions of one head, (claims of `PREDICTED`, groups); NaN where the SVM of all is not solved.

    Norms other than Frobenius are solved if `other_norms`, where the head is saturated, or `everywhere`.
    """
    predicted = np.full((len(PREDICTED), len(groups)), np.nan)
    side = h % groups[0].measured[0].x.shape[0]
    everything = Group([choice for group in groups for choice in (*group.measured, *group.further)], side)
    rows = _problem(everything, h).constraints()
    least = separate(rows)
    if isinstance(least, Conflict) or not least.converged:
        return predicted
    in_other_norms = [other_norms and (everywhere or group.saturation(h) >= c.REQUIRED_SATURATION) for group in groups]
    others = other_svms(rows, least) if any(in_other_norms) else {}
    for index, kept in enumerate(groups):
        statistics = _statistics(Group(kept.measured, side), h, least.W, others if in_other_norms[index] else {})
        predicted[:, index] = [statistics.get(claim, np.nan) for claim in PREDICTED]
    return predicted


def _problem(group: Group, h: int, W: Array | None = None) -> Problem:
    """Return the problem of a head's selection, with the scores of W."""
    scores = np.zeros(len(group.x)) if W is None else np.einsum("jc,jc->j", group.x, (group.z @ W.T)[group.sequence])
    return Problem.of(group, group.selected(MODEL, 0, h), scores, 1.0 if W is None else float(np.linalg.norm(W)))


def _statistics(group: Group, h: int, W: Array, others: dict[Claim, Array | None]) -> dict[Claim, float]:
    """Return the statistics of W, and the cosines of the SVMs in `others`, on one group."""
    fit = fit_problem(_problem(group, h, W))
    if fit is None:
        return {}
    statistics = {**fit_statistics(fit), c.COSINE_SPAN: fit.cosine_in_span()}
    if others:
        rows = fit.problem.constraints()
        own = other_svms(rows, LeastNorm(rows.combined(fit.multipliers), fit.multipliers, converged=True))
        statistics |= {claim: cosine(others[claim], own[claim]) for claim in OTHER_NORMS}
    return statistics
