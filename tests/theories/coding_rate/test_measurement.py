import dataclasses

import numpy as np
import pytest
import torch

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.numerics.coding_rate import subspace_rates
from clearhead.numerics.precision import tolerance
from clearhead.theories.coding_rate import make_theory
from clearhead.theories.coding_rate.block import draw_sources, exchanged_additions
from clearhead.theories.coding_rate.claims import (
    COMPRESSION,
    DENSITY,
    HEAD_CLAIMS,
    LAYER_CLAIMS,
    MAP_CLAIMS,
    NONZERO,
    NOTHING_ADDED,
    OTHER_TOKENS,
    OVERLAP,
    RANDOM_SUBSPACE,
    RAW,
    RAW_MAP,
    SCALE_MATCHED,
    SIZE_ALONE,
    TIED_CLAIMS,
    UNIT_NORM,
    UNSCALED_MAP,
)
from clearhead.theories.theory import Claim, Unit
from clearhead_lab.theorems.coding_rate.change import rate_change
from tests.measured import Measured
from tests.theories.coding_rate.synthetic_heads import (
    HEADS,
    INPUTS,
    STREAM,
    TOKENS,
    WIDTH,
    bases,
    compressed,
    expanded,
    heads_of,
    normal,
    tokens,
)

TOLERANCE = tolerance(torch.float64, terms=TOKENS * STREAM)


def found(*calls, seed: int = 0, **options) -> dict[Claim, list[Finding]]:
    controls = options.pop("controls", True)
    measurement = Measured(make_theory(**options), seed=seed, controls=controls)
    for heads in calls:
        measurement.feed(heads)
    by_claim: dict[Claim, list[Finding]] = {}
    for finding in judge(measurement.findings()):
        by_claim.setdefault(finding.claim, []).append(finding)
    return by_claim


def verdicts(findings: list[Finding]) -> set[Verdict]:
    return {finding.verdict for finding in findings}


def control(finding: Finding, name: str) -> float:
    return next(control_result.value for control_result in finding.controls if control_result.name == name)


Z = tokens()


def test_a_gradient_step_compresses_and_its_opposite_is_contradicted() -> None:
    z = tokens(inputs=17)
    down, up = found(heads_of(z, compressed(z))), found(heads_of(z, expanded(z)))
    assert verdicts(down[COMPRESSION]) == verdicts(down[RAW]) == {Verdict.SUPPORTED}
    assert verdicts(up[COMPRESSION]) <= {Verdict.CONTRADICTED, Verdict.NO_EVIDENCE}
    assert Verdict.SUPPORTED not in verdicts(up[RAW])
    assert all(f.inputs == 17 and not f.skipped for f in down[COMPRESSION])


@pytest.mark.parametrize("factor", [0.9, 1.3])
def test_a_change_of_size_alone_is_not_compression(factor: float) -> None:
    scaled = found(heads_of(Z, factor * Z))
    for claim in (COMPRESSION, UNIT_NORM, SCALE_MATCHED):
        assert max(abs(f.value) for f in scaled[claim]) < TOLERANCE
        assert Verdict.SUPPORTED not in verdicts(scaled[claim])
    for finding in scaled[RAW]:
        assert control(finding, SIZE_ALONE.name) == pytest.approx(finding.value, rel=TOLERANCE)
        assert control(finding, NOTHING_ADDED.name) == 0
        assert (finding.value < 0) is (factor < 1)
    assert Verdict.SUPPORTED not in verdicts(scaled[RAW])


def test_additions_independent_of_their_tokens_are_not_compression() -> None:
    noisy = found(heads_of(Z, Z + 0.5 * normal(*Z.shape, seed=4)))
    assert Verdict.SUPPORTED not in verdicts(noisy[COMPRESSION])


