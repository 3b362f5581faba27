"""Rates of sets of tokens in subspaces, compared with their definitions one by one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.numerics.coding_rate import subspace_rates
from clearhead.numerics.precision import tolerance
from clearhead.theories.coding_rate.block import Bases, Block, TokenSets, draw_sources, exchanged_additions
from clearhead.theories.coding_rate.claims import COMPRESSION, RAW, SCALE_MATCHED, UNIT_NORM
from clearhead.theories.coding_rate.subspaces import Reflections, random_bases, random_signs
from tests.theories.coding_rate.synthetic_heads import normal

N, C, K, P, DRAWS = 19, 31, 3, 7, 5
BASES = random_bases(K, c=C, p=P, generator=torch.Generator().manual_seed(1))
BEFORE, AFTER, OTHER = (scale * normal(N, C, seed=seed) for scale, seed in ((1, 2), (2, 3), (3, 4)))
RELATIVE = tolerance(torch.float64, terms=N * C)


def unit(z: Tensor) -> Tensor:
    return torch.nn.functional.normalize(z, dim=-1)


def matched(z: Tensor) -> Tensor:
    return z * BEFORE.norm() / z.norm()


def change(before: Tensor, after: Tensor) -> Tensor:
    return (after - before) / before


@pytest.mark.parametrize("raw", [2, None])
def test_rates_of_all_sets_match_the_definition(raw: int | None) -> None:
    sources = draw_sources(N, draws=2, generator=torch.Generator().manual_seed(5))
    sets = TokenSets.of(torch.stack([BEFORE, AFTER, OTHER]), sources)
    rates = Block(sets, Bases.of(BASES, torch.float64), eps=0.5).rates(raw=raw)
    tokens = [BEFORE, AFTER, OTHER, *exchanged_additions(BEFORE, AFTER, sources)]
    for got, scaled in ((rates.unit, unit), (rates.matched, matched), (rates.raw, lambda z: z)):
        want = torch.stack([subspace_rates(scaled(z), BASES) for z in tokens])
        assert torch.allclose(got, want[: len(got)], rtol=RELATIVE)
    assert (len(rates.unit), len(rates.matched), len(rates.raw)) == (5, 5, raw or 5)
    assert torch.allclose(rates.at_size, subspace_rates(BEFORE * AFTER.norm() / BEFORE.norm(), BASES), rtol=RELATIVE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_changes_in_reflected_subspaces_match_the_definition(dtype: torch.dtype, raw: bool, size: float) -> None:
    """Large tokens need a factor in double precision where the others are in single."""
    signs = random_signs(DRAWS, C + 1, generator=torch.Generator().manual_seed(6))
    reflections = Reflections.of(BEFORE, signs)
    tokens = torch.stack([BEFORE, AFTER]) * size
    block = Block(TokenSets.of(tokens), Bases.of(BASES, dtype), eps=0.5)
    changes = block.changes_in_reflected(block.rates().matched[0], reflections, raw=raw)
    directions = torch.linalg.svd(BEFORE, full_matrices=False).Vh
    inside = directions.mT @ (signs[:, : len(directions), None] * directions)
    reflected = inside + signs[:, -1, None, None] * (torch.eye(C, dtype=torch.float64) - directions.mT @ directions)
    before, after = tokens
    pairs = {UNIT_NORM: (unit(before), unit(after)), SCALE_MATCHED: (before, size * matched(after))}
    pairs |= {RAW: (before, after)} if raw else {}
    want = {
        claim: torch.stack([change(*(subspace_rates(z, draw @ BASES) for z in pair)) for draw in reflected]).numpy()
        for claim, pair in pairs.items()
    }
    want[COMPRESSION] = np.maximum(want[UNIT_NORM], want[SCALE_MATCHED])
    assert changes.keys() == want.keys()
    for claim, values in want.items():
        assert changes[claim] == pytest.approx(values, abs=1e-9 if dtype is torch.float64 else 2.0**-15)


def test_zero_tokens_are_counted_and_keep_their_length() -> None:
    sets = TokenSets.of(torch.stack([BEFORE * (torch.arange(N) > 2)[:, None], AFTER, 0 * AFTER]))
    assert sets.zeros == 3
    rates = Block(sets, Bases.of(BASES, torch.float64), eps=0.5).rates()
    assert torch.isfinite(rates.unit).all()
    assert not rates.unit[2].any()
    assert not rates.matched[2].any()
