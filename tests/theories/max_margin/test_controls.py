"""The controls of heads, computed by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from clearhead.audit.findings import Finding
from clearhead.heads import Heads
from clearhead.theories.max_margin import attention_svm, make_theory
from clearhead.theories.max_margin import claims as c
from clearhead.theories.max_margin.on_heads.choices import MODEL, RANDOM, SATURATED, Choice, Sampling, choices_of
from clearhead.theories.max_margin.on_heads.evidence import Replacement, draw_replacements, group_samples
from clearhead.theories.max_margin.on_heads.other_norms import Matrices
from clearhead.theories.max_margin.on_heads.random_heads import space_of
from clearhead.theories.theory import Claim
from tests.measured import Measured
from tests.theories.max_margin.synthetic_heads import WIDTH, call, examples_of, matrix, normal, untrained_heads

INPUTS, TOKENS, HEADS = 3, 5, 3
SAMPLING = Sampling(inputs=INPUTS, queries=TOKENS, further=0, tokens=TOKENS, random=2, rotated=2, replacements=1)


def layer(*, size: float = 30.0, seed: int = 3, mask: Tensor | None = None, known: bool = True) -> Heads:
    x = normal(INPUTS, TOKENS, WIDTH, seed=seed)
    left, right = normal(HEADS, WIDTH, WIDTH, seed=9), normal(HEADS, WIDTH, WIDTH, seed=11)
    return call(x, left, size * right, mask=mask, known=known)


def choices(heads: Heads, sampling: Sampling = SAMPLING) -> list[Choice]:
    generators = [np.random.default_rng(index) for index in range(INPUTS)]
    by_input = choices_of(
        examples_of(heads), space_of(heads), generators, sampling, untrained=untrained_heads(heads, sampling)
    )
    return [choice for of_input in by_input for choice in of_input.measured]


def tokens_and_queries(group: list[Choice]) -> tuple[Tensor, Tensor]:
    """Return the sampled tokens (n, T, c), all of them here, and the queries (n, c)."""
    return (
        torch.from_numpy(np.stack([choice.x[0, : choice.sample_size] for choice in group])),
        torch.from_numpy(np.stack([choice.z[0] for choice in group])),
    )


def selection(group: list[Choice], h: int) -> Tensor:
    return torch.tensor([int(choice.selected[MODEL][0, h]) for choice in group])


def samples(group: list[Choice], heads: Heads, *, before: list[Choice] | None = None, shift: int = 1) -> dict:
    replacement = Replacement(np.zeros(len(group), dtype=int), np.roll(np.arange(len(group)), 4), 0, shift)
    return group_samples(
        group,
        before or [],
        [replacement],
        Matrices(space_of(heads), untrained_heads(heads, SAMPLING).random),
        wants=lambda *claims: True,
    )


def test_queries_of_other_sequences_replace_the_query_in_the_problem_and_in_the_scores() -> None:
    heads = layer()
    group = choices(heads)
    x, z = tokens_and_queries(group)
    other = z.roll(4, dims=0)
    for h in range(HEADS):
        W, selected = matrix(heads, h), selection(group, h)
        best = attention_svm(x, other, selected).W
        assert best is not None
        scores = torch.einsum("nmc,ce,ne->nm", x, W, other)
        margins = scores.gather(1, selected[:, None]) - scores
        margins[torch.arange(len(x)), selected] = torch.inf
        ratio = float(margins.min() / W.norm() * best.norm())
        assert samples(group, heads)[c.RATIO].controls[c.OTHER_QUERIES][0, h] == pytest.approx(ratio, rel=1e-6)


def test_matrix_of_another_head_is_compared_with_the_svm_of_the_heads_own_selection() -> None:
    heads = layer()
    group = choices(heads)
    x, z = tokens_and_queries(group)
    for shift in (1, 2):
        measured = samples(group, heads, shift=shift)
        for h in range(HEADS):
            best = attention_svm(x, z, selection(group, h)).W
            assert best is not None
            W = matrix(heads, (h + shift) % HEADS)
            cosine = float((W * best).sum() / W.norm() / best.norm())
            assert measured[c.COSINE].controls[c.OTHER_HEAD][0, h] == pytest.approx(cosine, rel=1e-6)
            assert measured[c.RATIO].controls[c.OTHER_HEAD][0, h] < 0  # it selects other tokens
    assert c.OTHER_HEAD not in measured[c.HELD_OUT].controls
    # Without maps every head has the same W, s times the identity, on keys and queries of its own.
    blind = layer(known=False)
    assert c.OTHER_HEAD not in samples(choices(blind), blind)[c.COSINE].controls


def test_every_other_head_is_drawn_and_never_the_head_itself() -> None:
    group, generator = choices(layer()), np.random.default_rng(0)
    drawn = {replacement.other_head for replacement in draw_replacements(group, 40, generator)}
    assert drawn == {1, 2}


def test_random_heads_saturate_at_the_norm_of_the_head() -> None:
    """At their own norm these random heads would not saturate: the head's is 30 times as large."""
    heads = layer()
    group, space = choices(heads), space_of(heads)
    x, z = tokens_and_queries(group)
    shares = set()
    for draw, W in enumerate(Matrices(space, untrained_heads(heads, SAMPLING).random).random_heads()):
        for h in range(HEADS):
            scaled = torch.from_numpy(W) * float(space.norms()[h]) / float(np.linalg.norm(W))
            largest = torch.einsum("nmc,ce,ne->nm", x, scaled, z).softmax(dim=-1).amax(dim=-1)
            expected = (largest > SATURATED).numpy()
            assert [bool(choice.saturated[RANDOM][draw, h]) for choice in group] == expected.tolist()
            shares.add(float(expected.mean()))
            own = torch.einsum("nmc,ce,ne->nm", x, torch.from_numpy(W), z).softmax(dim=-1).amax(dim=-1) > SATURATED
            assert float(own.double().mean()) < float(expected.mean())
    assert max(shares) > 0.5


