"""Queries of a layer and the tokens they choose among, as the sequences of an attention SVM."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Bool, Float
from clearhead.theories.example import Example
from clearhead.theories.max_margin.on_heads.random_heads import Pull, Space, UntrainedHeads
from clearhead.theories.max_margin.svm.constraints import Indices
from clearhead.theories.reason import Reason, ReasonKind

__all__ = ["MODEL", "RANDOM", "ROTATED", "Choice", "InputChoices", "Sampling", "choices_of", "obstacle"]

MODEL, RANDOM, ROTATED = "model", "random", "rotated"
SATURATED = 0.99
"""A query is saturated if one token has more than this share of its attention."""
FEWEST_TOKENS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How many inputs, queries, tokens and draws are used.

    inputs: inputs of one group, over which one problem is solved
    queries: queries that are drawn from each input
    further: further queries of each input, for the SVM of all inputs alone
    groups: groups on which the SVM of all inputs is fitted, from the first on
    tokens: tokens that are drawn for each query, and compared with the token that a head selects
    random, rotated: draws of untrained heads
    replacements: draws of tokens or queries that are not the head's own
    """

    inputs: int = 6
    queries: int = 3
    further: int = 5
    groups: int = 8
    tokens: int = 16
    random: int = 16
    rotated: int = 16
    replacements: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One query, some tokens of its sequence, and the token that each head selects.

    Heads come in three kinds: the model's own, random ones, and ones with random singular vectors (rotated). Arrays are
    (draws, heads, ...), with a head axis of size one if all heads of the layer share a draw.

    x: (g, u, c) the tokens; the first `sample_size` are sampled for all heads, the others are selected by some head
    z: (g, e) the query; g is 1 if all heads read the same tokens
    positions: positions of the tokens in the sequence; `length` is the number of tokens that the query sees
    pull: (h, c) W z of the layer's own heads; empty where no control needs it
    scores: (draws, heads, u) by kind, x . W z; norms: |W|; selected: indices in u
    saturated: by kind, whether the selected token has more than .99 of the attention
    gains: (h, u), the decrease of the loss if a head's output moves towards a token's value; None without a loss
    """

    x: NDArray[np.floating]
    z: NDArray[np.floating]
    sample_size: int
    positions: Indices
    length: int
    pull: Array
    scores: dict[str, Array]
    norms: dict[str, Array]
    selected: dict[str, Indices]
    saturated: dict[str, NDArray[np.bool_]]
    gains: Array | None

    def state(self) -> dict[str, Any]:
        """Return the choice as plain values and arrays, the arguments that make it again."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def model_only(self) -> "Choice":
        """Return the choice of the layer's own heads alone, without scores, in as few bytes as hold it exactly."""
        tokens = np.union1d(np.arange(self.sample_size), self.selected[MODEL])
        return dataclasses.replace(
            self,
            x=_in_few_bytes(self.x[:, tokens]),
            z=_in_few_bytes(self.z),
            positions=self.positions[tokens],
            pull=np.empty((0, self.x.shape[2])),  # a slice would keep all numbers in memory
            scores={},
            norms={},
            selected={MODEL: np.searchsorted(tokens, self.selected[MODEL])},
            saturated={MODEL: self.saturated[MODEL]},
            gains=None,
        )


