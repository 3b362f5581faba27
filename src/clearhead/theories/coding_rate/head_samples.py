"""The claims on the heads of one block, for one input: values, and the controls of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Float
from clearhead.theories.coding_rate.ablations import ablated_sums, apply_norm, can_ablate, without_rounding
from clearhead.theories.coding_rate.block import Block, exchanged_additions, relative_changes, resized
from clearhead.theories.coding_rate.claims import (
    ABLATIONS,
    AFTER_NORM,
    COMPRESSION,
    HEAD_CLAIMS,
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

__all__ = ["Draws", "FixedDraws", "HeadSamples"]

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

    bases: Float[Tensor, "t c p"]
    signs: Float[Tensor, "t c1"]

    @classmethod
    def of(cls, example: Example, *, c: int, p: int, draws: Draws) -> "FixedDraws":
        """Draw them once for each layer of an audit."""
        entropy = (example.seed, example.layer, FIXED)

        def draw() -> FixedDraws:
            generator = Random(*entropy).torch
            return cls(
                bases=random_bases(draws.random_subspace, c=c, p=p, generator=generator),
                signs=random_signs(draws.same_rate, c + 1, generator=generator),
            )

        return example.per_audit.get(("subspaces", entropy, c, p), draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSamples:
    """The claims on heads of one input, in any subspaces.

    sums: Z+ of the model, and of the controls on attention by draw
    normed: the same after the norm that follows the sum, if there is one
    fixed: the draws of the layer, and `random` the tokens in its random subspaces; None without controls
    """

    tokens: Tokens
    sums: Mapping[Control | None, Float[Tensor, "t n c"]]
    normed: Mapping[Control | None, Float[Tensor, "t n c"]]
    fixed: FixedDraws | None
    random: Block | None

    @classmethod
    def of(
        cls, example: Example, tokens: Tokens, *, p: int, eps: float, draws: Draws, generator: torch.Generator
    ) -> "HeadSamples":
        """Prepare the controls if they are wanted."""
        norm = example.stream.norm if example.stream is not None and example.wants(AFTER_NORM) else None
        sums: dict[Control | None, Tensor] = {None: tokens.total[None]}
        normed: dict[Control | None, Tensor] = {} if norm is None else {None: tokens.between[None]}
        if not example.controls:
            return cls(tokens=tokens, sums=sums, normed=normed, fixed=None, random=None)
        sums[OTHER_TOKENS] = exchanged_additions(
            tokens.before, tokens.total, draws=draws.other_tokens, generator=generator
        )
        if can_ablate(example):
            sums.update(ablated_sums(example, tokens).items())
        if norm is not None:
            normed |= {control: apply_norm(norm, x) for control, x in sums.items() if control is not None}
            normed[NORM_ALONE] = apply_norm(norm, tokens.before)[None]
        sums[SIZE_ALONE] = resized(tokens.before, tokens.total)[None]
        fixed = FixedDraws.of(example, c=tokens.before.shape[-1], p=p, draws=draws)
        random = Block(tokens.before, fixed.bases, eps=eps)
        return cls(tokens=tokens, sums=sums, normed=normed, fixed=fixed, random=random)

    def measure(self, block: Block) -> tuple[dict[Claim, Sample], dict[Claim, Sample]]:
        """Return every claim on heads in the subspaces of the block, and the rates by layer."""
        stacked = torch.cat([*self.sums.values(), *self.normed.values()])
        rates = block.rates(stacked)
        changes = relative_changes(block.before, rates)
        count = sum(len(x) for x in self.sums.values())
        samples = {claim: self._sample(self.sums, changes[claim][:count]) for claim in HEAD_CLAIMS}
        if self.normed:
            samples[AFTER_NORM] = self._sample(self.normed, changes[COMPRESSION][count:])
        if self.fixed is None or self.random is None:
            return samples, rates_by_layer(block.before, rates.of(0))
        in_random = self.random.rates(torch.stack([self.tokens.total, self.tokens.between]))
        random = relative_changes(self.random.before, in_random)
        reflections = Reflections.of(self.tokens.before, self.fixed.signs)
        reflected = block.changes_in_reflected(self.tokens.total, reflections)
        for claim, sample in samples.items():
            nothing = np.zeros((1, len(sample.value)))
            controls = dict(sample.controls)
            controls |= {NOTHING_ADDED: nothing} if claim is RAW else {SIZE_ALONE: nothing}
            controls |= {} if claim is AFTER_NORM else {SAME_RATE: reflected[claim]}
            # A random subspace belongs to no head, so the same draws serve all heads.
            elsewhere = random[COMPRESSION][1] if claim is AFTER_NORM else random[claim][0]
            controls[RANDOM_SUBSPACE] = np.repeat(elsewhere[:, np.newaxis], len(sample.value), axis=1)
            samples[claim] = Sample(value=sample.value, controls=controls)
        return samples, rates_by_layer(block.before, rates.of(0), at_size=rates.of(count - 1), random=in_random.of(0))

    def _sample(self, sums: Mapping[Control | None, Tensor], changes: Array) -> Sample:
        """Return the changes of the model and of each control, which come in the order of the sums.

        An ablation that differs by rounding alone does not differ.
        """
        ends = np.cumsum([len(x) for x in sums.values()])[:-1]
        parts = dict(zip(sums, np.split(changes, ends), strict=True))
        value = parts.pop(None)[0]
        return Sample(
            value=value,
            controls={
                control: without_rounding(part, value, self.tokens.dtype) if control in ABLATIONS else part
                for control, part in parts.items()
                if control is not None
            },
        )