def test_uniform_compression_is_not_specific_to_the_heads_subspaces() -> None:
    """Tokens moved halfway to their mean shrink in any subspace; only random subspaces as a control show it."""
    pulled = Z.mean(dim=1, keepdim=True) + 0.5 * (Z - Z.mean(dim=1, keepdim=True)) + 3 * normal(1, 1, STREAM, seed=3)
    finding = found(heads_of(Z, pulled))[COMPRESSION][0]
    assert finding.value < 0
    assert control(finding, RANDOM_SUBSPACE.name) == pytest.approx(finding.value, abs=0.2)


def test_values_match_the_definition() -> None:
    """Head by head and input by input, compared with `rate_change`."""
    between = Z + normal(*Z.shape, seed=5)
    measured = found(heads_of(Z, between))
    for h in range(HEADS):
        change = rate_change(Z, between, bases=bases()[h : h + 1])
        unit_before = subspace_rates(Z / Z.norm(dim=-1, keepdim=True), bases()[h : h + 1])[..., 0]
        unit, matched = change.unit_norm / unit_before, change.scale_matched / change.before
        expected = {
            COMPRESSION: torch.maximum(unit, matched),
            UNIT_NORM: unit,
            SCALE_MATCHED: matched,
            RAW: change.raw / change.before,
        }
        for claim in HEAD_CLAIMS:
            assert measured[claim][h].value == pytest.approx(float(expected[claim].mean()), rel=TOLERANCE)
        shrink = float((change.shrink_null / change.before).mean())
        assert control(measured[RAW][h], SIZE_ALONE.name) == pytest.approx(shrink, rel=TOLERANCE)
        for claim in (COMPRESSION, UNIT_NORM, SCALE_MATCHED):
            assert control(measured[claim][h], SIZE_ALONE.name) == 0


def test_exchanged_additions_are_those_of_other_tokens() -> None:
    """Exchanging equal additions changes nothing; subtracting half of another token adds energy."""
    same = found(heads_of(Z, Z + normal(1, 1, STREAM, seed=6)))
    own = found(heads_of(Z, 0.5 * Z))
    for finding in same[COMPRESSION]:
        assert control(finding, OTHER_TOKENS.name) == pytest.approx(finding.value, abs=TOLERANCE)
    for finding in own[RAW]:
        assert control(finding, OTHER_TOKENS.name) > 0 > finding.value


