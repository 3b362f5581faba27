r"""The claim that attention treats its tokens as a set, measured on the heads of a model.

Theorem 1 of Ji and Xie: A_S(XP) = A_S(X)P for every permutation P. The statistic of a head is

    |A(QP, KP, VP) - A(Q, K, V)P| / |A(Q, K, V)|,

A recomputed in float64 from the captured q, k, v. The mask and the bias on the scores stay in place while the tokens
are permuted; position codes that were added to queries and keys before, absolute or rotary, move with their tokens. So
the error measures the layer's own attention, not the whole model. Without a mask or bias that depends on positions it
is zero, by the theorem. A mask that shows queries different keys, as a causal one does, breaks the symmetry whatever
the head computes: the error is shown and not judged.

Moving the tokens under a mask and a bias is moving mask and bias the other way under the tokens, with outputs in the
order of the tokens. So the scores are computed once for all permutations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.heads import attention_scores, softmax_weights
from clearhead.numerics.moments import Array
from clearhead.shapes import Float, Int, all_finite
from clearhead.theories.example import Example, Random, between, head_slices, of_heads
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import SAMPLED, measure_by_head, sample_tokens
from clearhead.theories.symmetry.groups import random_permutations
from clearhead.theories.symmetry.measure import relative_error
from clearhead.theories.theory import Claim, Control, Sample, Samples

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
LEAST_SUM = 1e-200
"""Smallest sum of visible exponentials, relative to the largest of all keys, that has lost nothing to underflow."""


def obstacle(example: Example) -> Reason | None:
    """Return why the claim does not apply to the example; None if it does."""
    if example.q.shape[-2] != example.k.shape[-2]:
        return Reason(ReasonKind.NOT_COVERED, "cross-attention has two token sets")
    tokens = example.visible
    if int(tokens.sum(dim=-1).min()) < FEWEST_TOKENS:
        return Reason(ReasonKind.TOO_SHORT, f"fewer than {FEWEST_TOKENS} tokens, which have too few orders")
    if not all(all_finite(x) or all_finite(x[:, tokens.any(dim=0)]) for x in (example.q, example.k, example.v)):
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
        mask = between(example.mask, heads, tokens, tokens)
        mask = None if mask is None or bool(mask.all()) else mask
        bias = between(example.bias, heads, tokens, tokens)
        position_free = mask is None and (bias is None or bool((bias == bias[..., :1, :1]).all()))
        seed = int(torch.randint(2**62, (), generator=rng.torch))
        group = random_permutations(int(tokens.sum()), draws=self.draws if example.controls else 1, seed=seed)
        orders = torch.tensor([element.order for element in group], device=example.q.device)
        back = orders.argsort(dim=-1)
        places = [(mask, bias)]
        if not position_free:  # else every output equals the first
            places += [(_permuted(mask, order), _permuted(bias, order)) for order in back]
        error, control = _errors(_outputs(example, heads, tokens, places), orders, back)
        distinct = control.mean(axis=0) > LEAST_CONTROL
        value = np.where(distinct, error.mean(axis=0), np.nan)
        controls = {CONTROL: np.where(distinct, control, np.nan)} if example.controls else {}
        covered = None if mask is None else np.zeros(error.shape[1], dtype=bool)
        caveat = None if torch.equal(tokens, visible) else SAMPLED
        return {
            CLAIM: Sample(value=value, controls=controls, covered=covered, by_construction=position_free, caveat=caveat)
        }


def _outputs(
    example: Example, heads: slice, tokens: Tensor, places: Sequence[tuple[Tensor | None, Tensor | None]]
) -> list[Float[Tensor, "h n e"]]:
    """Return the outputs of attention among the tokens for every pair of mask and bias, from the same scores."""
    q, k, v = (x[heads][:, tokens] for x in (example.q, example.k, example.v))
    sinks = None if example.sinks is None else example.sinks[heads].double()
    outputs: list[list[Tensor]] = [[] for _ in places]
    for part in head_slices(len(q), q.shape[-2] ** 2):
        scores = attention_scores(q[part].double(), k[part].double(), scale=example.scale, softcap=example.softcap)
        of_places = [(of_heads(mask, part), of_heads(bias, part)) for mask, bias in places]
        attended = _attend(scores, v[part].double(), of_places, None if sinks is None else sinks[part])
        for parts, out in zip(outputs, attended, strict=True):
            parts.append(out)
    return [torch.cat(parts) for parts in outputs]


def _attend(
    scores: Float[Tensor, "h n n"],
    values: Float[Tensor, "h n e"],
    places: Sequence[tuple[Tensor | None, Tensor | None]],
    sinks: Float[Tensor, "h"] | None,
) -> Iterator[Float[Tensor, "h n e"]]:
    """Yield the outputs for every pair of mask and bias; under masks alone all have the same exponentials."""
    shared = sinks is None and all(mask is not None and bias is None for mask, bias in places)
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp_() if shared else scores
    product = torch.empty_like(scores)
    for mask, bias in places:
        if shared and mask is not None:
            total = torch.mul(exponentials, mask, out=product).sum(dim=-1, keepdim=True)
            if bool((total > LEAST_SUM).all()):
                yield product @ values / total
                continue
        yield softmax_weights(scores, mask=mask, bias=bias, sinks=sinks) @ values


def _errors(outputs: Sequence[Tensor], orders: Int[Tensor, "g n"], back: Int[Tensor, "g n"]) -> tuple[Array, Array]:
    """Return the relative error of every permutation by head, and the error against the next permutation's outputs.

    outputs: A(X), then A(XP) in the order of X for every permutation, or A(X) alone if all are equal to it
    """
    plain, *moved = outputs
    moved = moved or [plain] * len(orders)
    following = orders.roll(-1, dims=0) if len(orders) > 1 else orders.sort(dim=-1).values  # or the identity
    error = [relative_error(out, plain, leading=1) for out in moved]
    control = [
        relative_error(out, plain[:, other[order]], leading=1)
        for out, order, other in zip(moved, back, following, strict=True)
    ]
    return torch.stack(error).cpu().numpy(), torch.stack(control).cpu().numpy()


def _permuted(mask_or_bias: Tensor | None, order: Int[Tensor, "n"]) -> Tensor | None:
    return None if mask_or_bias is None else mask_or_bias[:, order[:, None], order]