def test_tokens_that_one_head_does_not_see_are_left_out_for_all() -> None:
    mask = torch.ones(INPUTS, HEADS, TOKENS, TOKENS, dtype=torch.bool)
    mask[:, 1, :, 2] = False
    mask[:, 2, :, 4] = False
    for choice in choices(layer(mask=mask)):
        assert set(choice.positions.tolist()) == {0, 1, 3}
        assert choice.length == 3


def test_held_out_selection_is_tested_on_the_previous_group() -> None:
    heads, earlier = layer(), layer(seed=5)
    group, before = choices(heads), choices(earlier)
    value = samples(group, heads, before=before)[c.HELD_OUT].value
    x, z = tokens_and_queries(group)
    x_before, z_before = tokens_and_queries(before)
    for h in range(HEADS):
        best = attention_svm(x, z, selection(group, h)).W
        assert best is not None
        chosen = torch.einsum("nmc,ce,ne->nm", x_before, best, z_before).argmax(dim=-1)
        share = float((chosen == selection(before, h)).double().mean())
        assert value[h] == pytest.approx(share)
        assert share < 1  # on its own group the SVM selects every token
    assert np.isnan(samples(group, heads)[c.HELD_OUT].value).all()


def findings(heads: list[Heads], claim: Claim) -> list[Finding]:
    measurement = Measured(make_theory(sampling=SAMPLING))
    for given in heads:
        measurement.feed(given)
    return [finding for finding in measurement.findings() if finding.claim.statistic == claim.statistic]


@pytest.mark.parametrize("known", [True, False])
def test_problems_are_solved_for_heads_with_enough_saturated_queries(known: bool) -> None:
    loud, quiet = layer(known=known), layer(size=1e-3, known=known)
    own = {c.ROTATED_HEAD.name, c.OTHER_TOKENS.name, c.OTHER_POSITIONS.name, c.OTHER_QUERIES.name}
    for finding in findings([loud], c.RATIO):
        assert {control.name for control in finding.controls if np.isfinite(control.value)} >= own
    for finding in findings([quiet], c.RATIO):
        assert np.isnan(finding.value)
        assert not any(np.isfinite(control.value) for control in finding.controls)
    for finding in findings([quiet], c.SATURATION):
        assert np.isfinite(finding.value)
        assert {control.name for control in finding.controls} == {c.RANDOM_HEAD.name, c.ROTATED_HEAD.name}


def test_default_audit_draws_at_least_sixteen_heads_of_each_kind() -> None:
    sampling = Sampling()
    assert min(sampling.random, sampling.rotated) >= 16
    heads = layer()
    group = choices(heads, dataclasses.replace(SAMPLING, random=sampling.random, rotated=sampling.rotated))
    for claim in (c.RATIO, c.COSINE_SPAN, c.COSINE_NUCLEAR):
        drawn = samples_with(group, heads, sampling)[claim].controls[c.RANDOM_HEAD]
        assert np.isfinite(drawn).all()
        assert len(np.unique(drawn[:, 0])) >= 16


def samples_with(group: list[Choice], heads: Heads, sampling: Sampling) -> dict:
    matrices = Matrices(space_of(heads), untrained_heads(heads, sampling).random)
    return group_samples(group, [], [], matrices, wants=lambda *claims: True)
