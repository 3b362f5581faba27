"""Optimality of selected tokens, on small cases."""

import torch

from clearhead_lab.theorems.max_margin.convergence import correlation, globally_optimal, locally_optimal, saturated
from tests.theories.max_margin.problems import normal

SCORES = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]).double()


def test_globally_optimal_tokens_are_the_best_in_every_sequence() -> None:
    chosen = torch.tensor([[0, 1], [0, 2], [1, 1]])
    assert globally_optimal(SCORES.expand(3, 2, 3), chosen).tolist() == [True, False, False]
    tied = SCORES.clone()
    tied[1, 2] = 5.0
    assert bool(globally_optimal(tied, torch.tensor([0, 2])))


def test_local_optimality_compares_with_support_tokens_only() -> None:
    chosen = torch.tensor([0, 2])
    support = torch.tensor([[False, True, True], [True, False, False]])
    assert bool(locally_optimal(SCORES, chosen, support))
    assert not bool(locally_optimal(SCORES, chosen, support | torch.tensor([[False] * 3, [False, True, False]])))
    equal = SCORES.clone()
    equal[0, 1] = 3.0
    assert not bool(locally_optimal(equal, chosen, support))
    # Globally optimal tokens are locally optimal for any support.
    others = torch.tensor([[False, True, True], [True, False, True]])
    assert bool(locally_optimal(SCORES, torch.tensor([0, 1]), others))


def test_correlation_is_a_cosine() -> None:
    W, other = normal(3, 5, 7, seed=0), normal(3, 5, 7, seed=1)
    assert torch.allclose(correlation(W, 2 * W), torch.ones(3).double())
    assert torch.allclose(correlation(W, -W), -torch.ones(3).double())
    expected = torch.nn.functional.cosine_similarity(W.flatten(1), other.flatten(1))
    assert torch.allclose(correlation(W, other), expected)
    assert bool(correlation(W, torch.zeros_like(W)).isnan().all())


def test_attention_is_saturated_if_every_sequence_is() -> None:
    attention = torch.tensor([[[0.995, 0.005], [0.0, 1.0]], [[0.9, 0.1], [0.0, 1.0]]]).double()
    assert saturated(attention).tolist() == [True, False]
    assert saturated(attention, threshold=0.8).tolist() == [True, True]
