"""Layers with heads in the batch axis, and modules that do more than call their operator."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead import swap
from clearhead.modules import RPCAttention, ScaledAttention, SelfAttention, SymmetricAttention
from clearhead.operators import RPC, ClampedKeys, Scaled
from clearhead.operators.pursuit_options import Pursuit
from tests.swap.models import relative_error, run, trace

pytestmark = pytest.mark.filterwarnings("ignore::clearhead.SwapWarning")

BATCH, TOKENS, HEADS, WIDTH = 5, 7, 3, 33
# Iterations amplify rounding; the errors tested for are as large as the outputs.
ROUNDING = 1e-4


class Folded(nn.Module):
    """Heads in the batch axis, as in many older layers, or on an axis of their own."""

    def __init__(self, *, folded: bool = True, heads: int = HEADS) -> None:
        super().__init__()
        self.qkv, self.num_heads, self.folded = nn.Linear(WIDTH, 3 * WIDTH), heads, folded

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if mask is not None:
            mask = mask[:, None].expand(-1, self.num_heads, -1, -1)
        if not self.folded:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            shown = None if mask is None else mask.flatten(0, 1)
            q, k, v = (part.flatten(0, 1) for part in (q, k, v))
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
            out = out.unflatten(0, (-1, self.num_heads))
        return out.transpose(1, 2).flatten(2)


def _inputs(seed: int = 1) -> Tensor:
    return 2 * torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("make", [Folded, lambda: Folded(heads=1), lambda: SelfAttention(WIDTH)])
@pytest.mark.parametrize("operator", [RPC(), ClampedKeys()])
def test_inputs_of_a_batch_are_independent(make: Callable[[], nn.Module], operator: RPC | ClampedKeys) -> None:
    """mu of the presets is computed per head, and the batch axis is not a head axis."""
    torch.manual_seed(0)
    model, x = nn.Sequential(make()).eval(), _inputs()
    alone = run(model, {"input": x})
    swap(model, operator)
    whole = run(model, {"input": x})
    assert relative_error(alone, whole) > 1e-2
    for i in range(BATCH):
        assert relative_error([whole[0][i : i + 1]], run(model, {"input": x[i : i + 1]})) < ROUNDING


@pytest.mark.parametrize("masked", [False, True])
def test_heads_folded_into_the_batch_are_separated(masked: bool) -> None:
    mask = torch.rand(BATCH, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) > 0.4 if masked else None
    for operator in (RPC(), Scaled(form="matrix", num_tokens=TOKENS, num_heads=HEADS)):
        folded, plain = Folded().eval(), Folded(folded=False).eval()
        plain.load_state_dict(folded.state_dict())
        for model in (folded, plain):
            swap(model, operator)
        for name, value in plain.named_parameters():
            if name.startswith("clearhead"):
                nn.init.normal_(value, generator=torch.Generator().manual_seed(4))
        folded.load_state_dict(plain.state_dict())
        inputs = {"x": _inputs(), "mask": mask}
        assert relative_error(run(folded, inputs), run(plain, inputs)) < ROUNDING


class Windowed(nn.Module):
    """Heads before windows, as in Hiera, or after."""

    def __init__(self, *, heads_first: bool = True) -> None:
        super().__init__()
        self.qkv, self.num_heads, self.heads_first = nn.Linear(WIDTH, 3 * WIDTH), HEADS, heads_first

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(2, 3) for part in self.qkv(x).chunk(3, dim=-1))
        if not self.heads_first:
            shown = None if mask is None else mask[:, None]
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        else:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        return out.transpose(2, 3).flatten(3)


@pytest.mark.parametrize("masked", [False, True])
def test_windows_are_not_treated_as_heads(masked: bool) -> None:
    x = _inputs()[None].expand(2, -1, -1, -1) * torch.tensor([1.0, 1.5])[:, None, None, None]
    mask = torch.rand(BATCH, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) > 0.4 if masked else None
    ours, plain = Windowed().eval(), Windowed(heads_first=False).eval()
    plain.load_state_dict(ours.state_dict())
    for model in (ours, plain):
        swap(model, RPC())
    assert relative_error(run(ours, {"x": x, "mask": mask}), run(plain, {"x": x, "mask": mask})) < ROUNDING


OWN: dict[str, Callable[[], nn.Module]] = {
    "rpc": lambda: RPCAttention(WIDTH, num_heads=HEADS),
    "rpc, with queries": lambda: RPCAttention(WIDTH, num_heads=HEADS, queries="given", learned_mu=0.7),
    "scaled": lambda: ScaledAttention(WIDTH, num_heads=HEADS, form="symmetric"),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("alone", [False, True])
def test_an_operator_replaces_all_of_the_modules_attention(name: str, alone: bool) -> None:
    torch.manual_seed(0)
    own = OWN[name]()
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    same = SymmetricAttention(WIDTH, num_heads=HEADS).eval()
    same.load_state_dict({key: value for key, value in own.state_dict().items() if key in same.state_dict()})
    model, x = (own if alone else nn.Sequential(own)).eval(), {"x" if alone else "input": _inputs()}
    before, recorded = run(model, x), trace(model)
    with swap(model, "symmetric") as done:
        assert relative_error(run(same, {"x": _inputs()}), run(model, x)) < ROUNDING
        assert list(done.calls.values()) == [1]
        assert relative_error(before, run(model, x)) > 1e-2
    assert trace(model) == recorded
    assert torch.equal(before[0], run(model, x)[0])


def test_queries_and_dropout_of_a_pursuit_reach_the_operator() -> None:
    torch.manual_seed(0)
    layer = RPCAttention(WIDTH, num_heads=HEADS, queries="given", pursuit=Pursuit(iterations=1), dropout=0.5)
    with swap(layer, RPC(pursuit=Pursuit(iterations=1), queries="given")):
        inside = layer.eval()(_inputs())
        one, other = layer.train()(_inputs()), layer(_inputs())
    assert torch.equal(inside, layer.eval()(_inputs()))
    assert not torch.equal(one, other)