def test_with_two_tokens_each_gets_the_additions_of_the_other() -> None:
    z, total = Z[0, :2], Z[0, :2] + normal(2, STREAM, seed=7)
    exchanged = exchanged_additions(z, total, draw_sources(2, draws=3, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(exchanged, (z + (total - z).flip(0)).expand(3, 2, STREAM))


def test_padding_does_not_count() -> None:
    between, after = compressed(Z), normal(*Z.shape, seed=8)
    rubbish = 1e3 * normal(INPUTS, 4, STREAM, seed=9)
    padded = [torch.cat([part, rubbish], dim=1) for part in (Z, between, after)]
    mask = torch.ones(INPUTS, 1, 1, TOKENS + 4, dtype=torch.bool)
    mask[..., TOKENS:] = False
    plain = found(heads_of(Z, between, after=after))
    masked = found(heads_of(padded[0], padded[1], after=padded[2], mask=mask))
    seen = found(heads_of(padded[0], padded[1], after=padded[2]))
    for claim in (*HEAD_CLAIMS, *LAYER_CLAIMS):
        for a, b, c in zip(plain[claim], masked[claim], seen[claim], strict=True):
            assert a.value == pytest.approx(b.value, rel=TOLERANCE)
            assert a.value != pytest.approx(c.value, rel=1e-3) or claim is NONZERO


def test_how_inputs_are_batched_does_not_matter() -> None:
    between = compressed(Z)
    whole = found(heads_of(Z, between, after=Z))
    parts = found(*(heads_of(Z[a:b], between[a:b], after=Z[a:b]) for a, b in ((0, 2), (2, 3), (3, INPUTS))))
    other = found(heads_of(Z, between, after=Z), seed=1)
    for claim, findings in whole.items():
        for a, b in zip(findings, parts[claim], strict=True):
            assert a.value == pytest.approx(b.value, rel=TOLERANCE)
            assert [c.value for c in a.controls] == pytest.approx([c.value for c in b.controls], rel=TOLERANCE)
    assert [c.value for c in whole[RAW][0].controls] != [c.value for c in other[RAW][0].controls]


def test_the_windows_of_an_input_are_one_sample() -> None:
    z, between = (torch.cat([part, part.flip(-1)], dim=1) for part in (Z, compressed(Z)))
    windowed, plain = (found(heads_of(z, between, after=between.relu(), windows=count)) for count in (2, 1))
    assert windowed[DENSITY][0].inputs == INPUTS
    assert windowed[DENSITY][0].value == pytest.approx(plain[DENSITY][0].value, rel=TOLERANCE)


def test_heads_that_share_values_share_their_numbers() -> None:
    one, grouped = (
        heads_of(Z, compressed(Z)),
        heads_of(Z, compressed(Z), maps=bases().repeat_interleave(2, 0), groups=2),
    )
    single, double = found(one), found(grouped)
    for claim in (*HEAD_CLAIMS, *MAP_CLAIMS):
        assert [f.value for f in double[claim]] == pytest.approx(
            np.repeat([f.value for f in single[claim]], 2).tolist(), rel=TOLERANCE
        )


def test_only_the_span_of_a_map_matters() -> None:
    """Mixing a map's columns, or adding dependent columns, gives the same subspace."""
    mixed = bases() @ normal(HEADS, WIDTH, WIDTH, seed=11)
    plain, other = found(heads_of(Z, compressed(Z))), found(heads_of(Z, compressed(Z), maps=mixed))
    for a, b in zip(plain[COMPRESSION], other[COMPRESSION], strict=True):
        assert a.value == pytest.approx(b.value, rel=1e3 * TOLERANCE)
    twice = torch.cat([bases(), bases()], dim=-1)
    flat = found(heads_of(Z, compressed(Z), maps=twice), controls=False)
    expected = subspace_rates(compressed(Z), bases(), eps=0.5 / 2**0.5) / subspace_rates(Z, bases(), eps=0.5 / 2**0.5)
    for h in range(HEADS):
        assert flat[RAW][h].value == pytest.approx(float(expected[:, h].mean()) - 1, rel=1e3 * TOLERANCE)


def test_a_zero_map_has_no_subspace() -> None:
    maps = bases()
    maps[1] = 0
    measured = found(heads_of(Z, compressed(Z), maps=maps))
    assert [f.verdict is Verdict.NOT_APPLICABLE for f in measured[COMPRESSION]] == [False, True, False]
    assert "in the head's subspace" in measured[COMPRESSION][1].reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": False}, "not found"),
        ({"values": False}, "not a linear map"),
        ({"maps": normal(HEADS, STREAM + 2, WIDTH)}, "another width"),
    ],
)
def test_reasons_why_a_claim_is_not_measured(options, words) -> None:
    measured = found(heads_of(Z, compressed(Z), after=Z, **options))
    assert verdicts(measured[COMPRESSION]) == {Verdict.NOT_APPLICABLE}
    assert all(words in f.reason for f in measured[COMPRESSION])
    assert (verdicts(measured[DENSITY]) == {Verdict.NOT_APPLICABLE}) is ("stream" in options)


def test_other_reasons_why_a_claim_is_not_measured() -> None:
    heads = heads_of(Z, compressed(Z), after=None)
    longer = normal(INPUTS, HEADS, TOKENS + 1, WIDTH)
    holes = Z.clone()
    holes[:, 0, 0] = torch.nan
    for broken, words in (
        (dataclasses.replace(heads, k=longer, v=longer), "another sequence"),
        (dataclasses.replace(heads, residual_stream=heads_of(Z[:3], Z[:3]).residual_stream), "not found"),
        (heads_of(Z[:, :3], Z[:, :3]), "fewer than 4 tokens"),
        (heads_of(holes, Z), "not finite"),
        (heads_of(torch.zeros_like(Z), Z), "all tokens before this block are zero"),
    ):
        assert all(words in f.reason for f in found(broken)[COMPRESSION])
    assert "nothing between the attention" in found(heads)[DENSITY][0].reason


