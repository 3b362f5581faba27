"""Attention sinks: heads that give the first token most of their attention, whatever the token is.

Gu et al. 2024 (arXiv 2410.10781) find them in trained language models and measure them by the mean attention on the
first token; its values are small, so that the attention changes little. Barbero et al. 2025 (arXiv 2504.02732) explain
them as a way not to mix tokens. Both are about causal models; an encoder is measured in the same way.
"""

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Bool, Float, all_finite
from clearhead.theories.example import Example, Random, between, first_weights
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import SAMPLED, measure_by_head, sample_tokens
from clearhead.theories.theory import (
    Claim,
    Control,
    Direction,
    Need,
    PlainWords,
    Position,
    Role,
    Sample,
    Samples,
    Theory,
)

TITLE = "attention sinks"
GU = "Gu et al. 2024 (arXiv 2410.10781)"
BARBERO = "Barbero et al. 2025 (arXiv 2504.02732)"
EPSILON = 0.3
POSITIONS = 16
FEWEST_TOKENS = 4

UNIFORM = Control(name="uniform attention under the same mask")
OTHERS = Control(name="other positions", fixed=True)

MASS = Claim(
    theory=TITLE,
    statistic="attention on the first token",
    statement="queries give the first token more attention than a token gets by its position in the mask",
    formula="mean over queries i > 1 of softmax(s q_i·k_j)_1",
    citation=f"{GU}, section 3; {BARBERO}",
    predicted=None,
    direction=Direction.HIGHER,
    percent=True,
    note="the first token is often the same in every input, so models with random weights differ from other positions "
    "too: several draws of the baseline decide with the other controls",
)
VALUE = Claim(
    theory=TITLE,
    statistic="norm of the first value",
    statement="the first token's value is small, so that attention on it adds little",
    formula="‖v_1‖ / median_j>1 ‖v_j‖",
    citation=f"{GU}, section 4",
    predicted=None,
    role=Role.SECONDARY,
    direction=Direction.LOWER,
    undefined="values of length zero",
)
RATE = Claim(
    theory=TITLE,
    statistic="sink rate",
    statement="the mean attention on the first token exceeds the published threshold",
    formula=f"share of inputs with a mean attention on the first token above {EPSILON}",
    citation=f"{GU}, equation 7",
    predicted=1.0,
    role=Role.PUBLISHED,
    percent=True,
    note="depends on the length of inputs: uniform attention on three tokens exceeds the threshold",
)


def applies(example: Example) -> Reason | None:
    """Return why an example has no first token among others, if so."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "cross-attention reads another sequence than its queries'")
    if int(example.visible.sum(dim=-1).min()) < FEWEST_TOKENS:
        return Reason(ReasonKind.TOO_SHORT, f"fewer than {FEWEST_TOKENS} tokens")
    if not all(all_finite(x) for x in (example.q, example.k, example.v)):
        return Reason(ReasonKind.NOT_FINITE, "queries, keys or values are not finite")
    return None


def measure(example: Example, rng: Random) -> Samples:
    """Measure the claims on every head, on the tokens that are not padding; of a long input, on a sample of queries."""
    return measure_by_head(example.visible, lambda heads, tokens: _measure(example, heads, tokens, rng))


def _measure(example: Example, heads: slice, tokens: Bool[Tensor, "m"], rng: Random) -> dict[Claim, Sample]:
    queries = sample_tokens(tokens, rng.torch)
    visible = between(example.mask, heads, queries, tokens)
    visible = None if visible is None or bool(visible.all()) else visible
    m = int(tokens.sum())
    columns = min(POSITIONS + 1, m - 1)
    weights = first_weights(example, heads, queries, tokens, mask=visible, count=columns)
    attends = weights.new_ones(1, *weights.shape[1:]) if visible is None else visible[..., :columns].double()
    uniform = attends / (m if visible is None else visible.sum(dim=-1, keepdim=True).clamp_min(1))
    others = queries.nonzero() != tokens.nonzero().flatten()[:columns]
    mass, level = (_mean_attention(x, attends * others) for x in (weights, uniform))
    level = np.repeat(level, mass.shape[1] // level.shape[1], axis=1)
    missing = np.full((POSITIONS + 1 - len(mass), mass.shape[1]), np.nan)
    mass, ratios = np.concatenate([mass, missing]), np.full((POSITIONS + 1, mass.shape[1]), np.nan)
    if example.wants(VALUE):
        norms = example.v[heads][:, tokens].double().norm(dim=-1)
        ratios[:columns] = [_ratio(norms, j) for j in range(columns)]
    controls = {
        MASS: {UNIFORM: level[:1], OTHERS: mass[1:]},
        VALUE: {OTHERS: ratios[1:]},
        RATE: {UNIFORM: (level[:1] > EPSILON).astype(float), OTHERS: np.where(mass[1:] > EPSILON, 1.0, 0 * mass[1:])},
    }
    values = {MASS: mass[0], VALUE: ratios[0], RATE: (mass[0] > EPSILON).astype(float)}
    wanted, note = controls if example.controls else {}, None if torch.equal(queries, tokens) else SAMPLED
    return {c: Sample(value=x, controls=wanted.get(c, {}), caveat=note) for c, x in values.items()}


def _mean_attention(weights: Float[Tensor, "h n c"], counted: Float[Tensor, "#h n c"]) -> Array:
    """Return the mean attention by token and head, over the queries that are counted for the token."""
    return ((weights * counted).sum(dim=-2) / counted.sum(dim=-2)).mT.cpu().numpy()


def _ratio(norms: Tensor, j: int) -> Array:
    """Return |v_j| over the median of the other tokens' by head; NaN where that is zero."""
    others = torch.cat([norms[:, :j], norms[:, j + 1 :]], dim=-1).median(dim=-1).values
    return torch.where(others > 0, norms[:, j] / others, torch.nan).cpu().numpy()


WORDS = PlainWords(
    says="Heads should leave attention that they do not need on the first token, whatever that token is.",
    supported="Much of the attention on the first token has nothing to do with its content. Leave it out of account "
    "when you read the attention maps of these heads.",
    no_evidence="The first token gets no more attention than its position explains.",
    contradicted="The first token gets less attention than its position explains.",
    not_applicable="These layers have no first token among others, so the theory makes no statement.",
)

THEORY = Theory(
    key="attention-sinks",
    title=TITLE,
    claims=(MASS, VALUE, RATE),
    measure=measure,
    applies=applies,
    needs=frozenset({Need.BASELINE}),
    words=WORDS,
    positions=(
        Position(
            source=GU,
            says="Trained language models give their first token a large part of the attention, whatever the token is. "
            "Its values are small, so that the attention adds little.",
            rests_on=(MASS.statistic, VALUE.statistic, RATE.statistic),
        ),
        Position(
            source=BARBERO,
            says="Attention on the first token is a way not to mix tokens.",
            rests_on=(MASS.statistic,),
        ),
    ),
)
