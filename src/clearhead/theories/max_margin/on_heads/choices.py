"""Queries of a layer and the tokens they choose among, as the sequences of an attention SVM."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.shapes import Bool
from clearhead.theories.max_margin.on_heads.random_heads import Pull, Space
from clearhead.theories.max_margin.svm.constraints import Indices

__all__ = ["MOST", "OWN", "RANDOM", "TURNED", "Choice", "Sampling", "choices_of", "obstacle"]

OWN, RANDOM, TURNED = "own", "random", "turned"
SATURATED, MOST = 0.99, 0.5
"""A query is saturated if a token has more than the first of its attention, a head if at least the second of queries
are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How much of a stream of calls is taken.

    inputs: make one group, over which one problem is solved; queries: drawn from each of them
    tokens: drawn for each query, with which the one that a head selects is compared
    random, turned: draws of heads that nobody trained; mistaken: of tokens or queries that are not the head's own
    """

    inputs: int = 6
    queries: int = 3
    tokens: int = 16
    random: int = 8
    turned: int = 5
    mistaken: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One query, the tokens that were kept of its sequence, and which of them each head selects.

    Heads come by kind: the layer's own, random ones and turned ones; arrays are (draws, heads, ...), with a head axis
    of size one where all heads of the layer share a draw.

    x: (g, u, c) the tokens kept, of which the first `drawn` are drawn for all heads and the others selected by some
    z: (g, e) the query; g is 1 where all heads read the same tokens
    places: of the tokens kept, in the sequence; `length` is the number of tokens that the query sees
    pull: (h, c) W z of the layer's own heads
    scores: (draws, heads, u) by kind, x . W z; norms: |W|; selected: places in u
    saturated: by kind, whether the selected token has more than .99 of the attention
    gains: (h, u), by how much the loss falls if a head's output moves towards a token's value; None without a loss
    """

    x: Array
    z: Array
    drawn: int
    places: Indices
    length: int
    pull: Array
    scores: dict[str, Array]
    norms: dict[str, Array]
    selected: dict[str, Indices]
    saturated: dict[str, NDArray[np.bool_]]
    gains: Array | None


def obstacle(heads: Heads, index: int, *, fewest: int = 3) -> str:
    """Why an entry of the batch has no queries that choose, if so."""
    if heads.bias is not None:
        return "a bias on the scores knows places, which no W does"
    if not all(bool(torch.isfinite(x[index]).all()) for x in (heads.q, heads.k)):
        return "queries or keys are not finite"
    if not len(_choosing(heads, index, fewest)):
        return f"no query sees {fewest} tokens"
    return ""


def _visible(heads: Heads, index: int) -> Bool[Tensor, "n m"]:
    """Which keys every query sees, in all heads."""
    n, m = heads.q.shape[-2], heads.k.shape[-2]
    if heads.mask is None:
        return torch.ones(n, m, dtype=torch.bool)
    mask = heads.mask[index if heads.mask.shape[0] > 1 else 0]
    return mask.all(dim=0).expand(n, m).cpu()


def _choosing(heads: Heads, index: int, fewest: int) -> list[int]:
    """Queries that see enough tokens; in self-attention only those whose own token somebody sees, so no padding."""
    visible = _visible(heads, index)
    enough = visible.sum(dim=-1) >= fewest
    if visible.shape[0] == visible.shape[1]:
        enough = enough & visible.any(dim=0)
    return [int(place) for place in enough.nonzero()]


def choices_of(
    heads: Heads,
    space: Space,
    numbered: Sequence[tuple[int, np.random.Generator]],
    sampling: Sampling,
    *,
    kept: np.random.SeedSequence,
) -> list[list[Choice]]:
    """For every entry of the batch given, with its own generator, the choices of some of its queries.

    Random and turned heads are drawn from `kept`, so they are the same heads on every input.
    """
    asked = []
    for index, generator in numbered:
        among = _choosing(heads, index, 3)
        places = generator.choice(among, size=min(sampling.queries, len(among)), replace=False)
        asked.append([(index, int(place)) for place in sorted(places)])
    flat = [pair for pairs in asked for pair in pairs]
    pulls = _pulls(space, flat, sampling, kept)
    z = space.queries(flat).numpy()
    found, start = [], 0
    for (index, generator), pairs in zip(numbered, asked, strict=True):
        x, visible = space.tokens(index), _visible(heads, index)
        of_entry = []
        for nth, (_, place) in enumerate(pairs, start=start):
            seen = visible[place].nonzero().flatten()
            of_entry.append(
                _choice(heads, index, place, x[:, seen], seen.numpy(), z[nth], pulls, nth, generator, sampling)
            )
        start += len(pairs)
        found.append(of_entry)
    return found