def test_sparsity_is_measured_by_layer() -> None:
    after = Z.clone()
    after[..., 7:] = 0
    for index, of_input in enumerate(after):  # a difference that is the same on every input has no test
        of_input[: index + 1, 0] = 0
    calls = [heads_of(Z, compressed(Z), after=after if layer else Z, layer=layer) for layer in range(2)]
    measured = found(*calls)
    for claim in (DENSITY, NONZERO):
        assert [(f.layer, f.head) for f in measured[claim]] == [(0, 0), (1, 0)]
        assert claim.unit is Unit.LAYER
        assert measured[claim][1].verdict is Verdict.SUPPORTED
        assert measured[claim][0].verdict is not Verdict.SUPPORTED
    zeroed = (INPUTS + 1) / 2 / TOKENS
    assert measured[NONZERO][1].value == pytest.approx((7 - zeroed) / STREAM)


def test_a_tied_map_is_also_measured_unchanged() -> None:
    maps = 0.7 * bases() @ torch.diag(torch.linspace(0.5, 1.5, WIDTH, dtype=torch.float64))
    tied = found(heads_of(Z, compressed(Z), maps=maps, tied=0.3))
    free = found(heads_of(Z, compressed(Z), maps=maps))
    assert not set(TIED_CLAIMS) & set(free)
    change = rate_change(Z, compressed(Z), bases=maps[:1])
    assert float((change.scale_matched / change.before).mean()) <= tied[RAW_MAP][0].value + TOLERANCE
    assert tied[RAW_MAP][0].value != pytest.approx(tied[COMPRESSION][0].value, rel=1e-3)
    gram = maps[0].mT @ maps[0] - torch.eye(WIDTH)
    assert tied[UNSCALED_MAP][0].value == pytest.approx(float(gram.norm()) / WIDTH**0.5)


def test_queries_of_another_map_are_not_tied() -> None:
    heads = heads_of(Z, Z, tied=1.0)
    other = dataclasses.replace(heads.queries_from, weight=heads.queries_from.weight.flip(0))
    assert not set(TIED_CLAIMS) & set(found(dataclasses.replace(heads, queries_from=other)))
    assert set(TIED_CLAIMS) <= set(found(heads))


def test_random_subspaces_overlap_and_chosen_ones_do_not() -> None:
    random = found(heads_of(Z, Z, maps=normal(HEADS, STREAM, WIDTH, seed=12)))[OVERLAP]
    chosen = found(heads_of(Z, Z))[OVERLAP]
    assert verdicts(random) == {Verdict.NO_EVIDENCE}
    assert verdicts(chosen) == {Verdict.SUPPORTED}
    assert np.mean([f.controls[0].value for f in chosen]) == pytest.approx(WIDTH / STREAM, rel=0.2)


def test_without_controls_there_are_only_values() -> None:
    plain, with_controls = (
        found(heads_of(Z, compressed(Z), after=Z), controls=False),
        found(heads_of(Z, compressed(Z), after=Z)),
    )
    for claim, findings in plain.items():
        assert all(not f.controls for f in findings)
        assert [f.value for f in findings] == pytest.approx([f.value for f in with_controls[claim]])


def test_eps_is_epsilon_itself() -> None:
    for eps in (0.1, 1.0):
        change = rate_change(Z, compressed(Z), bases=bases()[:1], eps=eps)
        measured = found(heads_of(Z, compressed(Z)), eps=eps)[RAW][0].value
        assert measured == pytest.approx(float((change.raw / change.before).mean()), rel=TOLERANCE)
    with pytest.raises(ValueError, match="eps"):
        make_theory(eps=0.0)
