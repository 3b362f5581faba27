"""Tasks from seeds: the order of draws fixes them, so it is written out here once more."""

import torch

from clearhead_lab.experiments.svm.descent.attention_task import LinearHead, ReluHead
from clearhead_lab.experiments.svm.descent.tasks import draw_relu_tasks, draw_small_start, draw_start, draw_tasks

N, T, D = 3, 5, 7


def test_linear_tasks_are_drawn_in_the_order_of_the_source() -> None:
    task = draw_tasks([11, 4], n=N, t=T, d=D)
    g = torch.Generator().manual_seed(4)
    v, y, x, z = (torch.randn(shape, generator=g) for shape in ((D,), (N,), (N, T, D), (N, D)))
    assert isinstance(task.head, LinearHead)
    expected = (v / v.norm(), y.sign(), x / x.norm(dim=-1, keepdim=True), z / z.norm(dim=-1, keepdim=True))
    numbers = (task.head.v, task.labels, task.tokens, task.queries)
    for ours, theirs in zip(numbers, expected, strict=True):
        assert ours.dtype is torch.float64
        assert torch.equal(ours[1], theirs.double())
        assert not torch.equal(ours[0], ours[1])


def test_tasks_with_a_relu_head_are_too() -> None:
    task = draw_relu_tasks([4], n=N, t=T, d=D)
    g = torch.Generator().manual_seed(4)
    V, x, y, z = (torch.randn(shape, generator=g) for shape in ((D, D), (N, T, D), (N,), (N, D)))
    assert isinstance(task.head, ReluHead)
    expected = (V / V.norm(), x / x.norm(dim=-1, keepdim=True), y.sign(), z / z.norm(dim=-1, keepdim=True))
    numbers = (task.head.V, task.tokens, task.labels, task.queries)
    for ours, theirs in zip(numbers, expected, strict=True):
        assert torch.equal(ours[0], theirs.double())


def test_starts_do_not_repeat_the_task() -> None:
    first, second = draw_start([4, 5], (D, D), (D, 3))
    assert first.shape == (2, D, D)
    assert second.shape == (2, D, 3)
    assert first.abs().max() <= D**-0.5
    assert first.abs().max() > 0.9 * D**-0.5
    assert torch.equal(draw_start([5], (D, D))[0][0], first[1])
    assert not torch.equal(first[0], first[1])
    keys, queries = draw_small_start([4, 5], (D, D))
    assert not queries.any()
    assert 0.05 < float(keys.std()) < 0.2
