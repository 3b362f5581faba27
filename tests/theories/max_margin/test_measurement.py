"""The claims on heads with known results: a max-margin head and others."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import judge
from clearhead.heads import Heads
from clearhead.theories.max_margin import Norm, attention_svm, make_theory
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import MODEL, RANDOM, Sampling, choices_of
from clearhead.theories.max_margin.on_heads.held_out import FixedPosition, Trial
from clearhead.theories.max_margin.on_heads.other_norms import Matrices
from clearhead.theories.max_margin.on_heads.problems import Group, _inverse_form
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from clearhead.theories.theory import Claim
from tests.measured import Measured
from tests.theories.max_margin.synthetic_heads import WIDTH, call, examples_of, matrix, normal, untrained_heads

INPUTS, TOKENS, HEADS, GROUPS = 3, 5, 2, 3
EVERYTHING = Sampling(inputs=INPUTS, queries=TOKENS, tokens=TOKENS, random=4, rotated=4, replacements=1)


def tokens() -> Tensor:
    return normal(INPUTS, TOKENS, WIDTH, seed=3)


def identity() -> Tensor:
    return torch.eye(WIDTH, dtype=torch.float64).expand(HEADS, -1, -1)


def max_margin_head(size: float, norm: Norm = Norm.FROBENIUS) -> Heads:
    """Return heads that both are the SVM of the tokens that a random matrix selects, over all queries."""
    x = tokens()
    start = normal(WIDTH, WIDTH, seed=5)
    sequences = x.repeat_interleave(TOKENS, dim=0)
    queries = x.flatten(0, 1)
    selected = torch.einsum("nmc,ce,ne->nm", sequences, start, queries).argmax(dim=-1)
    W = attention_svm(sequences, queries, selected, norm=norm).W
    assert W is not None
    return call(x, identity(), size * W.mT.expand(HEADS, -1, -1))


def measured(
    head: Heads, *, groups: int = GROUPS, sampling: Sampling = EVERYTHING, everywhere: bool = False
) -> dict[str, list[Finding]]:
    """Measure groups of the same inputs, with all of their queries and tokens."""
    measurement = Measured(make_theory(sampling=sampling, everywhere=everywhere))
    for _ in range(groups):
        measurement.feed(head)
    result: dict[str, list[Finding]] = {}
    for finding in judge(measurement.findings()):
        result.setdefault(finding.claim.statistic, []).append(finding)
    return result


def test_a_max_margin_head_meets_every_claim_exactly() -> None:
    result = measured(max_margin_head(30.0))
    for claim in (c.RATIO, c.LOW_RATIO, c.COSINE, c.COSINE_SPAN, c.SEPARABLE, c.SATURATION, c.HELD_OUT):
        for finding in result[claim.statistic]:
            assert finding.value == pytest.approx(1, abs=1e-7), claim.statistic
            assert finding.inputs == GROUPS - (claim is c.HELD_OUT)
    # Both heads have the same matrix, so the matrix of another head does as well.
    assert {f.verdict for f in result[c.RATIO.statistic]} == {Verdict.NO_EVIDENCE}
    assert {f.verdict for f in result[c.SEPARABLE.statistic]} == {Verdict.TRUE_BY_CONSTRUCTION}


@pytest.mark.parametrize(
    ("norm", "claim"),
    [
        (Norm.FROBENIUS, c.COSINE),
        (Norm.NUCLEAR, c.COSINE_NUCLEAR),
        (Norm.MAX_ENTRY, c.COSINE_MAX_ENTRY),
    ],
)
def test_a_head_of_each_norm_has_the_largest_cosine_with_its_own_svm(norm: Norm, claim: Claim) -> None:
    result = measured(max_margin_head(60.0, norm))
    cosines = (c.COSINE, c.COSINE_NUCLEAR, c.COSINE_MAX_ENTRY)
    values = {one.statistic: result[one.statistic][0].value for one in cosines}
    assert values.pop(claim.statistic) == pytest.approx(1, abs=1e-3)
    assert all(value < 0.97 for value in values.values())
    names = {x.name for x in result[c.COSINE_NUCLEAR.statistic][0].controls}
    assert names == {c.RANDOM_HEAD.name}


def test_other_norms_are_measured_in_saturated_heads_or_everywhere() -> None:
    quiet = max_margin_head(1.0)
    assert np.isnan(measured(quiet)[c.COSINE_NUCLEAR.statistic][0].value)
    measurement = Measured(make_theory(sampling=EVERYTHING, everywhere=True))
    measurement.feed(quiet)
    [first, _] = [f for f in measurement.findings() if f.claim == c.COSINE_NUCLEAR]
    assert 0 < first.value < 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("batch", [2, 5])
def test_untrained_heads_are_measured_on_the_first_groups_alone(known: bool, batch: int) -> None:
    sampling = dataclasses.replace(EVERYTHING, inputs=2)
    x = normal(8, 5, WIDTH, seed=3)
    left, right = normal(HEADS, WIDTH, WIDTH, seed=9), 30 * normal(HEADS, WIDTH, WIDTH, seed=11)
    layers = [call(rows, left, right, known=known) for rows in x.split(batch)]
    some, every = (Measured(make_theory(sampling=sampling, everywhere=True), control_inputs=count) for count in (4, 8))
    for measurement in (some, every):
        for layer in layers:
            measurement.feed(layer)
    for first, second in zip(some.findings(), every.findings(), strict=True):
        assert first.value == pytest.approx(second.value, nan_ok=True)
        assert first.predicted == pytest.approx(second.predicted, nan_ok=True)
        assert first.inputs == second.inputs
    [ratio] = [f for f in some.findings() if f.claim.statistic == c.RATIO.statistic and f.head == 0]
    assert ratio.inputs == 4
    assert {control.name for control in ratio.controls} >= {c.RANDOM_HEAD.name, c.ROTATED_HEAD.name}


def test_matrices_of_random_heads_select_the_recorded_tokens() -> None:
    head = call(
        tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11), bias=normal(HEADS, 3, seed=13)
    )
    for given in (head, dataclasses.replace(head, keys_from=None)):
        space = space_of(given)
        untrained = space.draw(torch.Generator().manual_seed(3), random=3, rotated=1)
        sampling = Sampling(inputs=1, queries=2, tokens=4, random=3, rotated=1, replacements=1)
        [choices] = choices_of(
            [examples_of(given)[1]], space, [np.random.default_rng(0)], sampling, untrained=untrained
        )
        for draw, W in enumerate(Matrices(space, untrained.random).random_heads()):
            for choice in choices.measured:
                for h in range(choice.scores[RANDOM].shape[1]):
                    expected = choice.x[h % len(choice.x)] @ W @ choice.z[h % len(choice.z)]
                    assert choice.scores[RANDOM][draw, h] == pytest.approx(expected)
                    assert choice.norms[RANDOM][draw, h] == pytest.approx(np.linalg.norm(W))


def test_rotated_heads_have_the_singular_values_of_the_head() -> None:
    head = call(
        tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11), bias=normal(HEADS, 3, seed=13)
    )
    for given in (head, dataclasses.replace(head, keys_from=None)):
        space = space_of(given)
        width = space.matrix(0).shape[1]
        units = torch.eye(width, dtype=torch.float64).unsqueeze(1)
        units = units if given.keys_from is not None else units.expand(-1, HEADS, -1)
        maps = space.draw(torch.Generator().manual_seed(1), random=0, rotated=2).rotated
        turned = space.rotated_heads(units, maps)
        for draw, h in itertools.product(range(2), range(HEADS)):
            W = turned.vectors[:, draw, h].mT
            values = torch.linalg.svdvals(space.matrix(h))
            # The maps are kept in single precision.
            torch.testing.assert_close(torch.linalg.svdvals(W)[:3], values[:3], rtol=1e-6, atol=0)
            assert float(turned.norms[draw, h]) == pytest.approx(float(values.norm()))
            assert float((W * space.matrix(h)).sum() / values.square().sum()) < 0.9


def test_a_random_head_is_separable_and_meets_no_other_claim() -> None:
    result = measured(call(tokens(), identity(), 30 * normal(HEADS, WIDTH, WIDTH, seed=7)))
    assert all(f.value == 1 for f in result[c.SEPARABLE.statistic])
    for claim in (c.RATIO, c.COSINE, c.COSINE_SPAN):
        for finding in result[claim.statistic]:
            assert finding.value < 0.9
            # The inputs of all groups are equal, and so are the differences from the other head, up to rounding.
            assert finding.verdict in (Verdict.NO_EVIDENCE, Verdict.UNDECIDED)


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_unsaturated_head_is_solved_only_everywhere_and_never_judged(everywhere: bool) -> None:
    result = measured(max_margin_head(1.0), everywhere=everywhere)
    [first, _] = result[c.RATIO.statistic]
    assert first.value == pytest.approx(1 if everywhere else np.nan, abs=1e-7, nan_ok=True)
    assert (first.verdict, first.reason) == (Verdict.NOT_APPLICABLE, "attention is not saturated")
    assert result[c.SATURATION.statistic][0].value < c.LEAST_SATURATION


def test_a_group_with_few_saturated_queries_is_left_out_and_the_head_judged_by_the_others() -> None:
    loud, quiet = max_margin_head(30.0), max_margin_head(1.0)
    measurement = Measured(make_theory(sampling=EVERYTHING))
    for head in (loud, loud, loud, quiet):
        measurement.feed(head)
    [first, _] = [f for f in judge(measurement.findings()) if f.claim == c.RATIO]
    assert (first.inputs, first.skipped) == (3, 1)
    assert first.applies


@dataclasses.dataclass(frozen=True)
class ByHand:
    """Return the statistics of one head by their definitions, over all queries and tokens."""

    ratio: float
    low_ratio: float
    cosine: float
    hebbian: float
    selected: Tensor
    support: Tensor


def by_hand(head: Heads, h: int) -> ByHand:
    assert head.queries_from is not None
    W = matrix(head, h)
    x = head.queries_from.x
    z = x.flatten(0, 1)
    if head.queries_from.bias is not None:
        z = torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], dim=-1)
    sequences = x.repeat_interleave(x.shape[1], dim=0)
    scores = torch.einsum("nmc,ce,ne->nm", sequences, W, z)
    selected = scores.argmax(dim=-1)
    best = attention_svm(sequences, z, selected)
    assert best.W is not None
    others = torch.ones_like(scores, dtype=torch.bool).scatter(1, selected[:, None], False)
    own, ideal = (
        (result.gather(1, selected[:, None]) - result)[others]
        for result in (scores, torch.einsum("nmc,ce,ne->nm", sequences, best.W, z))
    )
    delta = sequences[torch.arange(len(z)), selected].unsqueeze(1) - sequences
    hebbian = torch.einsum("nmc,ne->ce", delta, z)
    cosine, to_hebbian = (float((W * other).sum() / W.norm() / other.norm()) for other in (best.W, hebbian))
    return ByHand(
        ratio=float(own.min() / W.norm() * best.W.norm()),
        low_ratio=float(own.quantile(0.05) / W.norm() / ideal.quantile(0.05) * best.W.norm()),
        cosine=cosine,
        hebbian=to_hebbian,
        selected=selected,
        support=best.support,
    )


@pytest.mark.parametrize("with_bias", [False, True])
def test_statistics_follow_their_definitions(with_bias: bool) -> None:
    bias = normal(HEADS, 3, seed=13) if with_bias else None
    head = call(tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11), bias=bias, scale=0.3)
    result = measured(head, everywhere=True)
    for h in range(HEADS):
        expected = by_hand(head, h)
        assert result[c.RATIO.statistic][h].value == pytest.approx(expected.ratio, rel=1e-7)
        assert result[c.LOW_RATIO.statistic][h].value == pytest.approx(expected.low_ratio, rel=1e-7)
        assert result[c.COSINE.statistic][h].value == pytest.approx(expected.cosine, rel=1e-7)
        [compared] = [x for x in result[c.COSINE.statistic][h].controls if x.name == c.HEBBIAN.name]
        assert compared.value == pytest.approx(expected.hebbian, rel=1e-7)
    # Control: the heads differ, so the numbers of another head would fail.
    assert by_hand(head, 0).ratio != pytest.approx(by_hand(head, 1).ratio, rel=1e-3)


def test_local_optimality_counts_support_tokens_and_no_others() -> None:
    head = call(tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11))
    slope = normal(INPUTS, HEADS, TOKENS, WIDTH, seed=19)
    result = measured(dataclasses.replace(head, out_gradient=slope), everywhere=True)
    for h in range(HEADS):
        expected = by_hand(head, h)
        gains = -torch.einsum("bne,bme->bnm", slope[:, h], head.v[:, h]).flatten(0, 1)
        better = gains.gather(1, expected.selected[:, None]) > gains
        share = float(better[expected.support].double().mean())
        assert result[c.LOCAL.statistic][h].value == pytest.approx(share)
        [every] = [x for x in result[c.LOCAL.statistic][h].controls if x.name == c.EVERY_TOKEN.name]
        assert every.value != pytest.approx(share, abs=1e-3)


def test_a_token_that_was_not_sampled_can_be_selected_if_the_head_selects_it() -> None:
    x = normal(2, 5, WIDTH, seed=23)
    # Scores are products of first entries: all queries select token 3, whether it is among the two sampled ones or not.
    x[..., 0] = 1
    x[:, 3, 0] = 9
    first = torch.zeros(1, WIDTH, WIDTH, dtype=torch.float64)
    first[0, 0, 0] = 1
    sampling = Sampling(inputs=2, queries=5, tokens=2, random=0, rotated=0, replacements=0)
    head = call(x, first, first)
    generators = [np.random.default_rng(index) for index in range(2)]
    by_input = choices_of(
        examples_of(head)[:2], space_of(head), generators, sampling, untrained=untrained_heads(head, sampling)
    )
    choices = [choice for of_input in by_input for choice in of_input.measured]
    group = Group(choices, 0)
    selected = group.selected(MODEL, 0, 0)
    assert {choice.positions[at] for choice, at in zip(choices, selected - group.start, strict=True)} == {3}
    assert not group.in_sample[selected].all()
    assert Trial(group, group).accuracy(FixedPosition(3), MODEL, 0, 0) == 1
    assert Trial(group, group).accuracy(FixedPosition(0), MODEL, 0, 0) == 0


def test_without_maps_keys_and_queries_are_the_tokens_and_the_claims_say_so() -> None:
    head = call(tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11), scale=0.3, known=False)
    result = measured(head, everywhere=True)
    [first, _] = result[c.RATIO.statistic]
    assert "the maps to keys and queries are unknown" in first.claim.note
    sequences, z = head.k[:, 0].repeat_interleave(TOKENS, dim=0), head.q[:, 0].flatten(0, 1)
    scores = torch.einsum("nmd,nd->nm", sequences, z)
    best = attention_svm(sequences, z, scores.argmax(dim=-1))
    assert best.W is not None
    cosine = float(best.W.trace() / best.W.norm() / np.sqrt(3))
    assert result[c.COSINE.statistic][0].value == pytest.approx(cosine, rel=1e-7)


def test_a_loss_shows_whether_the_selected_token_is_locally_optimal() -> None:
    head = max_margin_head(30.0)
    chosen = torch.einsum("bhnd,bhmd->bhnm", head.q, head.k).argmax(dim=-1)
    values = head.v.gather(2, chosen.unsqueeze(-1).expand(-1, -1, -1, WIDTH))
    centre = head.v.mean(dim=2, keepdim=True)
    # The loss falls most towards the selected value: it has the largest gain by far.
    result = measured(dataclasses.replace(head, out_gradient=-(values - centre) * 1e3))
    against = measured(dataclasses.replace(head, out_gradient=(values - centre) * 1e3))
    assert result[c.LOCAL.statistic][0].value > 0.9
    assert against[c.LOCAL.statistic][0].value < 0.1
    names = {x.name for x in result[c.LOCAL.statistic][0].controls}
    assert names == {c.EVERY_TOKEN.name, c.ANY_TOKENS.name}
    assert c.LOCAL.statistic not in measured(head)


def test_padding_and_masked_tokens_are_never_selected_or_compared() -> None:
    loud = tokens()
    loud[:, -1] *= 1e3
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    mask[:, -1] = False
    maps = normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11)
    masked = measured(call(loud, *maps, mask=mask.expand(INPUTS, 1, -1, -1)), everywhere=True)
    quiet = loud.clone()
    quiet[:, -1] = 0
    again = measured(call(quiet, *maps, mask=mask.expand(INPUTS, 1, -1, -1)), everywhere=True)
    for statistic in (c.RATIO.statistic, c.COSINE.statistic, c.SATURATION.statistic):
        assert [f.value for f in masked[statistic]] == pytest.approx([f.value for f in again[statistic]])
    seen = measured(call(loud, *maps))
    assert masked[c.COSINE.statistic][0].value != pytest.approx(seen[c.COSINE.statistic][0].value)


def test_findings_do_not_depend_on_how_inputs_were_batched() -> None:
    x = normal(12, 11, WIDTH, seed=17)
    maps = normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11)
    sampling = Sampling(inputs=3, queries=2, tokens=4, random=3, rotated=3, replacements=1)

    def values(sizes: list[int]) -> list[float]:
        measurement = Measured(make_theory(sampling=sampling))
        for part in torch.split(x, sizes):
            measurement.feed(call(part, *maps))
        result = [f for f in measurement.findings() if f.inputs]
        return [number for f in result for number in (f.value, *(control.value for control in f.controls))]

    assert values([12]) == pytest.approx(values([5, 4, 3]), rel=1e-9, nan_ok=True)
    assert len(values([12])) > 50


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bias": torch.zeros(1, 1, TOKENS, TOKENS)}, "a bias on the scores depends on positions"),
        ({"q": torch.full((INPUTS, HEADS, TOKENS, 3), torch.nan)}, "queries or keys are not finite"),
        ({"mask": torch.eye(TOKENS, dtype=torch.bool)[None, None]}, "no query sees 3 tokens"),
    ],
)
def test_reasons_why_the_theory_does_not_apply(change: dict[str, Tensor], reason: str) -> None:
    head = call(tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11))
    result = measured(dataclasses.replace(head, **change))
    for findings in result.values():
        assert all(f.verdict is Verdict.NOT_APPLICABLE and reason in f.reason for f in findings)


def test_a_call_without_maps_is_left_out_if_others_have_maps() -> None:
    head = call(tokens(), normal(HEADS, WIDTH, 3, seed=9), normal(HEADS, WIDTH, 3, seed=11))
    blind = dataclasses.replace(head, keys_from=None)
    mixed, alone = Measured(make_theory(sampling=EVERYTHING)), Measured(make_theory(sampling=EVERYTHING))
    for given in (head, blind, head):
        mixed.feed(given)
    for given in (head, head):
        alone.feed(given)
    for left_out, expected in zip(mixed.findings(), alone.findings(), strict=True):
        held_out = expected.claim.statistic == c.HELD_OUT.statistic
        # The last group is tested on the one before, which is left out.
        assert left_out.inputs == (0 if held_out else expected.inputs)
    assert {f.claim.note for f in mixed.findings()} == {f.claim.note for f in alone.findings()}


def test_too_few_inputs_are_named() -> None:
    measurement = Measured(make_theory())
    measurement.feed(call(tokens(), identity(), identity()))
    assert {f.reason for f in measurement.findings()} == {"fewer than 6 inputs, which make one group"}


def test_controls_can_be_left_out() -> None:
    head = max_margin_head(30.0)
    measurement = Measured(make_theory(sampling=EVERYTHING), controls=False)
    measurement.feed(head)
    result = measurement.findings()
    assert all(not f.controls for f in result)
    assert next(f.value for f in result if f.claim == c.RATIO) == pytest.approx(1, abs=1e-7)


def test_a_gram_matrix_with_a_negative_eigenvalue_of_rounding_is_inverted() -> None:
    """Cholesky refuses it; the exact matrix of collapsed tokens has the eigenvalue 0, which counts 1e-10."""
    unit, v = np.array([[1.0, 1 + 1e-9], [1 + 1e-9, 1.0]]), np.array([1.0, -1.0])
    assert np.linalg.eigvalsh(unit)[0] < -1e-10
    assert _inverse_form(unit, v) == pytest.approx(v @ v / 1e-10)
