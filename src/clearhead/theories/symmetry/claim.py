r"""The claim that attention treats its tokens as a set, measured on the heads of a model.

With the source's symbols: A_S(XP) = A_S(X)P for every permutation P (Ji and Xie, theorem 1). Measured is, for a head,

    |A(QP, KP, VP) - A(Q, K, V)P| / |A(Q, K, V)|,

A recomputed in float64 from what the layer saw. Whatever speaks of positions to the layer itself stays where it is: a
causal or windowed mask, a bias on the scores. What was written into queries and keys before, absolute codes and rotary
ones, travels with its token. So the error tells how far the layer's own attention, and not the whole model, is from an
operator on sets: without such a mask or bias it is rounding, by the theorem.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from clearhead.audit.findings import Finding, Verdict
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool
from clearhead.theories.over_inputs import OverInputs, sample_by_head
from clearhead.theories.symmetry.groups import drawn_permutations
from clearhead.theories.symmetry.measure import equivariance_errors
from clearhead.theories.tallies import Control, Sample, Samples
from clearhead.theories.theory import Claim

__all__ = ["CLAIM", "PermutationSymmetry"]

CLAIM = Claim(
    theory="symmetry",
    statistic="permutation error",
    statement="attention treats its tokens as a set: permuting them permutes the output",
    formula="|A(QP, KP, VP) - A(Q, K, V)P| / |A(Q, K, V)|",
    citation="Ji and Xie, A Mathematical View of Attention Models in Deep Learning, theorem 1",
    exact=0.0,
)

CONTROL = Control(name="outputs in another order")
FEWEST_TOKENS = 3
"""Two tokens have one permutation, and none to compare it with."""
LEAST_CHANCE = 1e-9
"""Below, outputs are the same for all tokens up to rounding: any order is right."""


class PermutationSymmetry:
    """The measurement of `CLAIM` on a stream of calls, beside the same outputs in an unrelated order.

    Tokens that no query may look at are padding: the others are permuted among themselves, so a mask that is the same
    for all queries does not count as a break. The value is the mean over `draws` permutations per input, chance the
    error against the outputs under another of these. It comes with the value, so `controls` saves nothing here.
    """

    def __init__(self, seed: int, *, controls: bool = True, draws: int = 3) -> None:
        if draws < 2:
            raise InputError(f"expected at least 2 draws, one to compare with another; got {draws}")
        self._draws = draws
        self._tells_places: set[int] = set()
        self._over_inputs = OverInputs(
            claims=(CLAIM,),
            seed=seed,
            obstacle=_obstacle,
            sample=self._sample,
            undefined=lambda _: "outputs that do not differ between tokens",
        )

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        self._over_inputs.observe(heads)

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts but one: by the theorem, a layer whose mask and bias tell
        no places has no choice."""
        return [self._labelled(finding) for finding in self._over_inputs.findings()]

    def _labelled(self, finding: Finding) -> Finding:
        free = finding.layer in self._tells_places or not finding.inputs
        return finding if free else dataclasses.replace(finding, verdict=Verdict.TRUE_BY_CONSTRUCTION)

    def _sample(self, heads: Heads, index: int, generator: torch.Generator) -> Samples:
        return sample_by_head(
            _tokens(heads, index), lambda part, tokens: self._measure(heads, index, part, tokens, generator)
        )

    def _measure(self, heads: Heads, index: int, part: slice, tokens: Tensor, generator: torch.Generator) -> Samples:
        q, k, v = (x[index, part][:, tokens].double() for x in (heads.q, heads.k, heads.v))
        mask = _square(heads.mask, index, part, tokens)
        mask = None if mask is None or bool(mask.all()) else mask
        bias = _square(heads.bias, index, part, tokens)
        if mask is not None or (bias is not None and bool((bias != bias[..., :1, :1]).any())):
            self._tells_places.add(heads.layer)
        sinks = None if heads.sinks is None else heads.sinks[part].double()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return softmax_attention(
                q, k, v, mask=mask, bias=bias, scale=heads.scale, softcap=heads.softcap, sinks=sinks
            )

        seed = int(torch.randint(2**62, (), generator=generator))
        group = drawn_permutations(q.shape[-2], draws=self._draws, seed=seed)
        errors = equivariance_errors(attend, (q, k, v), group, leading=1)
        chance = errors.control.cpu().numpy()
        told_apart = chance.mean(axis=0) > LEAST_CHANCE
        value = np.where(told_apart, errors.error.mean(dim=0).cpu().numpy(), np.nan)
        return {CLAIM: Sample(value=value, controls={CONTROL: np.where(told_apart, chance, np.nan)})}


def _obstacle(heads: Heads, index: int) -> str:
    """Why the claim says nothing of this entry of the batch, if so."""
    if heads.q.shape[-2] != heads.k.shape[-2]:
        return "cross-attention has two token sets"
    tokens = _tokens(heads, index)
    if int(tokens.sum(dim=-1).min()) < FEWEST_TOKENS:
        return f"fewer than {FEWEST_TOKENS} tokens, which have too few orders"
    if not all(bool(torch.isfinite(x[index][:, tokens.any(dim=0)]).all()) for x in (heads.q, heads.k, heads.v)):
        return "queries, keys or values are not finite"
    return ""


def _tokens(heads: Heads, index: int) -> Bool[Tensor, "h m"]:
    """The tokens that some query may look at; one row if all heads share it."""
    if heads.mask is None:
        return torch.ones(1, heads.k.shape[-2], dtype=torch.bool, device=heads.k.device)
    mask = heads.mask[index if heads.mask.shape[0] > 1 else 0]
    return mask.any(dim=-2).expand(-1, heads.k.shape[-2])


def _square(added: Tensor | None, index: int, part: slice, tokens: Tensor) -> Tensor | None:
    """A mask or bias on the tokens alone, (#h, n, n)."""
    if added is None:
        return None
    entry = added[index if added.shape[0] > 1 else 0]
    entry = entry[part] if entry.shape[0] > 1 else entry
    return entry.expand(-1, tokens.shape[0], tokens.shape[0])[:, tokens][:, :, tokens]
