"""The interface of Clearhead's own modules: each call is captured once, with or without the kernel."""

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.modules import SubspaceAttention, SymmetricAttention
from clearhead.operators.symmetric import symmetric_attention
from tests.operators.paths import PATHS, forced


class Both(nn.Module):
    """One module of each kind; the first is called twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = SubspaceAttention(12, num_heads=3), SymmetricAttention(12, num_heads=2)
        self.last = nn.Identity()

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        x = x + self.first(x, key_mask=key_mask)
        x = x + self.second(x, causal=True)
        return self.last(x + self.first(x, key_mask=key_mask))


def _x() -> Tensor:
    return torch.randn(5, 13, 12, generator=torch.Generator().manual_seed(1))


def _trace(model: nn.Module) -> object:
    return [(sorted(m.__dict__), id(m.__dict__.get("operator")), len(m._forward_hooks)) for m in model.modules()]


@pytest.mark.parametrize("path", PATHS)
def test_every_call_is_captured_once_and_outputs_are_bit_identical(path: str) -> None:
    model, x = Both().eval(), _x()
    seen = torch.arange(13) < torch.tensor([13, 7, 11, 3, 5])[:, None]
    with torch.no_grad(), forced(path):
        alone = model(x, key_mask=seen)
        with capture(model) as captured:
            assert torch.equal(model(x, key_mask=seen), alone)
    assert [heads.name for heads in captured.heads] == ["first", "second", "first, call 2"]
    assert [heads.q.shape[1] for heads in captured.heads] == [3, 2, 3]
    for heads in captured.heads:
        assert torch.equal(heads.q, heads.k)
        assert torch.equal(heads.v, heads.k) is heads.name.startswith("first")
        assert heads.mask is not None


@pytest.mark.parametrize("raises", [False, True])
def test_the_model_is_unchanged_afterwards(raises: bool) -> None:
    model = Both().eval()
    before = _trace(model)
    if raises:
        handle = model.last.register_forward_pre_hook(
            lambda *_: (_ for _ in ()).throw(RuntimeError("broken on purpose"))
        )
        with pytest.raises(RuntimeError, match="broken on purpose"), torch.no_grad(), capture(model):
            model(_x())
        handle.remove()
    else:
        with torch.no_grad(), capture(model):
            model(_x())
            assert _trace(model) != before
    assert _trace(model) == before
    assert model.first.operator is symmetric_attention
