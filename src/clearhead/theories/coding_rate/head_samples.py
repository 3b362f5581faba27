"""The claims on the heads of one block, for one input: values, and the controls of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.coding_rate.ablations import ablated_sums, apply_norm, can_ablate
from clearhead.theories.coding_rate.block import (
    Bases,
    Block,
    TokenSets,
    draw_sources,
    exchanged_additions,
    relative_change,
    relative_changes,
)
from clearhead.theories.coding_rate.claims import (
    AFTER_NORM,
    COMPRESSION,
    NORM_ALONE,
    NOTHING_ADDED,
    OTHER_TOKENS,
    RANDOM_SUBSPACE,
    RAW,
    SAME_RATE,
    SIZE_ALONE,
)
from clearhead.theories.coding_rate.depth import rates_by_layer
from clearhead.theories.coding_rate.subspaces import Reflections, random_bases, random_signs
from clearhead.theories.coding_rate.tokens import Tokens
from clearhead.theories.example import Example, Random
from clearhead.theories.theory import Claim, Control, Sample

FIXED = 2**32
"""Separates the random numbers of a layer from those of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Number of draws of each control: of additions for every input, of subspaces once per layer, of maps once."""

    other_tokens: int = 2
    same_rate: int = 16
    random_subspace: int = 16
    random_map: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDraws:
    """The draws of one layer that are used for all inputs: random subspaces, and the signs of reflections."""

    bases: Bases
    signs: Float[Tensor, "t c1"]

    @classmethod
    def of(cls, example: Example, *, c: int, p: int, draws: Draws, dtype: torch.dtype) -> "FixedDraws":
        """Draw them once for each layer of an audit."""
        entropy = (example.seed, example.layer, FIXED)

        def draw() -> FixedDraws:
            generator = Random(*entropy).torch
            return cls(
                bases=Bases.of(random_bases(draws.random_subspace, c=c, p=p, generator=generator), dtype),
                signs=random_signs(draws.same_rate, c + 1, generator=generator),
            )

        return example.per_audit.get(("subspaces", entropy, c, p, dtype), draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSamples:
    """The claims on heads of one input, in any subspaces.

    sets: the tokens before the block, the sums Z+ of the model and of the controls on attention, these after the norm
        that follows if it counts, and additions of other tokens
    sums, normed: where each control is among the sets after the first, under None the model; `normed` may be empty
    fixed: the draws of the layer; None without controls
    raw: whether rates of tokens as they are count
    """

    tokens: Tokens
    sets: TokenSets
    sums: Mapping[Control | None, slice]
    normed: Mapping[Control | None, slice]
    fixed: FixedDraws | None
    raw: bool
    eps: float

    @classmethod
    def of(
        cls, example: Example, tokens: Tokens, *, p: int, eps: float, draws: Draws, generator: torch.Generator
    ) -> "HeadSamples":
        """Prepare the controls if they are wanted."""
        norm = example.stream.norm if example.stream is not None and example.wants(AFTER_NORM) else None
        sums: dict[Control | None, Tensor] = {None: tokens.total[None]}
        normed: dict[Control | None, Tensor] = {} if norm is None else {None: tokens.between[None]}
        fixed = sources = None
        if example.controls:
            sources = draw_sources(len(tokens.before), draws=draws.other_tokens, generator=generator)
            ablated = ablated_sums(example, tokens) if can_ablate(example) else {}
            sums.update(ablated.items())
            if norm is not None:
                exchanged = exchanged_additions(tokens.before, tokens.total, sources)
                normed |= {c: apply_norm(norm, x) for c, x in {OTHER_TOKENS: exchanged, **ablated}.items()}
                normed[NORM_ALONE] = apply_norm(norm, tokens.before)[None]
            fixed = FixedDraws.of(example, c=tokens.before.shape[-1], p=p, draws=draws, dtype=tokens.dtype)
        sets = TokenSets.of(torch.cat([tokens.before[None], *sums.values(), *normed.values()]), sources)
        of_sums, of_normed = _slices(sums), _slices(normed, first=len(sums))
        if sources is not None:
            of_sums[OTHER_TOKENS] = slice(len(sets.tokens) - 1, None)
        return cls(
            tokens=tokens, sets=sets, sums=of_sums, normed=of_normed, fixed=fixed, raw=example.wants(RAW), eps=eps
        )

    def measure(self, bases: Bases) -> tuple[dict[Claim, Sample], dict[Claim, Sample]]:
        """Return every claim on heads in these subspaces, and the rates by layer."""
        block = Block(self.sets, bases, eps=self.eps)
        rates = block.rates(raw=None if self.raw else 2)
        changes = relative_changes(rates)
        samples = {claim: self._sample(self.sums, x) for claim, x in changes.items() if claim is not RAW or self.raw}
        if self.normed:
            samples[AFTER_NORM] = self._sample(self.normed, changes[COMPRESSION])
        if self.fixed is None:
            return samples, rates_by_layer(rates)
        indices = (0, 1, *(1 + of_set.start for control, of_set in self.normed.items() if control is None))
        random = Block(self.sets.only(*indices), self.fixed.bases, eps=self.eps).rates(raw=2)
        in_random = relative_changes(random)
        elsewhere = {claim: x[0] for claim, x in in_random.items()}
        if self.normed:
            elsewhere[AFTER_NORM] = in_random[COMPRESSION][1]
        reflections = Reflections.of(self.tokens.before, self.fixed.signs)
        reflected = block.changes_in_reflected(rates.matched[0], reflections, raw=self.raw)
        resized = relative_change(rates.matched[0], rates.at_size)[np.newaxis]
        return {
            claim: Sample(value=x.value, controls={**x.controls, **_controls(claim, resized, reflected, elsewhere)})
            for claim, x in samples.items()
        }, rates_by_layer(rates, random=random)

    def _sample(self, sets: Mapping[Control | None, slice], changes: Array) -> Sample:
        """Return the changes of the model and of each control."""
        parts = {control: changes[of_set] for control, of_set in sets.items()}
        value = parts.pop(None)[0]
        return Sample(value=value, controls={control: x for control, x in parts.items() if control is not None})


def _slices(sets: Mapping[Control | None, Tensor], *, first: int = 0) -> dict[Control | None, slice]:
    """Return where each control is if its sets follow each other."""
    slices = {}
    for control, x in sets.items():
        slices[control] = slice(first, first + len(x))
        first += len(x)
    return slices


def _controls(
    claim: Claim, resized: Array, reflected: Mapping[Claim, Array], elsewhere: Mapping[Claim, Array]
) -> dict[Control, Array]:
    """Return the controls that change the tokens' size alone, or the subspace.

    resized: the change of the raw rate by size alone; it changes no other rate
    reflected, elsewhere: the changes in other subspaces of the same rate, and in random ones
    """
    heads = resized.shape[-1]
    nothing = np.zeros((1, heads))
    controls = {SIZE_ALONE: resized, NOTHING_ADDED: nothing} if claim is RAW else {SIZE_ALONE: nothing}
    if claim is not AFTER_NORM:
        controls[SAME_RATE] = reflected[claim]
    # A random subspace belongs to no head, so the same draws serve all heads.
    controls[RANDOM_SUBSPACE] = np.repeat(elsewhere[claim][:, np.newaxis], heads, axis=1)
    return controls
