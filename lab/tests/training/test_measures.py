"""Perplexity of a language model and overlap of masks."""

import math

import pytest
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead_lab.training.evaluation import Overlap, measure_overlap, measure_perplexity


class LastTwo(nn.Module):
    """A language model whose scores depend on the token and on the sum of the context."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(11, 11, generator=torch.Generator().manual_seed(1)))
        self.modes: list[bool] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.modes.append(self.training)
        return self.scores[tokens] + self.scores[tokens.cumsum(dim=1) % 11]


@pytest.mark.parametrize("length", [2, 5, 6, 23])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_perplexity_predicts_every_token_once(length: int, stride: int) -> None:
    model, context = LastTwo().train(), 5
    tokens = torch.randint(0, 11, (length,), generator=torch.Generator().manual_seed(2))
    total, done = 0.0, 1
    starts = [*range(0, max(length - context, 1), stride), max(length - 1 - context, 0)]
    for start in starts:
        window = tokens[start : start + context]
        logs = model(window[None])[0].log_softmax(dim=-1)
        for position in range(done, min(start + context, length - 1) + 1):
            total -= float(logs[position - start - 1, tokens[position]].double())
            done = position + 1
    assert done == length
    model.modes.clear()
    measured = measure_perplexity(model, tokens, context=context, stride=stride, batch_size=3)
    assert measured == pytest.approx(math.exp(total / (length - 1)), rel=1e-5)
    assert model.training
    assert not any(model.modes)


def test_uniform_scores_have_the_perplexity_of_the_vocabulary() -> None:
    model = LastTwo()
    nn.init.zeros_(model.scores)
    assert measure_perplexity(model, torch.arange(11), context=4) == pytest.approx(11)
    with pytest.raises(InputError, match="expected a stride from 1 to the context of 4"):
        measure_perplexity(model, torch.arange(11), context=4, stride=5)


def test_targets_are_predicted_from_the_tokens_before_them() -> None:
    model = LastTwo().eval()
    generator = torch.Generator().manual_seed(4)
    tokens, targets = (torch.randint(0, 11, (7,), generator=generator) for _ in range(2))
    logs = model(tokens[None, :6])[0].log_softmax(dim=-1).double()
    expected = math.exp(-float(logs[torch.arange(6), targets[1:]].mean()))
    assert measure_perplexity(model, tokens, context=6, targets=targets) == pytest.approx(expected, rel=1e-5)
    assert measure_perplexity(model, tokens, context=6, targets=tokens) != pytest.approx(expected, rel=1e-2)
    with pytest.raises(InputError, match=r"as many targets as tokens; got \(6,\) and \(7,\)"):
        measure_perplexity(model, tokens, context=6, targets=targets[1:])


def test_overlap_is_intersection_over_union() -> None:
    truth = torch.tensor([[0, 0, 1, 1, 1, 255], [1, 0, 2, 2, 0, 255]])
    predicted = torch.tensor([[0, 1, 1, 1, 0, 2], [1, 0, 2, 1, 0, 0]])
    scores = nn.functional.one_hot(predicted, 4).permute(0, 2, 1)[:, :, None].float()
    overlap = measure_overlap(nn.Identity(), [(scores[:1], truth[:1, None]), (scores[1:], truth[1:, None])], classes=4)
    assert overlap.by_class[:3].tolist() == pytest.approx([3 / 5, 3 / 6, 1 / 2])
    assert math.isnan(float(overlap.by_class[3]))
    assert overlap.mean == pytest.approx((3 / 5 + 3 / 6 + 1 / 2) / 3)
    assert overlap.pixel_accuracy == pytest.approx(7 / 10)
    assert overlap.mean_accuracy == pytest.approx((3 / 4 + 3 / 4 + 1 / 2) / 3)
    majority = overlap.of_majority()
    assert majority.by_class[:3].tolist() == pytest.approx([4 / 10, 0, 0])
    assert majority.pixel_accuracy == pytest.approx(4 / 10)
    assert Overlap(counts=torch.eye(3, dtype=torch.int64)).mean == 1
