"""How good selected tokens are, on cases small enough to see."""

import torch

from clearhead.theories.max_margin.optimality import correlation, globally_optimal, locally_optimal, saturated
from tests.experiments.svm.descent.made_tasks import drawn

SCORES = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]).double()


def test_global_optimality_asks_for_the_best_everywhere() -> None:
    chosen = torch.tensor([[0, 1], [0, 2], [1, 1]])
    assert globally_optimal(SCORES.expand(3, 2, 3), chosen).tolist() == [True, False, False]
    tied = SCORES.clone()
    tied[1, 2] = 5.0
    assert bool(globally_optimal(tied, torch.tensor([0, 2])))


def test_local_optimality_asks_support_tokens_alone() -> None:
    chosen = torch.tensor([0, 2])
    support = torch.tensor([[False, True, True], [True, False, False]])
    assert bool(locally_optimal(SCORES, chosen, support))
    assert not bool(locally_optimal(SCORES, chosen, support | torch.tensor([[False] * 3, [False, True, False]])))
    equal = SCORES.clone()
    equal[0, 1] = 3.0
    assert not bool(locally_optimal(equal, chosen, support))
    # What is global is local, whatever the support is.
    others = torch.tensor([[False, True, True], [True, False, True]])
    assert bool(locally_optimal(SCORES, torch.tensor([0, 1]), others))


def test_correlation_is_a_cosine() -> None:
    W, other = drawn(3, 5, 7, seed=0), drawn(3, 5, 7, seed=1)
    assert torch.allclose(correlation(W, 2 * W), torch.ones(3).double())
    assert torch.allclose(correlation(W, -W), -torch.ones(3).double())
    expected = torch.nn.functional.cosine_similarity(W.flatten(1), other.flatten(1))
    assert torch.allclose(correlation(W, other), expected)
    assert bool(correlation(W, torch.zeros_like(W)).isnan().all())


def test_saturation_asks_every_sequence() -> None:
    attention = torch.tensor([[[0.995, 0.005], [0.0, 1.0]], [[0.9, 0.1], [0.0, 1.0]]]).double()
    assert saturated(attention).tolist() == [True, False]
    assert saturated(attention, least=0.8).tolist() == [True, True]
