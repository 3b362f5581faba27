"""Attention with values by theorem: its heads, masks and gradients."""

import pytest
import torch
from torch import nn

from clearhead.modules import KernelPCAAttention
from clearhead.operators.kernel_pca import kernel_pca
from clearhead.operators.kernel_pca_attention import kernel_pca_attention, slow_kernel_pca_attention
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import ShapeError
from tests.modules.drawing import boolean, differ, normal, randomised, require_same


def test_each_head_is_kernel_pca_of_its_own_queries_and_keys() -> None:
    layer = randomised(KernelPCAAttention(11, num_heads=3, head_dim=5, axes=2, kdim=7, out_dim=13))
    query, key = normal(2, 6, 11), normal(2, 17, 7, seed=1)
    q, k = layer.query(query), layer.key(key)
    parts = [slice(5 * i, 5 * i + 5) for i in range(3)]
    for options in ({}, {"mask": boolean(2, 3, 6, 17)}):
        mask = options.get("mask", torch.ones(2, 3, 6, 17, dtype=torch.bool))
        heads = [
            slow_kernel_pca_attention(q[..., part], k[..., part], axes=2, mask=mask[:, i])
            for i, part in enumerate(parts)
        ]
        require_same(layer(query, key, **options), layer.out(torch.cat(heads, dim=-1)))
    assert layer(query, key).shape == (2, 6, 13)


def test_options_reach_the_operator() -> None:
    x = normal(2, 13, 11)
    plain = randomised(KernelPCAAttention(11, num_heads=1))
    q, k = plain.query(x), plain.key(x)
    assert plain.axes == 11
    for options in ({"scale": 0.2}, {"axis_norm": "eigenvector"}, {"center_queries": True}, {}):
        layer = randomised(KernelPCAAttention(11, num_heads=1, **options))
        require_same(layer(x), layer.out(kernel_pca_attention(q, k, axes=11, **options)))
        assert not options or differ(layer(x), plain(x))


def test_the_module_has_no_value_projection() -> None:
    names = [name for name, _ in KernelPCAAttention(12, num_heads=3, bias=False, out_bias=False).named_parameters()]
    assert names == ["query.weight", "key.weight", "out.weight"]


def test_permuted_tokens_give_permuted_outputs_unless_masked_causally() -> None:
    layer, x = randomised(KernelPCAAttention(11, num_heads=2, head_dim=5, axes=3)), normal(2, 13, 11)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    require_same(layer(x[:, order]), layer(x)[:, order])
    assert differ(layer(x[:, order], causal=True), layer(x, causal=True)[:, order])


def test_causal_rows_depend_on_their_prefix_and_not_on_padding() -> None:
    layer, x = randomised(KernelPCAAttention(11, num_heads=2, head_dim=5, axes=3)), normal(2, 7, 11)
    causal = layer(x, causal=True)
    for i in (1, 3, 6):
        require_same(causal[:, i], layer(x[:, : i + 1])[:, -1])
    key_mask = torch.arange(7) < torch.tensor([[5], [5]])
    require_same(layer(x, key_mask=key_mask)[:, :5], layer(x[:, :5]))
    assert differ(layer(x, key_mask=key_mask), layer(x))
    require_same(layer(x, key_mask=torch.zeros_like(key_mask)), layer.out.bias.expand(2, 7, -1))


def test_axes_have_gradients_only_if_learned() -> None:
    x, learned = normal(2, 13, 11), {}
    for learn_axes in (False, True):
        layer = randomised(KernelPCAAttention(11, num_heads=1, axes=3, learn_axes=learn_axes))
        layer(x).square().sum().backward()
        learned[learn_axes] = layer.query.weight.grad, layer.key.weight.grad
    require_same(learned[False][0], learned[True][0])
    assert differ(learned[False][1], learned[True][1])
    layer.zero_grad()
    values = kernel_pca(layer.key(x), axes=3).values
    layer.out(softmax_attention(layer.query(x), layer.key(x), values)).square().sum().backward()
    require_same(learned[False][1], layer.key.weight.grad)


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(KernelPCAAttention(8, num_heads=2, axes=3, learn_axes=True), nn.LayerNorm(8), nn.Linear(8, 1))
    x = normal(32, 7, 8).float()
    target = x[..., :1].square()
    optimiser = torch.optim.Adam(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]


def test_bad_input_raises_an_error(typechecked: bool) -> None:
    with pytest.raises(ValueError, match="head_dim, or num_heads that divides embed_dim; got 3 and 11"):
        KernelPCAAttention(11, num_heads=3)
    with pytest.raises(ValueError, match=r"sizes of one or more; got .*axes 0"):
        KernelPCAAttention(11, num_heads=1, axes=0)
    if typechecked:
        pytest.skip("the import hook refuses what follows before the module can")
    layer = KernelPCAAttention(11, num_heads=1).double()
    with pytest.raises(ShapeError, match=r"query \(\.\.\., tokens, 11\)"):
        layer(normal(2, 5, 7))
    with pytest.raises(ShapeError, match=r"mask to broadcast to \(2, 1, 5, 5\); got mask \(3, 5\)"):
        layer(normal(2, 5, 11), mask=boolean(3, 5))