def _in_few_bytes(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the numbers in single precision if no number changes."""
    if x.dtype == np.float32:
        return x
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    return single if np.array_equal(single, x) else x


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChoices:
    """The choices of one input: of the queries that claims are measured on, and of further queries (`model_only`)."""

    measured: list[Choice]
    further: list[Choice]

    def forget(self) -> None:
        """Drop choices that are measured and that no other group needs."""
        self.measured.clear()
        self.further.clear()


def obstacle(example: Example) -> Reason | None:
    """Return why no query of the example can be used; None if some can."""
    if example.bias is not None:
        return Reason(ReasonKind.NOT_COVERED, "a bias on the scores depends on positions, which no W does")
    if not all(bool(torch.isfinite(x).all()) for x in (example.q, example.k)):
        return Reason(ReasonKind.NOT_FINITE, "queries or keys are not finite")
    if not len(_usable_queries(example)):
        return Reason(ReasonKind.TOO_SHORT, f"no query sees {FEWEST_TOKENS} tokens")
    return None


def _visible(example: Example) -> Bool[Tensor, "n m"]:
    """Return which keys every query sees in all heads."""
    if example.mask is None:
        return torch.ones(example.q.shape[-2], example.k.shape[-2], dtype=torch.bool)
    return example.mask.all(dim=0).cpu()


def _usable_queries(example: Example) -> list[int]:
    """Return the queries that see enough tokens; in self-attention those whose own token is seen, so no padding."""
    visible = _visible(example)
    enough = visible.sum(dim=-1) >= FEWEST_TOKENS
    if visible.shape[0] == visible.shape[1]:
        enough = enough & visible.any(dim=0)
    return [int(position) for position in enough.nonzero()]


def choices_of(
    examples: Sequence[Example],
    space: Space,
    generators: Sequence[np.random.Generator],
    sampling: Sampling,
    *,
    untrained: UntrainedHeads,
) -> list[InputChoices]:
    """Return the choices of some queries of every example, drawn with its own generator.

    untrained: the random and rotated heads of the layer, the same on every input
    """
    candidates = [_usable_queries(example) for example in examples]
    positions = _draw_positions(candidates, sampling.queries, generators)
    measured = _draw_choices(examples, space, generators, sampling, positions, lambda z: _pulls(space, z, untrained))
    # Drawn last: the measured queries and tokens are the same if there are no further ones.
    others = [
        sorted(set(usable) - set(drawn)) if example.number <= sampling.inputs * sampling.groups else []
        for usable, drawn, example in zip(candidates, positions, examples, strict=True)
    ]
    positions = _draw_positions(others, sampling.further, generators)
    further = _draw_choices(examples, space, generators, sampling, positions, lambda z: {MODEL: space.model_heads(z)})
    return [
        InputChoices(measured=m, further=[choice.model_only() for choice in f])
        for m, f in zip(measured, further, strict=True)
    ]


def _draw_positions(
    candidates: Sequence[Sequence[int]], count: int, generators: Sequence[np.random.Generator]
) -> list[list[int]]:
    """Draw at most `count` queries of every example, in order."""
    return [
        sorted(int(i) for i in generator.choice(queries, size=min(count, len(queries)), replace=False))
        if queries
        else []
        for queries, generator in zip(candidates, generators, strict=True)
    ]


def _draw_choices(
    examples: Sequence[Example],
    space: Space,
    generators: Sequence[np.random.Generator],
    sampling: Sampling,
    positions: Sequence[Sequence[int]],
    pulls_of: Callable[[Float[Tensor, "queries g e"]], dict[str, Pull]],
) -> list[list[Choice]]:
    """Return the choices of the queries at these positions of every example."""
    pairs = [(example, position) for example, queries in zip(examples, positions, strict=True) for position in queries]
    if not pairs:
        return [[] for _ in examples]
    z = space.queries(pairs)
    pulls = pulls_of(z)
    firsts = np.cumsum([0, *(len(queries) for queries in positions)])

    def choices_of_example(number: int) -> list[Choice]:
        example = examples[number]
        x, k, visible = space.tokens(example), example.k.cpu().double(), _visible(example)
        choices = []
        for query, position in enumerate(positions[number], start=int(firsts[number])):
            indices = visible[position].nonzero().flatten()
            q = example.q[:, position].cpu().double()
            choices.append(
                _choice(
                    example,
                    position,
                    x[:, indices],
                    indices.numpy(),
                    z[query].numpy(),
                    example.scale * torch.einsum("hd,hmd->hm", q, k[:, indices]),
                    pulls,
                    query,
                    generators[number],
                    sampling,
                )
            )
        return choices

    return one_thread_each(choices_of_example, range(len(examples)))


def _pulls(space: Space, z: Float[Tensor, "queries g e"], untrained: UntrainedHeads) -> dict[str, Pull]:
    pulls = {
        MODEL: space.model_heads(z),
        RANDOM: space.random_heads(z, untrained.random),
        ROTATED: space.rotated_heads(z, untrained.rotated),
    }
    return {kind: pull for kind, pull in pulls.items() if len(pull.norms)}


def _choice(
    example: Example,
    position: int,
    x: Tensor,
    visible: Indices,
    z: Array,
    model_scores: Float[Tensor, "h m"],
    pulls: dict[str, Pull],
    query: int,
    generator: np.random.Generator,
    sampling: Sampling,
) -> Choice:
    """Return the choice of one query among a sample of its visible tokens x; `query` is its index in the pulls."""
    sample = generator.choice(len(visible), size=min(sampling.tokens, len(visible)), replace=False)
    norms = pulls[MODEL].norms
    scores, saturated = {}, {}
    for kind, pull in pulls.items():
        draw_scores = _scores(x, pull.vectors[query])
        scores[kind] = draw_scores.numpy()
        attention_scores = model_scores[None] if kind == MODEL else draw_scores * (norms / pull.norms).unsqueeze(-1)
        saturated[kind] = _largest(example, attention_scores) > SATURATED
    argmax = {kind: kind_scores.argmax(axis=-1) for kind, kind_scores in scores.items()}
    selected = np.unique(np.concatenate([w.ravel() for w in argmax.values()]))
    tokens = np.concatenate([sample, np.setdiff1d(selected, sample)])
    index = np.full(len(visible), -1)
    index[tokens] = np.arange(len(tokens))
    return Choice(
        x=_in_few_bytes(x[:, tokens].numpy()),
        z=_in_few_bytes(z),
        sample_size=len(sample),
        positions=visible[tokens],
        length=len(visible),
        pull=pulls[MODEL].vectors[query, 0].numpy().copy() if sampling.replacements else np.empty((0, x.shape[2])),
        scores={kind: kind_scores[..., tokens] for kind, kind_scores in scores.items()},
        norms={kind: pull.norms.numpy() for kind, pull in pulls.items()},
        selected={kind: index[w] for kind, w in argmax.items()},
        saturated=saturated,
        gains=_gains(example, position, visible[tokens]),
    )


def _scores(x: Float[Tensor, "g m c"], pulls: Float[Tensor, "t h c"]) -> Float[Tensor, "t h m"]:
    """Return the scores of tokens for the pulls of every draw and head."""
    return pulls @ x[0].mT if x.shape[0] == 1 else torch.einsum("hmc,thc->thm", x, pulls)


def _largest(example: Example, scores: Tensor) -> NDArray[np.float64]:
    """Return the largest attention weight (t, h) for scores (t, h, m), with the layer's soft cap and sinks."""
    if example.softcap is not None:
        scores = example.softcap * torch.tanh(scores / example.softcap)
    total = torch.logsumexp(scores, dim=-1)
    if example.sinks is not None:
        total = torch.logaddexp(total, example.sinks.cpu().double())
    largest: NDArray[np.float64] = (scores.amax(dim=-1) - total).exp().numpy()
    return largest


def _gains(example: Example, position: int, tokens: Indices) -> Array | None:
    r"""Return :math:`\gamma_t = -\langle \partial L / \partial o, v_t\rangle` at the output of one query, (h, u)."""
    if example.out_gradient is None:
        return None
    gradient, v = example.out_gradient[:, position].cpu().double(), example.v.cpu().double()
    gains: Array = -torch.einsum("he,hue->hu", gradient, v[:, torch.from_numpy(tokens)]).numpy()
    return gains
