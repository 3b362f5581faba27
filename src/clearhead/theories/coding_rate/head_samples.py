"""The claims on the heads of one block, for one input: values, and the controls of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.shapes import Float, Int
from clearhead.theories.coding_rate.ablations import ablated_sums, apply_norm, can_ablate, without_rounding
from clearhead.theories.coding_rate.block import (
    Bases,
    Block,
    draw_sources,
    exchanged_additions,
    join,
    relative_change,
    relative_changes,
)
from clearhead.theories.coding_rate.claims import (
    ABLATIONS,
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

    sums: Z+ of the model, and of the controls on attention
    sources: by draw, the token whose addition each token gets; None without controls
    normed: the sums by draw after the norm that follows, if there is one
    fixed: the draws of the layer, and `random` the tokens in its random subspaces; None without controls
    raw: whether rates of tokens as they are count
    """

    tokens: Tokens
    sums: Mapping[Control | None, Float[Tensor, "1 n c"]]
    sources: Int[Tensor, "t n"] | None
    normed: Mapping[Control | None, Float[Tensor, "_ n c"]]
    fixed: FixedDraws | None
    random: Block | None
    raw: bool

    @classmethod
    def of(
        cls, example: Example, tokens: Tokens, *, p: int, eps: float, draws: Draws, generator: torch.Generator
    ) -> "HeadSamples":
        """Prepare the controls if they are wanted."""
        norm = example.stream.norm if example.stream is not None and example.wants(AFTER_NORM) else None
        raw = example.wants(RAW)
        sums: dict[Control | None, Tensor] = {None: tokens.total[None]}
        normed: dict[Control | None, Tensor] = {} if norm is None else {None: tokens.between[None]}
        if not example.controls:
            return cls(tokens=tokens, sums=sums, sources=None, normed=normed, fixed=None, random=None, raw=raw)
        sources = draw_sources(len(tokens.before), draws=draws.other_tokens, generator=generator)
        if can_ablate(example):
            sums.update(ablated_sums(example, tokens).items())
        if norm is not None:
            exchanged = exchanged_additions(tokens.before, tokens.total, sources)
            of_controls = {
                OTHER_TOKENS: exchanged,
                **{control: x for control, x in sums.items() if control is not None},
            }
            normed |= {control: apply_norm(norm, x) for control, x in of_controls.items()}
            normed[NORM_ALONE] = apply_norm(norm, tokens.before)[None]
        fixed = FixedDraws.of(example, c=tokens.before.shape[-1], p=p, draws=draws, dtype=tokens.dtype)
        random = Block(tokens.before, fixed.bases, eps=eps)
        return cls(tokens=tokens, sums=sums, sources=sources, normed=normed, fixed=fixed, random=random, raw=raw)

    def measure(self, block: Block) -> tuple[dict[Claim, Sample], dict[Claim, Sample]]:
        """Return every claim on heads in the subspaces of the block, and the rates by layer."""
        after = block.project(torch.cat(list(self.sums.values())))
        own, parts, counts = after.of(0), [after], dict.fromkeys(self.sums, 1)
        if self.sources is not None:
            exchanged = exchanged_additions(self.tokens.before, self.tokens.total, self.sources)
            parts.append(block.exchange_additions(own, self.sources, exchanged))
            counts[OTHER_TOKENS] = len(self.sources)
        rates = block.rates(join(parts))
        changes = relative_changes(block.before, rates)
        samples = {claim: self._sample(counts, x) for claim, x in changes.items() if claim is not RAW or self.raw}
        if self.normed:
            normed = block.rates(block.project(torch.cat(list(self.normed.values()))))
            of_normed = relative_changes(block.before, normed)[COMPRESSION]
            samples[AFTER_NORM] = self._sample({control: len(x) for control, x in self.normed.items()}, of_normed)
        assert rates.raw is not None
        raw, unit = rates.raw[0], rates.unit[0]
        if self.fixed is None or self.random is None:
            return samples, rates_by_layer(raw, unit)
        at_size = block.rate_at_size(own.size)
        in_random = self.random.rates(self.random.project(self.tokens.total))
        curves = rates_by_layer(raw, unit, before=block.before.unit, at_size=at_size, random=in_random)
        reflections = Reflections.of(self.tokens.before, self.fixed.signs)
        reflected = block.changes_in_reflected(self.tokens.total, reflections, raw=self.raw)
        elsewhere = relative_changes(self.random.before, in_random)
        if self.normed:
            between = self.random.rates(self.random.project(self.tokens.between))
            elsewhere[AFTER_NORM] = relative_changes(self.random.before, between)[COMPRESSION]
        resized = relative_change(block.before.matched, at_size)[np.newaxis]
        return {
            claim: Sample(value=x.value, controls={**x.controls, **_controls(claim, resized, reflected, elsewhere)})
            for claim, x in samples.items()
        }, curves

    def _sample(self, counts: Mapping[Control | None, int], changes: Array) -> Sample:
        """Return the changes of the model and of each control, which come in the order of the counts of draws.

        An ablation that differs by rounding alone does not differ.
        """
        parts = dict(zip(counts, np.split(changes, np.cumsum(list(counts.values()))[:-1]), strict=True))
        value = parts.pop(None)[0]
        return Sample(
            value=value,
            controls={
                control: without_rounding(part, value, self.tokens.dtype) if control in ABLATIONS else part
                for control, part in parts.items()
                if control is not None
            },
        )


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
