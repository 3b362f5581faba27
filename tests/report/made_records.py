"""Audits made up from a seed, with every kind of verdict among their heads."""

import dataclasses

import numpy as np

from clearhead.findings import Chance, Claim, Finding, judge
from clearhead.numerics.moments import Interval
from clearhead.record import AuditRecord, Fidelity, LayerRecord, Timing

KERNEL_PCA = Claim(
    theory="kernel PCA",
    statistic="captured variance",
    statement="A head's values span the leading principal axes of its keys in the feature space of softmax.",
    formula=r"\rho = \sum_k \lambda_k(P K_\varphi P) / \sum_{k \le d} \lambda_k(K_\varphi)",
    citation="Teo and Nguyen 2024, Unveiling the Hidden Structure of Self-Attention, section 2.2",
    exact=1.0,
)
MAX_MARGIN = Claim(
    theory="max margin",
    statistic="margin ratio",
    statement="The combined key-query matrix separates the best token from the others by the largest margin.",
    formula=r"\min_j (k_{opt} - k_j)^T W q / \gamma^*",
    citation="Tarzanagh et al. 2023, Transformers as Support Vector Machines, theorem 3",
    exact=0.0,
)
NAMES = "encoder.layer.{}.attention.self"


def finding_of(claim: Claim, layer: int, head: int, rng: np.random.Generator) -> Finding:
    """One head, of a kind by its number: agreeing, above, at or below chance, undecided, or not applicable."""
    toward = 1 if claim.exact > 0.5 else -1
    chance = 0.3 if toward > 0 else 0.7
    kind = (layer * 5 + head) % 8
    shift = {0: 0.68, 4: -0.2, 5: rng.normal() * 0.004}.get(kind, rng.uniform(0.03, 0.6))
    half, p = 0.012, 1e-6
    if kind == 5:
        half, p = 0.02, rng.uniform(0.3, 1.0)
    value = chance + toward * shift
    base = Finding(
        claim=claim,
        layer=layer,
        name=NAMES.format(layer),
        head=head,
        value=value,
        interval=Interval(value - half, value + half),
        chance=Chance(
            value=chance, range=Interval(chance - 0.05, chance + 0.05), control="shuffled values", draws=999, seed=17
        ),
        p_value=p,
        inputs=200,
    )
    nan = float("nan")
    nothing = Interval(nan, nan)
    if (layer, head) in {(1, 7), (4, 2)}:
        gone = dataclasses.replace(base.chance, value=nan, range=nothing)
        return dataclasses.replace(
            base,
            value=nan,
            interval=nothing,
            chance=gone,
            p_value=nan,
            inputs=0,
            skipped=200,
            reason="keys are all equal",
        )
    if (layer, head) == (3, 3):
        return dataclasses.replace(base, interval=nothing, p_value=nan, inputs=1, skipped=199, reason="too few tokens")
    return base


def record_of(
    heads: list[int], *claims: Claim, seed: int = 11, model: str = "all-MiniLM-L6-v2", name: str = NAMES
) -> AuditRecord:
    """An audit of layers with so many heads each, with every kind of verdict."""
    rng = np.random.default_rng(seed)
    findings = [
        dataclasses.replace(finding_of(claim, layer, head, rng), name=name.format(layer))
        for claim in claims
        for layer, count in enumerate(heads)
        for head in range(count)
    ]
    layers = tuple(
        LayerRecord(layer=layer, name=name.format(layer), heads=count, socket="transformers")
        for layer, count in enumerate(heads)
    )
    return AuditRecord(
        model=model,
        data="reviews.txt",
        version="0.1.0",
        created="2025-03-01T12:00:00+00:00",
        seed=17,
        inputs=200,
        tokens=25_131,
        fidelity=Fidelity(
            layers=layers,
            output_difference=0.0,
            recompute_error=2.1e-7,
            swap_error=3.4e-7,
            control_change=0.83,
            tolerance=1e-5,
        ),
        findings=tuple(judge(findings)),
        timing=Timing(
            check=1.2, forward=9.4, theory={c.theory: 31.0 for c in claims}, total=42.7, peak_memory=1_940_000_000
        ),
    )
