"""Tests of whether a statistic separates models by what they were trained on.

The unit is the model: two trained models differ in every statistic, so that they differ says nothing about their data.
A claim separates a model from others only if its median over heads lies outside the range that is predicted for one
more of the others (Student's prediction interval). Heads of two models that were trained separately do not correspond
to one another; they are compared within layers, by exchanging heads at random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearhead.audit.findings import Verdict
from clearhead.numerics.moments import Array, false_discovery_rate, prediction_p_value
from clearhead.theories.theory import Role

DRAWS = 9_999
JUDGED = (str(Role.PRIMARY), str(Role.SECONDARY))

ClaimKey = tuple[str, str]
"""Theory and statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """One claim: the medians over heads of several models and of another, and the test that it is one more of them.

    adjusted_p_value: adjusted over the claims for the false discovery rate
    """

    theory: str
    statistic: str
    others: tuple[float, ...]
    value: float
    p_value: float
    adjusted_p_value: float


def head_values(record: Mapping[str, Any]) -> dict[ClaimKey, Array]:
    """Return the values of every primary and secondary claim of an audit as JSON, (layers, heads); NaN without one.

    Claims that are true by construction are left out: their values are rounding errors.
    """
    roles = {(claim["theory"], claim["statistic"]): claim["role"] for claim in record["claims"]}
    shape = (len(record["fidelity"]["layers"]), max(layer["heads"] for layer in record["fidelity"]["layers"]))
    values = {key: np.full(shape, np.nan) for key, role in roles.items() if role in JUDGED}
    for finding in record["findings"]:
        key = finding["theory"], finding["statistic"]
        if finding["verdict"] == str(Verdict.TRUE_BY_CONSTRUCTION):
            values.pop(key, None)
        elif key in values and finding["value"] is not None:
            values[key][finding["layer"], finding["head"]] = finding["value"]
    return values


def separate(others: Sequence[Mapping[ClaimKey, Array]], model: Mapping[ClaimKey, Array]) -> list[Separation]:
    """Test every claim that all models have and in which they differ at all."""
    shared = [
        key
        for key in model
        if all(key in other and np.isfinite(other[key]).any() for other in others) and np.isfinite(model[key]).any()
    ]
    medians = {key: np.array([np.nanmedian(other[key]) for other in others]) for key in shared}
    tested = [key for key in shared if np.ptp([*medians[key], np.nanmedian(model[key])]) > 0]
    p_values = np.array([prediction_p_value(float(np.nanmedian(model[key])), medians[key]) for key in tested])
    adjusted = false_discovery_rate(p_values)
    return [
        Separation(
            theory=theory,
            statistic=statistic,
            others=tuple(float(median) for median in medians[theory, statistic]),
            value=float(np.nanmedian(model[theory, statistic])),
            p_value=float(p),
            adjusted_p_value=float(q),
        )
        for (theory, statistic), p, q in zip(tested, p_values, adjusted, strict=True)
    ]


def heads_differ(
    first: Mapping[ClaimKey, Array], second: Mapping[ClaimKey, Array], *, seed: int
) -> dict[ClaimKey, float]:
    """Return the adjusted p-value of every claim that the heads of two models have other means.

    A permutation test: within each layer the heads of both models are exchanged at random.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    keys = [key for key in first if key in second and np.isfinite(np.concatenate([first[key], second[key]])).all()]
    keys = [key for key in keys if np.ptp(np.concatenate([first[key], second[key]])) > 0]
    heads = {key: np.concatenate([first[key], second[key]], axis=1) for key in keys}
    if not heads:
        return {}
    layers, both = next(iter(heads.values())).shape
    order = rng.random((DRAWS, layers, both)).argsort(axis=-1)
    p_values = []
    for values in heads.values():
        drawn = np.take_along_axis(np.broadcast_to(values, order.shape), order, axis=-1)
        distances = abs(drawn[..., : both // 2].mean((1, 2)) - drawn[..., both // 2 :].mean((1, 2)))
        distance = abs(values[:, : both // 2].mean() - values[:, both // 2 :].mean())
        # Rounding must not count a draw with the same split as smaller.
        p_values.append((1 + (distances >= distance * (1 - 1e-12)).sum()) / (1 + DRAWS))
    adjusted = false_discovery_rate(np.array(p_values))
    return {key: float(p) for key, p in zip(heads, adjusted, strict=True)}
