"""Synthetic audits with every kind of verdict."""

import dataclasses
import math
from typing import Any

import numpy as np

from clearhead.audit.findings import ControlResult, Finding
from clearhead.audit.judging import judge
from clearhead.audit.record import AuditRecord, DepthCurve, DepthLine, Fidelity, Timing
from clearhead.audit.samples import ClaimSamples, ClaimSummary
from clearhead.audit.shown_inputs import ShownInput, ShownLayer
from clearhead.heads import LayerRecord
from clearhead.numerics.moments import Interval
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Claim, Dispute, Picture, PlainWords, Position, Role, Unit

KERNEL_PCA = Claim(
    theory="kernel PCA",
    statistic="captured variance",
    statement="A head's values span the leading principal axes of its keys in the feature space of softmax.",
    formula=r"\rho = \sum_k \lambda_k(P K_\varphi P) / \sum_{k \le d} \lambda_k(K_\varphi)",
    citation="Teo and Nguyen 2024, Unveiling the Hidden Structure of Self-Attention, section 2.2",
    predicted=1.0,
    percent=True,
)
MAX_MARGIN = Claim(
    theory="max margin",
    statistic="margin ratio",
    statement="The combined key-query matrix separates the best token from the others by the largest margin.",
    formula=r"\min_j (k_{opt} - k_j)^T W q / \gamma^*",
    citation="Tarzanagh et al. 2023, Transformers as Support Vector Machines, theorem 3",
    predicted=0.0,
)
OVERLAP = dataclasses.replace(
    KERNEL_PCA,
    statistic="subspace overlap",
    statement="The values' axes span the principal subspace.",
    role=Role.SECONDARY,
    note="tied to captured variance",
)
LOSS = dataclasses.replace(
    KERNEL_PCA,
    statistic="projection loss",
    statement="The loss is as small as the theorem's.",
    predicted=None,
    role=Role.PUBLISHED,
    note="falls when values grow",
    percent=False,
)
EIGENVALUE = dataclasses.replace(
    LOSS, statistic="max eigenvalue", statement="The spectrum is that of the keys.", note="values do not enter"
)
DISPUTE = Dispute(
    theory=KERNEL_PCA.theory,
    question="Do trained heads span the principal axes?",
    positions=(
        Position(source="Teo and Nguyen 2024", says="Yes, the loss falls.", rests_on=(LOSS.statistic,)),
        Position(
            source="Saritas and Yildiz 2025",
            says="No, the eigenvalues cannot be reproduced.",
            rests_on=(EIGENVALUE.statistic, "a statistic of another audit"),
        ),
    ),
)
NAMES = "encoder.layer.{}.attention.self"
EXACT_BY_INPUT = {LOSS.statistic: 0.8, EIGENVALUE.statistic: math.nan}
NOTHING = Interval(math.nan, math.nan)


def _reasons(text: str) -> tuple[Reason, ...]:
    return (Reason(ReasonKind.UNDEFINED, text),)


def finding_of(claim: Claim, layer: int, head: int, rng: np.random.Generator) -> Finding:
    """Return one head whose verdict follows from its number.

    Its second control is the closer one; statistics as published have the first only.
    """
    exact = EXACT_BY_INPUT[claim.statistic] if claim.predicted is None else claim.predicted
    toward = -1 if exact < 0.5 else 1
    control = 0.3 if toward > 0 else 0.7
    kind = (layer * 5 + head) % 8
    shift = {0: 0.68, 4: -0.2, 5: 0.01 + rng.normal() * 0.004}.get(kind, rng.uniform(0.05, 0.6))
    half, p = 0.012, 1e-6
    if kind == 5:
        half, p = 0.02, rng.uniform(0.3, 1.0)
    if math.isnan(exact):  # statistics that do not depend on values are the same for random values
        p = 1.0
    value = control + toward * shift
    easy = ControlResult(
        name="random values",
        value=control,
        range=Interval(control - 0.05, control + 0.05),
        draws=999,
        seed=17,
        p_value=p,
    )
    near = control + toward * 0.02
    hard = dataclasses.replace(
        easy, name="values of other heads", value=near, range=Interval(near - 0.01, near + 0.01), draws=5
    )
    base = Finding(
        claim=claim,
        layer=layer,
        name=NAMES.format(layer),
        head=head,
        value=value,
        interval=Interval(value - half, value + half),
        predicted=exact,
        controls=(easy,) if claim.role is Role.PUBLISHED else (easy, hard),
        inputs=200,
    )
    if (layer, head) in {(1, 7), (4, 2)}:
        gone = _controls(base, value=math.nan, range=NOTHING, p_value=math.nan)
        return dataclasses.replace(
            gone,
            value=math.nan,
            interval=NOTHING,
            inputs=0,
            skipped=200,
            reasons=_reasons("keys are all equal"),
        )
    if (layer, head) == (3, 3):
        untested = _controls(base, p_value=math.nan)
        return dataclasses.replace(
            untested, interval=NOTHING, inputs=1, skipped=199, reasons=_reasons("too few tokens")
        )
    return base


