"""Other models that call torch's fused attention."""

import sys
import types

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead._capture import capture
from clearhead.audit.fidelity import FidelityError, check_fidelity, replaced
from tests.interfaces.zoo import with_large_weights

BATCH, TOKENS, WIDTH, HEADS = 3, 12, 24, 4


class Own(nn.Module):
    """Attention without a description, with heads in the given layout."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.layout = layout
        self.num_heads = 1 if layout == "three axes" else HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.laid_out(part) for part in self.project(x).chunk(3, dim=-1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.layout != "windows")

    def laid_out(self, x: Tensor) -> Tensor:
        if self.layout == "two axes":
            return x[0]
        if self.layout == "three axes":
            return x
        heads = x.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2)
        if self.layout == "heads in the batch":
            return heads.flatten(0, 1)
        if self.layout == "windows":
            return heads.reshape(BATCH, HEADS, 2, TOKENS // 2, -1)
        return heads


def _x() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("two axes", (1, 1, TOKENS, WIDTH)),
        ("three axes", (BATCH, 1, TOKENS, WIDTH)),
        ("heads in the batch", (BATCH, HEADS, TOKENS, WIDTH // HEADS)),
        ("four axes", (BATCH, HEADS, TOKENS, WIDTH // HEADS)),
        ("windows", (BATCH * 2, HEADS, TOKENS // 2, WIDTH // HEADS)),
    ],
)
def test_operands_of_two_to_five_axes_are_captured(layout: str, shape: tuple[int, ...]) -> None:
    model = with_large_weights(Own(layout))
    with torch.no_grad():
        check_fidelity(model, lambda: model(_x()))
        with capture(model) as captured:
            model(_x())
    assert tuple(captured.heads[0].q.shape) == shape
    assert captured.heads[0].windows == (2 if layout == "windows" else 1)


@pytest.mark.parametrize("layout", ["heads in the batch", "four axes", "windows"])
def test_a_replaced_output_has_the_layout_of_the_original(layout: str) -> None:
    """Heads and windows are distinguished: each is multiplied by its own constant."""
    model = with_large_weights(Own(layout))
    with torch.no_grad():
        original = model(_x())
        with replaced(model, lambda heads: heads.out * torch.arange(1, HEADS + 1).view(1, HEADS, 1, 1)):
            scaled = model(_x())
    factor = (scaled / original).reshape(BATCH, HEADS, -1)
    assert torch.allclose(factor, torch.arange(1.0, HEADS + 1).view(1, HEADS, 1).expand_as(factor))


def test_grouped_query_heads_are_repeated() -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 5, generator=generator) for h, n in ((6, 7), (2, 11), (2, 11)))
    model = Grouped()
    with torch.no_grad(), capture(model) as captured:
        model(q, k, v)
    heads = captured.heads[0]
    assert heads.groups == 3
    assert torch.equal(heads.k, k.repeat_interleave(3, dim=1))


def test_a_function_imported_by_name_is_captured() -> None:
    file = types.ModuleType("somebodys_model")
    exec(
        "from torch import nn\nfrom torch.nn.functional import scaled_dot_product_attention\n"
        "class Model(nn.Module):\n    def forward(self, x): return scaled_dot_product_attention(x, x, x)\n",
        file.__dict__,
    )
    sys.modules["somebodys_model"] = file
    try:
        before = file.scaled_dot_product_attention
        model = file.Model()
        with torch.no_grad():
            assert len(check_fidelity(model, lambda: model(_x())).layers) == 1
        assert file.scaled_dot_product_attention is before is functional.scaled_dot_product_attention
    finally:
        del sys.modules["somebodys_model"]


def test_calls_of_other_models_are_not_captured() -> None:
    model, other = with_large_weights(Own("four axes")), with_large_weights(Own("four axes"))
    with torch.no_grad(), capture(model) as captured:
        other(_x())
        model(_x())
    assert len(captured.heads) == 1


def test_a_model_that_ignores_its_attention_raises_an_error() -> None:
    class Ignores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            functional.scaled_dot_product_attention(x, x, x)
            return 2 * x

    model = Ignores()
    with pytest.raises(FidelityError, match="does not change the output"):
        check_fidelity(model, lambda: model(_x()))


def test_running_another_model_raises_an_error() -> None:
    model, other = with_large_weights(Own("four axes")), with_large_weights(Own("four axes"))
    with pytest.raises(FidelityError, match="does not call the model"), torch.no_grad():
        check_fidelity(model, lambda: other(_x()))


def test_a_nondeterministic_model_raises_an_error() -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x, x) + torch.rand(())

    model = Random()
    with pytest.raises(FidelityError, match="is it random"):
        check_fidelity(model, lambda: model(_x()))
