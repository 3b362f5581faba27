"""Batches without inputs or without tokens: a capture changes nothing, and an audit refuses them with one line."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead._capture import capture
from clearhead.audit.fidelity import FidelityError
from clearhead.audit.run import audit
from clearhead.interfaces import AttentionSpec

TOKENS, WIDTH, HEADS = 11, 12, 3
EMPTY = {"no inputs": (0, TOKENS, WIDTH), "no tokens": (2, 0, WIDTH)}
SPEC = AttentionSpec(module="WrittenOut", q="query", k="key", v="value", out="output")


class WrittenOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.output(((q @ k.mT / 2).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Described(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = WrittenOut()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


class Calling(nn.Module):
    """Calls torch's function, with heads and inputs on one axis if `folded`."""

    def __init__(self, *, folded: bool) -> None:
        super().__init__()
        self.project, self.folded, self.num_heads = nn.Linear(WIDTH, 3 * WIDTH), folded, HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, 4)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        if self.folded:
            out = functional.scaled_dot_product_attention(*(part.flatten(0, 1) for part in (q, k, v)))
            out = out.unflatten(0, (len(x), HEADS))
        else:
            out = functional.scaled_dot_product_attention(q, k, v)
        return x + out.transpose(1, 2).flatten(2)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=7, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "torch MHA": _encoder,
    "SDPA": lambda: Calling(folded=False),
    "SDPA, folded heads": lambda: Calling(folded=True),
    "described": Described,
}


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("name", MODELS)
def test_empty_batches(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.zeros(shape)
    describe = [SPEC] if name == "described" else []
    with torch.no_grad():
        with capture(model, describe=describe) as captured:
            assert model(x).shape == shape
        (heads,) = captured.heads
        assert heads.q.shape == heads.k.shape == heads.out.shape == (shape[0], HEADS, shape[1], 4)
    full = torch.randn(2, TOKENS, WIDTH)
    for batches in ([x], [full, x]):
        with pytest.raises(FidelityError, match=r"attends over nothing \(queries .*\): a batch is empty; leave it out"):
            audit(model, batches, theories="symmetry", describe=describe)