def _controls(finding: Finding, **changes: Any) -> Finding:
    return dataclasses.replace(
        finding, controls=tuple(dataclasses.replace(control, **changes) for control in finding.controls)
    )


def record_of(
    heads: list[int],
    *claims: Claim,
    seed: int = 11,
    model: str = "all-MiniLM-L6-v2",
    name: str = NAMES,
    disputes: tuple[Dispute, ...] = (),
) -> AuditRecord:
    """Return an audit of layers with these numbers of heads, with every kind of verdict."""
    rng = np.random.default_rng(seed)
    findings = [
        dataclasses.replace(finding_of(claim, layer, head, rng), name=name.format(layer))
        for claim in claims
        for layer, count in enumerate(heads)
        for head in range(count)
    ]
    layers = tuple(
        LayerRecord(layer=layer, name=name.format(layer), heads=count, interface="transformers")
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
        disputes=disputes,
    )


def with_inputs(record: AuditRecord, *tokens: tuple[str, ...], inputs: int = 8) -> AuditRecord:
    """Return the record with shown inputs that have these tokens, their texts, samples, pictures, words and a curve."""
    rng = np.random.default_rng(3)
    layers = record.fidelity.layers
    claims = list(dict.fromkeys(f.claim for f in record.findings))

    def shown(number: int, words: tuple[str, ...]) -> ShownInput:
        return ShownInput(
            number=number,
            tokens=words,
            queries=tuple(range(len(words))),
            length=len(words) + 5,
            layers=tuple(
                ShownLayer(
                    layer=layer.layer,
                    weights=rng.integers(0, 255, (layer.heads, len(words), len(words)), dtype=np.uint8),
                    pictures=(
                        Picture(
                            theory=claims[0].theory,
                            title="Spectrum",
                            caption="Filled is captured.",
                            bars=np.tile(np.linspace(1, 0.1, 7), (layer.heads, 1)),
                            part=np.full((layer.heads, 7), 0.05),
                        ),
                    ),
                )
                for layer in layers
            ),
        )

    line = DepthLine(
        name="this model", values=tuple(map(float, range(len(layers)))), intervals=(NOTHING,) * len(layers)
    )
    return dataclasses.replace(
        record,
        inputs=inputs,
        shown=tuple(shown(i + 1, words) for i, words in enumerate(tokens)),
        texts=tuple(f"text of input {i + 1}" for i in range(inputs)),
        words={c.theory: PlainWords(says=f"What {c.theory} says.", no_evidence="None here.") for c in claims},
        samples=tuple(
            ClaimSamples(
                claim=ClaimSummary(
                    theory=c.theory, statistic=c.statistic, role=c.role, unit=Unit.HEAD, percent=False, shared=False
                ),
                layer=layer.layer,
                name=layer.name,
                values=np.arange(inputs)[:, None] + np.arange(layer.heads) / 10,
            )
            for c in claims
            for layer in layers
        ),
        curves=(
            DepthCurve(
                theory=claims[0].theory,
                title="A rate",
                quantity="nats",
                layers=tuple(layer.layer for layer in layers),
                lines=(line,),
            ),
        ),
    )
