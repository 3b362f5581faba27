"""Small models in double precision whose attention gradients can be computed in another way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.interfaces.test_torch_mha import RUNS
from tests.swap.models import IDENTITY

BATCH, TOKENS, WIDTH, HEADS = 3, 11, 14, 2


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module], Any]


def _family(name: str) -> Case:
    def inputs() -> dict[str, Any]:
        given = IDENTITY[name].inputs()
        return {k: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for k, x in given.items()}

    return Case(lambda: IDENTITY[name].make().double(), lambda model: model(**inputs()))


def _torch(name: str) -> Case:
    make, run, _ = RUNS[name]
    return Case(lambda: make().double().eval(), lambda model: run(_Cast(model)))


class _Cast:
    """A model called with every floating tensor in double precision."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*map(_double, args), **{name: _double(value) for name, value in kwargs.items()})


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


CASES = {
    **{name: _family(name) for name in ("bert", "albert", "gpt2", "llama", "vit", "mpnet", "t5", "whisper", "swin")},
    **{name: _family(name) for name in ("timm vit", "timm swin", "timm eva", "own vision transformer")},
    **{f"torch {name}": _torch(name) for name in RUNS},
}


class Layer(nn.Module):
    """Attention by torch's function, and an output map."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        mapped: Tensor = self.out(attended)
        return mapped


def layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(count))).double().eval()


def tokens(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def loss_of(output: Any) -> Tensor:
    """Return a loss that depends on every entry of the output with a different weight."""
    parts = [output] if isinstance(output, Tensor) else [x for x in output.values() if isinstance(x, Tensor)]
    weighted = (torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) * x for x in parts)
    return torch.stack([x.sin().mean() for x in weighted]).sum()
