r"""The claim that attention treats its tokens as a set, measured on the heads of a model.

Theorem 1 of Ji and Xie: A_S(XP) = A_S(X)P for every permutation P. The statistic of a head is

    |A(QP, KP, VP) - A(Q, K, V)P| / |A(Q, K, V)|,

A recomputed in float64 from the captured q, k, v. The mask and the bias on the scores stay in place while the tokens
are permuted; position codes that were added to queries and keys before, absolute or rotary, move with their tokens. So
the error measures the layer's own attention, not the whole model. Without a mask or bias that depends on positions it
is rounding error, by the theorem. A mask that shows queries different keys, as a causal one does, breaks the symmetry
whatever the head computes: the error is shown and not judged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.softmax import softmax_attention
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import SAMPLED, measure_by_head, sample_tokens
from clearhead.theories.symmetry.groups import random_permutations
from clearhead.theories.symmetry.measure import equivariance_errors
from clearhead.theories.theory import Claim, Control, Sample, Samples

__all__ = ["CLAIM", "PermutationSymmetry", "obstacle"]

CLAIM = Claim(
    theory="symmetry",
    statistic="permutation error",
    statement="attention treats its tokens as a set: permuting them permutes the output",
    formula="|A(QP, KP, VP) - A(Q, K, V)P| / |A(Q, K, V)|",
    citation="Ji and Xie, A Mathematical View of Attention Models in Deep Learning, theorem 1",
    predicted=0.0,
    undefined="outputs that do not differ between tokens",
    uncovered="the mask shows queries different keys, as a causal mask does, so the order of tokens matters",
)

CONTROL = Control(name="outputs in another order")
FEWEST_TOKENS = 3
"""Two tokens have only one permutation besides the identity, and none to compare it with."""
LEAST_CONTROL = 1e-9
"""Below this error, outputs are the same for all tokens up to rounding, so any order is right."""


def obstacle(example: Example) -> Reason | None:
    """Return why the claim does not apply to the example; None if it does."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "cross-attention has two token sets")
    tokens = example.visible
    if int(tokens.sum(dim=-1).min()) < FEWEST_TOKENS:
        return Reason(ReasonKind.TOO_SHORT, f"fewer than {FEWEST_TOKENS} tokens, which have too few orders")
    if not all(bool(torch.isfinite(x[:, tokens.any(dim=0)]).all()) for x in (example.q, example.k, example.v)):
        return Reason(ReasonKind.NOT_FINITE, "queries, keys or values are not finite")
    return None


@dataclass(frozen=True, slots=True)
class PermutationSymmetry:
    """`CLAIM` measured on one example, with the same outputs in an unrelated order as its control.

    Tokens that no query may attend to are padding: the others are permuted among themselves, so a mask that is the same
    for all queries does not break the symmetry. The value is the mean over `draws` permutations of each example; the
    control is the error against the outputs under another of them. Without controls, one is enough. A layer whose
    mask and bias do not depend on positions is symmetric by construction; one whose mask does is not judged. Of a long
    input, some tokens are drawn: attention among them is attention too.
    """

    draws: int = 3

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"expected at least 2 draws, one to compare with another; got {self.draws}")

    def measure(self, example: Example, rng: Random) -> Samples:
        """Measure the claim on every head."""
        return measure_by_head(example.visible, lambda heads, tokens: self._measure(example, heads, tokens, rng))

    def _measure(self, example: Example, heads: slice, tokens: Tensor, rng: Random) -> dict[Claim, Sample]:
        visible, tokens = tokens, sample_tokens(tokens, rng.torch)
        q, k, v = (x[heads][:, tokens].double() for x in (example.q, example.k, example.v))
        mask = _between(example.mask, heads, tokens)
        mask = None if mask is None or bool(mask.all()) else mask
        bias = _between(example.bias, heads, tokens)
        position_free = mask is None and (bias is None or bool((bias == bias[..., :1, :1]).all()))
        sinks = None if example.sinks is None else example.sinks[heads].double()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return softmax_attention(
                q, k, v, mask=mask, bias=bias, scale=example.scale, softcap=example.softcap, sinks=sinks
            )

        seed = int(torch.randint(2**62, (), generator=rng.torch))
        group = random_permutations(q.shape[-2], draws=self.draws if example.controls else 1, seed=seed)
        errors = equivariance_errors(attend, (q, k, v), group, leading=1)
        control = errors.control.cpu().numpy()
        distinct = control.mean(axis=0) > LEAST_CONTROL
        value = np.where(distinct, errors.error.mean(dim=0).cpu().numpy(), np.nan)
        controls = {CONTROL: np.where(distinct, control, np.nan)} if example.controls else {}
        covered = None if mask is None else np.zeros(len(q), dtype=bool)
        caveat = None if torch.equal(tokens, visible) else SAMPLED
        return {
            CLAIM: Sample(value=value, controls=controls, covered=covered, by_construction=position_free, caveat=caveat)
        }


def _between(mask_or_bias: Tensor | None, heads: slice, tokens: Tensor) -> Tensor | None:
    """Return a mask or bias between the tokens, (#h, n, n)."""
    if mask_or_bias is None:
        return None
    rows = mask_or_bias[heads] if mask_or_bias.shape[0] > 1 else mask_or_bias
    return rows[:, tokens][:, :, tokens]