def _pulls(
    space: Space, places: list[tuple[int, int]], sampling: Sampling, kept: np.random.SeedSequence
) -> dict[str, list[Pull]]:
    generator = torch.Generator().manual_seed(int(kept.generate_state(1)[0]))
    z = space.queries(places)
    return {
        OWN: [space.own(places)],
        RANDOM: [space.random(z, generator) for _ in range(sampling.random)],
        TURNED: [space.turned(z, generator) for _ in range(sampling.turned)],
    }


def _choice(
    heads: Heads,
    index: int,
    place: int,
    x: Tensor,
    seen: Indices,
    z: Array,
    pulls: dict[str, list[Pull]],
    nth: int,
    generator: np.random.Generator,
    sampling: Sampling,
) -> Choice:
    """One query, which is the nth of the pulls, and what is kept of the tokens x that it sees."""
    drawn = generator.choice(len(seen), size=min(sampling.tokens, len(seen)), replace=False)
    norms = pulls[OWN][0].norms
    q, k = heads.q[index, :, place].cpu().double(), heads.k[index].cpu().double()
    real = heads.scale * torch.einsum("hd,hmd->hm", q, k[:, torch.from_numpy(seen)])
    scores, saturated = {}, {}
    for kind, each in pulls.items():
        if not each:
            continue
        found = [_scores(x, one.vectors[nth]) for one in each]
        weighed = (
            [real] if kind == OWN else [s * (norms / one.norms)[:, None] for s, one in zip(found, each, strict=True)]
        )
        scores[kind] = torch.stack(found).numpy()
        saturated[kind] = np.stack([_largest(heads, of_draw) > SATURATED for of_draw in weighed])
    winners = {kind: of_kind.argmax(axis=-1) for kind, of_kind in scores.items()}
    chosen = np.unique(np.concatenate([w.ravel() for w in winners.values()]))
    tokens = np.concatenate([drawn, np.setdiff1d(chosen, drawn)])
    at = np.full(len(seen), -1)
    at[tokens] = np.arange(len(tokens))
    return Choice(
        x=x[:, tokens].numpy(),
        z=z,
        drawn=len(drawn),
        places=seen[tokens],
        length=len(seen),
        pull=pulls[OWN][0].vectors[nth].numpy(),
        scores={kind: of_kind[..., tokens] for kind, of_kind in scores.items()},
        norms={kind: np.stack([one.norms.numpy() for one in each]) for kind, each in pulls.items() if each},
        selected={kind: at[w] for kind, w in winners.items()},
        saturated=saturated,
        gains=_gains(heads, index, place, seen[tokens]),
    )


def _scores(x: Tensor, pull: Tensor) -> Tensor:
    """(h, m), of tokens (g, m, c) under pulls (h, c)."""
    return torch.einsum("gmc,hc->hm", x, pull) if x.shape[0] == 1 else torch.einsum("hmc,hc->hm", x, pull)


def _largest(heads: Heads, scores: Tensor) -> NDArray[np.float64]:
    """(h,), the largest attention weight of scores (h, m), with the layer's cap and sinks."""
    if heads.softcap is not None:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    total = torch.logsumexp(scores, dim=-1)
    if heads.sinks is not None:
        total = torch.logaddexp(total, heads.sinks.cpu().double())
    found: NDArray[np.float64] = (scores.amax(dim=-1) - total).exp().numpy()
    return found


def _gains(heads: Heads, index: int, place: int, tokens: Indices) -> Array | None:
    r"""(h, u): :math:`\gamma_t = -\langle \partial L / \partial o, v_t\rangle`, at the output of one query."""
    if heads.out_gradient is None:
        return None
    slope, v = heads.out_gradient[index, :, place].cpu().double(), heads.v[index].cpu().double()
    found: Array = -torch.einsum("he,hue->hu", slope, v[:, torch.from_numpy(tokens)]).numpy()
    return found
